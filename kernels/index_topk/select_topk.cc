#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "kernels/index_topk/index_topk.h"

namespace weft {
namespace {

// Higher score, higher number: NaN is 0, then -inf ... +inf; both zeros are one number.
inline uint32_t order_of(float score) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  bits = bits == 0x80000000u ? 0 : bits;
  const uint32_t order = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0 : order;
}

// The radix digits of an order number, from the top.
struct Digit {
  int shift, bits;
};
constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};
constexpr int kMaxBuckets = 1 << 11;

// The bucket in which the `rank`-th element from the top (1-based) lies; rank becomes that within the bucket.
uint32_t find_bucket(std::span<const int32_t> counts, int64_t& rank) {
  for (size_t bucket = counts.size(); bucket-- > 0;) {
    if (rank <= counts[bucket]) return static_cast<uint32_t>(bucket);
    rank -= counts[bucket];
  }
  WEFT_CHECK(false, "select_topk: rank beyond the number of scores");
}

}  // namespace

void select_topk(std::span<const float> scores, std::span<int32_t> picks, std::span<int32_t> scratch) {
  const int64_t n = static_cast<int64_t>(scores.size());
  const int64_t k = std::min(n, static_cast<int64_t>(picks.size()));
  std::fill(picks.begin() + k, picks.end(), -1);
  if (k == 0) return;
  if (k == n) {
    for (int64_t g = 0; g < n; ++g) picks[g] = static_cast<int32_t>(g);
    return;
  }
  WEFT_DCHECK(static_cast<int64_t>(scratch.size()) >= n);

  // Radix select of the k-th highest order number, `threshold`; `rank` ends as the number of picks equal to it.
  int64_t rank = k;
  std::array<int32_t, kMaxBuckets> counts{};
  for (int64_t g = 0; g < n; ++g) ++counts[order_of(scores[g]) >> kDigits[0].shift];
  uint32_t threshold = find_bucket(counts, rank);
  int64_t num_candidates = 0;
  for (int64_t g = 0; g < n; ++g) {
    const uint32_t order = order_of(scores[g]);
    scratch[num_candidates] = std::bit_cast<int32_t>(order);
    num_candidates += order >> kDigits[0].shift == threshold;
  }
  for (size_t i = 1; i < kDigits.size(); ++i) {
    const auto [shift, bits] = kDigits[i];
    const uint32_t mask = (1u << bits) - 1;
    std::fill_n(counts.begin(), mask + 1, 0);
    for (int64_t c = 0; c < num_candidates; ++c) ++counts[std::bit_cast<uint32_t>(scratch[c]) >> shift & mask];
    const uint32_t digit = find_bucket({counts.data(), mask + 1}, rank);
    int64_t kept = 0;
    for (int64_t c = 0; c < num_candidates; ++c) {
      const int32_t order = scratch[c];
      scratch[kept] = order;
      kept += (std::bit_cast<uint32_t>(order) >> shift & mask) == digit;
    }
    num_candidates = kept;
    threshold = threshold << bits | digit;
  }

  int64_t picked = 0;
  for (int64_t g = 0; picked < k; ++g) {
    const uint32_t order = order_of(scores[g]);
    picks[picked] = static_cast<int32_t>(g);
    picked += order > threshold;
    if (order == threshold && rank > 0) [[unlikely]] {
      ++picked;
      --rank;
    }
  }
}

}  // namespace weft
