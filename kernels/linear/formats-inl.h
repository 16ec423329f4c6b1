// How stored weights become floats in registers: round(q * scale), 16 consecutive elements of a row at a time.
//
// Included by ISA-specific sources inside an unnamed namespace, after vector16-inl.h and weight_view-inl.h.
//
// A format has
//   kBits        bits of a stored element
//   kUnit        vectors of 16 that decode() yields at once
//   Scale        a block scale, prepared for decode()
//   Unit, load(p)            kUnit vectors from p on, decoded as far as they take no more registers than bytes ...
//   expand(unit, u, scale)   ... and vector u of them
//   decode_one(p, scale)     one vector from p on
//   is_hard(p, n)            true if the n elements from p on hold a code that decode() gets wrong
//   is_hard_scale(s)         likewise for a scale; hard rows take the plain path

constexpr int64_t kChunk = 16;

struct FormatF32 {
  static constexpr int kBits = 32;
  static constexpr int kUnit = 1;
  struct Scale {};
  static Scale prepare(float) { return {}; }
  static F16 decode_one(const uint8_t* p, Scale) { return f_load(reinterpret_cast<const float*>(p)); }
  using Unit = const uint8_t*;
  static Unit load(const uint8_t* p) { return p; }
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk * kBits / 8, s); }
  static bool is_hard(const uint8_t*, int64_t) { return false; }
  static bool is_hard_scale(float) { return false; }
};

struct FormatBf16 {
  static constexpr int kBits = 16;
#if defined(__AVX512F__)
  static constexpr int kUnit = 2;
#else
  static constexpr int kUnit = 1;
#endif
  struct Scale {};
  static Scale prepare(float) { return {}; }
  static F16 decode_one(const uint8_t* p, Scale) { return f_load_bf16(reinterpret_cast<const uint16_t*>(p)); }
  using Unit = const uint8_t*;
  static Unit load(const uint8_t* p) { return p; }
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk * kBits / 8, s); }
  static bool is_hard(const uint8_t*, int64_t) { return false; }
  static bool is_hard_scale(float) { return false; }
};

struct FormatI8 {
  static constexpr int kBits = 8;
#if defined(__AVX512F__)
  static constexpr int kUnit = 4;
#else
  static constexpr int kUnit = 1;
#endif
  struct Scale {
    float value;
  };
  static Scale prepare(float scale) { return {scale}; }
  static F16 decode_one(const uint8_t* p, Scale s) {
    return f_mul(f_from_i(i_load_i8(reinterpret_cast<const int8_t*>(p))), f_set(s.value));
  }
  using Unit = const uint8_t*;
  static Unit load(const uint8_t* p) { return p; }
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk * kBits / 8, s); }
  static bool is_hard(const uint8_t*, int64_t) { return false; }
  static bool is_hard_scale(float) { return false; }
};

#if defined(__AVX512VBMI__)

// bf16 of every e4m3 magnitude, high and low bytes apart: 128 entries each, for byte permutes.
struct E4m3Tables {
  alignas(64) uint8_t high[128], low[128];
};
static constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables t{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3, mantissa = code & 7, bits = 0;
    if (exponent == 15 && mantissa == 7) {
      bits = 0x7fc0;
    } else if (exponent != 0) {
      bits = ((exponent + 120) << 7) | (mantissa << 4);
    } else if (mantissa != 0) {  // mantissa * 2^-9, normalised
      int shift = 0;
      while ((mantissa << shift) < 8) ++shift;
      bits = ((121 - shift) << 7) | (((mantissa << shift) & 7) << 4);
    }
    t.high[code] = static_cast<uint8_t>(bits >> 8);
    t.low[code] = static_cast<uint8_t>(bits & 255);
  }
  return t;
}
alignas(64) static constexpr E4m3Tables kE4m3Tables = make_e4m3_tables();

// 64 codes -> 64 bf16, two in each element of two vectors. Codes must stand where unpacking needs them: code
// 16*q + 8*h + 2*d + o becomes half o of element 4*q + d of vector h.
static inline void e4m3_halves(__m512i codes, __m512i* halves) {
  const auto table = [](const uint8_t* p) { return _mm512_load_si512(p); };
  const __m512i high = _mm512_permutex2var_epi8(table(kE4m3Tables.high), codes, table(kE4m3Tables.high + 64));
  const __m512i low = _mm512_permutex2var_epi8(table(kE4m3Tables.low), codes, table(kE4m3Tables.low + 64));
  constexpr int kOrSign = 0xf8;  // a | (b & c)
  const __m512i top = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrSign);
  halves[0] = _mm512_unpacklo_epi8(low, top);
  halves[1] = _mm512_unpackhi_epi8(low, top);
}
static inline __m512i e4m3_expand(__m512i half, int odd) {
  return odd == 0 ? _mm512_slli_epi32(half, 16) : _mm512_and_si512(half, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

struct ByteOrder {
  alignas(64) uint8_t index[64];
};
// Source of each code for e4m3_unpack: `element` and `vector` are the strides of the 16 elements and the 4 vectors.
static constexpr ByteOrder e4m3_order(int element, int vector) {
  ByteOrder order{};
  for (int i = 0; i < 64; ++i) {
    const int q = i / 16, h = i / 8 % 2, d = i / 2 % 4, o = i % 2;
    order.index[i] = static_cast<uint8_t>((4 * q + d) * element + (2 * h + o) * vector);
  }
  return order;
}
alignas(64) static constexpr ByteOrder kConsecutive = e4m3_order(1, 16);  // 64 elements of one row
alignas(64) static constexpr ByteOrder kTransposed = e4m3_order(4, 1);    // 4 elements of 16 rows

struct FormatFp8 {
  static constexpr int kBits = 8;
  static constexpr int kUnit = 4;
  struct Scale {
    float value;
  };
  static Scale prepare(float scale) { return {scale}; }
  static void decode_ordered(__m512i codes, F16 s, F16* w) {
    __m512i halves[2];
    e4m3_halves(codes, halves);
    for (int u = 0; u < kUnit; ++u) w[u] = f_mul(as_f(e4m3_expand(halves[u / 2], u % 2)), s);
  }
  struct Unit {
    __m512i halves[2];
  };
  static Unit load(const uint8_t* p) {
    const __m512i codes = _mm512_permutexvar_epi8(_mm512_load_si512(kConsecutive.index), _mm512_loadu_si512(p));
    Unit unit;
    e4m3_halves(codes, unit.halves);
    return unit;
  }
  static F16 expand(const Unit& unit, int u, Scale s) {
    return f_mul(as_f(e4m3_expand(unit.halves[u / 2], u % 2)), f_set(s.value));
  }
  static F16 decode_one(const uint8_t* p, Scale s) {
    F16 w[kUnit];
    const __m512i codes = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    decode_ordered(_mm512_permutexvar_epi8(_mm512_load_si512(kConsecutive.index), codes), f_set(s.value), w);
    return w[0];
  }
  static bool is_hard(const uint8_t*, int64_t) { return false; }
  static bool is_hard_scale(float) { return false; }
};

#else

// e4m3 as f16: sign, one zero bit, then exponent and mantissa; the value is 2^8 too small, which goes into the scale.
// NaN codes would become numbers, and a scale times 2^8 may overflow: both are hard.
struct FormatFp8 {
  static constexpr int kBits = 8;
#if defined(__AVX512F__)
  static constexpr int kUnit = 4;
#else
  static constexpr int kUnit = 1;
#endif
  struct Scale {
    float value;
  };
  static Scale prepare(float scale) { return {scale * 0x1p8f}; }
  static F16 e4m3_over_256(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    return f_load_f16_bits(halves);
  }
  static F16 decode_one(const uint8_t* p, Scale s) { return f_mul(e4m3_over_256(p), f_set(s.value)); }
  using Unit = const uint8_t*;
  static Unit load(const uint8_t* p) { return p; }
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk * kBits / 8, s); }
  static bool is_hard(const uint8_t* p, int64_t n) {
    const __m256i magnitude = _mm256_set1_epi8(0x7f);
    __m256i largest = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i));
      largest = _mm256_max_epu8(largest, _mm256_and_si256(codes, magnitude));
    }
    bool hard = _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, magnitude)) != 0;
    for (; i < n; ++i) hard |= (p[i] & 0x7f) == 0x7f;
    return hard;
  }
  static bool is_hard_scale(float s) { return !(__builtin_fabsf(s) < 0x1p119f); }
};

#endif

// The same values divided by kFactor, without a scale.
struct FormatFp8Unscaled : FormatFp8 {
#if defined(__AVX512VBMI__)
  static constexpr float kFactor = 1;
  static F16 expand(const Unit& unit, int u, Scale) { return as_f(e4m3_expand(unit.halves[u / 2], u % 2)); }
  static F16 decode_one(const uint8_t* p, Scale) { return FormatFp8::decode_one(p, {1}); }
#else
  static constexpr float kFactor = 0x1p8f;
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk, s); }
  static F16 decode_one(const uint8_t* p, Scale) { return e4m3_over_256(p); }
#endif
};

alignas(64) static constexpr float kE2m1Values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

#if defined(__AVX512F__)
constexpr int kE2m1Entries = 16;
#else
constexpr int kE2m1Entries = 8;  // magnitudes
#endif

// The e2m1 values times each power of two of e8m0, ready for permutes.
struct E2m1Tables {
  alignas(64) float value[256][kE2m1Entries];
};
static constexpr E2m1Tables make_e2m1_tables() {
  E2m1Tables t{};
  for (int code = 0; code < 256; ++code) {
    double scale = 1;  // all products are exact in double
    for (int i = 127; i < code; ++i) scale *= 2;
    for (int i = code; i < 127; ++i) scale /= 2;
    for (int i = 0; i < kE2m1Entries; ++i) {
      const double product = kE2m1Values[i] * scale;
      const bool overflow = product >= 0x1p128 || product <= -0x1p128;
      const float inf = i < 8 ? __builtin_inff() : -__builtin_inff();
      t.value[code][i] = code == 255 ? __builtin_nanf("") : overflow ? inf : static_cast<float>(product);
    }
  }
  return t;
}
alignas(64) static constexpr E2m1Tables kE2m1Tables = make_e2m1_tables();

// e2m1: a table of the 16 values times the scale, indexed by permutes that look at the low bits alone.
struct FormatFp4 {
  static constexpr int kBits = 4;
  static bool is_hard(const uint8_t*, int64_t) { return false; }
  static bool is_hard_scale(float) { return false; }
#if defined(__AVX512F__)
  static constexpr int kUnit = 2;
  struct Scale {
    __m512 table;
  };
  static Scale prepare(float scale) { return {_mm512_mul_ps(_mm512_load_ps(kE2m1Values), _mm512_set1_ps(scale))}; }
  static Scale prepare_e8m0(uint8_t code) { return {_mm512_load_ps(kE2m1Tables.value[code])}; }
  static F16 lookup(I16 codes, Scale s) { return _mm512_permutexvar_ps(codes, s.table); }
  static F16 decode_one(const uint8_t* p, Scale s) {
    int32_t low, high;
    __builtin_memcpy(&low, p, sizeof(low));
    __builtin_memcpy(&high, p + 4, sizeof(high));
    const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return lookup(_mm512_srlv_epi32(both, shift), s);
  }
#else
  static constexpr int kUnit = 1;
  struct Scale {
    __m256 table;  // of the eight magnitudes
  };
  static Scale prepare(float scale) { return {_mm256_mul_ps(_mm256_load_ps(kE2m1Values), _mm256_set1_ps(scale))}; }
  static Scale prepare_e8m0(uint8_t code) { return {_mm256_load_ps(kE2m1Tables.value[code])}; }
  static __m256 lookup8(__m256i codes, Scale s) {
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(s.table, codes), _mm256_castsi256_ps(sign));
  }
  static F16 lookup(I16 codes, Scale s) { return {lookup8(codes.lo, s), lookup8(codes.hi, s)}; }
  static F16 decode_one(const uint8_t* p, Scale s) {
    int32_t low, high;
    __builtin_memcpy(&low, p, sizeof(low));
    __builtin_memcpy(&high, p + 4, sizeof(high));
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return {lookup8(_mm256_srlv_epi32(_mm256_set1_epi32(low), shift), s),
            lookup8(_mm256_srlv_epi32(_mm256_set1_epi32(high), shift), s)};
  }
#endif
  using Unit = const uint8_t*;
  static Unit load(const uint8_t* p) { return p; }
  static F16 expand(Unit unit, int u, Scale s) { return decode_one(unit + u * kChunk * kBits / 8, s); }
};

#if defined(__AVX512VBMI__)
// The same with one load and one permute of bits for each vector: fewer instructions, but on a unit that fma needs too.
// Faster for a single row of x only.
struct FormatFp4Single : FormatFp4 {
  static F16 expand(Unit unit, int u, Scale s) {
    int64_t bytes;
    __builtin_memcpy(&bytes, unit + u * kChunk / 2, sizeof(bytes));
    // Byte 4 i of the result gets the eight bits from bit 4 i on (modulo 64).
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    return lookup(_mm512_multishift_epi64_epi8(shift, _mm512_set1_epi64(bytes)), s);
  }
};
#else
using FormatFp4Single = FormatFp4;
#endif

// 2^(code - 127); code 0 is a subnormal, 255 NaN.
struct E8m0Table {
  float value[256];
};
static constexpr E8m0Table make_e8m0_table() {
  E8m0Table t{};
  for (uint32_t code = 0; code < 256; ++code) {
    t.value[code] = __builtin_bit_cast(float, code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
  }
  return t;
}
static constexpr E8m0Table kE8m0Table = make_e8m0_table();

// Scales of one row of w, by group of columns (weight_view-inl.h).
struct ScalesE8m0 {
  const uint8_t* code;
  ScalesE8m0() = default;
  ScalesE8m0(const WeightMatrix& w, int64_t row) : code(static_cast<const uint8_t*>(w.scale) + scale_offset(w, row)) {}
  float at(int64_t group) const { return kE8m0Table.value[code[group]]; }
};
struct ScalesF32 {
  const float* value;
  ScalesF32() = default;
  ScalesF32(const WeightMatrix& w, int64_t row) : value(static_cast<const float*>(w.scale) + scale_offset(w, row)) {}
  float at(int64_t group) const { return value[group]; }
};
struct ScalesNone {
  ScalesNone() = default;
  ScalesNone(const WeightMatrix&, int64_t) {}
  float at(int64_t) const { return 1; }
};

// The scale of a group, prepared for decoding; sets `hard` if decoding gets it wrong.
template <class Format, class Scales>
static inline typename Format::Scale prepare_scale(const Scales& scales, int64_t group, bool& hard) {
  if constexpr (Format::kBits == 4 && std::is_same_v<Scales, ScalesE8m0>) {
    return Format::prepare_e8m0(scales.code[group]);
  } else {
    const float s = scales.at(group);
    hard |= Format::is_hard_scale(s);
    return Format::prepare(s);
  }
}

// Calls f.template operator()<Format, Scales>(); false if no format decodes w in registers (a scale on F32 or BF16).
template <class F>
static inline bool with_format(const WeightMatrix& w, F f) {
  const auto scaled = [&]<class Format>() {
    if (w.scale == nullptr) {
      f.template operator()<Format, ScalesNone>();
    } else if (w.scale_dtype == DType::kF32) {
      f.template operator()<Format, ScalesF32>();
    } else {
      f.template operator()<Format, ScalesE8m0>();
    }
    return true;
  };
  const auto plain = [&]<class Format>() {
    if (w.scale == nullptr) f.template operator()<Format, ScalesNone>();
    return w.scale == nullptr;
  };
  switch (w.dtype) {
    case DType::kF32: return plain.template operator()<FormatF32>();
    case DType::kBF16: return plain.template operator()<FormatBf16>();
    case DType::kF8E4M3: return scaled.template operator()<FormatFp8>();
    case DType::kF4E2M1: return scaled.template operator()<FormatFp4>();
    case DType::kI8: return scaled.template operator()<FormatI8>();
    default: return false;
  }
}
