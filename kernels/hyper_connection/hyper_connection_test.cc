#include "kernels/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void hc_pre_ref(const HcPreArgs& args);
void hc_post_ref(const HcPostArgs& args);

namespace {

constexpr unsigned kSeed = 25;

// deepseek_v4.md 2.3. One channel, X = (1, 2, 3, 4); fn is chosen so that m has the example's values: each row of fn
// has m / r at stream 0, whose X is 1.
TEST(HyperConnection, WorkedExample) {
  const float m[24] = {0.5f, -0.25f, 1, 0, 0.1f, 0.2f, -0.3f, 0.4f, 1,     0, 0, 0,
                       0,    2,      0, 0, 0,    0,    -1,    0.5f, 0.25f, 0, 0, 1};
  const double post[4] = {1.049958, 1.099668, 0.851115, 1.197375};
  const double c[16] = {0.433878, 0.115959, 0.307239, 0.142923, 0.108834, 0.584222, 0.209491, 0.097452,
                        0.255694, 0.185759, 0.181063, 0.377482, 0.201593, 0.114059, 0.302206, 0.382141};
  const double x_new[4] = {12.724584, 13.294597, 10.989384, 14.972592};
  const float x[4] = {1, 2, 3, 4}, y = 10, base[24] = {}, scale[3] = {1, 1, 1};
  float fn[24 * 4] = {};
  for (int n = 0; n < 24; ++n) fn[4 * n] = m[n] * std::sqrt(7.5f);
  for (const auto& variant : hc_pre_variants()) {
    if (variant.isa > max_isa()) continue;
    float out = NAN, mix[20];
    variant.run({.x = x,
                 .num_rows = 1,
                 .streams = 4,
                 .hidden = 1,
                 .weights = {fn, base, scale},
                 .iterations = 20,
                 .rms_eps = 0,
                 .hc_eps = 1e-6f,
                 .out = &out,
                 .mix = mix});
    EXPECT_NEAR(out, 5.691292, 2e-6) << variant.name;
    for (int k = 0; k < 4; ++k) EXPECT_NEAR(mix[k], post[k], 1e-6) << variant.name;
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(mix[4 + i], c[i], 1e-6) << variant.name << " C " << i;
    for (const auto& post_variant : hc_post_variants()) {
      if (post_variant.isa > max_isa()) continue;
      float result[4] = {NAN, NAN, NAN, NAN};
      post_variant.run({.x = x, .y = &y, .mix = mix, .out = result, .num_rows = 1, .streams = 4, .hidden = 1});
      for (int k = 0; k < 4; ++k) EXPECT_NEAR(result[k], x_new[k], 4e-6) << post_variant.name;
    }
    // hc_head: the four outputs of pre alone
    variant.run({.x = x,
                 .num_rows = 1,
                 .streams = 4,
                 .hidden = 1,
                 .weights = {fn, base, scale},
                 .rms_eps = 0,
                 .hc_eps = 1e-6f,
                 .out = &out});
    EXPECT_NEAR(out, 5.691292, 2e-6) << variant.name;
  }
}

// softmax + eps, then one column pass: the intermediate values of the example, row 0.
TEST(HyperConnection, FirstColumnPass) {
  const float x[4] = {1, 2, 3, 4}, scale[3] = {1, 1, 1}, fn[24 * 4] = {};
  const float base[24] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, -1, 0.5f, 0.25f, 0, 0, 1};
  const double row0[4] = {0.459508, 0.134348, 0.330377, 0.154148};
  for (const auto& variant : hc_pre_variants()) {
    if (variant.isa > max_isa()) continue;
    float out = NAN, mix[20];
    variant.run({.x = x,
                 .num_rows = 1,
                 .streams = 4,
                 .hidden = 1,
                 .weights = {fn, base, scale},
                 .iterations = 1,
                 .rms_eps = 0,
                 .hc_eps = 1e-6f,
                 .out = &out,
                 .mix = mix});
    for (int k = 0; k < 4; ++k) EXPECT_NEAR(mix[4 + k], row0[k], 1e-6) << variant.name;
  }
}

struct Case {
  int64_t rows, streams, hidden, offset;
};
const Case kCases[] = {{0, 4, 16, 0},  {1, 4, 1, 0},    {2, 4, 5, 1},   {1, 4, 16, 0}, {3, 4, 17, 3},
                       {2, 1, 33, 0},  {5, 2, 40, 1},   {2, 3, 21, 1},  {1, 8, 24, 0}, {17, 4, 36, 0},
                       {33, 4, 20, 1}, {4, 4, 1000, 1}, {1, 4, 4096, 0}};

TEST(HyperConnection, PreVariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  for (const DType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      for (const bool head : {false, true}) {
        const int64_t s = c.streams, width = s * c.hidden, outputs = head ? s : (2 + s) * s, mix_size = s + s * s;
        TestArray x(dtype, c.rows * width, c.offset), expected(dtype, c.rows * c.hidden);
        TestArray fn(DType::kF32, outputs * width, c.offset), base(DType::kF32, outputs), scale(DType::kF32, 3);
        TestArray expected_mix(DType::kF32, c.rows * mix_size);
        x.fill(random);
        fn.fill(random, 0.1f);
        base.fill(random);
        scale.fill(random);
        HcPreArgs args{.x = x.data(),
                       .dtype = dtype,
                       .num_rows = c.rows,
                       .streams = s,
                       .hidden = c.hidden,
                       .weights = {fn.f32(), base.f32(), scale.f32()},
                       .iterations = 20,
                       .rms_eps = 1e-6f,
                       .hc_eps = 1e-6f};
        const auto run = [&](HcPreFn* function, TestArray& out, TestArray& mix) {
          args.out = out.data();
          args.mix = head ? nullptr : static_cast<float*>(mix.data());
          function == nullptr ? hc_pre(args, max_isa(), pool) : function(args);
        };
        run(hc_pre_ref, expected, expected_mix);
        const auto check = [&](std::string_view name, HcPreFn* function) {
          TestArray out(dtype, c.rows * c.hidden, c.offset), mix(DType::kF32, c.rows * mix_size, c.offset);
          run(function, out, mix);
          ASSERT_EQ(out.bits(), expected.bits()) << name << " " << dtype_name(dtype) << " rows " << c.rows << " hidden "
                                                 << c.hidden << " streams " << s << " seed " << kSeed;
          if (!head) {
            ASSERT_EQ(mix.bits(), expected_mix.bits()) << name;
          }
          EXPECT_TRUE(out.guards_are_nan() && mix.guards_are_nan());
        };
        for (const auto& variant : hc_pre_variants()) {
          if (variant.isa <= max_isa()) check(variant.name, variant.run);
        }
        check("pool", nullptr);
        if (c.rows == 0) continue;
        // The last row alone.
        TestArray out(dtype, c.hidden), mix(DType::kF32, mix_size);
        TestArray row(dtype, width);
        for (int64_t i = 0; i < width; ++i) row.set(i, x.get((c.rows - 1) * width + i));
        args.x = row.data(), args.num_rows = 1;
        run(hc_pre_variants()[0].isa <= max_isa() ? hc_pre_variants()[0].run : hc_pre_ref, out, mix);
        ASSERT_EQ(out.bits(), expected.bits((c.rows - 1) * c.hidden, c.hidden)) << "row alone";
      }
    }
  }
}

TEST(HyperConnection, PostVariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  for (const DType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      const int64_t s = c.streams, width = s * c.hidden;
      TestArray x(dtype, c.rows * width, c.offset), y(dtype, c.rows * c.hidden, c.offset),
          expected(dtype, c.rows * width);
      TestArray mix(DType::kF32, c.rows * (s + s * s), c.offset);
      x.fill(random);
      y.fill(random);
      mix.fill(random);
      HcPostArgs args{.x = x.data(),
                      .y = y.data(),
                      .mix = mix.f32(),
                      .out = expected.data(),
                      .dtype = dtype,
                      .num_rows = c.rows,
                      .streams = s,
                      .hidden = c.hidden};
      hc_post_ref(args);
      for (const auto& variant : hc_post_variants()) {
        if (variant.isa > max_isa()) continue;
        TestArray out(dtype, c.rows * width, c.offset), in_place(dtype, c.rows * width, c.offset);
        args.x = x.data(), args.out = out.data();
        variant.run(args);
        ASSERT_EQ(out.bits(), expected.bits())
            << variant.name << " " << dtype_name(dtype) << " hidden " << c.hidden << " seed " << kSeed;
        EXPECT_TRUE(out.guards_are_nan());
        for (int64_t i = 0; i < c.rows * width; ++i) in_place.set(i, x.get(i));
        args.x = args.out = in_place.data();
        variant.run(args);
        ASSERT_EQ(in_place.bits(), expected.bits()) << variant.name << " in place";
      }
    }
  }
}

}  // namespace
}  // namespace weft
