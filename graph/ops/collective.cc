#include "graph/ops/collective.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/int_math.h"
#include "base/numeric.h"
#include "comm/bytes.h"
#include "graph/ops/between_ranks.h"
#include "graph/ops/scratch.h"

namespace weft {
namespace {

// Bytes of one row (all dimensions but the first).
int64_t row_bytes_of(const TensorType& type) {
  TensorType row = type;
  row.shape[0] = 1;
  return row.bytes();
}
int64_t row_bytes_of(const TensorView& view) { return row_bytes_of(view.type); }
int64_t width_of(const TensorType& type) {
  TensorType row = type;
  row.shape[0] = 1;
  return row.shape.num_elements();
}

// What all collectives ask of their first input: how it lies along the axis.
Result<std::vector<Placements>> moved(std::string_view op, TypeSpan in, MeshAxis axis, const Placement& from, const Placement& to) {
  const auto text = [&](const Placement& p) {
    Placements only;
    on(only, axis) = p;
    const std::string placed = to_string(only);
    return placed.empty() ? fmt::format("whole on {}", mesh_axis_name(axis)) : placed.substr(1);
  };
  if (on(in[0].placement, axis) != from) {
    return invalid_argument(
        fmt::format("{}: the input is {}, expected {}", op, text(on(in[0].placement, axis)), text(from)));
  }
  Placements out = in[0].placement;
  on(out, axis) = to;
  return std::vector<Placements>{out};
}

Status expect_partial_sum(std::string_view op, TypeSpan in, int64_t size, DType dtype) {
  WEFT_RETURN_IF_ERROR(expect_inputs(op, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(op, size));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 0, "partial sum", {DType::kF32}));
  if (dtype == DType::kF32 || dtype == DType::kBF16) return {};
  return invalid_argument(fmt::format("{}: dtype is {}, expected F32 or BF16", op, dtype_name(dtype)));
}

// Rows of a split value, and that a split makes sense at all.
Status expect_rows(std::string_view op, TypeSpan in, int64_t capacity) {
  WEFT_RETURN_IF_ERROR(expect_range(op, "capacity", capacity, 1, int64_t{1} << 40));
  if (in[0].rows == Rows::kTokens || in[0].rows == Rows::kLogits) return {};
  return invalid_argument(fmt::format("{}: {} has no rows of the step", op, to_string(in[0])));
}

// The split of the rows over the axis that made `set`.
const RowSplit& split_of(const RunContext& ctx, RowSet set) {
  WEFT_CHECK(ctx.row_sets != nullptr, "{}: no row sets", ctx.name);
  return ctx.row_sets->of(ctx.rows, set);
}

ValueType with_capacity(const ValueType& in, int64_t capacity) {
  ValueType type = in;
  type.tensor.shape[0] = capacity;
  return type;
}

}  // namespace

// ---- AllReduce

Result<ValueTypes> AllReduce::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_partial_sum(kName, in, size, dtype));
  return ValueTypes{{{dtype, in[0].shape()}, in[0].rows}};
}

Result<std::vector<Placements>> AllReduce::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::partial(), Placement::replicated());
}

Work AllReduce::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_reduce_bytes(size, in[0].shape()[0], width_of(in[0].tensor), dtype_bits(dtype) / 8);
  travels(work, CommPattern::kAllReduce, axis, size);
  work.flops = static_cast<double>((size - 1) * in[0].shape().num_elements()) / static_cast<double>(size);
  return work;
}

Status AllReduce::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  return group_of(ctx, axis, size).all_reduce(ctx.name, {x.as<float>(), y.data, dtype, x.shape()[0], width_of(x.type)});
}

int64_t AllReduce::bytes_sent(const RunContext& ctx) const {
  return all_reduce_bytes(size, ctx.in[0].shape()[0], width_of(ctx.in[0].type), dtype_bits(dtype) / 8);
}

// ---- ReduceScatter

Result<ValueTypes> ReduceScatter::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_partial_sum(kName, in, size, dtype));
  WEFT_RETURN_IF_ERROR(expect_rows(kName, in, capacity));
  return ValueTypes{{{dtype, with_capacity(in[0], capacity).shape()}, in[0].rows}};
}

Result<std::vector<Placements>> ReduceScatter::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::partial(), Placement::sharded(0));
}

Work ReduceScatter::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = reduce_scatter_bytes(size, in[0].shape()[0], width_of(in[0].tensor));
  travels(work, CommPattern::kReduceScatter, axis, size);
  work.flops = static_cast<double>((size - 1) * out[0].shape().num_elements());
  work.scratch_bytes = in[0].tensor.bytes();  // rows that are not consecutive, put in order
  return work;
}

Status ReduceScatter::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  const RowSplit& split = split_of(ctx, ctx.out_row_set);
  WEFT_CHECK(split.unique, "{}: a row that two ranks hold cannot be reduced to one of them", ctx.name);
  ReduceArgs args{x.as<float>(), y.data, dtype, x.shape()[0], width_of(x.type)};
  if (split.flat) return group_of(ctx, axis, size).reduce_scatter(ctx.name, args);
  if (!split.order.empty()) {  // rows rank after rank
    auto* ranked = reinterpret_cast<float*>(ctx.scratch.data());
    const int64_t row = row_bytes_of(x);
    WEFT_CHECK(x.shape()[0] * row <= static_cast<int64_t>(ctx.scratch.size()), "{}: scratch", ctx.name);
    for (size_t i = 0; i < split.order.size(); ++i) {
      std::memcpy(ctx.scratch.data() + static_cast<int64_t>(i) * row, x.as<std::byte>() + split.order[i] * row, static_cast<size_t>(row));
    }
    args.src = ranked;
  }
  return group_of(ctx, axis, size).reduce_scatter_v(ctx.name, args, split.counts);
}

int64_t ReduceScatter::bytes_sent(const RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const RowSplit& split = split_of(ctx, ctx.out_row_set);
  return split.flat ? reduce_scatter_bytes(size, x.shape()[0], width_of(x.type))
                    : reduce_scatter_v_bytes(split.counts, split.size(), width_of(x.type));
}

// ---- AllGather

Result<ValueTypes> AllGather::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "dim", dim, 0, in[0].shape().rank() - 1));
  ValueType out = in[0];
  if (dim == 0 && in[0].rows == Rows::kStatic) {
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "capacity", capacity, in[0].shape()[0] * size));
    out.tensor.shape[0] = capacity;
  } else if (dim == 0) {
    WEFT_RETURN_IF_ERROR(expect_rows(kName, in, capacity));
    out.tensor.shape[0] = capacity;
  } else {
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "capacity", capacity, in[0].shape()[0]));
    out.tensor.shape[static_cast<int>(dim)] *= size;
  }
  return ValueTypes{{out.tensor, out.rows}};
}

Result<std::vector<Placements>> AllGather::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::sharded(static_cast<int>(dim)), Placement::replicated());
}

Work AllGather::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  travels(work, CommPattern::kAllGather, axis, size);
  const int64_t row = row_bytes_of(in[0].tensor);
  if (dim == 0) {
    work.bytes_sent = all_gather_bytes(size, capacity, row);
    if (in[0].rows != Rows::kStatic) work.scratch_bytes = capacity * row;  // rows before they are put in order
  } else {
    work.bytes_sent = all_to_all_bytes(size, in[0].tensor.bytes());
  }
  return work;
}

Exchange AllGather::columns(const TensorView& x, const TensorView& y) const {
  int64_t outer = x.shape().num_elements() == 0 ? 0 : 1;
  for (int i = 0; i < dim; ++i) outer *= x.shape()[i];
  const int64_t slice = outer == 0 ? 0 : x.type.bytes() / outer;
  Exchange exchange = gather_columns(x.data, y.data, static_cast<int>(size), outer, slice);
  if (x.row_stride != 0) {  // of a mapped weight
    exchange.send.first = {x.as<std::byte>(), TensorType{x.dtype(), {x.row_stride}}.bytes(), outer, slice};
  }
  return exchange;
}

Result<Communicator::Request> AllGather::start(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  WEFT_CHECK(ctx.rows == Rows::kStatic, "{}: rows of a step are gathered at once", ctx.name);
  Communicator& group = group_of(ctx, axis, size);
  return dim != 0 ? group.start_all_to_all(ctx.name, columns(x, y))
                  : group.start_all_gather(ctx.name, {x.data, y.data, capacity, row_bytes_of(x)});
}

Status AllGather::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  Communicator& group = group_of(ctx, axis, size);
  const int64_t row = row_bytes_of(x);
  if (dim != 0) return group.all_to_all(ctx.name, columns(x, y));
  if (ctx.rows == Rows::kStatic) return group.all_gather(ctx.name, {x.data, y.data, capacity, row});
  const RowSplit& split = split_of(ctx, ctx.row_set);
  const bool in_order = split.order.empty();
  const int64_t total = std::accumulate(split.counts.begin(), split.counts.end(), int64_t{0});
  std::byte* gathered = in_order ? y.as<std::byte>() : ctx.scratch.data();
  WEFT_CHECK(in_order || total * row <= static_cast<int64_t>(ctx.scratch.size()), "{}: {} rows in scratch", ctx.name, total);
  const GatherArgs args{x.data, gathered, total, row};
  WEFT_RETURN_IF_ERROR(split.flat ? group.all_gather(ctx.name, args) : group.all_gather_v(ctx.name, args, split.counts));
  for (int64_t i = 0; i < total && !in_order; ++i) {
    std::memcpy(y.as<std::byte>() + split.order[static_cast<size_t>(i)] * row, gathered + i * row, static_cast<size_t>(row));
  }
  return {};
}

int64_t AllGather::bytes_sent(const RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  if (dim != 0) return all_to_all_bytes(size, x.type.bytes());
  if (ctx.rows == Rows::kStatic) return all_gather_bytes(size, capacity, row_bytes_of(x));
  const RowSplit& split = split_of(ctx, ctx.row_set);
  const int64_t total = std::accumulate(split.counts.begin(), split.counts.end(), int64_t{0});
  return split.flat ? all_gather_bytes(size, total, row_bytes_of(x)) : all_gather_v_bytes(size, split.size(), row_bytes_of(x));
}

// ---- SliceRows

Result<ValueTypes> SliceRows::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rows(kName, in, capacity));
  const ValueType out = with_capacity(in[0], capacity);
  return ValueTypes{{out.tensor, out.rows}};
}

Result<std::vector<Placements>> SliceRows::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::replicated(), Placement::sharded(0));
}

Work SliceRows::work(TypeSpan, TypeSpan out, const WorkEnv&) const {
  Work work;
  work.bytes_read = work.bytes_written = out[0].tensor.bytes();
  return work;
}

Status SliceRows::run(RunContext& ctx) const {
  const RowSplit& split = split_of(ctx, ctx.out_row_set);
  const int64_t row = row_bytes_of(ctx.in[0]);
  for (size_t j = 0; j < split.local.size(); ++j) {
    std::memcpy(ctx.out[0].as<std::byte>() + static_cast<int64_t>(j) * row, ctx.in[0].as<std::byte>() + split.local[j] * row,
                static_cast<size_t>(row));
  }
  return {};
}

// ---- HeadsToRows

Result<ValueTypes> HeadsToRows::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rows(kName, in, capacity));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 3));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "heads modulo size", in[0].shape()[1] % size, 0));
  ValueType out = with_capacity(in[0], capacity);
  out.tensor.shape[1] /= size;
  return ValueTypes{{out.tensor, out.rows}};
}

Result<std::vector<Placements>> HeadsToRows::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::sharded(0), Placement::sharded(1));
}

Work HeadsToRows::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_to_all_bytes(size, in[0].tensor.bytes() / size);
  travels(work, CommPattern::kAllToAll, axis, size);
  work.scratch_bytes = out[0].tensor.bytes();  // rows before they are put in order
  return work;
}

Status HeadsToRows::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  const RowSplit& split = split_of(ctx, ctx.row_set);
  const int64_t row = row_bytes_of(x), slice = row / size;
  const bool in_order = split.order.empty();
  std::byte* ranked = in_order ? y.as<std::byte>() : ctx.scratch.data();
  std::vector<Blocks> send(static_cast<size_t>(size)), recv(static_cast<size_t>(size));
  int64_t first = 0;
  for (size_t p = 0; p < send.size(); ++p) {
    send[p] = {x.as<std::byte>() + static_cast<int64_t>(p) * slice, row, x.shape()[0], slice};
    recv[p] = contiguous_block(ranked + first * slice, split.counts[p] * slice);
    first += split.counts[p];
  }
  WEFT_CHECK(in_order || first * slice <= static_cast<int64_t>(ctx.scratch.size()), "{}: scratch", ctx.name);
  WEFT_RETURN_IF_ERROR(group_of(ctx, axis, size).all_to_all_v(ctx.name, send, recv));
  for (size_t i = 0; i < split.order.size(); ++i) {
    std::memcpy(y.as<std::byte>() + split.order[i] * slice, ranked + static_cast<int64_t>(i) * slice, static_cast<size_t>(slice));
  }
  return {};
}

int64_t HeadsToRows::bytes_sent(const RunContext& ctx) const { return all_to_all_bytes(size, ctx.in[0].type.bytes() / size); }

// ---- ColumnsToRows

Result<ValueTypes> ColumnsToRows::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rows(kName, in, capacity));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  ValueType out = with_capacity(in[0], capacity);
  out.tensor.shape[1] *= size;
  return ValueTypes{{out.tensor, out.rows}};
}

Result<std::vector<Placements>> ColumnsToRows::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::sharded(1), Placement::sharded(0));
}

Work ColumnsToRows::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_to_all_bytes(size, rows_per_rank(size, in[0].shape()[0]) * row_bytes_of(in[0].tensor));
  travels(work, CommPattern::kAllToAll, axis, size);
  work.scratch_bytes = in[0].tensor.bytes();  // rows that are not consecutive, put in order
  return work;
}

Status ColumnsToRows::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  const RowSplit& split = split_of(ctx, ctx.out_row_set);
  WEFT_CHECK(split.unique, "{}: a row that two ranks hold", ctx.name);
  const int64_t slice = row_bytes_of(x);
  const std::byte* ranked = x.as<std::byte>();
  if (!split.order.empty()) {  // rows rank after rank
    WEFT_CHECK(x.shape()[0] * slice <= static_cast<int64_t>(ctx.scratch.size()), "{}: scratch", ctx.name);
    for (size_t i = 0; i < split.order.size(); ++i) {
      std::memcpy(ctx.scratch.data() + static_cast<int64_t>(i) * slice, x.as<std::byte>() + split.order[i] * slice, static_cast<size_t>(slice));
    }
    ranked = ctx.scratch.data();
  }
  std::vector<Blocks> send(static_cast<size_t>(size)), recv(static_cast<size_t>(size));
  int64_t first = 0;
  for (size_t p = 0; p < send.size(); ++p) {
    send[p] = contiguous_block(ranked + first * slice, split.counts[p] * slice);
    recv[p] = {y.as<std::byte>() + static_cast<int64_t>(p) * slice, size * slice, split.size(), slice};
    first += split.counts[p];
  }
  return group_of(ctx, axis, size).all_to_all_v(ctx.name, send, recv);
}

int64_t ColumnsToRows::bytes_sent(const RunContext& ctx) const {
  const RowSplit& split = split_of(ctx, ctx.out_row_set);
  const int64_t rows = std::accumulate(split.counts.begin(), split.counts.end(), int64_t{0});
  return (rows - split.size()) * row_bytes_of(ctx.in[0]);
}

// ---- SharedQuantise

namespace {

int64_t row_width(const Shape& x) { return x.rank() == 3 ? x[1] * x[2] : x[1]; }

}  // namespace

Result<ValueTypes> SharedQuantise::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  if (in[0].shape().rank() != 3) WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  if (!is_fp8(act_quant)) return invalid_argument(fmt::format("{}: act_quant {}; expected blocks of FP8", kName, EnumText<ActQuant>::kNames[static_cast<size_t>(act_quant)]));
  // E4M3 times a power of two is a bf16 value; times any number it is not.
  const DType dtype = act_quant == ActQuant::kFp8Block128 ? in[0].dtype() : DType::kF32;
  return ValueTypes{{{dtype, in[0].shape()}, in[0].rows}};
}

Result<std::vector<Placements>> SharedQuantise::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::sharded(1), Placement::sharded(1));
}

Work SharedQuantise::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const int64_t maxima = in[0].shape()[0] * ceil_div(row_width(in[0].shape()) * size, SharedQuantise::kBlock);
  work.bytes_sent = all_reduce_max_bytes(size, maxima);
  travels(work, CommPattern::kAllGather, axis, size);  // of the maxima
  work.scratch_bytes = 2 * aligned_scratch(maxima * 4);
  return work;
}

Status SharedQuantise::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &y = ctx.out[0];
  const int64_t rows = x.shape()[0], width = row_width(x.shape()), blocks = ceil_div(width * size, SharedQuantise::kBlock);
  Communicator& group = group_of(ctx, axis, size);
  const int64_t first = group.rank() * width;  // column of the whole row
  const E4m3Scale scale = act_quant == ActQuant::kFp8Block128 ? E4m3Scale::kPowerOfTwo : E4m3Scale::kAny;
  const bool narrow = x.dtype() == DType::kBF16, narrow_out = y.dtype() == DType::kBF16;
  const auto at = [&](int64_t t, int64_t c) {
    const int64_t i = t * width + c;
    return narrow ? to_float(x.as<bf16>()[i]) : x.as<float>()[i];
  };
  auto* mine = reinterpret_cast<float*>(ctx.scratch.data());
  auto* maxima = reinterpret_cast<float*>(ctx.scratch.data() + aligned_scratch(rows * blocks * 4));
  for (int64_t t = 0; t < rows; ++t) {
    float* row = mine + t * blocks;
    std::fill(row, row + blocks, kE4m3LeastAbsmax);
    for (int64_t c = 0; c < width; ++c) {  // NaN is skipped, as in kernels/linear
      float& largest = row[(first + c) / SharedQuantise::kBlock];
      const float v = std::fabs(at(t, c));
      if (v > largest) largest = v;
    }
  }
  WEFT_RETURN_IF_ERROR(group.all_reduce_max(ctx.name, mine, maxima, rows * blocks));
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const float largest = maxima[t * blocks + (first + c) / SharedQuantise::kBlock];
      const float value = e4m3_round_trip(at(t, c), e4m3_block_scale(largest, scale));
      if (narrow_out) {
        y.as<bf16>()[t * width + c] = to_bf16(value);
      } else {
        y.as<float>()[t * width + c] = value;
      }
    }
  }
  return {};
}

int64_t SharedQuantise::bytes_sent(const RunContext& ctx) const {
  const Shape& x = ctx.in[0].shape();
  return all_reduce_max_bytes(size, x[0] * ceil_div(row_width(x) * size, SharedQuantise::kBlock));
}

// ---- RowAbsmax

Result<ValueTypes> RowAbsmax::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  return ValueTypes{{{DType::kF32, {in[0].shape()[0]}}, in[0].rows}};
}

Result<std::vector<Placements>> RowAbsmax::placements(TypeSpan in) const {
  return moved(kName, in, axis, Placement::sharded(1), Placement::replicated());
}

Work RowAbsmax::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_reduce_max_bytes(size, in[0].shape()[0]);
  travels(work, CommPattern::kAllGather, axis, size);
  work.scratch_bytes = aligned_scratch(in[0].shape()[0] * 4);
  return work;
}

Status RowAbsmax::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t rows = x.shape()[0], width = x.shape()[1];
  auto* mine = reinterpret_cast<float*>(ctx.scratch.data());
  for (int64_t t = 0; t < rows; ++t) {
    float largest = 0;  // NaN is skipped, as in kernels/linear
    for (int64_t i = t * width; i < (t + 1) * width; ++i) {
      const float v = std::fabs(x.dtype() == DType::kBF16 ? to_float(x.as<bf16>()[i]) : x.as<float>()[i]);
      if (v > largest) largest = v;
    }
    mine[t] = largest;
  }
  return group_of(ctx, axis, size).all_reduce_max(ctx.name, mine, ctx.out[0].as<float>(), rows);
}

int64_t RowAbsmax::bytes_sent(const RunContext& ctx) const { return all_reduce_max_bytes(size, ctx.in[0].shape()[0]); }

// ---- ExpertDispatch

namespace {

// A row on its way: its experts and their weights.
struct RouteBytes {
  int64_t top_k;
  int64_t bytes() const { return top_k * 8; }
};

// Rows of one rank for each peer: expert e lives on peer e / experts.
struct Destinations {
  std::vector<std::vector<int32_t>> rows;  // by peer, ascending
  Destinations(const TensorView& expert, int64_t experts, int64_t size) : rows(static_cast<size_t>(size)) {
    const int64_t top_k = expert.shape()[1];
    for (int64_t t = 0; t < expert.shape()[0]; ++t) {
      for (int64_t j = 0; j < top_k; ++j) {
        const int32_t e = expert.as<int32_t>()[t * top_k + j];
        if (e < 0) continue;
        auto& list = rows[static_cast<size_t>(e / experts)];
        if (list.empty() || list.back() != t) list.push_back(static_cast<int32_t>(t));
      }
    }
  }
};

// Expected number of other ranks that a row goes to, under uniform routing of top_k of all experts (sharding.md L10).
double remote_ranks(int64_t size, int64_t experts, int64_t top_k) {
  const int64_t all = size * experts;
  double none = 1;  // probability that a rank has none of the row's experts
  for (int64_t j = 0; j < top_k; ++j) none *= std::max(0.0, static_cast<double>(all - experts - j)) / static_cast<double>(all - j);
  return static_cast<double>(size - 1) * (1 - none);
}

Status expect_routing(std::string_view op, TypeSpan in, int input, std::string_view name, DType dtype) {
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, input, name, 2));
  return expect_dtype(op, in, input, name, {dtype});
}

}  // namespace

Result<ValueTypes> ExpertDispatch::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 3, 3));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "experts", experts, 1, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_routing(kName, in, 1, "expert", DType::kI32));
  WEFT_RETURN_IF_ERROR(expect_routing(kName, in, 2, "weight", DType::kF32));
  for (int i = 1; i < 3; ++i) {
    WEFT_RETURN_IF_ERROR(expect_dim(kName, i == 1 ? "rows of expert" : "rows of weight", in[i].shape()[0], in[0].shape()[0]));
  }
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of weight", in[2].shape()[1], in[1].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "capacity", capacity, size * in[0].shape()[0], size * in[0].shape()[0]));
  const int64_t top_k = in[1].shape()[1];
  return ValueTypes{{{in[0].dtype(), {capacity, in[0].shape()[1]}}, Rows::kReceived},
                    {{DType::kI32, {capacity, top_k}}, Rows::kReceived},
                    {{DType::kF32, {capacity, top_k}}, Rows::kReceived},
                    {{DType::kI32, {size}}, Rows::kStatic}};
}

Result<std::vector<Placements>> ExpertDispatch::placements(TypeSpan in) const {
  for (int i = 1; i < 3; ++i) {
    if (row_set(in[i].placement) != row_set(in[0].placement)) {
      return invalid_argument(fmt::format("{}: x is {}, but the routing {}", kName, to_string(in[0]), to_string(in[i])));
    }
  }
  Placements out;  // of rows that no other rank has: the axis stands for them all
  on(out, axis) = Placement::sharded(0);
  return std::vector<Placements>{out, out, out, out};
}

Work ExpertDispatch::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const int64_t top_k = in[1].shape()[1], rows = in[0].shape()[0];
  const int64_t row = row_bytes_of(in[0].tensor) + RouteBytes{top_k}.bytes();
  work.bytes_sent = (size - 1) * 8 + static_cast<int64_t>(remote_ranks(size, experts, top_k) * static_cast<double>(rows * row));
  travels(work, CommPattern::kAllToAll, axis, size, 3);  // counts, routes, rows
  // Rows for every peer, and the routing of both sides.
  work.scratch_bytes = aligned_scratch(size * rows * row_bytes_of(in[0].tensor)) + aligned_scratch(size * rows * RouteBytes{top_k}.bytes()) +
                       aligned_scratch(capacity * RouteBytes{top_k}.bytes());
  return work;
}

Status ExpertDispatch::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &expert = ctx.in[1], &weight = ctx.in[2];
  Communicator& group = group_of(ctx, axis, size);
  const int64_t top_k = expert.shape()[1], row = row_bytes_of(x), route = RouteBytes{top_k}.bytes();
  const Destinations to(expert, experts, size);

  std::vector<int64_t> sent(static_cast<size_t>(size)), received(static_cast<size_t>(size));
  for (size_t p = 0; p < sent.size(); ++p) sent[p] = static_cast<int64_t>(to.rows[p].size());
  const auto counts = [&](std::vector<int64_t>& v) { return PeerBlocks{contiguous_block(v.data(), 8), 8}; };
  WEFT_RETURN_IF_ERROR(group.all_to_all(ctx.name, {counts(sent), counts(received)}));

  std::byte* rows_out = ctx.scratch.data();
  std::byte* routes_out = rows_out + aligned_scratch(size * (capacity / size) * row);
  std::byte* routes_in = routes_out + aligned_scratch(size * (capacity / size) * route);
  std::vector<Blocks> send_rows, send_routes, recv_rows, recv_routes;
  int64_t at = 0, total = 0;
  for (size_t p = 0; p < sent.size(); ++p) {
    send_rows.push_back(contiguous_block(rows_out + at * row, sent[p] * row));
    send_routes.push_back(contiguous_block(routes_out + at * route, sent[p] * route));
    for (int32_t t : to.rows[p]) {
      std::memcpy(rows_out + at * row, x.as<std::byte>() + t * row, static_cast<size_t>(row));
      auto* ids = reinterpret_cast<int32_t*>(routes_out + at * route);
      auto* weights = reinterpret_cast<float*>(ids + top_k);
      for (int64_t j = 0; j < top_k; ++j) {
        const int32_t e = expert.as<int32_t>()[t * top_k + j];
        const bool here = e >= 0 && e / experts == static_cast<int64_t>(p);
        ids[j] = here ? static_cast<int32_t>(e % experts) : -1;
        weights[j] = here ? weight.as<float>()[t * top_k + j] : 0;
      }
      ++at;
    }
    recv_rows.push_back(contiguous_block(ctx.out[0].as<std::byte>() + total * row, received[p] * row));
    recv_routes.push_back(contiguous_block(routes_in + total * route, received[p] * route));
    total += received[p];
    ctx.out[3].as<int32_t>()[p] = static_cast<int32_t>(received[p]);
  }
  WEFT_CHECK(total <= capacity, "{}: {} rows received, room for {}", ctx.name, total, capacity);
  WEFT_RETURN_IF_ERROR(group.all_to_all_v(ctx.name, send_routes, recv_routes));
  WEFT_RETURN_IF_ERROR(group.all_to_all_v(ctx.name, send_rows, recv_rows));
  for (int64_t r = 0; r < total; ++r) {
    std::memcpy(ctx.out[1].as<int32_t>() + r * top_k, routes_in + r * route, static_cast<size_t>(top_k * 4));
    std::memcpy(ctx.out[2].as<float>() + r * top_k, routes_in + r * route + top_k * 4, static_cast<size_t>(top_k * 4));
  }
  *ctx.received_rows = total;
  return {};
}

int64_t ExpertDispatch::bytes_sent(const RunContext& ctx) const {
  const TensorView& expert = ctx.in[1];
  const int64_t row = row_bytes_of(ctx.in[0]) + RouteBytes{expert.shape()[1]}.bytes();
  const Destinations to(expert, experts, size);
  int64_t bytes = (size - 1) * 8;  // counts
  for (int p = 0; p < size; ++p) {
    if (p != ctx.ranks->index_of(axis)) bytes += static_cast<int64_t>(to.rows[static_cast<size_t>(p)].size()) * row;
  }
  return bytes;
}

// ---- ExpertCombine

Result<ValueTypes> ExpertCombine::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 4, 4));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "experts", experts, 1, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "slots", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "slots", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_routing(kName, in, 1, "received expert", DType::kI32));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 2, "counts", 1));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of received expert", in[1].shape()[0], in[0].shape()[0]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of received expert", in[1].shape()[1], in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "counts", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "counts", in[2].shape()[0], size));
  WEFT_RETURN_IF_ERROR(expect_routing(kName, in, 3, "expert", DType::kI32));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "slots of a row", in[0].shape()[1], in[3].shape()[1]));
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return invalid_argument(fmt::format("{}: dtype is {}, expected F32 or BF16", kName, dtype_name(dtype)));
  }
  return ValueTypes{{{DType::kF32, {in[3].shape()[0], in[0].shape()[2]}}, in[3].rows}};
}

Result<std::vector<Placements>> ExpertCombine::placements(TypeSpan in) const {
  return std::vector<Placements>{in[3].placement};
}

Work ExpertCombine::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const int64_t top_k = in[3].shape()[1], rows = in[3].shape()[0], slot = in[0].shape()[2] * dtype_bits(dtype) / 8;
  const double remote = static_cast<double>(size - 1) / static_cast<double>(size);
  work.bytes_sent = static_cast<int64_t>(remote * static_cast<double>(rows * top_k * slot));
  travels(work, CommPattern::kAllToAll, axis, size);
  work.flops = static_cast<double>(rows * top_k * in[0].shape()[2]);
  work.scratch_bytes = aligned_scratch(in[0].shape()[0] * top_k * slot) + aligned_scratch(rows * top_k * slot);
  return work;
}

Status ExpertCombine::run(RunContext& ctx) const {
  const TensorView &slots = ctx.in[0], &received = ctx.in[1], &counts = ctx.in[2], &expert = ctx.in[3], &y = ctx.out[0];
  Communicator& group = group_of(ctx, axis, size);
  const int64_t top_k = slots.shape()[1], width = slots.shape()[2], element = dtype_bits(dtype) / 8, slot = width * element;
  const bool narrow = dtype == DType::kBF16;

  // The outputs of all used slots, by rank and ascending row, packed.
  std::byte* packed = ctx.scratch.data();
  int64_t used = 0, row = 0;
  std::vector<Blocks> send, recv;
  for (int64_t p = 0; p < size; ++p) {
    const int64_t begin = used;
    for (const int64_t end = row + counts.as<int32_t>()[p]; row < end; ++row) {
      for (int64_t j = 0; j < top_k; ++j) {
        if (received.as<int32_t>()[row * top_k + j] < 0) continue;
        const float* from = slots.as<float>() + (row * top_k + j) * width;
        std::byte* to = packed + used++ * slot;
        if (narrow) {
          for (int64_t c = 0; c < width; ++c) reinterpret_cast<bf16*>(to)[c] = to_bf16(from[c]);
        } else {
          std::memcpy(to, from, static_cast<size_t>(slot));
        }
      }
    }
    send.push_back(contiguous_block(packed + begin * slot, (used - begin) * slot));
  }
  // Mine come back the way they went: by rank of their expert, ascending row, ascending slot.
  const int64_t rows = expert.shape()[0];
  std::byte* back = packed + aligned_scratch(used * slot);
  WEFT_CHECK(back + rows * top_k * slot <= ctx.scratch.data() + ctx.scratch.size(), "{}: scratch", ctx.name);
  std::vector<int64_t> first(static_cast<size_t>(size) + 1, 0);
  for (int64_t i = 0; i < rows * top_k; ++i) {
    const int32_t e = expert.as<int32_t>()[i];
    if (e >= 0) ++first[static_cast<size_t>(e / experts) + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  for (int64_t p = 0; p < size; ++p) {
    const auto i = static_cast<size_t>(p);
    recv.push_back(contiguous_block(back + first[i] * slot, (first[i + 1] - first[i]) * slot));
  }
  WEFT_RETURN_IF_ERROR(group.all_to_all_v(ctx.name, send, recv));

  std::vector<int64_t> next(first.begin(), first.end() - 1);
  for (int64_t t = 0; t < rows; ++t) {
    float* sum = y.as<float>() + t * width;
    std::fill(sum, sum + width, 0.0f);
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t e = expert.as<int32_t>()[t * top_k + j];
      if (e < 0) continue;
      const std::byte* from = back + next[static_cast<size_t>(e / experts)]++ * slot;
      for (int64_t c = 0; c < width; ++c) {
        sum[c] += narrow ? to_float(reinterpret_cast<const bf16*>(from)[c]) : reinterpret_cast<const float*>(from)[c];
      }
    }
  }
  return {};
}

int64_t ExpertCombine::bytes_sent(const RunContext& ctx) const {
  const TensorView &slots = ctx.in[0], &received = ctx.in[1], &counts = ctx.in[2];
  const int64_t top_k = slots.shape()[1], slot = slots.shape()[2] * dtype_bits(dtype) / 8;
  int64_t used = 0, row = 0;
  for (int p = 0; p < size; ++p) {
    for (const int64_t end = row + counts.as<int32_t>()[p]; row < end; ++row) {
      if (p == ctx.ranks->index_of(axis)) continue;
      const int32_t* experts_of_row = received.as<int32_t>() + row * top_k;
      used += std::count_if(experts_of_row, experts_of_row + top_k, [](int32_t e) { return e >= 0; });
    }
  }
  return used * slot;
}

}  // namespace weft
