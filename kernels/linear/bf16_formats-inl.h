// What dot products of bf16 pairs (vdpbf16ps) need of stored weights: bf16 values of codes and scales.
// Included by the sources of the avx512_bf16 variant inside an unnamed namespace, after vector16-inl.h and weight_view-inl.h.

__attribute__((always_inline)) inline F16 multiply_add(F16 x, F16 w, F16 sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}
__attribute__((always_inline)) inline F16 multiply_add(F16 x, I16 w, F16 sum) { return multiply_add(x, as_f(w), sum); }

constexpr int kOne = 127;  // e8m0 code of 1

// bf16 of q * 2^(code - 127) for every scale code. Overflow is an infinity; subnormals are 0, as the instruction takes them.
constexpr uint16_t scaled_bits(int exponent, int mantissa7, int code) {  // 2^exponent * 1.mantissa
  const int biased = exponent + 127 + code - kOne;
  return static_cast<uint16_t>(code == 255     ? 0x7fc0
                               : biased >= 255 ? 0x7f80
                               : biased <= 0   ? 0
                                               : biased << 7 | mantissa7);
}

// e4m3: bytes of the 128 magnitudes for byte permutes.
struct E4m3Table {
  alignas(64) uint8_t high[128], low[128];
};
constexpr E4m3Table make_e4m3_table(int code) {
  E4m3Table t{};
  for (int i = 0; i < 128; ++i) {
    int exponent = (i >> 3) - 7, mantissa = i & 7;
    uint16_t bits = 0;
    if (i == 127) {
      bits = 0x7fc0;
    } else if ((i >> 3) == 0 && mantissa != 0) {  // mantissa * 2^-9, normalised
      int shift = 0;
      while ((mantissa << shift) < 8) ++shift;
      bits = scaled_bits(-6 - shift, ((mantissa << shift) & 7) << 4, code);
    } else if (i != 0) {
      bits = scaled_bits(exponent, mantissa << 4, code);
    } else if (code == 255) {
      bits = 0x7fc0;
    }
    t.high[i] = static_cast<uint8_t>(bits >> 8);
    t.low[i] = static_cast<uint8_t>(bits & 255);
  }
  return t;
}

// e2m1: words of the 16 values, twice, since a word permute looks at five bits.
struct E2m1Table {
  alignas(64) uint16_t value[32];
};
constexpr E2m1Table make_e2m1_table(int code) {
  E2m1Table t{};
  for (int i = 0; i < 32; ++i) {
    const int magnitude = i & 7, exponent = magnitude >> 1, mantissa = magnitude & 1;
    uint16_t bits = code == 255 ? 0x7fc0 : 0;
    if (magnitude == 1) bits = scaled_bits(-1, 0, code);
    if (magnitude > 1) bits = scaled_bits(exponent - 1, mantissa << 6, code);
    t.value[i] = static_cast<uint16_t>(bits | (i & 8) << 12);
  }
  return t;
}

template <class Table>
struct ByScale {
  Table of[256];
};
template <class Table>
constexpr ByScale<Table> tables_by_scale(Table (*make)(int)) {
  ByScale<Table> t{};
  for (int code = 0; code < 256; ++code) t.of[code] = make(code);
  return t;
}
constexpr ByScale<E4m3Table> kE4m3 = tables_by_scale(make_e4m3_table);
constexpr ByScale<E2m1Table> kE2m1 = tables_by_scale(make_e2m1_table);

struct E4m3Registers {
  I16 high0, high1, low0, low1;
  explicit E4m3Registers(uint8_t code) {
    const E4m3Table& t = kE4m3.of[code];
    high0 = _mm512_load_si512(t.high);
    high1 = _mm512_load_si512(t.high + 64);
    low0 = _mm512_load_si512(t.low);
    low1 = _mm512_load_si512(t.low + 64);
  }
  // 64 codes -> two vectors of 16 pairs: codes 16*q + 8*h + 2*d and the next one become element 4*q + d of vector h.
  __attribute__((always_inline)) void decode(I16 codes, I16* pairs) const {
    join(codes, _mm512_permutex2var_epi8(high0, codes, high1), _mm512_permutex2var_epi8(low0, codes, low1), pairs);
  }
  // The same, but the last 32 codes have the scale of `upper`.
  __attribute__((always_inline)) void decode_halves(I16 codes, const E4m3Registers& upper, I16* pairs) const {
    constexpr __mmask64 kUpper = ~__mmask64{0} << 32;
    const I16 high = _mm512_mask_blend_epi8(kUpper, _mm512_permutex2var_epi8(high0, codes, high1),
                                            _mm512_permutex2var_epi8(upper.high0, codes, upper.high1));
    const I16 low = _mm512_mask_blend_epi8(kUpper, _mm512_permutex2var_epi8(low0, codes, low1),
                                           _mm512_permutex2var_epi8(upper.low0, codes, upper.low1));
    join(codes, high, low, pairs);
  }

 private:
  __attribute__((always_inline)) static void join(I16 codes, I16 high, I16 low, I16* pairs) {
    constexpr int kOrSign = 0xf8;  // a | (b & c)
    const I16 top = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrSign);
    pairs[0] = _mm512_unpacklo_epi8(low, top);
    pairs[1] = _mm512_unpackhi_epi8(low, top);
  }
};

// Scale codes of a row of w, by group of columns (weight_view-inl.h); one group of code kOne if there are none.
struct Scales {
  const uint8_t* code = nullptr;
  uint8_t at(int64_t group) const { return code == nullptr ? kOne : code[group]; }
};
inline Scales scales_of(const WeightMatrix& w, int64_t row) {
  if (w.scale == nullptr) return {};
  return {static_cast<const uint8_t*>(w.scale) + scale_offset(w, row)};
}
