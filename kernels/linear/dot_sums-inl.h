// From the sixteen lanes of each dot product to elements of y. Included by ISA-specific sources inside an unnamed namespace,
// after vector16-inl.h and linear_internal.h.

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

// The tree of lanes and the tree of blocks of K, for kSums dot products at once.
template <int kSums>
class BlockSums {
 public:
  static constexpr int kFloats = (kSums + 3) / 4 * 4;

  // total = the lanes of block `number` added; after the last block of K, the sum of all of them. Blocks are leaves of a binary
  // counter: as many finished sums are added as `number` has trailing one bits.
  void add(int64_t number, bool last, const F16 (&lanes)[kSums], float* total) {
    const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int q = 0; q < kFloats; q += 4) {
      const auto sum = [&](int i) { return q + i < kSums ? fold_halves(lanes[at_most(q + i, kSums - 1)]) : zero; };
      _mm_storeu_ps(total + q, fold_eight(sum(0), sum(1), sum(2), sum(3)));
    }
    int level = 0;
    for (; (number >> level & 1) != 0; ++level) {
      for (int i = 0; i < kFloats; ++i) total[i] = stack_[level][i] + total[i];
    }
    if (last) return;
    for (int i = 0; i < kFloats; ++i) stack_[level][i] = total[i];
  }

 private:
  float stack_[4][kFloats];
};

inline void put(const Output& out, int64_t m, int64_t n, float value) {
  const int64_t i = m * out.stride + n;
  if (out.dtype == DType::kF32) {
    static_cast<float*>(out.y)[i] = value;
    return;
  }
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  static_cast<uint16_t*>(out.y)[i] =
      static_cast<uint16_t>((nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
