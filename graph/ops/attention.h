// Attention over a window of recent tokens plus compressed entries, and what feeds its caches (deepseek_v4.md 2.5, 2.6).
//
//   RingWrite        rows [T,W], ring -> writes each token's row at its position
//   Compressor       k, s [T,w] F32 (candidate values; gate logits with the position bias added), norm [d], state ring
//                    (F32, row = k | s), entries (kAppend cache) -> pools every group whose last token is in the batch
//                    (kernels/compressor), A(u) -> rms_norm -> rope at the group's first position -> quantise -> its entry;
//                    then writes k | s into the state ring. w = 2d: overlapping groups (series A of the previous group,
//                    series B of this one); w = d: the group alone.
//   IndexTopK        iq [T,nh,dh] A, w [T,nh] A, keys (kAppend) -> picks I32 [T,top_k]: of the entries that the token sees
//                    (floor((t+1)/ratio) of them), the best by score, ascending, then -1; all of them when they are no more
//                    than top_k (no score is computed): kernels/index_topk. Head weights are A(w * weight_scale).
//   SparseAttention  q [T,H,hd] A, kv [T,hd] A (rows of this batch), sink [H] F32, window ring, then (ratio > 0) entries
//                    (kAppend), then optionally picks -> out [T,H,hd] A: kernels/sparse_attention. Columns of a token at
//                    position t: `window` columns for positions max(0, t-window+1) .. t, oldest first, then empty ones; then
//                    the picks, or without picks all visible entries, ascending.
// RingWrite comes after the SparseAttention that reads the ring: rows of earlier steps are in the ring, rows of this batch in
// kv. The entries of this batch's groups are written before they are read.
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
                                      : ShardRule{{"tw", "tw", "d", "spv", "ged"}, {}, "", ""};
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

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("ratio", self.ratio);
    f("top_k", self.top_k);
    f("weight_scale", self.weight_scale);
    f("max_context", self.max_context);
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
  int64_t window = 0, ratio = 0;
  double scale = 1;
  int64_t max_context = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("window", self.window);
    f("ratio", self.ratio);
    f("scale", self.scale);
    f("max_context", self.max_context);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  // Keys of the step: of all rows, or those of the same requests as the queries.
  ShardRule shard_rule(TypeSpan in) const {
    return own_requests(in[0], in[3]) ? ShardRule{{"thd", "td", "h", "tpd", "ted", "tj"}, {"thd"}, "th", ""}
                                      : ShardRule{{"thd", "kd", "h", "spd", "ged", "tj"}, {"thd"}, "th", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const SparseAttention&) const = default;

  // Most columns that a token can have.
  int64_t max_columns(int64_t picks) const;
};

}  // namespace weft
