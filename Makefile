# The commands of everyday work. The build itself is CMake's (CMakePresets.json): all of it works without make, too.
#
#   make demo      install missing packages, build, generate text with the sample model
#   make test      the same, with warnings as errors; all tests but the long ones; unit tests under ASan and UBSan
#   make verify    the long bitwise comparisons, all layouts of 1 to 8 ranks among them (hours); tests of the whole program under ASan
#                  and UBSan
#   make bench     what this machine can do, the kernels, and the sample model, in speed
#   make fuzz      every fuzzer for FUZZ_SECONDS
#   make install PREFIX=/usr/local
#   make format, make clean

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

WEFT = build/release/weft
SAMPLE = testdata/sample/austen-v4
PROMPT = It is a truth universally acknowledged, that

# Warnings are errors with the compiler that the project is developed with (GCC 12 of Debian 12); others may know more.
werror = $(if $(filter 12,$(shell c++ -dumpversion)),ON,OFF)
ccache = $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
configure = cmake --preset $(1) -DWEFT_WERROR=$(werror) $(ccache)

# OpenMPI must be told that more processes than cores, and root (containers), are meant; other implementations need no telling.
mpi_env = OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

.PHONY: all demo test verify bench fuzz install format clean packages release
all: release

packages:
	@tools/install_packages.sh

release: packages
	@$(call configure,release)
	@cmake --build --preset release --target weft -j $(JOBS)

demo: release
	$(WEFT) run $(SAMPLE) -p "$(PROMPT)" --max-tokens 80 --temperature 0.75 --seed 1

test: packages
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS) -LE 'slow|full'
	@$(call configure,dev)
	@# Under the sanitizers only the unit tests, and only their targets: a test has the name of its target.
	@cmake --build --preset dev -j $(JOBS) \
	  --target $$(ctest --test-dir build/dev -N -L unit | sed -n 's/^ *Test *#[0-9]*: //p')
	ctest --preset dev -j $(JOBS) -L unit

verify: packages
	@$(call configure,release)
	@cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS) -L 'slow|full'
	$(WEFT) verify $(SAMPLE)
	$(WEFT) verify $(SAMPLE) --layouts all --ranks 1,2,4,8
	@for model in testdata/golden/*/*/; do \
	  echo "$$model"; $(WEFT) verify "$$model" --layouts all --ranks 1,2,4,8 --tokens 40 || exit 1; \
	done
	rm -rf build/release/eight_groups
	$(WEFT) synth testdata/synth/eight_groups/config.json build/release/eight_groups --mtp
	$(WEFT) verify build/release/eight_groups --layouts all --ranks 1,2,4,8 --tokens 64
	@mpiexec=$$(sed -n 's/^MPIEXEC_EXECUTABLE:.*=\(\/.*\)/\1/p' build/release/CMakeCache.txt); for ranks in 2 4; do \
	  if [ -n "$$mpiexec" ]; then $(mpi_env) "$$mpiexec" -n $$ranks $(WEFT) verify $(SAMPLE) --layouts all || exit 1; fi; \
	done
	@$(call configure,dev)
	@cmake --build --preset dev -j $(JOBS)
	ctest --preset dev -j $(JOBS) -L 'unit|program'

bench: release
	$(WEFT) bench kernels
	$(WEFT) bench $(SAMPLE)

fuzz:
	@tools/install_packages.sh clang
	@cmake --preset fuzz $(ccache)
	@cmake --build --preset fuzz -j $(JOBS)
	@for fuzzer in $$(find build/fuzz -type f -name '*_fuzz' -perm -u+x); do \
	  echo "$$fuzzer"; "$$fuzzer" -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 || exit 1; \
	done

install: release
	cmake --install build/release --prefix "$(PREFIX)"

format:
	find . \( -name build -o -name '.?*' \) -prune -o \( -name '*.h' -o -name '*.cc' \) \
	  -exec clang-format -i {} +

clean:
	rm -rf build
