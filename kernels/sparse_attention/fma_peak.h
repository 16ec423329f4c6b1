// Fused multiply-adds from registers alone: the rate that one thread reaches is what a kernel is compared with.
#pragma once

#include "base/cpu.h"

namespace weft {

// Runs independent chains for about a third of a millisecond; returns how many multiply-adds that were.
// isa: kAvx2 or above.
double run_fma_chains(Isa isa);

}  // namespace weft
