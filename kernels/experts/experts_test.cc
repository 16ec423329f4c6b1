#include "kernels/experts/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/numeric.h"
#include "kernels/experts/experts_internal.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kSeed = 77;

struct Case {
  int64_t rows, hidden = 64, inner = 48, experts = 5, top_k = 2;
  DType weight = DType::kF4E2M1, x_dtype = DType::kF32;
  float limit = 0;
  bool weight_before_w2 = true;
  ActQuant act_quant = ActQuant::kNone;
  int crowded = 0;  // of 8 rows so many choose expert 1 first
  bool unused_slots = false;
  int threads = 1;
  bool per_slot = false;
  bool float_scales = false;  // of FP8

  std::string name() const {
    return fmt::format("rows {} hidden {} inner {} experts {} top_k {} {} x {} limit {} before {} act_quant {} crowded {} per_slot {} seed {}",
                       rows, hidden, inner, experts, top_k, dtype_name(weight), dtype_name(x_dtype), limit,
                       weight_before_w2, static_cast<int>(act_quant), crowded, per_slot, kSeed);
  }
};

struct Problem {
  Case c;
  std::vector<std::byte> x, weights, scales;
  std::vector<int32_t> expert;
  std::vector<float> weight;
  std::vector<float> row_scales;  // I8
  std::vector<WeightMatrix> w1, w3, w2;

  explicit Problem(const Case& in) : c(in) {
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(c.rows * c.hidden * dtype_bits(c.x_dtype) / 8));
    for (int64_t i = 0; i < c.rows * c.hidden; ++i) {
      const float value = normal(random);
      const bf16 rounded = to_bf16(value);
      if (c.x_dtype == DType::kF32) std::memcpy(x.data() + i * 4, &value, 4);
      if (c.x_dtype == DType::kBF16) std::memcpy(x.data() + i * 2, &rounded, 2);
    }
    choose_experts(random);
    const int64_t elements = c.hidden * c.inner, bytes = elements * dtype_bits(c.weight) / 8;
    weights.resize(static_cast<size_t>(3 * c.experts * bytes));
    scales.resize(static_cast<size_t>(3 * c.experts * elements));
    for (int64_t i = 0; i < 3 * c.experts * bytes; ++i) {
      auto code = static_cast<uint8_t>(random());
      if (c.weight == DType::kF8E4M3 && (code & 0x7f) == 0x7f) code ^= 1;
      if (c.weight == DType::kBF16 && i % 2 == 1) code = static_cast<uint8_t>((code & 0x80) | 0x3d);
      weights[static_cast<size_t>(i)] = static_cast<std::byte>(code);
    }
    for (auto& s : scales) s = static_cast<std::byte>(120 + random() % 5);
    for (int64_t i = 0; i < 3 * c.experts * (c.hidden + c.inner); ++i) {
      row_scales.push_back(1e-3f + 1e-4f * static_cast<float>(i * 7 % 50));
    }
    for (int64_t e = 0; e < c.experts; ++e) {
      w1.push_back(matrix(3 * e, c.inner, c.hidden));
      w3.push_back(matrix(3 * e + 1, c.inner, c.hidden));
      w2.push_back(matrix(3 * e + 2, c.hidden, c.inner));
    }
  }

  void choose_experts(std::mt19937& random) {
    for (int64_t t = 0; t < c.rows; ++t) {
      std::vector<int32_t> all(static_cast<size_t>(c.experts));
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      if (t % 8 < c.crowded) std::swap(all[0], *std::find(all.begin(), all.end(), 1));
      const int64_t used = c.unused_slots ? static_cast<int64_t>(random() % static_cast<uint32_t>(c.top_k + 1)) : c.top_k;
      std::sort(all.begin(), all.begin() + used);
      for (int64_t j = 0; j < c.top_k; ++j) {
        expert.push_back(j < used ? all[static_cast<size_t>(j)] : -1);
        weight.push_back(j < used ? 0.1f + static_cast<float>(random() % 100) * 0.01f : kNan);
      }
    }
  }

  WeightMatrix matrix(int64_t i, int64_t rows, int64_t cols) const {
    const int64_t elements = c.hidden * c.inner;
    WeightMatrix w{c.weight, weights.data() + i * elements * dtype_bits(c.weight) / 8, rows, cols};
    if (c.weight == DType::kBF16) return w;
    if (c.weight == DType::kI8) {
      w.scale = row_scales.data() + i * (c.hidden + c.inner);
      w.scale_dtype = DType::kF32;
      w.block_cols = std::max(c.hidden, c.inner);
      return w;
    }
    w.scale = scales.data() + i * elements;
    w.block_rows = c.weight == DType::kF4E2M1 ? 1 : 128;
    w.block_cols = c.weight == DType::kF4E2M1 ? 32 : 128;
    if (c.float_scales) {
      w.scale = row_scales.data() + i * (c.hidden + c.inner);
      w.scale_dtype = DType::kF32;
    }
    return w;
  }

  ExpertsArgs args_of(int64_t first_row, int64_t rows) const {
    ExpertsArgs args;
    args.x = x.data() + first_row * c.hidden * dtype_bits(c.x_dtype) / 8;
    args.x_dtype = c.x_dtype;
    args.num_rows = rows;
    args.hidden = c.hidden;
    args.inner = c.inner;
    args.top_k = c.top_k;
    args.expert = expert.data() + first_row * c.top_k;
    args.weight = weight.data() + first_row * c.top_k;
    args.w1 = w1;
    args.w3 = w3;
    args.w2 = w2;
    args.swiglu_limit = c.limit;
    args.weight_before_w2 = c.weight_before_w2;
    args.act_quant = c.act_quant;
    args.per_slot = c.per_slot;
    return args;
  }

  void call(ExpertsFn* function, ExpertsArgs args) const {
    const int64_t size = experts_scratch_bytes(args.part, args.num_rows, args.hidden, args.inner, c.top_k, c.experts, c.threads);
    std::vector<std::byte> storage(static_cast<size_t>(size + 64), std::byte{0xff});
    auto address = reinterpret_cast<uintptr_t>(storage.data());
    args.scratch = storage.data() + (64 - address % 64) % 64;
    ThreadPool pool(c.threads);
    function(args, pool);
  }

  std::vector<float> run(ExpertsFn* function, int64_t first_row, int64_t rows) const {
    std::vector<float> y(static_cast<size_t>(rows * (c.per_slot ? c.top_k : 1) * c.hidden), kNan);
    ExpertsArgs args = args_of(first_row, rows);
    args.y = y.data();
    call(function, args);
    return y;
  }

  // The same by owners of some rows of w1 and w3 each, then of some rows of w2, who put a[] and y together.
  std::vector<float> run_in_parts(ExpertsFn* function, std::span<const int64_t> inner_cuts, std::span<const int64_t> hidden_cuts) const {
    const auto rows_of = [](const std::vector<WeightMatrix>& whole, int64_t begin, int64_t end) {
      std::vector<WeightMatrix> part;
      for (const WeightMatrix& w : whole) part.push_back(weight_rows(w, begin, end));
      return part;
    };
    const int64_t slots = c.rows * c.top_k, element = dtype_bits(c.x_dtype) / 8;
    std::vector<std::byte> a(static_cast<size_t>(slots * c.inner * element), std::byte{0xff});
    for (size_t i = 0; i + 1 < inner_cuts.size(); ++i) {
      const int64_t begin = inner_cuts[i], width = inner_cuts[i + 1] - begin;
      const auto part1 = rows_of(w1, begin, begin + width), part3 = rows_of(w3, begin, begin + width);
      std::vector<std::byte> part(static_cast<size_t>(slots * width * element), std::byte{0xff});
      ExpertsArgs args = args_of(0, c.rows);
      args.part = ExpertsPart::kUp;
      args.inner = width;
      args.w1 = part1;
      args.w3 = part3;
      args.w2 = {};
      args.a = part.data();
      call(function, args);
      for (int64_t s = 0; s < slots; ++s) {
        if (expert[static_cast<size_t>(s)] < 0) {
          EXPECT_TRUE(std::all_of(part.begin() + s * width * element, part.begin() + (s + 1) * width * element,
                                  [](std::byte b) { return b == std::byte{0}; })) << "unused slot " << s;
        }
        std::memcpy(a.data() + (s * c.inner + begin) * element, part.data() + s * width * element, static_cast<size_t>(width * element));
      }
    }
    const int64_t y_rows = c.rows * (c.per_slot ? c.top_k : 1);
    std::vector<float> y(static_cast<size_t>(y_rows * c.hidden), kNan);
    for (size_t i = 0; i + 1 < hidden_cuts.size(); ++i) {
      const int64_t begin = hidden_cuts[i], width = hidden_cuts[i + 1] - begin;
      const auto part2 = rows_of(w2, begin, begin + width);
      std::vector<float> part(static_cast<size_t>(y_rows * width), kNan);
      ExpertsArgs args = args_of(0, c.rows);
      args.part = ExpertsPart::kDown;
      args.hidden = width;
      args.x = nullptr;
      args.w1 = args.w3 = {};
      args.w2 = part2;
      args.a = a.data();
      args.y = part.data();
      call(function, args);
      for (int64_t t = 0; t < y_rows; ++t) std::copy_n(part.begin() + t * width, width, y.begin() + t * c.hidden + begin);
    }
    return y;
  }
};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

void expect_equal(const std::vector<float>& want, const std::vector<float>& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(same(want[i], got[i])) << what << " element " << i << ": expected " << want[i] << " got " << got[i];
  }
}

void expect_all_variants_equal(const Problem& problem) {
  const Case& c = problem.c;
  const auto variants = experts_variants();
  const std::vector<float> canonical = problem.run(variants.back().run, 0, c.rows);
  const std::vector<float> pairs = problem.run(experts_bf16_ref, 0, c.rows);
  for (const auto& variant : variants.first(variants.size() - 1)) {
    if (variant.isa > max_isa()) continue;
    const std::vector<float>& want = variant.isa == Isa::kAvx512Bf16 ? pairs : canonical;
    expect_equal(want, problem.run(variant.run, 0, c.rows), fmt::format("{}: {}", variant.name, c.name()));
  }
}

void expect_all_variants_equal(const Case& c) { expect_all_variants_equal(Problem(c)); }

TEST(experts, rows) {
  for (int64_t rows : {0, 1, 2, 3, 8, 20, 60}) expect_all_variants_equal({.rows = rows});
}

TEST(experts, weights_and_profiles) {
  for (DType weight : {DType::kF4E2M1, DType::kF8E4M3, DType::kBF16}) {
    for (DType x_dtype : {DType::kF32, DType::kBF16}) {
      for (bool before : {false, true}) {
        for (int64_t rows : {1, 30}) {
          expect_all_variants_equal({.rows = rows,
                                     .weight = weight,
                                     .x_dtype = x_dtype,
                                     .limit = before ? 1.5f : 0.0f,
                                     .weight_before_w2 = before,
                                     .act_quant = x_dtype == DType::kBF16 ? ActQuant::kFp8Block128 : ActQuant::kNone});
        }
      }
    }
  }
}

// Widths that dot products of bf16 pairs take, with few rows for an expert and with many.
TEST(experts, bf16_pairs) {
  for (DType weight : {DType::kF4E2M1, DType::kF8E4M3, DType::kBF16}) {
    for (int64_t rows : {1, 5, 30, 90}) {
      for (ActQuant act_quant : {ActQuant::kNone, ActQuant::kFp8Block128}) {
        expect_all_variants_equal({.rows = rows, .hidden = 192, .inner = 128, .weight = weight, .x_dtype = DType::kBF16,
                                   .limit = 1.5f, .weight_before_w2 = rows != 5, .act_quant = act_quant, .threads = 2});
      }
    }
  }
}

// FP8 with fp32 scales: groups of features, in both layers or in the first alone.
TEST(experts, bf16_groups) {
  for (int64_t inner : {256, 192}) {
    for (int64_t rows : {1, 5, 30, 90}) {
      for (ActQuant act_quant : {ActQuant::kNone, ActQuant::kFp8Block128, ActQuant::kFp8Block128AnyScale}) {
        const Problem problem({.rows = rows, .hidden = 384, .inner = inner, .weight = DType::kF8E4M3, .x_dtype = DType::kBF16,
                               .weight_before_w2 = rows == 5, .act_quant = act_quant, .threads = 2, .per_slot = rows == 30, .float_scales = true});
        const ExpertsPairs pairs = experts_pairs(problem.args_of(0, rows));
        EXPECT_EQ(pairs.up, Bf16Pairs::kGroups);
        EXPECT_EQ(pairs.down, inner == 256 ? Bf16Pairs::kGroups : Bf16Pairs::kNone);
        expect_all_variants_equal(problem);
      }
    }
  }
}

// Activations of int8: once of a token, again of the inner activations of each slot.
TEST(experts, int8) {
  for (DType x_dtype : {DType::kF32, DType::kBF16}) {
    for (bool before : {false, true}) {
      for (int64_t rows : {1, 2, 5, 30, 90}) {
        expect_all_variants_equal({.rows = rows, .hidden = rows == 30 ? 68 : 192, .inner = 132, .weight = DType::kI8, .x_dtype = x_dtype,
                                   .weight_before_w2 = before, .act_quant = ActQuant::kInt8PerRow, .threads = 2,
                                   .per_slot = rows == 5});
      }
    }
  }
}

TEST(experts, int8_is_the_formula) {
  const Problem p({.rows = 1, .hidden = 8, .inner = 4, .experts = 2, .top_k = 1, .weight = DType::kI8, .weight_before_w2 = false,
                   .act_quant = ActQuant::kInt8PerRow});
  const auto quantised = [](const std::vector<float>& x) {
    float most = 0;
    for (float v : x) most = std::max(most, std::fabs(v));
    std::vector<float> q;
    for (float v : x) q.push_back(std::nearbyint(v / (most / 127)));
    q.push_back(most / 127);
    return q;
  };
  const auto times = [](const WeightMatrix& w, int64_t n, const std::vector<float>& q) {
    float sum = 0;
    for (int64_t k = 0; k < w.cols; ++k) sum += static_cast<const int8_t*>(w.data)[n * w.cols + k] * q[static_cast<size_t>(k)];
    return sum * static_cast<const float*>(w.scale)[n] * q.back();
  };
  std::vector<float> x(8);
  std::memcpy(x.data(), p.x.data(), 32);
  const auto e = static_cast<size_t>(p.expert[0]);
  std::vector<float> inner;
  const std::vector<float> qx = quantised(x);
  for (int64_t i = 0; i < 4; ++i) inner.push_back(silu_f32(times(p.w1[e], i, qx)) * times(p.w3[e], i, qx));
  const std::vector<float> qa = quantised(inner);
  const std::vector<float> y = p.run(experts_ref, 0, 1);
  for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(y[static_cast<size_t>(d)], p.weight[0] * times(p.w2[e], d, qa)) << d;
}

// One expert gets nearly every row, others few or none.
TEST(experts, uneven_load) {
  for (int crowded : {4, 8}) {
    expect_all_variants_equal({.rows = 50, .experts = 20, .top_k = 3, .crowded = crowded, .threads = 2});
  }
}

TEST(experts, unused_slots) {
  expect_all_variants_equal({.rows = 40, .top_k = 4, .x_dtype = DType::kBF16, .unused_slots = true});
}

// More slots than one batch holds.
TEST(experts, several_batches) {
  expect_all_variants_equal({.rows = 400, .hidden = 32, .inner = 32, .experts = 7, .top_k = 6, .threads = 2});
}

TEST(experts, odd_widths) {
  expect_all_variants_equal({.rows = 25, .hidden = 100, .inner = 36, .weight = DType::kBF16});
  expect_all_variants_equal({.rows = 25, .hidden = 160, .inner = 136, .threads = 2});
}

TEST(experts, rows_are_independent) {
  const Problem problem({.rows = 60, .inner = 64, .x_dtype = DType::kBF16, .act_quant = ActQuant::kFp8Block128});
  for (const auto& variant : experts_variants()) {
    if (variant.isa > max_isa()) continue;
    const std::vector<float> whole = problem.run(variant.run, 0, 60);
    for (int64_t rows : {1, 2, 11, 33}) {
      for (int64_t first : {int64_t{0}, int64_t{5}, 60 - rows}) {
        const auto begin = whole.begin() + first * problem.c.hidden;
        expect_equal({begin, begin + rows * problem.c.hidden}, problem.run(variant.run, first, rows),
                     fmt::format("{} rows {}+{}", variant.name, first, rows));
      }
    }
  }
}

// The outputs of the slots, added from zero in ascending expert id, are the sum form to the bit.
TEST(experts, slots_add_up_to_the_sum) {
  const Case cases[] = {
      {.rows = 1, .top_k = 3},
      {.rows = 30, .x_dtype = DType::kBF16, .weight_before_w2 = false, .unused_slots = true},
      {.rows = 40, .top_k = 4, .x_dtype = DType::kBF16, .unused_slots = true, .threads = 2},
      {.rows = 30, .hidden = 192, .inner = 128, .x_dtype = DType::kBF16, .weight_before_w2 = false, .crowded = 6},
      {.rows = 400, .hidden = 32, .inner = 32, .experts = 7, .top_k = 6, .unused_slots = true, .threads = 2},
  };
  std::vector<ExpertsFn*> functions = {experts_bf16_ref};
  for (const auto& variant : experts_variants()) {
    if (variant.isa <= max_isa()) functions.push_back(variant.run);
  }
  for (const Case& c : cases) {
    const Problem problem(c);
    Problem slots = problem;
    slots.c.per_slot = true;
    expect_all_variants_equal(slots);
    for (size_t f = 0; f < functions.size(); ++f) {
      const std::vector<float> want = problem.run(functions[f], 0, c.rows), got = slots.run(functions[f], 0, c.rows);
      std::vector<float> sum(want.size(), 0.0f);
      for (int64_t s = 0; s < c.rows * c.top_k; ++s) {  // experts of a row are in ascending order
        for (int64_t i = 0; i < c.hidden; ++i) {
          const float value = got[static_cast<size_t>(s * c.hidden + i)];
          if (problem.expert[static_cast<size_t>(s)] < 0) {
            ASSERT_TRUE(same(value, 0.0f)) << "unused slot " << s << " " << slots.c.name();
          }
          sum[static_cast<size_t>(s / c.top_k * c.hidden + i)] += value;
        }
      }
      expect_equal(want, sum, fmt::format("function {}: {}", f, slots.c.name()));
    }
  }
}

TEST(experts, two_calls_give_the_bits_of_one) {
  constexpr ActQuant kFp8 = ActQuant::kFp8Block128, kNone = ActQuant::kNone;
  const Case cases[] = {
      {.rows = 1, .hidden = 128, .inner = 96, .x_dtype = DType::kBF16, .act_quant = kFp8},
      {.rows = 30, .hidden = 128, .inner = 96, .x_dtype = DType::kBF16, .limit = 1.5f, .act_quant = kFp8, .unused_slots = true, .threads = 2},
      {.rows = 40, .hidden = 192, .inner = 256, .weight = DType::kF8E4M3, .x_dtype = DType::kBF16, .act_quant = kFp8, .crowded = 6},
      {.rows = 5, .hidden = 192, .inner = 256, .x_dtype = DType::kBF16, .act_quant = kFp8, .threads = 2},
      {.rows = 30, .hidden = 256, .inner = 256, .weight = DType::kF8E4M3, .x_dtype = DType::kBF16, .act_quant = ActQuant::kFp8Block128AnyScale, .float_scales = true},
      {.rows = 30, .hidden = 192, .inner = 96, .weight = DType::kBF16, .x_dtype = DType::kBF16, .weight_before_w2 = false},
      {.rows = 30, .hidden = 96, .inner = 192, .x_dtype = DType::kBF16},  // pairs of bf16 in one of the layers alone
      {.rows = 50, .hidden = 100, .inner = 36, .weight = DType::kBF16, .act_quant = kNone, .unused_slots = true, .per_slot = true},
      {.rows = 180, .hidden = 32, .inner = 32, .experts = 7, .top_k = 6, .threads = 2},
  };
  std::vector<ExpertsFn*> functions = {experts_bf16_ref};
  for (const auto& variant : experts_variants()) {
    if (variant.isa <= max_isa()) functions.push_back(variant.run);
  }
  for (const Case& c : cases) {
    const Problem problem(c);
    for (size_t f = 0; f < functions.size(); ++f) {
      const std::vector<float> want = problem.run(functions[f], 0, c.rows);
      const int64_t inner[][4] = {{0, c.inner, c.inner, c.inner}, {0, c.inner / 2, c.inner, c.inner}, {0, 4, c.inner / 2 + 6, c.inner}};
      const int64_t hidden[][4] = {{0, c.hidden, c.hidden, c.hidden}, {0, c.hidden / 2, c.hidden, c.hidden}, {0, 20, 26, c.hidden}};
      for (int i = 0; i < 3; ++i) {
        const size_t parts = static_cast<size_t>(i) + 2;
        expect_equal(want, problem.run_in_parts(functions[f], std::span(inner[i]).first(parts), std::span(hidden[i]).first(parts)),
                     fmt::format("function {}, {} parts: {}", f, parts - 1, c.name()));
      }
    }
  }
}

// Values of a view in fp32, stored densely.
std::vector<float> values_of(const WeightMatrix& w) {
  std::vector<float> values;
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t k = 0; k < w.cols; ++k) values.push_back(weight_value(w, r, k));
  }
  return values;
}

// Shares of the inner width: rows of w1 and w3, columns of w2.
TEST(experts, shares_of_the_inner_width) {
  for (DType weight : {DType::kF4E2M1, DType::kF8E4M3, DType::kBF16}) {
    for (int64_t rows : {1, 20}) {
      for (bool per_slot : {false, true}) {
        const Problem whole({.rows = rows,
                             .hidden = 128,
                             .inner = 192,
                             .experts = 3,
                             .weight = weight,
                             .x_dtype = DType::kBF16,
                             .limit = 1.5f,
                             .weight_before_w2 = per_slot,
                             .crowded = 8,
                             .threads = 2,
                             .per_slot = per_slot});
        for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 64}, {64, 192}, {36, 112}}) {
          SCOPED_TRACE(fmt::format("inner {}..{}", begin, end));
          Problem share = whole, dense = whole;
          share.c.inner = dense.c.inner = end - begin;
          std::vector<std::vector<float>> values;
          const auto view = [&](WeightMatrix& w, WeightMatrix& copy, bool of_columns) {
            w = of_columns ? weight_columns(w, begin, end) : weight_rows(w, begin, end);
            values.push_back(values_of(w));
            copy = {DType::kF32, values.back().data(), w.rows, w.cols};
          };
          for (size_t e = 0; e < whole.w1.size(); ++e) {
            view(share.w1[e], dense.w1[e], false);
            view(share.w3[e], dense.w3[e], false);
            view(share.w2[e], dense.w2[e], true);
          }
          expect_all_variants_equal(share);
          const std::vector<float> want = dense.run(experts_ref, 0, rows);
          expect_equal(want, share.run(experts_ref, 0, rows), "copied weights");
        }
      }
    }
  }
}

// The definition, composed of the reference of the linear layer and of silu.
TEST(experts, composition_of_linear_layers) {
  const Problem p({.rows = 6, .limit = 2, .weight_before_w2 = false});
  const Case& c = p.c;
  ThreadPool pool(1);
  LinearFn* linear = linear_variants().back().run;
  const auto multiply = [&](const WeightMatrix& w, const float* x) {
    std::vector<float> y(static_cast<size_t>(w.rows)), scratch(static_cast<size_t>(
        linear_scratch_bytes(1, w.cols, w.rows, 1, w.dtype, 1) / 4));
    LinearArgs args;
    args.x = x;
    args.x_stride = w.cols;
    args.num_rows = 1;
    args.w = w;
    args.y = y.data();
    args.y_stride = w.rows;
    args.scratch = reinterpret_cast<std::byte*>(scratch.data());
    linear(args, pool);
    return y;
  };
  std::vector<float> want(static_cast<size_t>(c.rows * c.hidden), 0.0f);
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* x = reinterpret_cast<const float*>(p.x.data()) + t * c.hidden;
    for (int64_t j = 0; j < c.top_k; ++j) {
      const auto e = static_cast<size_t>(p.expert[static_cast<size_t>(t * c.top_k + j)]);
      std::vector<float> a = multiply(p.w1[e], x);
      const std::vector<float> u = multiply(p.w3[e], x);
      for (size_t i = 0; i < a.size(); ++i) a[i] = silu_f32(std::min(a[i], 2.0f)) * std::clamp(u[i], -2.0f, 2.0f);
      const std::vector<float> o = multiply(p.w2[e], a.data());
      for (size_t i = 0; i < o.size(); ++i) {
        want[static_cast<size_t>(t * c.hidden) + i] += p.weight[static_cast<size_t>(t * c.top_k + j)] * o[i];
      }
    }
  }
  for (const auto& variant : experts_variants()) {
    if (variant.isa <= max_isa()) expect_equal(want, p.run(variant.run, 0, c.rows), std::string(variant.name));
  }
}

}  // namespace
}  // namespace weft
