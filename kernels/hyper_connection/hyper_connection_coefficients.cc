#include <cmath>

#include "base/check.h"
#include "kernels/hyper_connection/hyper_connection_parts.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

// C [S, S] row-major: softmax over k, then Sinkhorn. S is a template parameter so that the loops unroll.
template <int S>
void sinkhorn(float* c, int iterations, float eps) {
  const auto divide_by_column_sums = [&] {
    float sum[S];
    for (int k = 0; k < S; ++k) sum[k] = c[k];
    for (int j = 1; j < S; ++j) {
      for (int k = 0; k < S; ++k) sum[k] += c[j * S + k];
    }
    for (int k = 0; k < S; ++k) sum[k] += eps;
    for (int j = 0; j < S; ++j) {
      for (int k = 0; k < S; ++k) c[j * S + k] /= sum[k];
    }
  };
  const auto divide_by_row_sums = [&] {
    for (int j = 0; j < S; ++j) {
      float sum = c[j * S];
      for (int k = 1; k < S; ++k) sum += c[j * S + k];
      sum += eps;
      for (int k = 0; k < S; ++k) c[j * S + k] /= sum;
    }
  };

  for (int j = 0; j < S; ++j) {
    float* row = c + j * S;
    float max = row[0], sum = 0;
    for (int k = 1; k < S; ++k) max = row[k] > max ? row[k] : max;
    for (int k = 0; k < S; ++k) sum += row[k] = exp_f32(row[k] - max);
    for (int k = 0; k < S; ++k) row[k] = row[k] / sum + eps;
  }
  divide_by_column_sums();
  for (int i = 1; i < iterations; ++i) {
    divide_by_row_sums();
    divide_by_column_sums();
  }
}

using SinkhornFn = void(float* c, int iterations, float eps);
constexpr SinkhornFn* kSinkhorn[kMaxHcStreams + 1] = {nullptr,     sinkhorn<1>, sinkhorn<2>, sinkhorn<3>, sinkhorn<4>,
                                                      sinkhorn<5>, sinkhorn<6>, sinkhorn<7>, sinkhorn<8>};

}  // namespace

void hc_coefficients(const HcPreArgs& args, int64_t row, const float* dots, float* pre) {
  const int64_t s = args.streams;
  WEFT_CHECK(s >= 1 && s <= kMaxHcStreams, "{} streams; 1 to {} are supported", s, kMaxHcStreams);
  const float mean = dots[hc_outputs(args)] / static_cast<float>(s * args.hidden);
  const float r = 1.0f / std::sqrt(mean + args.rms_eps);
  const float *base = args.weights.base, *scale = args.weights.scale;
  const auto value = [&](int64_t n, int part) { return dots[n] * r * scale[part] + base[n]; };
  for (int64_t j = 0; j < s; ++j) pre[j] = sigmoid_f32(value(j, 0)) + args.hc_eps;
  if (args.mix == nullptr) return;
  float* post = args.mix + row * (s + s * s);
  float* c = post + s;
  for (int64_t j = 0; j < s; ++j) post[j] = 2 * sigmoid_f32(value(s + j, 1));
  for (int64_t i = 0; i < s * s; ++i) c[i] = value(2 * s + i, 2);
  kSinkhorn[s](c, args.iterations, args.hc_eps);
}

}  // namespace weft
