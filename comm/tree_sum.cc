#include "comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace weft {
namespace {

// to_bf16 (base/numeric.h) without branches, so that loops over it become vector code.
inline uint16_t cast_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t quiet = bits | 0x400000u;
  return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

inline void store(float x, float* dst) { *dst = x; }
inline void store(float x, uint16_t* dst) { *dst = cast_bf16(x); }

// The group sizes of nearly all layouts, in one pass over memory.
template <class T>
void sum_2(const float* a, const float* b, int64_t count, T* dst) {
  for (int64_t i = 0; i < count; ++i) store(a[i] + b[i], dst + i);
}

template <class T>
void sum_4(const float* a, const float* b, const float* c, const float* d, int64_t count, T* dst) {
  for (int64_t i = 0; i < count; ++i) store((a[i] + b[i]) + (c[i] + d[i]), dst + i);
}

// Any number of sources, a piece at a time that stays in the first-level cache. Sources are taken in order; whenever
// two sums cover equally many of them they are neighbours of one level and are added, as in a binary counter. What is
// left at the end is added from the right: the odd ones that go up.
constexpr int64_t kPiece = 1024;
constexpr int kMaxLevels = 9;  // log2(kMaxRanks) + 1

template <class T>
void sum_any(std::span<const float* const> sources, int64_t count, T* dst) {
  alignas(64) std::array<std::array<float, kPiece>, kMaxLevels> sums;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t n = std::min(kPiece, count - begin);
    int height = 0;
    const auto merge = [&] {
      --height;
      float* left = sums[height - 1].data();
      const float* right = sums[height].data();
      for (int64_t i = 0; i < n; ++i) left[i] += right[i];
    };
    for (size_t s = 0; s < sources.size(); ++s) {
      std::memcpy(sums[height++].data(), sources[s] + begin, n * sizeof(float));
      for (size_t done = s + 1; done % 2 == 0; done /= 2) merge();
    }
    while (height > 1) merge();
    for (int64_t i = 0; i < n; ++i) store(sums[0][i], dst + begin + i);
  }
}

template <class T>
void sum(std::span<const float* const> sources, int64_t count, T* dst) {
  if (sources.size() == 2) return sum_2(sources[0], sources[1], count, dst);
  if (sources.size() == 4) return sum_4(sources[0], sources[1], sources[2], sources[3], count, dst);
  sum_any(sources, count, dst);
}

}  // namespace

void tree_sum(std::span<const float* const> sources, int64_t count, void* dst, DType dst_dtype) {
  WEFT_CHECK(dst_dtype == DType::kF32 || dst_dtype == DType::kBF16, "sum to {}", dtype_name(dst_dtype));
  WEFT_CHECK(!sources.empty() && std::bit_width(sources.size()) <= kMaxLevels, "{} sources", sources.size());
  if (dst_dtype == DType::kF32) return sum(sources, count, static_cast<float*>(dst));
  sum(sources, count, static_cast<uint16_t*>(dst));
}

void max_of(std::span<const float* const> sources, int64_t count, float* dst) {
  if (count == 0) return;
  std::memcpy(dst, sources[0], count * sizeof(float));
  for (const float* source : sources.subspan(1)) {
    for (int64_t i = 0; i < count; ++i) {
      // A NaN that is there stays (both comparisons are false), one that comes is taken.
      const bool take = source[i] > dst[i] || (source[i] != source[i] && dst[i] == dst[i]);
      dst[i] = take ? source[i] : dst[i];
    }
  }
}

}  // namespace weft
