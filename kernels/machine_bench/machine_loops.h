// kernels/machine_bench/machine_loops.h
//
// The loops whose speed is the machine's: only instructions that a kernel would be made of, nothing else to wait for.
#pragma once

#include <cstdint>

namespace weft {

// Each runs `iterations` times over its independent chains and gives the number of operations done (2 per
// multiply-add); null: the level has no such instruction.
using MachineLoop = double(int64_t iterations, float* sink);

struct MachineLoops {
  MachineLoop* f32_fma = nullptr;
  MachineLoop* bf16_dot = nullptr;
  MachineLoop* int8_dot = nullptr;
  // Reads every byte; a value that depends on all of them. `bytes` is a multiple of 4096.
  uint64_t (*read)(const void* data, int64_t bytes) = nullptr;
};

MachineLoops machine_loops_ref();
MachineLoops machine_loops_avx2();
MachineLoops machine_loops_avx512();
MachineLoops machine_loops_avx512_vbmi();
MachineLoops machine_loops_avx512_bf16();

}  // namespace weft
