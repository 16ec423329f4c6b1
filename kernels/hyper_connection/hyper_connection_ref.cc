#include <cmath>

#include "kernels/hyper_connection/hyper_connection_parts.h"
#include "kernels/lanes/scalar.h"

namespace weft {

void hc_project_ref(const HcProjectArgs& args);
void hc_project_ref(const HcProjectArgs& args) {
  const int64_t width = args.pre.streams * args.pre.hidden, outputs = args.outputs;
  for (int64_t row = 0; row < args.pre.num_rows; ++row) {
    for (int64_t n = args.output_begin; n < args.output_end; ++n) {
      LaneSum sum;
      for (int64_t i = 0; i < width; ++i) {
        const float x = load_element(args.pre.x, args.pre.dtype, row * width + i);
        sum.add_product(i, x, n == outputs ? x : args.pre.weights.fn[n * width + i]);
      }
      args.dots[row * (outputs + 1) + n] = sum.total();
    }
  }
}

void hc_mix_ref(const HcMixArgs& args);
void hc_mix_ref(const HcMixArgs& args) {
  const int64_t s = args.pre.streams, hidden = args.pre.hidden;
  for (int64_t row = 0; row < args.pre.num_rows; ++row) {
    const float* pre = args.coefficient + row * kMaxHcStreams;
    for (int64_t d = 0; d < hidden; ++d) {
      const auto x = [&](int64_t j) { return load_element(args.pre.x, args.pre.dtype, (row * s + j) * hidden + d); };
      float sum = pre[0] * x(0);
      for (int64_t j = 1; j < s; ++j) sum = std::fma(pre[j], x(j), sum);
      store_element(args.pre.out, args.pre.dtype, row * hidden + d, sum);
    }
  }
}

void hc_pre_ref(const HcPreArgs& args);
void hc_pre_ref(const HcPreArgs& args) { hc_pre_by_steps(args, hc_project_ref, hc_mix_ref); }

void hc_post_ref(const HcPostArgs& args);
void hc_post_ref(const HcPostArgs& args) {
  const int64_t s = args.streams, hidden = args.hidden;
  WEFT_CHECK(s >= 1 && s <= kMaxHcStreams, "{} streams; 1 to {} are supported", s, kMaxHcStreams);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float *post = args.mix + row * (s + s * s), *c = post + s;
    for (int64_t d = 0; d < hidden; ++d) {
      float x[kMaxHcStreams];  // all streams before any is written: out may be x
      for (int64_t j = 0; j < s; ++j) x[j] = load_element(args.x, args.dtype, (row * s + j) * hidden + d);
      const float y = load_element(args.y, args.dtype, row * hidden + d);
      for (int64_t k = 0; k < s; ++k) {
        float sum = post[k] * y;
        for (int64_t j = 0; j < s; ++j) sum = std::fma(c[j * s + k], x[j], sum);
        store_element(args.out, args.dtype, (row * s + k) * hidden + d, sum);
      }
    }
  }
}

}  // namespace weft
