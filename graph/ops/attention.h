// Attention over a window of recent tokens and over entries of a cache, and what feeds the caches (deepseek_v4.md 2.5, 2.6;
// glm_moe_dsa.md 2.6, 2.7).
//
//   RingWrite        rows [T,W], ring -> writes each token's row at its position
//   AppendRows       rows [T,X], entries (kAppend cache of ratio 1, width W) -> writes features [begin, begin + W) of each
//                    token's row as the entry of its position
//   Compressor       k, s [T,w] F32 (candidate values; gate logits with the position bias added), norm [d], state ring
//                    (F32, row = k | s), entries (kAppend cache) -> pools every group whose last token is in the batch
//                    (kernels/compressor), A(u) -> rms_norm -> rope at the group's first position -> quantise -> its entry;
//                    then writes k | s into the state ring. w = 2d: overlapping groups (series A of the previous group,
//                    series B of this one); w = d: the group alone.
//   IndexTopK        iq [T,nh,dh] A, w [T,nh] A or F32, keys (kAppend) -> picks I32 [T,top_k]: of the entries that the token sees
//                    (floor((t+1)/ratio) of them), the best by score, ascending, then -1; all of them when they are no more
//                    than top_k (no score is computed): kernels/index_topk. Head weights are w * weight_scale in the
//                    dtype of w.
//   SparseAttention  q [T,H,hd] A, then (window > 0) kv [T,hd] A (rows of this batch), then (has_sink) sink [H] F32, then
//                    (window > 0) the window ring, then (ratio > 0) entries (kAppend), then optionally picks
//                    -> out [T,H,vd] A: kernels/sparse_attention. Values are the first vd features of the keys. Columns of a
//                    token at position t: `window` columns for positions max(0, t-window+1) .. t, oldest first, then empty
//                    ones; then the picks, or without picks all visible entries (floor((t+1)/ratio) of them), ascending.
// RingWrite comes after the SparseAttention that reads the ring: rows of earlier steps are in the ring, rows of this batch in
// kv. The entries of this batch's groups, with ratio 1 those of its tokens, are written before they are read.
#pragma once

#include "graph/op_spec.h"
#include "graph/row_sets.h"
#include "graph/ops/quantise_op.h"
#include "graph/ops/rope_op.h"

namespace weft {

struct RingWrite {
  static constexpr std::string_view kName = "ring_write";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return own_requests(in[0], in[1]) ? ShardRule{{"tw", "tpw"}, {}, "t", ""} : ShardRule{{"tw", "spw"}, {}, "", ""};
  }
  std::vector<int> mutates() const { return {1}; }
  Status run(RunContext& ctx) const;
  bool operator==(const RingWrite&) const = default;
};

struct AppendRows {
  static constexpr std::string_view kName = "append_rows";
  int64_t begin = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("begin", self.begin);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return own_requests(in[0], in[1]) ? ShardRule{{"tw", "tev"}, {}, "t", ""} : ShardRule{{"tw", "gev"}, {}, "e", ""};
  }
  std::vector<int> mutates() const { return {1}; }
  Status run(RunContext& ctx) const;
  bool operator==(const AppendRows&) const = default;
};

struct Compressor {
  static constexpr std::string_view kName = "compressor";
  int64_t ratio = 0;
  double eps = 0;
  RopeParameters rope;
  bool quantised = false;
  Quantise quantise;  // when quantised

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("ratio", self.ratio);
    f("eps", self.eps);
    RopeParameters::visit_fields(self.rope, f);
    f("quantised", self.quantised);
    Quantise::visit_fields(self.quantise, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return own_requests(in[0], in[3]) ? ShardRule{{"tw", "tw", "d", "tpv", "ted"}, {}, "t", ""}
                                      : ShardRule{{"tw", "tw", "d", "spv", "ged"}, {}, "e", ""};
  }
  std::vector<int> mutates() const { return {3, 4}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Compressor&) const = default;
};

struct IndexTopK {
  static constexpr std::string_view kName = "index_topk";
  int64_t ratio = 0, top_k = 0;
  double weight_scale = 1;
  int64_t max_context = 0;  // longest request: sizes the scratch
  // What queries and keys were rounded to before they were stored as they are (Quantise), else F32. The result does not depend
  // on it; the units that can take the products do.
  DType rounded_to = DType::kF32;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("ratio", self.ratio);
    f("top_k", self.top_k);
    f("weight_scale", self.weight_scale);
    f("max_context", self.max_context);
    f("rounded_to", self.rounded_to);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return {{"thd", "th", own_requests(in[0], in[2]) ? "ted" : "ged"}, {"tk"}, "t", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const IndexTopK&) const = default;
};

struct SparseAttention {
  static constexpr std::string_view kName = "sparse_attention";
  int64_t window = 0, ratio = 0;  // 0: none
  double scale = 1;
  int64_t max_context = 0;
  bool has_sink = true;
  int64_t value_width = 0;        // vd; 0: hd

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("window", self.window);
    f("ratio", self.ratio);
    f("scale", self.scale);
    f("max_context", self.max_context);
    f("has_sink", self.has_sink);
    f("value_width", self.value_width);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const;
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const SparseAttention&) const = default;

  // Which input is what; -1: there is none. `count`: how many there are without picks.
  struct Inputs {
    int kv = -1, sink = -1, ring = -1, entries = -1, picks = -1, count = 0;
    int cache() const { return ring >= 0 ? ring : entries; }
  };
  Inputs inputs(size_t num_inputs) const;
  // Most columns that a token can have.
  int64_t max_columns(int64_t picks) const;
};

// Picks of a row that sees no more entries than it may pick: all of them, ascending, then -1.
inline void pick_all(int64_t visible, std::span<int32_t> picks) {
  for (size_t j = 0; j < picks.size(); ++j) picks[j] = static_cast<int64_t>(j) < visible ? static_cast<int32_t>(j) : -1;
}

}  // namespace weft
