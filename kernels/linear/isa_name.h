// Names of what a SIMD source exports, one for each instruction set it is compiled for (cmake/weft_targets.cmake).
#pragma once

#define WEFT_ISA_JOIN_(name, isa) name##_##isa
#define WEFT_ISA_JOIN(name, isa) WEFT_ISA_JOIN_(name, isa)
#define WEFT_ISA_NAME(name) WEFT_ISA_JOIN(name, WEFT_ISA)
