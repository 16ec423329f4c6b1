// The upper levels of the canonical reduction tree (docs/numerics.md): partial sums of ranks 0 .. P-1, added in fp32.
//
//   level by level, neighbours in pairs; the last one of an odd number goes up as it is
//   P = 4: (0+1)+(2+3)     P = 3: (0+1)+2     P = 6: ((0+1)+(2+3))+(4+5)     P = 7: ((0+1)+(2+3))+((4+5)+6)
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace weft {

// dst[i] = cast(sum over sources in tree order of source[i]), i < count. dst_dtype kF32 or kBF16, rounded once, to
// nearest even. dst may be one of the sources if dst_dtype is kF32, else it overlaps none. 1 <= sources.size() <=
// kMaxRanks.
void tree_sum(std::span<const float* const> sources, int64_t count, void* dst, DType dst_dtype);

// dst[i] = the largest of source[i]; NaN if any is NaN; of equal values that of the first source. dst overlaps no
// source.
void max_of(std::span<const float* const> sources, int64_t count, float* dst);

}  // namespace weft
