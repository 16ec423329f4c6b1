// Prefetching of the stored rows of a weight. Included by ISA-specific sources inside an unnamed namespace, after
// <immintrin.h>.

constexpr int64_t kCacheLine = 64;

// What is prefetched while a block of rows is computed: the next block, as many lines as are consumed. Short rows that adjoin
// are taken as one run of memory, in its order, since several streams within a page get no help from the hardware; long ones
// and those of a view are streams of their own. (Measured on Zen 4: rows of 1 KiB 2.4 times, of 2 KiB 1.6 times as fast as
// streams.)
class Ahead {
 public:
  Ahead(const uint8_t* rows, int64_t row_bytes, bool contiguous, int64_t num_rows) {
    constexpr int64_t kLongestRun = 16 << 10, kNearBlock = 4 << 10;  // half, an eighth of a first-level cache
    const int64_t block = num_rows * row_bytes;
    const bool run = contiguous && block <= kLongestRun;
    next_ = rows + block;
    row_ = run ? kCacheLine : row_bytes;
    step_ = run ? num_rows * kCacheLine : kCacheLine;
    near_ = block <= kNearBlock;
  }
  // A line for each of kRows rows.
  template <int kRows>
  __attribute__((always_inline)) void lines() {
    if (near_) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) _mm_prefetch(reinterpret_cast<const char*>(next_ + r * row_), _MM_HINT_T0);
    } else {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) _mm_prefetch(reinterpret_cast<const char*>(next_ + r * row_), _MM_HINT_T1);
    }
    next_ += step_;
  }

 private:
  const uint8_t* next_;
  int64_t row_, step_;
  bool near_;  // into the first-level cache; a large block, and x with it, would be gone from there before it is used
};
