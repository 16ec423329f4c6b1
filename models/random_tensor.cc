#include "models/random_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace weft {
namespace {

constexpr int64_t kGranule = 64;  // bytes: whole words for every element type
constexpr int kWordBytes = 8;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd
constexpr double kE4m3Max = 448;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Words {
  uint64_t key;
  uint64_t operator()(uint64_t i) const { return mix(key + (i + 1) * kGolden); }
};

// Sum of four 16-bit numbers, centred and scaled to variance 1.
float normal(uint64_t word) {
  constexpr float kMean = 4 * 65535.0f / 2;
  constexpr float kPerStd = 1 / 37837.2f;  // sqrt(4 * (65536^2 - 1) / 12)
  const auto sum =
      static_cast<int32_t>((word & 0xffff) + ((word >> 16) & 0xffff) + ((word >> 32) & 0xffff) + (word >> 48));
  return (static_cast<float>(sum) - kMean) * kPerStd;
}

float uniform01(uint64_t word) { return static_cast<float>(word >> 40) * 0x1p-24f; }

// One word for each element.
template <class T, class Element>
void fill_elements(Words words, int64_t first_byte, std::span<std::byte> out, Element element) {
  const uint64_t first = static_cast<uint64_t>(first_byte) / sizeof(T);
  for (size_t i = 0; i < out.size() / sizeof(T); ++i) {
    const T value = element(words(first + i));
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <class Number>
void fill_floats(DType dtype, Words words, int64_t first_byte, std::span<std::byte> out, Number number) {
  if (dtype == DType::kF32) return fill_elements<float>(words, first_byte, out, number);
  WEFT_CHECK(dtype == DType::kBF16, "{} numbers", dtype_name(dtype));
  fill_elements<bf16>(words, first_byte, out, [&](uint64_t word) { return to_bf16(number(word)); });
}

// One word for eight bytes, each mapped by `code`.
template <class Code>
void fill_bytes(Words words, int64_t first_byte, std::span<std::byte> out, Code code) {
  const uint64_t first = static_cast<uint64_t>(first_byte) / kWordBytes;
  for (size_t at = 0; at < out.size(); at += kWordBytes) {
    const uint64_t word = words(first + at / kWordBytes);
    std::array<uint8_t, kWordBytes> bytes;
    for (int i = 0; i < kWordBytes; ++i) bytes[i] = code(static_cast<uint8_t>(word >> (8 * i)));
    std::memcpy(out.data() + at, bytes.data(), std::min<size_t>(kWordBytes, out.size() - at));
  }
}

// The number that a share p of a normal distribution lies below.
double normal_quantile(double p) {
  double low = -10, high = 10;
  constexpr int kSteps = 60;
  for (int i = 0; i < kSteps; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

// A normal distribution cut into 256 equal shares; the outermost are +-448.
std::array<uint8_t, 256> make_e4m3_codes() {
  std::array<uint8_t, 256> codes;
  const double outermost = normal_quantile(255.5 / 256);
  for (int i = 0; i < 256; ++i) {
    codes[i] = float_to_e4m3(static_cast<float>(normal_quantile((i + 0.5) / 256) / outermost * kE4m3Max));
  }
  return codes;
}

const std::array<uint8_t, 256>& e4m3_codes() {
  static const std::array<uint8_t, 256> codes = make_e4m3_codes();
  return codes;
}

// 2^f and 2^(f + 1), mixed so that the mean square is that of `rms`.
void fill_scale(double rms, Words words, int64_t first_byte, std::span<std::byte> out) {
  constexpr int kBias = 127;
  const double low = std::floor(std::log2(rms)), low_square = std::exp2(2 * low);
  const int upper_of_256 = static_cast<int>(std::lround(256 * (rms * rms - low_square) / (3 * low_square)));
  const auto code = static_cast<uint8_t>(std::clamp(static_cast<int>(low) + kBias, 1, 253));
  fill_bytes(words, first_byte, out,
             [=](uint8_t byte) { return static_cast<uint8_t>(code + (byte < upper_of_256 ? 1 : 0)); });
}

// Floyd's sampling without replacement. Source: Bentley, Floyd, "A sample of brilliance", CACM 1987.
void fill_distinct(int64_t row_size, int64_t below, Words words, int64_t first_byte, std::span<std::byte> out) {
  WEFT_CHECK(0 < row_size && row_size <= below, "{} different numbers below {}", row_size, below);
  const int64_t row_bytes = row_size * static_cast<int64_t>(sizeof(int64_t));
  auto* row = reinterpret_cast<int64_t*>(out.data());
  for (int64_t at = first_byte; at < first_byte + static_cast<int64_t>(out.size()); at += row_bytes, row += row_size) {
    for (int64_t k = 0; k < row_size; ++k) {
      const uint64_t word = words(static_cast<uint64_t>(at / 8 + k));
      const int64_t last = below - row_size + k;
      const auto drawn = static_cast<int64_t>(word % static_cast<uint64_t>(last + 1));
      row[k] = std::find(row, row + k, drawn) == row + k ? drawn : last;
    }
  }
}

}  // namespace

double e4m3_std() {
  double squares = 0;
  for (uint8_t code : e4m3_codes()) squares += std::pow(static_cast<double>(e4m3_to_float(code)), 2);
  return std::sqrt(squares / static_cast<double>(e4m3_codes().size()));
}

uint64_t random_key(uint64_t seed, std::string_view name) {
  constexpr uint64_t kFnvOffset = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;  // FNV-1a
  uint64_t hash = kFnvOffset;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * kFnvPrime;
  return mix(mix(seed + kGolden) ^ hash);
}

int64_t fill_granule(const RandomTensor& tensor) {
  return tensor.fill == Fill::kDistinct ? tensor.type.shape.back() * static_cast<int64_t>(sizeof(int64_t)) : kGranule;
}

void fill_random(const RandomTensor& t, uint64_t key, int64_t first_byte, std::span<std::byte> out) {
  WEFT_CHECK(first_byte % fill_granule(t) == 0, "a piece at byte {}", first_byte);
  const Words words{key};
  const auto needs = [&](DType dtype) {
    WEFT_CHECK(t.type.dtype == dtype, "fill {} of {}", static_cast<int>(t.fill), to_string(t.type));
  };
  const auto a = static_cast<float>(t.a), b = static_cast<float>(t.b);
  switch (t.fill) {
    case Fill::kZero: return static_cast<void>(std::memset(out.data(), 0, out.size()));
    case Fill::kNormal:
      return fill_floats(t.type.dtype, words, first_byte, out, [=](uint64_t word) { return a + b * normal(word); });
    case Fill::kUniform:
      return fill_floats(t.type.dtype, words, first_byte, out,
                         [=](uint64_t word) { return a + (b - a) * uniform01(word); });
    case Fill::kE4m3: {
      needs(DType::kF8E4M3);
      const auto& codes = e4m3_codes();
      return fill_bytes(words, first_byte, out, [&](uint8_t byte) { return codes[byte]; });
    }
    case Fill::kInt8: {
      constexpr uint8_t kLowest = 0x80;  // -128, which has no opposite
      needs(DType::kI8);
      return fill_bytes(words, first_byte, out, [](uint8_t byte) { return byte == kLowest ? uint8_t{0} : byte; });
    }
    case Fill::kE2m1: needs(DType::kI8); return fill_bytes(words, first_byte, out, [](uint8_t byte) { return byte; });
    case Fill::kScale: needs(DType::kF8E8M0); return fill_scale(t.a, words, first_byte, out);
    case Fill::kDistinct:
      needs(DType::kI64);
      return fill_distinct(t.type.shape.back(), static_cast<int64_t>(t.a), words, first_byte, out);
  }
}

}  // namespace weft
