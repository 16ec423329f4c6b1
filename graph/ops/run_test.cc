// Ops on small inputs against their formulas in double. run_op checks that outputs are written as infer says, in their valid
// rows only, and that the scratch of work() is enough.
#include <functional>
#include <random>

#include "graph/test_support.h"

namespace weft {
namespace {

constexpr int64_t kTokens = 7, kWidth = 24, kStreams = 3;
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};

class OpRun : public ::testing::Test {
 protected:
  OpRun() {
    batch_.segments = {{0, 0, kTokens, kTokens + 9}};
    for (int64_t t = 0; t < kTokens; ++t) {
      batch_.tokens.push_back(static_cast<int32_t>((5 * t) % 11));
      batch_.positions.push_back(static_cast<int32_t>(9 + t));
    }
    batch_.logit_rows = {1, 4, 6};
    tokens_ = std::make_unique<HostTensor>(ints(batch_.tokens));
    positions_ = std::make_unique<HostTensor>(ints(batch_.positions));
  }
  static HostTensor ints(const std::vector<int32_t>& values) {
    HostTensor tensor(DType::kI32, {static_cast<int64_t>(values.size())}, Rows::kTokens);
    for (size_t i = 0; i < values.size(); ++i) tensor.as<int32_t>()[i] = values[i];
    return tensor;
  }
  static HostTensor rows(DType dtype, Shape shape, int64_t seed) {
    HostTensor tensor(dtype, shape, Rows::kTokens);
    tensor.fill(seed);
    return tensor;
  }
  static HostTensor fixed(DType dtype, Shape shape, int64_t seed) {
    HostTensor tensor(dtype, shape);
    tensor.fill(seed);
    return tensor;
  }
  // Runs the op on one and on two threads, on the reference and the best variants; the outputs are f(element).
  void expect(const Op& op, const std::vector<const HostTensor*>& in, const std::function<double(int64_t)>& f,
              int output = 0) {
    for (int threads : {1, 2}) {
      for (Isa isa : {Isa::kScalar, max_isa()}) {
        ThreadPool pool(threads);
        const auto out = run_op(op, in, {batch_, pool, isa});
        ASSERT_GT(static_cast<int>(out.size()), output);
        const HostTensor& y = out[output];
        for (int64_t i = 0; i < y.count(); ++i) {
          const double expected = f(i), tolerance = y.type().dtype() == DType::kBF16 ? 1.0 / 128 : 2e-5;
          ASSERT_NEAR(y.get(i), expected, tolerance * std::max(1.0, std::abs(expected)))
              << op_name(op) << " element " << i << ", " << threads << " threads, " << isa_name(isa);
        }
      }
    }
  }

  StepBatch batch_;
  std::unique_ptr<HostTensor> tokens_, positions_;
};

TEST_F(OpRun, Embedding) {
  for (DType table_dtype : kDtypes) {
    for (DType dtype : kDtypes) {
      for (int64_t streams : {0, 3}) {
        const HostTensor table = fixed(table_dtype, {11, kWidth}, 1);
        const int64_t copies = std::max<int64_t>(streams, 1);
        expect(Embedding{streams, dtype}, {tokens_.get(), &table},
               [&](int64_t i) { return table.get(batch_.tokens[i / (copies * kWidth)] * kWidth + i % kWidth); });
      }
    }
  }
}

TEST_F(OpRun, EmbeddingRefusesUnknownTokens) {
  const HostTensor table = fixed(DType::kF32, {10, kWidth}, 1);  // token 10 stands at row 2
  ThreadPool pool(1);
  Status status;
  run_op(Embedding{}, {tokens_.get(), &table}, {batch_, pool}, &status);
  EXPECT_EQ(status.message(), "token id 10 at row 2 is outside the vocabulary of 10");
}

TEST_F(OpRun, RmsNorm) {
  for (DType dtype : kDtypes) {
    const HostTensor x = rows(dtype, {kTokens, kStreams, kWidth}, 1), w = fixed(DType::kF32, {kWidth}, 2);
    for (bool weighted : {false, true}) {
      std::vector<const HostTensor*> in = {&x};
      if (weighted) in.push_back(&w);
      expect(RmsNorm{0.01}, in, [&](int64_t i) {
        double squares = 0;
        for (int64_t d = 0; d < kWidth; ++d) squares += std::pow(x.get(i / kWidth * kWidth + d), 2);
        return x.get(i) / std::sqrt(squares / kWidth + 0.01) * (weighted ? w.get(i % kWidth) : 1);
      });
    }
  }
}

TEST_F(OpRun, RmsNormOfTheFirstFeatures) {
  constexpr int64_t kNormed = 20;
  for (DType dtype : kDtypes) {
    const HostTensor x = rows(dtype, {kTokens, kWidth}, 1), w = fixed(DType::kF32, {kNormed}, 2);
    expect(RmsNorm{0.01}, {&x, &w}, [&](int64_t i) -> double {
      if (i % kWidth >= kNormed) return x.get(i);
      double squares = 0;
      for (int64_t d = 0; d < kNormed; ++d) squares += std::pow(x.get(i / kWidth * kWidth + d), 2);
      return x.get(i) / std::sqrt(squares / kNormed + 0.01) * w.get(i % kWidth);
    });
  }
}

TEST_F(OpRun, LayerNorm) {
  for (DType dtype : kDtypes) {
    const HostTensor x = rows(dtype, {kTokens, kWidth}, 1), w = fixed(DType::kF32, {kWidth}, 2),
                     b = fixed(DType::kF32, {kWidth}, 3);
    expect(LayerNorm{0.01}, {&x, &w, &b}, [&](int64_t i) {
      double mean = 0, variance = 0;
      for (int64_t d = 0; d < kWidth; ++d) mean += x.get(i / kWidth * kWidth + d) / static_cast<double>(kWidth);
      for (int64_t d = 0; d < kWidth; ++d) variance += std::pow(x.get(i / kWidth * kWidth + d) - mean, 2) / static_cast<double>(kWidth);
      return w.get(i % kWidth) * (x.get(i) - mean) / std::sqrt(variance + 0.01) + b.get(i % kWidth);
    });
  }
}

// glm_moe_dsa.md 2.6: q_lat = W_UK^T q of every head, its rotated features behind it.
TEST_F(OpRun, LinearOfHeadsWhoseLastFeaturesPassBy) {
  constexpr int64_t kHeads = 3, kIn = 12, kOut = 20, kRest = 4;
  for (DType dtype : kDtypes) {
    for (DType w_dtype : kDtypes) {
      const HostTensor x = rows(dtype, {kTokens, kHeads, kIn + kRest}, 1), w = fixed(w_dtype, {kHeads * kOut, kIn}, 2);
      expect(Linear{dtype, ActQuant::kNone, kHeads, 1, kHeads, 0, 0, kRest}, {&x, &w}, [&](int64_t i) -> double {
        const int64_t head = i / (kOut + kRest), n = i % (kOut + kRest), x0 = head * (kIn + kRest);
        if (n >= kOut) return x.get(x0 + kIn + n - kOut);
        double sum = 0;
        for (int64_t k = 0; k < kIn; ++k) sum += x.get(x0 + k) * w.get((head % kHeads * kOut + n) * kIn + k);
        return sum;
      });
    }
  }
}

TEST_F(OpRun, Concat) {
  for (DType dtype : kDtypes) {
    const HostTensor a = rows(dtype, {kTokens, 5}, 1), b = rows(dtype, {kTokens, 3}, 2);
    expect(Concat{}, {&a, &b}, [&](int64_t i) { return i % 8 < 5 ? a.get(i / 8 * 5 + i % 8) : b.get(i / 8 * 3 + i % 8 - 5); });
  }
}

TEST_F(OpRun, LinearInGroupsHeadsAndStreams) {
  constexpr int64_t kOutputs = 10;
  for (DType dtype : kDtypes) {
    const HostTensor w = fixed(DType::kBF16, {kOutputs, kWidth}, 2);
    for (int64_t groups : {1, 2}) {
      const HostTensor x = rows(dtype, {kTokens, groups * kWidth}, 1);
      for (int64_t heads : {0, 5}) {
        expect(Linear{dtype, ActQuant::kNone, groups, 2, heads}, {&x, &w}, [&](int64_t i) {
          const int64_t t = i / kOutputs, n = i % kOutputs, group = n / (kOutputs / groups);
          double sum = 0;
          for (int64_t k = 0; k < kWidth; ++k) sum += x.get((t * groups + group) * kWidth + k) * w.get(n * kWidth + k);
          return sum;
        });
      }
    }
    const HostTensor x = rows(dtype, {kTokens, kStreams, kWidth}, 3);
    expect(Linear{dtype}, {&x, &w}, [&](int64_t i) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) sum += x.get(i / kOutputs * kWidth + k) * w.get(i % kOutputs * kWidth + k);
      return sum;
    });
  }
}

// Random codes of a stored weight and what they stand for.
HostTensor stored(DType dtype, Shape shape, int64_t seed) {
  HostTensor w(dtype, shape);
  for (int64_t i = 0; i < w.type().tensor.bytes(); ++i) {
    auto code = static_cast<uint8_t>(mix_bits(static_cast<uint64_t>(seed * 100003 + i)));
    if (dtype == DType::kF8E4M3 && (code & 0x7f) == 0x7f) code = 0;            // NaN
    if (dtype == DType::kF8E8M0) code = static_cast<uint8_t>(118 + code % 8);  // 2^-9 .. 2^-2
    w.as<uint8_t>()[i] = code;
  }
  return w;
}

double stored_value(const HostTensor& w, int64_t i) {
  switch (w.type().dtype()) {
    case DType::kF8E4M3: return e4m3_to_float(w.as<uint8_t>()[i]);
    case DType::kF8E8M0: return e8m0_to_float(w.as<uint8_t>()[i]);
    case DType::kF4E2M1: return e2m1_to_float(static_cast<uint8_t>(w.as<uint8_t>()[i / 2] >> (i % 2 * 4) & 15));
    case DType::kI8: return w.as<int8_t>()[i];
    default: return w.get(i);
  }
}

TEST_F(OpRun, LinearOfStoredFormats) {
  constexpr int64_t kOutputs = 9, kScaleRows = 4, kScaleCols = 8;
  const HostTensor x = rows(DType::kF32, {kTokens, kWidth}, 1);
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1, DType::kI8}) {
    const HostTensor w = stored(dtype, {kOutputs, kWidth}, 2), scale = stored(DType::kF8E8M0, {3, 3}, 3);
    expect(Linear{DType::kF32, ActQuant::kNone, 1, 1, 0, kScaleRows, kScaleCols}, {&x, &w, &scale}, [&](int64_t i) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) {
        const int64_t n = i % kOutputs;
        sum += x.get(i / kOutputs * kWidth + k) * stored_value(w, n * kWidth + k) *
               stored_value(scale, n / kScaleRows * 3 + k / kScaleCols);
      }
      return sum;
    });
  }
}

TEST_F(OpRun, RopeTableAndRope) {
  constexpr int64_t kHeads = 2, kRotary = 6;
  const RopeParameters rope{100, kRotary, {}};
  const auto angle = [&](int64_t t, int64_t i) {
    return batch_.positions[t] * std::pow(100.0, -2.0 * static_cast<double>(i) / kRotary);
  };
  expect(RopeTable{rope}, {positions_.get()}, [&](int64_t i) {
    const double phi = angle(i / kRotary, i % kRotary / 2);
    return i % 2 == 0 ? std::cos(phi) : std::sin(phi);
  });
  ThreadPool pool(1);
  const auto table = run_op(RopeTable{rope}, {positions_.get()}, {batch_, pool});
  for (DType dtype : kDtypes) {
    const HostTensor x = rows(dtype, {kTokens, kHeads, kWidth}, 1);
    for (RopeDirection direction : {RopeDirection::kForward, RopeDirection::kInverse}) {
      expect(Rope{direction}, {&x, &table[0]}, [&](int64_t i) -> double {
        const int64_t c = i % kWidth - (kWidth - kRotary);
        if (c < 0) return x.get(i);
        const double phi = angle(i / (kHeads * kWidth), c / 2) * (direction == RopeDirection::kForward ? 1 : -1);
        const double a = x.get(i - c % 2), b = x.get(i - c % 2 + 1);
        return c % 2 == 0 ? a * std::cos(phi) - b * std::sin(phi) : a * std::sin(phi) + b * std::cos(phi);
      });
    }
  }
}

TEST_F(OpRun, Quantise) {
  const HostTensor x = rows(DType::kF32, {kTokens, 2, kWidth}, 1);
  expect(Quantise{QuantFormat::kFp8, 0, 16, 8, false}, {&x}, [&](int64_t i) -> double {
    const int64_t c = i % kWidth;
    if (c >= 16) return x.get(i);
    double amax = 1e-4;
    for (int64_t d = 0; d < 8; ++d) amax = std::max<double>(amax, std::abs(x.get(i - c % 8 + d)));
    const double scale = std::exp2(std::ceil(std::log2(amax / 448)));
    return e4m3_to_float(float_to_e4m3(static_cast<float>(x.get(i) / scale))) * scale;
  });
}

TEST_F(OpRun, HyperConnections) {
  constexpr int64_t kMixes = (2 + kStreams) * kStreams;
  constexpr double kEps = 1e-3;
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (DType dtype : kDtypes) {
    const HostTensor x = rows(dtype, {kTokens, kStreams, kWidth}, 1), y = rows(dtype, {kTokens, kWidth}, 5);
    const HostTensor fn = fixed(DType::kF32, {kMixes, kStreams * kWidth}, 2), base = fixed(DType::kF32, {kMixes}, 3),
                     scale = fixed(DType::kF32, {3}, 4);
    const HostTensor head_fn = fixed(DType::kF32, {kStreams, kStreams * kWidth}, 2),
                     head_base = fixed(DType::kF32, {kStreams}, 3), head_scale = fixed(DType::kF32, {1}, 4);
    // pre, post and the matrix of row t (deepseek_v4.md 2.3), two rounds
    const auto mixes = [&](int64_t t) {
      std::vector<double> m(kMixes, 0);
      double squares = 0;
      for (int64_t k = 0; k < kStreams * kWidth; ++k) squares += std::pow(x.get(t * kStreams * kWidth + k), 2);
      for (int64_t n = 0; n < kMixes; ++n) {
        for (int64_t k = 0; k < kStreams * kWidth; ++k)
          m[n] += fn.get(n * kStreams * kWidth + k) * x.get(t * kStreams * kWidth + k);
        m[n] = m[n] / std::sqrt(squares / (kStreams * kWidth) + kEps) * scale.get(std::min<int64_t>(n / kStreams, 2)) +
               base.get(n);
      }
      for (int64_t j = 0; j < kStreams; ++j) {
        m[j] = sigmoid(m[j]) + kEps;
        m[kStreams + j] = 2 * sigmoid(m[kStreams + j]);
        double* row = &m[2 * kStreams + j * kStreams];
        double sum = 0;
        for (int64_t k = 0; k < kStreams; ++k) sum += row[k] = std::exp(row[k]);
        for (int64_t k = 0; k < kStreams; ++k) row[k] = row[k] / sum + kEps;
      }
      double* c = &m[2 * kStreams];
      for (int pass = 0; pass < 3; ++pass) {  // columns, rows, columns
        for (int64_t a = 0; a < kStreams; ++a) {
          double sum = kEps;
          for (int64_t b = 0; b < kStreams; ++b) sum += pass == 1 ? c[a * kStreams + b] : c[b * kStreams + a];
          for (int64_t b = 0; b < kStreams; ++b) (pass == 1 ? c[a * kStreams + b] : c[b * kStreams + a]) /= sum;
        }
      }
      return m;
    };
    const HcPre pre{2, kEps, kEps};
    expect(pre, {&x, &fn, &base, &scale}, [&](int64_t i) {
      const auto m = mixes(i / kWidth);
      double sum = 0;
      for (int64_t j = 0; j < kStreams; ++j) sum += m[j] * x.get((i / kWidth * kStreams + j) * kWidth + i % kWidth);
      return sum;
    });
    expect(
        pre, {&x, &fn, &base, &scale},
        [&](int64_t i) {
          constexpr int64_t kMix = kStreams + kStreams * kStreams;
          return mixes(i / kMix)[kStreams + i % kMix];
        },
        1);
    ThreadPool pool(1);
    const auto out = run_op(pre, {&x, &fn, &base, &scale}, {batch_, pool});
    expect(HcPost{}, {&y, &x, &out[1]}, [&](int64_t i) {
      const int64_t t = i / (kStreams * kWidth), k = i / kWidth % kStreams, d = i % kWidth;
      const auto m = mixes(t);
      double sum = m[kStreams + k] * y.get(t * kWidth + d);
      for (int64_t j = 0; j < kStreams; ++j)
        sum += m[2 * kStreams + j * kStreams + k] * x.get((t * kStreams + j) * kWidth + d);
      return sum;
    });
    expect(HcHead{kEps, kEps}, {&x, &head_fn, &head_base, &head_scale}, [&](int64_t i) {
      const auto* row = &head_fn;
      double sum = 0, squares = 0;
      const int64_t t = i / kWidth;
      for (int64_t k = 0; k < kStreams * kWidth; ++k) squares += std::pow(x.get(t * kStreams * kWidth + k), 2);
      for (int64_t j = 0; j < kStreams; ++j) {
        double m = 0;
        for (int64_t k = 0; k < kStreams * kWidth; ++k)
          m += row->get(j * kStreams * kWidth + k) * x.get(t * kStreams * kWidth + k);
        m = m / std::sqrt(squares / (kStreams * kWidth) + kEps) * head_scale.get(0) + head_base.get(j);
        sum += (sigmoid(m) + kEps) * x.get((t * kStreams + j) * kWidth + i % kWidth);
      }
      return sum;
    });
  }
}

TEST_F(OpRun, Elementwise) {
  for (DType dtype : kDtypes) {
    const HostTensor a = rows(dtype, {kTokens, kWidth}, 1), b = rows(dtype, {kTokens, kWidth}, 2),
                     f = rows(DType::kF32, {kTokens, kWidth}, 3), x = rows(dtype, {kTokens, kStreams, kWidth}, 4);
    expect(Swiglu{0.5}, {&a, &b}, [&](int64_t i) {
      const double g = std::min<double>(a.get(i), 0.5);
      return g / (1 + std::exp(-g)) * std::clamp<double>(b.get(i), -0.5, 0.5);
    });
    expect(Add{}, {&f, &b}, [&](int64_t i) { return f.get(i) + b.get(i); });
    expect(AddStreams{}, {&a, &x},
           [&](int64_t i) { return a.get(i / (kStreams * kWidth) * kWidth + i % kWidth) + x.get(i); });
    expect(GatherRows{5}, {&x}, [&](int64_t i) {
      return x.get(batch_.logit_rows[i / (kStreams * kWidth)] * kStreams * kWidth + i % (kStreams * kWidth));
    });
  }
  const HostTensor s = rows(DType::kF32, {kTokens, kWidth}, 1), bias = fixed(DType::kF32, {4, kWidth}, 2);
  expect(AddPositionBias{}, {&s, &bias, positions_.get()},
         [&](int64_t i) { return s.get(i) + bias.get(batch_.positions[i / kWidth] % 4 * kWidth + i % kWidth); });
}

TEST_F(OpRun, RouteRefusesWrongTables) {
  const HostTensor logits = rows(DType::kF32, {kTokens, 4}, 1);
  ThreadPool pool(1);
  for (const auto& [vocab, expert, message] :
       {std::tuple(10, 1, "token id 10 at row 2 is outside the routing table of 10"),
        std::tuple(11, 4, "tid2eid[0][1] is 4, expected an expert below 4")}) {
    HostTensor table(DType::kI64, {vocab, 2});
    for (int64_t i = 0; i < table.count(); ++i) table.as<int64_t>()[i] = i % 2 == 0 ? 0 : expert;
    Status status;
    run_op(MoeRoute{RouteBy::kToken, 2}, {&logits, &table, tokens_.get()}, {batch_, pool}, &status);
    EXPECT_EQ(status.message(), message);
  }
}

TEST_F(OpRun, RouteAndExperts) {
  constexpr int64_t kExperts = 6, kTopK = 2, kInner = 16;
  const HostTensor logits = rows(DType::kF32, {kTokens, kExperts}, 1), bias = fixed(DType::kF32, {kExperts}, 2);
  const MoeRoute route{RouteBy::kScore, kTopK, ScoringFunc::kSqrtSoftplus, 1, 1, true, 0, 1.5};
  const auto score = [&](int64_t t, int64_t e) {
    return std::sqrt(std::log1p(std::exp(static_cast<double>(logits.get(t * kExperts + e)))));
  };
  const auto picks = [&](int64_t t) {
    std::vector<int64_t> order(kExperts);
    for (int64_t e = 0; e < kExperts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return score(t, a) + bias.get(a) > score(t, b) + bias.get(b); });
    order.resize(kTopK);
    std::sort(order.begin(), order.end());
    return order;
  };
  const auto weight = [&](int64_t t, int64_t j) {
    double sum = 0;
    for (int64_t e : picks(t)) sum += score(t, e);
    return score(t, picks(t)[j]) / sum * 1.5;
  };
  expect(
      route, {&logits, &bias}, [&](int64_t i) { return weight(i / kTopK, i % kTopK); }, 1);
  ThreadPool pool(1);
  const auto routed = run_op(route, {&logits, &bias}, {batch_, pool});
  for (int64_t i = 0; i < kTokens * kTopK; ++i) EXPECT_EQ(routed[0].as<int32_t>()[i], picks(i / kTopK)[i % kTopK]);

  const HostTensor x = rows(DType::kF32, {kTokens, kWidth}, 3);
  const HostTensor w1 = stored(DType::kF8E4M3, {kExperts, kInner, kWidth}, 4),
                   w3 = stored(DType::kF8E4M3, {kExperts, kInner, kWidth}, 5),
                   w2 = stored(DType::kF8E4M3, {kExperts, kWidth, kInner}, 6);
  const HostTensor s1 = stored(DType::kF8E8M0, {kExperts, 2, 3}, 7), s3 = stored(DType::kF8E8M0, {kExperts, 2, 3}, 8),
                   s2 = stored(DType::kF8E8M0, {kExperts, 3, 2}, 9);
  const auto value = [](const HostTensor& w, const HostTensor& s, int64_t e, int64_t n, int64_t k) {
    const int64_t rows_of_w = w.shape()[1], cols = w.shape()[2];
    return stored_value(w, (e * rows_of_w + n) * cols + k) *
           stored_value(s, (e * s.shape()[1] + n / 8) * s.shape()[2] + k / 8);
  };
  for (bool before : {true, false}) {
    std::vector<double> y(kTokens * kWidth, 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t j = 0; j < kTopK; ++j) {
        const int64_t e = picks(t)[j];
        for (int64_t n = 0; n < kInner; ++n) {
          double g = 0, u = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            g += value(w1, s1, e, n, k) * x.get(t * kWidth + k);
            u += value(w3, s3, e, n, k) * x.get(t * kWidth + k);
          }
          g = std::min(g, 2.0);
          u = std::clamp(u, -2.0, 2.0);
          for (int64_t d = 0; d < kWidth; ++d)
            y[t * kWidth + d] += weight(t, j) * g / (1 + std::exp(-g)) * u * value(w2, s2, e, d, n);
        }
      }
    }
    expect(Experts{ActQuant::kNone, 2, before, 8, 8}, {&x, &routed[0], &routed[1], &w1, &w3, &w2, &s1, &s3, &s2},
           [&](int64_t i) { return y[i]; });
    // In two ops, to the bit.
    const Experts experts{ActQuant::kFp8Block128, 2, before, 8, 8};
    const auto whole = run_op(experts, {&x, &routed[0], &routed[1], &w1, &w3, &w2, &s1, &s3, &s2}, {batch_, pool});
    const auto a = run_op(ExpertsUp{experts}, {&x, &routed[0], &routed[1], &w1, &w3, &s1, &s3}, {batch_, pool});
    const auto sum = run_op(ExpertsDown{experts}, {&a[0], &routed[0], &routed[1], &w2, &s2}, {batch_, pool});
    EXPECT_EQ(std::memcmp(sum[0].as<float>(), whole[0].as<float>(), sizeof(float) * kTokens * kWidth), 0);
  }
}

}  // namespace
}  // namespace weft
