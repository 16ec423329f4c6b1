#include "planner/calibration_cases.h"

#include <algorithm>

#include "base/int_math.h"

namespace weft {
namespace {

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;

ValueType rows_of(DType dtype, Shape shape) { return {{dtype, shape}, Rows::kTokens}; }
ValueType fixed(DType dtype, Shape shape) { return {{dtype, shape}}; }

// Linear layers: y [rows, columns] from `depth` inputs, whose sums are made of `blocks`.
OpCase linear(int64_t rows, int64_t columns, int64_t depth, int64_t blocks, DType weight, ActQuant quant) {
  OpCase c{.op = Linear{.dtype = kBF16, .act_quant = quant, .k_blocks = blocks},
           .in = {rows_of(kBF16, {rows, depth}), fixed(weight, {columns, depth})}};
  c.stored = {0, 1, 0};
  if (weight == DType::kF8E4M3) {
    constexpr int64_t kBlock = 128;
    std::get<Linear>(c.op).scale_rows = std::get<Linear>(c.op).scale_cols = kBlock;
    c.in.push_back(fixed(DType::kF8E8M0, {(columns + kBlock - 1) / kBlock, (depth + kBlock - 1) / kBlock}));
  } else if (weight == DType::kI8) {
    std::get<Linear>(c.op).scale_rows = 1;
    std::get<Linear>(c.op).scale_cols = depth;
    c.in.push_back(fixed(kF32, {columns, 1}));
  }
  return c;
}

CalibrationTable linear_table(DType weight, ActQuant quant, bool cached) {
  CalibrationTable table{"linear", {"rows", "columns", "depth"}, {}, {}, cached};
  const std::vector<int64_t> rows = {1, 4, 16, 64, cached ? 512 : 256},
                             columns = cached ? std::vector<int64_t>{128, 1024} : std::vector<int64_t>{128, 1024, 8192},
                             depths = cached ? std::vector<int64_t>{8, 16, 32, 128, 256, 512}
                                             : std::vector<int64_t>{16, 64, 128, 1024, 4096};
  table.extents = {rows.size(), columns.size(), depths.size()};
  constexpr int64_t kBlocks = 16, kShallow = 64;  // so shallow are only the blocks of a sum
  for (const int64_t m : rows) {
    for (const int64_t n : columns) {
      for (const int64_t k : depths) {
        const int64_t blocks = k <= kShallow ? kBlocks : 1;
        table.cases.push_back(linear(m, n, k * blocks, blocks, weight, quant));
      }
    }
  }
  return table;
}

// How the releases store experts.
struct ExpertFormat {
  DType weight, scale;
  ActQuant act_quant;
  int64_t scale_rows, scale_cols;  // weights that share a scale
};
constexpr ExpertFormat kFp4Experts{DType::kF4E2M1, DType::kF8E8M0, ActQuant::kFp8Block128, 1, 32};
constexpr ExpertFormat kFp8Experts{DType::kF8E4M3, kF32, ActQuant::kFp8Block128AnyScale, 128, 128};
constexpr ExpertFormat kInt8Experts{DType::kI8, kF32, ActQuant::kInt8PerRow, 1, int64_t{1} << 20};  // whole rows

// Every expert gets exactly `rows_each` rows: token t picks set t mod (experts / top_k).
OpCase experts(const ExpertFormat& format, int64_t rows_each, int64_t num_experts, int64_t top_k, int64_t inner,
               int64_t hidden) {
  const int64_t sets = num_experts / top_k, rows = sets * rows_each;
  const auto weight = [&](int64_t n, int64_t k) { return fixed(format.weight, {num_experts, n, k}); };
  const auto scale = [&](int64_t n, int64_t k) {
    return fixed(format.scale, {num_experts, ceil_div(n, format.scale_rows), ceil_div(k, format.scale_cols)});
  };
  OpCase c{.op = Experts{.act_quant = format.act_quant,
                         .swiglu_limit = 10,
                         .scale_rows = format.scale_rows,
                         .scale_cols = format.scale_cols},
           .in = {rows_of(kBF16, {rows, hidden}), rows_of(DType::kI32, {rows, top_k}), rows_of(kF32, {rows, top_k}),
                  weight(inner, hidden), weight(inner, hidden), weight(hidden, inner), scale(inner, hidden),
                  scale(inner, hidden), scale(hidden, inner)}};
  c.stored = {0, 0, 0, 1, 1, 1, 0, 0, 0};
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = 0; j < top_k; ++j) c.integers[1].push_back(static_cast<int32_t>(t % sets * top_k + j));
  }
  return c;
}

CalibrationTable experts_table(const ExpertFormat& format, bool cached) {
  CalibrationTable table{"experts", {"rows", "count", "columns"}, {4, 2, cached ? 1u : 2u}, {}, cached};
  for (const int64_t rows : {1, 4, 16, 64}) {
    for (const int64_t num_experts : {2, 8}) {
      table.cases.push_back(experts(format, rows, num_experts, 2, 128, 256));
      if (!cached) table.cases.push_back(experts(format, rows, num_experts, 2, 2048, 4096));
    }
  }
  return table;
}

constexpr int64_t kPageEntries = 64;

// The last rows of one request.
void last_rows(OpCase& c, int64_t rows, int64_t context, int64_t entries) {
  c.segments = {{0, 0, rows, context}};
  auto& pages = c.pages.emplace_back();
  for (int64_t p = 0; p * kPageEntries < entries; ++p) pages.push_back(static_cast<int32_t>(p));
}

CalibrationTable attention_table() {
  CalibrationTable table{"sparse_attention", {"rows", "columns", "depth"}, {3, 4, 2}, {}, false};
  constexpr int64_t kRatio = 128;  // all rows of a case see the same entries
  for (const int64_t rows : {1, 8, 128}) {
    for (const int64_t columns : {32, 128, 640, 2112}) {
      for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{4, 128}, {64, 512}}) {
        const int64_t window = std::min<int64_t>(columns / 2, 64), entries = columns - window,
                      context = entries * kRatio, pages = (entries + kPageEntries - 1) / kPageEntries;
        OpCase c{.op = SparseAttention{.window = window, .ratio = kRatio, .scale = 0.05, .max_context = context},
                 .in = {rows_of(kBF16, {rows, heads, dim}), rows_of(kBF16, {rows, dim}), fixed(kF32, {heads}),
                        fixed(kBF16, {1, window, dim}), fixed(kBF16, {pages, kPageEntries, dim})}};
        last_rows(c, rows, context, entries);
        table.cases.push_back(std::move(c));
      }
    }
  }
  return table;
}

// Normal numbers, as the rotation in front of the rounding makes them: how the kernel multiplies depends on what they were rounded to.
CalibrationTable index_table(std::optional<QuantFormat> rounding) {
  CalibrationTable table{"index_topk", {"rows", "columns", "count"}, {3, 3, 2}, {}, false};
  constexpr int64_t kRatio = 4, kDim = 128;
  std::optional<Quantise> quantise;
  if (rounding.has_value())
    quantise = Quantise{.format = *rounding, .end = kDim, .block = *rounding == QuantFormat::kFp4 ? 32 : kDim};
  for (const int64_t rows : {1, 8, 64}) {
    for (const int64_t entries : {1024, 8192, 32768}) {
      for (const auto& [heads, top_k] : {std::pair<int64_t, int64_t>{4, 16}, {64, 512}}) {
        const int64_t context = entries * kRatio;
        IndexTopK op{.ratio = kRatio, .top_k = top_k, .weight_scale = 0.1, .max_context = context};
        if (rounding.has_value()) op.rounded_to = dtype_of(*rounding);
        OpCase c{.op = op,
                 .in = {rows_of(kBF16, {rows, heads, kDim}), rows_of(kBF16, {rows, heads}),
                        fixed(kBF16, {entries / kPageEntries, kPageEntries, kDim})}};
        c.normal = {{0, quantise}, {2, quantise}};
        last_rows(c, rows, context, entries);
        table.cases.push_back(std::move(c));
      }
    }
  }
  return table;
}

// Ops whose time follows rows and width. make(rows, width) gives a case.
template <class Make>
CalibrationTable row_table(std::string op, std::vector<int64_t> widths, Make make, bool cached = false) {
  CalibrationTable table{std::move(op), {"rows", "columns"}, {4, widths.size()}, {}, cached};
  for (const int64_t rows : {1, 8, 64, 512}) {
    for (const int64_t width : widths) table.cases.push_back(make(rows, width));
  }
  return table;
}

void add_row_tables(std::vector<CalibrationTable>& tables) {
  constexpr int64_t kHead = 512, kRotary = 64, kIndexDim = 128, kStreams = 4;
  const auto heads_shape = [](int64_t rows, int64_t width) {
    return width > kHead ? Shape{rows, width / kHead, kHead} : Shape{rows, 1, width};
  };
  tables.push_back(row_table("rms_norm", {128, 1024, 4096, 32768}, [&](int64_t rows, int64_t width) {
    constexpr int64_t kWidest = 4096;  // wider: of heads
    if (width > kWidest)
      return OpCase{.op = RmsNorm{.eps = 1e-6, .rounding = NormRounding::kEachStep},
                    .in = {rows_of(kBF16, heads_shape(rows, width))}};
    return OpCase{.op = RmsNorm{.eps = 1e-6}, .in = {rows_of(kBF16, {rows, width}), fixed(kBF16, {width})}};
  }));
  tables.push_back(row_table("rope", {128, 512, 32768}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = Rope{},
                  .in = {rows_of(kBF16, heads_shape(rows, width)), rows_of(kF32, {rows, kRotary / 2, 2})}};
  }));
  tables.push_back(row_table("quantise", {128, 512, 8192}, [&](int64_t rows, int64_t width) {
    if (width == kHead) {
      return OpCase{.op = Quantise{.format = QuantFormat::kFp8, .end = kHead - kRotary, .block = 64},
                    .in = {rows_of(kBF16, {rows, width})}};
    }
    return OpCase{.op = Quantise{.format = QuantFormat::kFp4, .end = kIndexDim, .block = 32, .hadamard = true},
                  .in = {rows_of(kBF16, {rows, width / kIndexDim, kIndexDim})}};
  }));
  const auto hc_weights = [](int64_t mixes, int64_t width, int64_t scales) {
    return std::vector<ValueType>{fixed(kF32, {mixes, width}), fixed(kF32, {mixes}), fixed(kF32, {scales})};
  };
  for (const bool cached : {false, true}) {
    tables.push_back(row_table(
        "hc_pre", cached ? std::vector<int64_t>{256} : std::vector<int64_t>{256, 4096},
        [&](int64_t rows, int64_t hidden) {
          OpCase c{.op = HcPre{20, 1e-6, 1e-6}, .in = {rows_of(kBF16, {rows, kStreams, hidden})}};
          for (const ValueType& type : hc_weights((2 + kStreams) * kStreams, kStreams * hidden, 3))
            c.in.push_back(type);
          c.stored = {0, 1, 0, 0};
          return c;
        },
        cached));
  }
  tables.push_back(row_table("hc_head", {256, 4096}, [&](int64_t rows, int64_t hidden) {
    OpCase c{.op = HcHead{1e-6, 1e-6}, .in = {rows_of(kBF16, {rows, kStreams, hidden})}};
    for (const ValueType& type : hc_weights(kStreams, kStreams * hidden, 1)) c.in.push_back(type);
    c.stored = {0, 1, 0, 0};
    return c;
  }));
  tables.push_back(row_table("hc_post", {256, 4096}, [&](int64_t rows, int64_t hidden) {
    return OpCase{.op = HcPost{},
                  .in = {rows_of(kBF16, {rows, hidden}), rows_of(kBF16, {rows, kStreams, hidden}),
                         rows_of(kF32, {rows, kStreams + kStreams * kStreams})}};
  }));
  tables.push_back(row_table("swiglu", {128, 2048}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = Swiglu{10}, .in = {rows_of(kBF16, {rows, width}), rows_of(kBF16, {rows, width})}};
  }));
  tables.push_back(row_table("add", {256, 4096}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = Add{}, .in = {rows_of(kF32, {rows, width}), rows_of(kBF16, {rows, width})}};
  }));
  tables.push_back(row_table("add_position_bias", {256, 1024}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = AddPositionBias{},
                  .in = {rows_of(kF32, {rows, width}), fixed(kF32, {4, width}), rows_of(DType::kI32, {rows})}};
  }));
  tables.push_back(row_table("embedding", {1024, 16384}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = Embedding{.streams = kStreams, .dtype = kBF16},
                  .in = {rows_of(DType::kI32, {rows}), fixed(kBF16, {4096, width / kStreams})}};
  }));
  tables.push_back(row_table("moe_route", {2, 6}, [&](int64_t rows, int64_t top_k) {
    return OpCase{.op = MoeRoute{.top_k = top_k, .scaling = 1.5},
                  .in = {rows_of(kF32, {rows, top_k == 2 ? 8 : 256}), fixed(kF32, {top_k == 2 ? 8 : 256})}};
  }));
  tables.push_back(row_table("rope_table", {64}, [&](int64_t rows, int64_t) {
    return OpCase{.op = RopeTable{{.theta = 10000, .rotary_dims = kRotary, .scaling = {}}},
                  .in = {rows_of(DType::kI32, {rows})}};
  }));
  tables.push_back(row_table("ring_write", {128, 512}, [&](int64_t rows, int64_t width) {
    return OpCase{.op = RingWrite{}, .in = {rows_of(kBF16, {rows, width}), fixed(kBF16, {1, 128, width})}};
  }));
  tables.push_back(row_table("compressor", {256, 1024}, [&](int64_t rows, int64_t width) {
    constexpr int64_t kRatio = 4;
    const int64_t d = width / 2, first = 4 * kRatio;  // overlapping groups, in the midst of a sequence
    Compressor op;
    op.ratio = kRatio;
    op.eps = 1e-6;
    op.rope.rotary_dims = kRotary;
    OpCase c{.op = op,
             .in = {rows_of(kF32, {rows, width}), rows_of(kF32, {rows, width}), fixed(kBF16, {d}),
                    fixed(kF32, {1, 3 * kRatio, 2 * width}),
                    fixed(kBF16, {(first + rows) / kRatio / kPageEntries + 1, kPageEntries, d})}};
    c.segments = {{0, 0, rows, first + rows}};
    auto& pages = c.pages.emplace_back();
    for (int64_t p = 0; p < c.in[4].shape()[0]; ++p) pages.push_back(static_cast<int32_t>(p));
    return c;
  }));
}

}  // namespace

std::vector<CalibrationTable> calibration_tables() {
  std::vector<CalibrationTable> tables;
  for (const bool cached : {false, true}) {
    tables.push_back(linear_table(DType::kF8E4M3, ActQuant::kFp8Block128, cached));
    tables.push_back(linear_table(DType::kF8E4M3, ActQuant::kNone, cached));
    tables.push_back(linear_table(kBF16, ActQuant::kNone, cached));
    tables.push_back(linear_table(DType::kI8, ActQuant::kInt8PerRow, cached));
    for (const ExpertFormat& format : {kFp4Experts, kFp8Experts, kInt8Experts})
      tables.push_back(experts_table(format, cached));
  }
  tables.push_back(attention_table());
  for (const std::optional<QuantFormat> rounding :
       {std::optional<QuantFormat>(), std::optional(QuantFormat::kFp8), std::optional(QuantFormat::kFp4)}) {
    tables.push_back(index_table(rounding));
  }
  add_row_tables(tables);
  return tables;
}

}  // namespace weft
