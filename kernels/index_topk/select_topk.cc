#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

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

struct Cut {
  uint32_t order;  // the k-th highest order number
  int64_t equal;   // how many of the picks have it
};

// Radix select over score_of(0) .. score_of(n - 1); 1 <= k <= n. scratch: n words.
template <class ScoreOf>
Cut find_cut(int64_t n, int64_t k, ScoreOf score_of, std::span<int32_t> scratch) {
  int64_t rank = k;
  std::array<int32_t, kMaxBuckets> counts{};
  for (int64_t i = 0; i < n; ++i) ++counts[order_of(score_of(i)) >> kDigits[0].shift];
  uint32_t prefix = find_bucket(counts, rank);
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t order = order_of(score_of(i));
    scratch[kept] = std::bit_cast<int32_t>(order);
    kept += order >> kDigits[0].shift == prefix;
  }
  for (size_t d = 1; d < kDigits.size(); ++d) {
    const auto [shift, bits] = kDigits[d];
    const uint32_t mask = (1u << bits) - 1;
    const auto digit_of = [&](int64_t i) { return std::bit_cast<uint32_t>(scratch[i]) >> shift & mask; };
    std::fill_n(counts.begin(), mask + 1, 0);
    for (int64_t i = 0; i < kept; ++i) ++counts[digit_of(i)];
    const uint32_t digit = find_bucket({counts.data(), mask + 1}, rank);
    int64_t still_kept = 0;
    for (int64_t i = 0; i < kept; ++i) {
      const bool keep = digit_of(i) == digit;
      scratch[still_kept] = scratch[i];
      still_kept += keep;
    }
    kept = still_kept;
    prefix = prefix << bits | digit;
  }
  return {prefix, rank};
}

// A score that probably somewhat more than k of the scores reach, from every (n / kSample)-th of them.
constexpr int64_t kSample = 1024;
float probable_floor(std::span<const float> scores, int64_t k) {
  const int64_t n = static_cast<int64_t>(scores.size());
  std::array<float, kSample> sample;
  for (int64_t i = 0; i < kSample; ++i) sample[i] = scores[i * n / kSample];
  // The number of sampled picks scatters by about the square root of its mean.
  const double mean = static_cast<double>(k) * kSample / static_cast<double>(n);
  const int64_t rank = static_cast<int64_t>(mean + 4 * std::sqrt(mean) + 4);
  if (rank >= kSample) return -std::numeric_limits<float>::infinity();
  std::nth_element(sample.begin(), sample.begin() + rank, sample.end(),
                   [](float a, float b) { return order_of(a) > order_of(b); });
  return sample[rank];
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

  // Writes those of `count` entries, ascending, that the cut leaves.
  const auto pick = [&](int64_t count, auto entry_of, std::span<int32_t> work) {
    Cut cut = find_cut(
        count, k, [&](int64_t i) { return scores[entry_of(i)]; }, work);
    for (int64_t i = 0, picked = 0; i < count && picked < k; ++i) {
      const int32_t g = entry_of(i);
      const uint32_t order = order_of(scores[g]);
      picks[picked] = g;
      picked += order > cut.order;
      if (order == cut.order && cut.equal > 0) [[unlikely]] {
        ++picked;
        --cut.equal;
      }
    }
  };

  // Large lists: most entries are far below the picks, and one comparison says so. The picks are the same either way.
  if (n >= 8 * kSample) {
    const float floor = probable_floor(scores, k);
    int64_t count = 0;
    for (int64_t g = 0; g < n; ++g) {
      scratch[count] = static_cast<int32_t>(g);
      count += scores[g] >= floor;
    }
    if (count >= k && count <= n / 2) {
      return pick(
          count, [&](int64_t i) { return scratch[i]; }, scratch.subspan(count));
    }
  }
  pick(
      n, [](int64_t i) { return static_cast<int32_t>(i); }, scratch);
}

}  // namespace weft
