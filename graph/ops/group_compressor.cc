#include "graph/ops/group_compressor.h"

#include <cstring>

#include "base/numeric.h"
#include "graph/ops/scratch.h"
#include "kernels/compressor/compressor.h"
#include "kernels/rms_norm/rms_norm.h"

namespace weft {
namespace {

struct Scratch {
  float* u;              // pooled, then the finished entry
  bf16* rounded;         // the same in bf16
  const float **k, **s;  // row pointers of the slots
  float* table;          // cos, sin

  Scratch(Carver& carver, int64_t slots, int64_t width, int64_t rotary_dims)
      : u(carver.take<float>(width)), rounded(carver.take<bf16>(width)), k(carver.take<const float*>(slots)),
        s(carver.take<const float*>(slots)), table(carver.take<float>(rotary_dims)) {}
};

}  // namespace

GroupCompressor::GroupCompressor(const Compressor& op, std::span<const TensorView> in, Isa isa)
    : op_(op), norm_(in[2]), width_(in[2].shape()[0]), overlap_(in[0].shape()[1] == 2 * width_), dtype_(in[4].dtype()),
      isa_(isa), frequencies_(op.rope.frequencies()) {}

int64_t GroupCompressor::scratch_bytes(const Compressor& op, int64_t w, int64_t d) {
  Carver carver(nullptr);
  const Scratch scratch(carver, w / d * op.ratio, d, op.rope.rotary_dims);
  return carver.used();
}

void GroupCompressor::run(int64_t group, FunctionRef<Row(int64_t position)> rows, std::byte* scratch_base, std::byte* entry) const {
  const int64_t ratio = op_.ratio, slots = (overlap_ ? 2 : 1) * ratio;
  Carver carver(scratch_base);
  const Scratch scratch(carver, slots, width_, op_.rope.rotary_dims);
  for (int64_t n = 0; n < slots; ++n) {
    const bool previous = overlap_ && n < ratio;
    const int64_t p = group * ratio + n - (overlap_ ? ratio : 0);
    const int64_t column = overlap_ && !previous ? width_ : 0;
    const Row row = p < 0 ? Row{nullptr, nullptr} : rows(p);
    scratch.k[n] = p < 0 ? nullptr : row.k + column;
    scratch.s[n] = p < 0 ? nullptr : row.s + column;
  }
  CompressorPoolArgs pool_args;
  pool_args.k = {scratch.k, static_cast<size_t>(slots)};
  pool_args.s = {scratch.s, static_cast<size_t>(slots)};
  pool_args.width = width_;
  pool_args.u = scratch.u;
  pick_variant(compressor_pool_variants(), isa_)(pool_args);

  void* row = scratch.u;
  if (dtype_ == DType::kBF16) {
    for (int64_t c = 0; c < width_; ++c) scratch.rounded[c] = to_bf16(scratch.u[c]);
    row = scratch.rounded;
  }
  RmsNormArgs norm;
  norm.x = norm.y = row;
  norm.dtype = dtype_;
  norm.x_stride = norm.y_stride = norm.width = width_;
  norm.num_rows = 1;
  norm.w = norm_.data;
  norm.w_dtype = norm_.dtype();
  norm.eps = static_cast<float>(op_.eps);
  pick_variant(rms_norm_variants(), isa_)(norm);

  const int32_t position = static_cast<int32_t>(group * ratio);
  rope_table({&position, 1}, frequencies_, scratch.table);
  RopeArgs rotate;
  rotate.x = rotate.y = row;
  rotate.dtype = dtype_;
  rotate.num_rows = rotate.num_heads = 1;
  rotate.head_dim = width_;
  rotate.rotary_dims = op_.rope.rotary_dims;
  rotate.table = scratch.table;
  pick_variant(rope_variants(), isa_)(rotate);
  if (op_.quantised) op_.quantise.apply(row, dtype_, 1, width_, isa_);
  std::memcpy(entry, row, static_cast<size_t>(TensorType{dtype_, {width_}}.bytes()));
}

}  // namespace weft
