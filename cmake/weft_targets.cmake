# Targets of the project, one way for each kind.
#
#   weft_library(io SOURCES a.cc DEPS weft::tensor)            -> weft_io, alias weft::io
#   weft_kernel(rms_norm SOURCES a.cc SIMD b_simd.cc ISAS avx2 avx512 [DEPS ...])
#       SIMD files are compiled once per ISA, with that ISA's flags and WEFT_ISA defined to its name; SIMD_BF16 files for
#       avx512_bf16 alone
#   weft_test(io_test SOURCES a_test.cc DEPS weft::io LABELS unit)

set(WEFT_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter)
if(WEFT_WERROR)
  list(APPEND WEFT_WARNINGS -Werror)
endif()

# Flags of every ISA level above plain x86-64 (base/cpu.h). Nothing else may be compiled with such flags.
set(WEFT_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(WEFT_ISA_FLAGS_avx512 ${WEFT_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd
                          -mprefer-vector-width=512)
set(WEFT_ISA_FLAGS_avx512_vbmi ${WEFT_ISA_FLAGS_avx512} -mavx512vbmi -mavx512vnni)
set(WEFT_ISA_FLAGS_avx512_bf16 ${WEFT_ISA_FLAGS_avx512_vbmi} -mavx512bf16)

function(weft_flags target)
  # No contraction: a multiply and an add become one rounding only where the source says fma (docs/numerics.md).
  target_compile_options(${target} PRIVATE ${WEFT_WARNINGS} -ffp-contract=off)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  if(WEFT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${WEFT_SANITIZE})
  endif()
  if(WEFT_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# For code that spends its time in libraries: builds sooner.
function(weft_quick_to_build target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

function(weft_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(weft_${name} STATIC ${ARG_SOURCES})
  add_library(weft::${name} ALIAS weft_${name})
  weft_flags(weft_${name})
  target_link_libraries(weft_${name} PUBLIC ${ARG_DEPS})
endfunction()

function(weft_kernel name)
  cmake_parse_arguments(ARG "" "" "SOURCES;SIMD;ISAS;SIMD_BF16;DEPS" ${ARGN})
  weft_library(kernel_${name} SOURCES ${ARG_SOURCES} DEPS weft::tensor ${ARG_DEPS})
  if(ARG_SIMD_BF16)
    list(APPEND ARG_ISAS avx512_bf16)
  endif()
  foreach(isa IN LISTS ARG_ISAS)
    set(sources ${ARG_SIMD})
    if(ARG_SIMD_BF16 AND isa STREQUAL avx512_bf16)
      set(sources ${ARG_SIMD_BF16})
    endif()
    add_library(weft_kernel_${name}_${isa} OBJECT ${sources})
    weft_flags(weft_kernel_${name}_${isa})
    # GCC 12's own intrinsics headers set off maybe-uninitialized (undefined vectors that are never read).
    target_compile_options(weft_kernel_${name}_${isa} PRIVATE ${WEFT_ISA_FLAGS_${isa}} -Wno-maybe-uninitialized)
    target_compile_definitions(weft_kernel_${name}_${isa} PRIVATE WEFT_ISA=${isa})
    target_link_libraries(weft_kernel_${name}_${isa} PRIVATE weft::tensor ${ARG_DEPS})
    target_sources(weft_kernel_${name} PRIVATE $<TARGET_OBJECTS:weft_kernel_${name}_${isa}>)
  endforeach()
  target_link_libraries(weft_kernels INTERFACE weft_kernel_${name})
endfunction()

function(weft_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT WEFT_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  weft_flags(${name})
  weft_quick_to_build(${name})
  # GCC 12 sees overlapping copies in std::string operator+ where there are none (GCC bug 105651).
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  target_compile_definitions(${name} PRIVATE WEFT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900)
endfunction()
