#include "kernels/hyper_connection/hyper_connection.h"

#include <algorithm>

#include "kernels/hyper_connection/hyper_connection_parts.h"

namespace weft {
namespace {

// Rows whose projections run together. The dots of a group live on the stack.
constexpr int64_t kGroupRows = 16;

}  // namespace

void hc_project_avx512(const HcProjectArgs& args);
void hc_mix_avx512(const HcMixArgs& args);
void hc_pre_avx512(const HcPreArgs& args);
void hc_post_avx512(const HcPostArgs& args);
void hc_project_avx2(const HcProjectArgs& args);
void hc_mix_avx2(const HcMixArgs& args);
void hc_pre_avx2(const HcPreArgs& args);
void hc_post_avx2(const HcPostArgs& args);
void hc_project_ref(const HcProjectArgs& args);
void hc_mix_ref(const HcMixArgs& args);
void hc_pre_ref(const HcPreArgs& args);
void hc_post_ref(const HcPostArgs& args);

namespace {

constexpr KernelVariant<HcProjectFn> kProjectVariants[] = {
    {"avx512", Isa::kAvx512, hc_project_avx512},
    {"avx2", Isa::kAvx2, hc_project_avx2},
    {"ref", Isa::kScalar, hc_project_ref},
};
constexpr KernelVariant<HcMixFn> kMixVariants[] = {
    {"avx512", Isa::kAvx512, hc_mix_avx512},
    {"avx2", Isa::kAvx2, hc_mix_avx2},
    {"ref", Isa::kScalar, hc_mix_ref},
};

}  // namespace

std::span<const KernelVariant<HcPreFn>> hc_pre_variants() {
  static constexpr KernelVariant<HcPreFn> kVariants[] = {
      {"avx512", Isa::kAvx512, hc_pre_avx512},
      {"avx2", Isa::kAvx2, hc_pre_avx2},
      {"ref", Isa::kScalar, hc_pre_ref},
  };
  return kVariants;
}

std::span<const KernelVariant<HcPostFn>> hc_post_variants() {
  static constexpr KernelVariant<HcPostFn> kVariants[] = {
      {"avx512", Isa::kAvx512, hc_post_avx512},
      {"avx2", Isa::kAvx2, hc_post_avx2},
      {"ref", Isa::kScalar, hc_post_ref},
  };
  return kVariants;
}

int64_t hc_outputs(const HcPreArgs& args) {
  return args.mix == nullptr ? args.streams : (2 + args.streams) * args.streams;
}

HcPreArgs hc_pre_rows(const HcPreArgs& args, int64_t begin, int64_t count) {
  const int64_t element = dtype_bits(args.dtype) / 8, s = args.streams;
  HcPreArgs rows = args;
  rows.x = static_cast<const std::byte*>(args.x) + begin * s * args.hidden * element;
  rows.out = static_cast<std::byte*>(args.out) + begin * args.hidden * element;
  if (args.mix != nullptr) rows.mix = args.mix + begin * (s + s * s);
  rows.num_rows = count;
  return rows;
}

namespace {

void finish(const HcPreArgs& args, const float* dots, HcMixFn* mix) {
  float coefficient[kGroupRows * kMaxHcStreams];
  for (int64_t row = 0; row < args.num_rows; ++row) {
    hc_coefficients(args, row, dots + row * (hc_outputs(args) + 1), coefficient + row * kMaxHcStreams);
  }
  mix({.pre = args, .coefficient = coefficient});
}

}  // namespace

void hc_pre_by_steps(const HcPreArgs& args, HcProjectFn* project, HcMixFn* mix) {
  float dots[kGroupRows * (kMaxHcOutputs + 1)];
  for (int64_t begin = 0; begin < args.num_rows; begin += kGroupRows) {
    const HcPreArgs group = hc_pre_rows(args, begin, std::min(kGroupRows, args.num_rows - begin));
    const int64_t outputs = hc_outputs(args);
    project({.pre = group, .outputs = outputs, .output_begin = 0, .output_end = outputs + 1, .dots = dots});
    finish(group, dots, mix);
  }
}

void hc_pre(const HcPreArgs& args, Isa isa, ThreadPool& pool) {
  const int64_t threads = pool.size();
  if (args.num_rows >= kGroupRows * threads || threads == 1) {
    const auto variant = pick_variant(hc_pre_variants(), isa);
    pool.parallel_for(args.num_rows, kGroupRows,
                      [&](int64_t begin, int64_t end, int) { variant(hc_pre_rows(args, begin, end - begin)); });
    return;
  }
  const auto project = pick_variant(std::span<const KernelVariant<HcProjectFn>>(kProjectVariants), isa);
  const auto mix = pick_variant(std::span<const KernelVariant<HcMixFn>>(kMixVariants), isa);
  const int64_t outputs = hc_outputs(args);
  float dots[kGroupRows * (kMaxHcOutputs + 1)];
  for (int64_t begin = 0; begin < args.num_rows; begin += kGroupRows) {
    const HcPreArgs group = hc_pre_rows(args, begin, std::min(kGroupRows, args.num_rows - begin));
    // With the sum of squares there is one more than `outputs`.
    pool.parallel_for(outputs + 1, (outputs + threads) / threads, [&](int64_t first, int64_t last, int) {
      project({.pre = group, .outputs = outputs, .output_begin = first, .output_end = last, .dots = dots});
    });
    finish(group, dots, mix);
  }
}

}  // namespace weft
