// Rows of x as fp32, and blocks of them as E4M3 with a scale. Included by ISA-specific sources inside an unnamed namespace, after
// vector16-inl.h.

constexpr int64_t kVector = 16;
constexpr int64_t kFp8Block = 128;
constexpr float kFp8MinAbsmax = 1e-4f;
constexpr float kFp8Max = 448.0f;

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

inline void load_row(const void* x, DType dtype, int64_t k, float* out) {
  int64_t i = 0;
  if (dtype == DType::kF32) {
    const auto* p = static_cast<const float*>(x);
    for (; i < k; i += kVector) {
      const int64_t n = at_most(kVector, k - i);
      f_store_first(out + i, f_load_first(p + i, n), n);
    }
    return;
  }
  const auto* p = static_cast<const uint16_t*>(x);
  for (; i + kVector <= k; i += kVector) f_store(out + i, f_load_bf16(p + i));
  for (; i < k; ++i) out[i] = __builtin_bit_cast(float, static_cast<uint32_t>(p[i]) << 16);
}

// NaN is skipped: the second operand of max is returned where either is NaN.
inline float absmax(const float* x, int64_t n, float least) {
  F16 m = f_set(least);
  for (int64_t i = 0; i < n; i += kVector) m = f_max(f_abs(f_load_first(x + i, at_most(kVector, n - i))), m);
  return f_reduce_max(m);
}

// Nearest e4m3 value of |v| <= 448, ties to even, as a float.
inline F16 round_e4m3(F16 v) {
  constexpr uint32_t kHalfUlp = 0x7ffff, kKeep = 0xfff00000;
  const F16 magnitude = f_abs(v);
  const I16 bits = as_i(magnitude);
  const I16 odd = i_and(i_shr<20>(bits), i_set(1));
  const F16 normal = as_f(i_and(i_add(i_add(bits, i_set(kHalfUlp)), odd), i_set(kKeep)));
  // Below 2^-6 the step is 2^-9, the spacing of floats around 1.5 * 2^14.
  const F16 magic = f_set(0x1.8p14f);
  const F16 subnormal = f_sub(f_add(magnitude, magic), magic);
  const F16 rounded = f_select_less(magnitude, f_set(0x1p-6f), subnormal, normal);
  const I16 sign = i_and(as_i(v), i_set(0x80000000u));
  return f_select_nan(v, v, as_f(i_or(as_i(rounded), sign)));
}

// The scale of a block of n numbers.
inline float fp8_scale(const float* x, int64_t n, bool any_scale) {
  const float wanted = absmax(x, n, kFp8MinAbsmax) * (1.0f / kFp8Max);
  const uint32_t bits = __builtin_bit_cast(uint32_t, wanted);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return any_scale ? wanted : __builtin_bit_cast(float, exponent << 23);
}
// What v is in units of the scale, as E4M3.
inline F16 fp8_code(F16 v, F16 scale) { return round_e4m3(f_max(f_set(-kFp8Max), f_min(f_set(kFp8Max), f_div(v, scale)))); }
