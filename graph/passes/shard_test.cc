// The pass that shards a graph: text in, text out; the rows and the moves that it may make; what it and the verifier refuse.
#include "graph/passes/shard.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "comm/bytes.h"
#include "graph/text.h"

namespace weft {
namespace {

using Split = std::map<std::string, std::pair<MeshAxis, int>>;  // by weight

constexpr const char* kDense = R"(graph dense
input tokens: I32[tokens 8]
weight embed: F32[32,16]
x = embedding(tokens, embed) {streams=4, dtype=F32}: F32[tokens 8,4,16]
weight fn: F32[24,64]
weight base: F32[24]
weight scale: F32[3]
pre = hc_pre(x, fn, base, scale) {iterations=2, rms_eps=1e-06, hc_eps=1e-06} in layers.0: F32[tokens 8,16], F32[tokens 8,20]
weight norm: F32[16]
n = rms_norm(pre, norm) {eps=1e-06, rounding=once} in layers.0: F32[tokens 8,16]
weight up: F32[32,16]
u = linear(n, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,32]
weight down: F32[16,32]
d = linear(u, down) {dtype=F32, act_quant=none, groups=1, k_blocks=8, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16]
y = hc_post(d, x, pre.1) in layers.0: F32[tokens 8,4,16]
result y
)";
constexpr const char* kAttention = R"(graph attention
input tokens: I32[tokens 8]
input positions: I32[tokens 8]
weight embed: F32[32,16]
x = embedding(tokens, embed) {streams=0, dtype=F32}: F32[tokens 8,16]
table = rope_table(positions) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 8,2,2]
weight wq: F32[32,16]
q = linear(x, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4,8]
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 8,4,8]
weight wkv: F32[8,16]
kv = linear(x, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
weight sink: F32[4]
state window: F32[2,7,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 8,4,8]
ring_write(kv, window) in layers.0
weight wo_a: F32[8,16]
oa = linear(o, wo_a) {dtype=F32, act_quant=none, groups=2, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
weight wo_b: F32[16,8]
ob = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=2, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16]
result ob
)";
constexpr const char* kMoe = R"(graph moe
input tokens: I32[tokens 8]
weight embed: BF16[32,16]
x = embedding(tokens, embed) {streams=0, dtype=BF16}: BF16[tokens 8,16]
weight gate: F32[4,16]
g = linear(x, gate) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4]
route = moe_route(g) {by=score, top_k=2, scoring_func=sigmoid, n_group=1, topk_group=1, normalise=true, sum_eps=0, scaling=1} in layers.0: I32[tokens 8,2], F32[tokens 8,2]
weight w1: BF16[4,12,16]
weight w3: BF16[4,12,16]
weight w2: BF16[4,16,12]
e = experts(x, route, route.1, w1, w3, w2) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: F32[tokens 8,16]
weight s1: BF16[24,16]
s = linear(x, s1) {dtype=BF16, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,24]
weight s2: BF16[16,24]
sd = linear(s, s2) {dtype=BF16, act_quant=none, groups=1, k_blocks=2, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,16]
y = add(e, sd) in layers.0: BF16[tokens 8,16]
result y
)";

// As kMoe, whose sum goes back into streams.
const std::string kMoeStreams = [] {
  std::string text = kMoe;
  text.replace(text.find("result y"), 8,
               "streams = embedding(tokens, embed) {streams=4, dtype=BF16}: BF16[tokens 8,4,16]\n"
               "z = add_streams(y, streams) in layers.0: BF16[tokens 8,4,16]\nresult z");
  return text;
}();
// As kAttention, whose output projection takes int8 codes of its two groups of heads.
const std::string kCodes = [] {
  std::string text = kAttention;
  text.insert(text.find("weight wo_a"), "c = quantise_groups(o) {heads=2} in layers.0: I8[tokens 8,2,20]\n");
  text.replace(text.find("linear(o, wo_a)"), 15, "linear(c, wo_a)");
  return text;
}();

const Split kDenseSplit = {{"up", {MeshAxis::kTp, 0}}, {"down", {MeshAxis::kTp, 1}}};
const Split kOutput = {{"wo_a", {MeshAxis::kTp, 0}}, {"wo_b", {MeshAxis::kTp, 1}}};
const Split kHeads = {{"wq", {MeshAxis::kTp, 0}}, {"sink", {MeshAxis::kTp, 0}}, {"wo_a", {MeshAxis::kTp, 0}}, {"wo_b", {MeshAxis::kTp, 1}}};
const Split kMoeShares = {{"w1", {MeshAxis::kTp, 1}}, {"w3", {MeshAxis::kTp, 1}}, {"w2", {MeshAxis::kTp, 1}}, {"s1", {MeshAxis::kTp, 0}}, {"s2", {MeshAxis::kTp, 1}}};
const Split kMoeSplit = {{"w1", {MeshAxis::kEp, 0}}, {"w3", {MeshAxis::kEp, 0}}, {"w2", {MeshAxis::kEp, 0}}, {"s1", {MeshAxis::kTp, 0}}, {"s2", {MeshAxis::kTp, 1}}};

Graph parsed(const std::string& text) {
  auto graph = parse_graph(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

ShardOptions options_of(const MeshSizes& mesh, const Split& split, RowSet residual, RowSet queries, RowSet unique, int64_t tokens = 8) {
  ShardOptions options;
  options.mesh = mesh;
  options.weight_placement = [split](const Value& weight) {
    Placements placements;
    if (const auto at = split.find(weight.name); at != split.end()) {
      placements[static_cast<size_t>(at->second.first)] = Placement::sharded(at->second.second);
    }
    return placements;
  };
  options.residual = residual;
  options.queries = queries;
  options.unique = unique;
  const int64_t pcp = rows_per_rank(mesh.pcp, tokens);
  options.capacity = {tokens, rows_per_rank(mesh.tp, tokens), pcp, rows_per_rank(mesh.tp, pcp)};
  return options;
}

// Nodes and results, line by line.
std::string nodes_of(const Graph& graph) {
  std::istringstream text(to_text(graph));
  std::string nodes;
  for (std::string line; std::getline(text, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (line.empty() || kind == "graph" || kind == "input" || kind == "weight" || kind == "state") continue;
    nodes += line + "\n";
  }
  return nodes;
}

struct Case {
  const char* what;
  const char* text;
  MeshSizes mesh;
  Split split;
  RowSet residual, queries, unique;
  const char* nodes;
};

std::vector<Case> cases() {
  return {
    {"dense tp2: every layer's sum is reduced: 1 all_reduce for each of its halves", kDense, {.tp = 2}, kDenseSplit, RowSet::kAll, RowSet::kAll, RowSet::kAll,
     R"(x = embedding(tokens, embed) {streams=4, dtype=F32}: F32[tokens 8,4,16]
pre = hc_pre(x, fn, base, scale) {iterations=2, rms_eps=1e-06, hc_eps=1e-06} in layers.0: F32[tokens 8,16], F32[tokens 8,20]
n = rms_norm(pre, norm) {eps=1e-06, rounding=once} in layers.0: F32[tokens 8,16]
u = linear(n, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:shard(1)
d.partial = linear(u, down) {dtype=F32, act_quant=none, groups=1, k_blocks=4, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
d = all_reduce(d.partial) {axis=tp, size=2, dtype=F32} in layers.0 on comm: F32[tokens 8,16]
y = hc_post(d, x, pre.1) in layers.0: F32[tokens 8,4,16]
result y
)"},
    {"dense tp2+sp: the normalised input is gathered, never the streams", kDense, {.tp = 2}, kDenseSplit, RowSet::kTp, RowSet::kAll, RowSet::kTp,
     R"(tokens.slice_rows_tp = slice_rows(tokens) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=4, dtype=F32}: F32[tokens 4,4,16] tp:shard(0)
pre = hc_pre(x, fn, base, scale) {iterations=2, rms_eps=1e-06, hc_eps=1e-06} in layers.0: F32[tokens 4,16] tp:shard(0), F32[tokens 4,20] tp:shard(0)
n = rms_norm(pre, norm) {eps=1e-06, rounding=once} in layers.0: F32[tokens 4,16] tp:shard(0)
n.all_gather_tp = all_gather(n) {axis=tp, size=2, dim=0, capacity=8} in layers.0 on comm: F32[tokens 8,16]
u = linear(n.all_gather_tp, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:shard(1)
d.partial = linear(u, down) {dtype=F32, act_quant=none, groups=1, k_blocks=4, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
d = reduce_scatter(d.partial) {axis=tp, size=2, dtype=F32, capacity=4} in layers.0 on comm: F32[tokens 4,16] tp:shard(0)
y = hc_post(d, x, pre.1) in layers.0: F32[tokens 4,4,16] tp:shard(0)
y.all_gather_tp = all_gather(y) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,4,16]
result y.all_gather_tp
)"},
    {"dense tp2pcp2+sp: the rows of a pcp rank are split again", kDense, {.pcp = 2, .tp = 2}, kDenseSplit, RowSet::kPcpTp, RowSet::kPcp, RowSet::kPcpTp,
     R"(tokens.slice_rows_pcp = slice_rows(tokens) {axis=pcp, size=2, capacity=4}: I32[tokens 4] pcp:shard(0)
tokens.slice_rows_tp = slice_rows(tokens.slice_rows_pcp) {axis=tp, size=2, capacity=2}: I32[tokens 2] pcp:shard(0) tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=4, dtype=F32}: F32[tokens 2,4,16] pcp:shard(0) tp:shard(0)
pre = hc_pre(x, fn, base, scale) {iterations=2, rms_eps=1e-06, hc_eps=1e-06} in layers.0: F32[tokens 2,16] pcp:shard(0) tp:shard(0), F32[tokens 2,20] pcp:shard(0) tp:shard(0)
n = rms_norm(pre, norm) {eps=1e-06, rounding=once} in layers.0: F32[tokens 2,16] pcp:shard(0) tp:shard(0)
n.all_gather_tp = all_gather(n) {axis=tp, size=2, dim=0, capacity=4} in layers.0 on comm: F32[tokens 4,16] pcp:shard(0)
u = linear(n.all_gather_tp, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,16] pcp:shard(0) tp:shard(1)
d.partial = linear(u, down) {dtype=F32, act_quant=none, groups=1, k_blocks=4, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,16] pcp:shard(0) tp:partial
d = reduce_scatter(d.partial) {axis=tp, size=2, dtype=F32, capacity=2} in layers.0 on comm: F32[tokens 2,16] pcp:shard(0) tp:shard(0)
y = hc_post(d, x, pre.1) in layers.0: F32[tokens 2,4,16] pcp:shard(0) tp:shard(0)
y.all_gather_tp = all_gather(y) {axis=tp, size=2, dim=0, capacity=4} on comm: F32[tokens 4,4,16] pcp:shard(0)
y.all_gather_pcp = all_gather(y.all_gather_tp) {axis=pcp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,4,16]
result y.all_gather_pcp
)"},
    {"attention tp2: heads and output groups", kAttention, {.tp = 2}, kHeads, RowSet::kAll, RowSet::kAll, RowSet::kAll,
     R"(x = embedding(tokens, embed) {streams=0, dtype=F32}: F32[tokens 8,16]
table = rope_table(positions) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 8,2,2]
q = linear(x, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=2, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,2,8] tp:shard(1)
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 8,2,8] tp:shard(1)
kv = linear(x, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 8,2,8] tp:shard(1)
ring_write(kv, window) in layers.0
oa = linear(o, wo_a) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4] tp:shard(1)
ob.partial = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
ob = all_reduce(ob.partial) {axis=tp, size=2, dtype=F32} on comm: F32[tokens 8,16]
result ob
)"},
    {"attention tp2+dsa_cp: local queries, all keys, heads exchanged for rows", kAttention, {.tp = 2}, kOutput, RowSet::kAll, RowSet::kTp, RowSet::kTp,
     R"(x = embedding(tokens, embed) {streams=0, dtype=F32}: F32[tokens 8,16]
positions.slice_rows_tp = slice_rows(positions) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
table = rope_table(positions.slice_rows_tp) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 4,2,2] tp:shard(0)
x.slice_rows_tp = slice_rows(x) {axis=tp, size=2, capacity=4}: F32[tokens 4,16] tp:shard(0)
q = linear(x.slice_rows_tp, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 4,4,8] tp:shard(0)
kv = linear(x, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
ring_write(kv, window) in layers.0
o.heads_to_rows_tp = heads_to_rows(o) {axis=tp, size=2, capacity=8} in layers.0 on comm: F32[tokens 8,2,8] tp:shard(1)
oa = linear(o.heads_to_rows_tp, wo_a) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4] tp:shard(1)
ob.partial = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
ob = all_reduce(ob.partial) {axis=tp, size=2, dtype=F32} on comm: F32[tokens 8,16]
result ob
)"},
    {"attention tp2+dsa_cp+sp+o_proj=replicated: one gather, for the keys", kAttention, {.tp = 2}, {}, RowSet::kTp, RowSet::kTp, RowSet::kTp,
     R"(tokens.slice_rows_tp = slice_rows(tokens) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=0, dtype=F32}: F32[tokens 4,16] tp:shard(0)
positions.slice_rows_tp = slice_rows(positions) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
table = rope_table(positions.slice_rows_tp) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 4,2,2] tp:shard(0)
q = linear(x, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 4,4,8] tp:shard(0)
x.all_gather_tp = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,16]
kv = linear(x.all_gather_tp, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
ring_write(kv, window) in layers.0
oa = linear(o, wo_a) {dtype=F32, act_quant=none, groups=2, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,8] tp:shard(0)
ob = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=2, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,16] tp:shard(0)
ob.all_gather_tp = all_gather(ob) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,16]
result ob.all_gather_tp
)"},
    {"attention pcp2: the same over pcp", kAttention, {.pcp = 2}, {}, RowSet::kPcp, RowSet::kPcp, RowSet::kPcp,
     R"(tokens.slice_rows_pcp = slice_rows(tokens) {axis=pcp, size=2, capacity=4}: I32[tokens 4] pcp:shard(0)
x = embedding(tokens.slice_rows_pcp, embed) {streams=0, dtype=F32}: F32[tokens 4,16] pcp:shard(0)
positions.slice_rows_pcp = slice_rows(positions) {axis=pcp, size=2, capacity=4}: I32[tokens 4] pcp:shard(0)
table = rope_table(positions.slice_rows_pcp) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 4,2,2] pcp:shard(0)
q = linear(x, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4,8] pcp:shard(0)
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 4,4,8] pcp:shard(0)
x.all_gather_pcp = all_gather(x) {axis=pcp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,16]
kv = linear(x.all_gather_pcp, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 4,4,8] pcp:shard(0)
ring_write(kv, window) in layers.0
oa = linear(o, wo_a) {dtype=F32, act_quant=none, groups=2, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,8] pcp:shard(0)
ob = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=2, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,16] pcp:shard(0)
ob.all_gather_pcp = all_gather(ob) {axis=pcp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,16]
result ob.all_gather_pcp
)"},
    {"moe tp2+ep2: rows are unique when they are dispatched", kMoe, {.tp = 2, .ep = 2}, kMoeSplit, RowSet::kAll, RowSet::kAll, RowSet::kTp,
     R"(x = embedding(tokens, embed) {streams=0, dtype=BF16}: BF16[tokens 8,16]
x.slice_rows_tp = slice_rows(x) {axis=tp, size=2, capacity=4}: BF16[tokens 4,16] tp:shard(0)
g = linear(x.slice_rows_tp, gate) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4] tp:shard(0)
route = moe_route(g) {by=score, top_k=2, scoring_func=sigmoid, n_group=1, topk_group=1, normalise=true, sum_eps=0, scaling=1} in layers.0: I32[tokens 4,2] tp:shard(0), F32[tokens 4,2] tp:shard(0)
e.dispatch = expert_dispatch(x.slice_rows_tp, route, route.1) {axis=ep, size=2, experts=2, capacity=8} in layers.0 on comm: BF16[received 8,16] ep:shard(0), I32[received 8,2] ep:shard(0), F32[received 8,2] ep:shard(0), I32[2] ep:shard(0)
e.slots = expert_slots(e.dispatch, e.dispatch.1, e.dispatch.2, w1, w3, w2) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: F32[received 8,2,16] ep:shard(0)
e = expert_combine(e.slots, e.dispatch.1, e.dispatch.3, route) {axis=ep, size=2, experts=2, dtype=BF16} in layers.0 on comm: F32[tokens 4,16] tp:shard(0)
s = linear(x, s1) {dtype=BF16, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,12] tp:shard(1)
sd.partial = linear(s, s2) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
sd = reduce_scatter(sd.partial) {axis=tp, size=2, dtype=BF16, capacity=4} in layers.0 on comm: BF16[tokens 4,16] tp:shard(0)
y = add(e, sd) in layers.0: BF16[tokens 4,16] tp:shard(0)
y.all_gather_tp = all_gather(y) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,16]
result y.all_gather_tp
)"},
    {"moe tp2+sp+moe=tp: shares of every expert", kMoe, {.tp = 2}, kMoeShares, RowSet::kTp, RowSet::kAll, RowSet::kTp,
     R"(tokens.slice_rows_tp = slice_rows(tokens) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=0, dtype=BF16}: BF16[tokens 4,16] tp:shard(0)
x.all_gather_tp = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,16]
g = linear(x.all_gather_tp, gate) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4]
route = moe_route(g) {by=score, top_k=2, scoring_func=sigmoid, n_group=1, topk_group=1, normalise=true, sum_eps=0, scaling=1} in layers.0: I32[tokens 8,2], F32[tokens 8,2]
e.up = experts_up(x.all_gather_tp, route, route.1, w1, w3) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: BF16[tokens 8,2,6] tp:shard(2)
e.inner = all_gather(e.up) {axis=tp, size=2, dim=2, capacity=8} in layers.0 on comm: BF16[tokens 8,2,12]
e.down = experts_down(e.inner, route, route.1, w2) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: F32[tokens 8,8] tp:shard(1)
e = all_gather(e.down) {axis=tp, size=2, dim=1, capacity=8} in layers.0 on comm: F32[tokens 8,16]
s = linear(x.all_gather_tp, s1) {dtype=BF16, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,12] tp:shard(1)
sd.partial = linear(s, s2) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
sd = all_reduce(sd.partial) {axis=tp, size=2, dtype=BF16} in layers.0 on comm: BF16[tokens 8,16]
y = add(e, sd) in layers.0: BF16[tokens 8,16]
result y
)"},
    {"moe tp2+sp+moe=tp: outputs go to the rows of each rank at once", kMoeStreams.c_str(), {.tp = 2}, kMoeShares, RowSet::kTp, RowSet::kAll, RowSet::kTp,
     R"(tokens.slice_rows_tp = slice_rows(tokens) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=0, dtype=BF16}: BF16[tokens 4,16] tp:shard(0)
x.all_gather_tp = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,16]
g = linear(x.all_gather_tp, gate) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4]
route = moe_route(g) {by=score, top_k=2, scoring_func=sigmoid, n_group=1, topk_group=1, normalise=true, sum_eps=0, scaling=1} in layers.0: I32[tokens 8,2], F32[tokens 8,2]
e.up = experts_up(x.all_gather_tp, route, route.1, w1, w3) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: BF16[tokens 8,2,6] tp:shard(2)
e.inner = all_gather(e.up) {axis=tp, size=2, dim=2, capacity=8} in layers.0 on comm: BF16[tokens 8,2,12]
e.down = experts_down(e.inner, route, route.1, w2) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: F32[tokens 8,8] tp:shard(1)
e = columns_to_rows(e.down) {axis=tp, size=2, capacity=4} in layers.0 on comm: F32[tokens 4,16] tp:shard(0)
s = linear(x.all_gather_tp, s1) {dtype=BF16, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,12] tp:shard(1)
sd.partial = linear(s, s2) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
sd = reduce_scatter(sd.partial) {axis=tp, size=2, dtype=BF16, capacity=4} in layers.0 on comm: BF16[tokens 4,16] tp:shard(0)
y = add(e, sd) in layers.0: BF16[tokens 4,16] tp:shard(0)
streams = embedding(tokens.slice_rows_tp, embed) {streams=4, dtype=BF16}: BF16[tokens 4,4,16] tp:shard(0)
z = add_streams(y, streams) in layers.0: BF16[tokens 4,4,16] tp:shard(0)
z.all_gather_tp = all_gather(z) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,4,16]
result z.all_gather_tp
)"},
    {"attention tp2+dsa_cp with codes: these travel, and a scale for each group", kCodes.c_str(), {.tp = 2}, kOutput, RowSet::kAll, RowSet::kTp, RowSet::kTp,
     R"(x = embedding(tokens, embed) {streams=0, dtype=F32}: F32[tokens 8,16]
positions.slice_rows_tp = slice_rows(positions) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
table = rope_table(positions.slice_rows_tp) {theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0}: F32[tokens 4,2,2] tp:shard(0)
x.slice_rows_tp = slice_rows(x) {axis=tp, size=2, capacity=4}: F32[tokens 4,16] tp:shard(0)
q = linear(x.slice_rows_tp, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
qr = rope(q, table) {direction=forward, pairs=interleaved, place=last} in layers.0: F32[tokens 4,4,8] tp:shard(0)
kv = linear(x, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
o = sparse_attention(qr, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0} in layers.0: F32[tokens 4,4,8] tp:shard(0)
ring_write(kv, window) in layers.0
c = quantise_groups(o) {heads=2} in layers.0: I8[tokens 4,2,20] tp:shard(0)
c.heads_to_rows_tp = heads_to_rows(c) {axis=tp, size=2, capacity=8} in layers.0 on comm: I8[tokens 8,1,20] tp:shard(1)
oa = linear(c.heads_to_rows_tp, wo_a) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4] tp:shard(1)
ob.partial = linear(oa, wo_b) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
ob = all_reduce(ob.partial) {axis=tp, size=2, dtype=F32} on comm: F32[tokens 8,16]
result ob
)"},
    {"moe tp2+sp+ep2: local rows are dispatched as they are", kMoe, {.tp = 2, .ep = 2}, kMoeSplit, RowSet::kTp, RowSet::kAll, RowSet::kTp,
     R"(tokens.slice_rows_tp = slice_rows(tokens) {axis=tp, size=2, capacity=4}: I32[tokens 4] tp:shard(0)
x = embedding(tokens.slice_rows_tp, embed) {streams=0, dtype=BF16}: BF16[tokens 4,16] tp:shard(0)
g = linear(x, gate) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,4] tp:shard(0)
route = moe_route(g) {by=score, top_k=2, scoring_func=sigmoid, n_group=1, topk_group=1, normalise=true, sum_eps=0, scaling=1} in layers.0: I32[tokens 4,2] tp:shard(0), F32[tokens 4,2] tp:shard(0)
e.dispatch = expert_dispatch(x, route, route.1) {axis=ep, size=2, experts=2, capacity=8} in layers.0 on comm: BF16[received 8,16] ep:shard(0), I32[received 8,2] ep:shard(0), F32[received 8,2] ep:shard(0), I32[2] ep:shard(0)
e.slots = expert_slots(e.dispatch, e.dispatch.1, e.dispatch.2, w1, w3, w2) {act_quant=none, swiglu_limit=0, weight_before_w2=true, scale_rows=0, scale_cols=0} in layers.0: F32[received 8,2,16] ep:shard(0)
e = expert_combine(e.slots, e.dispatch.1, e.dispatch.3, route) {axis=ep, size=2, experts=2, dtype=BF16} in layers.0 on comm: F32[tokens 4,16] tp:shard(0)
x.all_gather_tp = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,16]
s = linear(x.all_gather_tp, s1) {dtype=BF16, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: BF16[tokens 8,12] tp:shard(1)
sd.partial = linear(s, s2) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16] tp:partial
sd = reduce_scatter(sd.partial) {axis=tp, size=2, dtype=BF16, capacity=4} in layers.0 on comm: BF16[tokens 4,16] tp:shard(0)
y = add(e, sd) in layers.0: BF16[tokens 4,16] tp:shard(0)
y.all_gather_tp = all_gather(y) {axis=tp, size=2, dim=0, capacity=8} on comm: BF16[tokens 8,16]
result y.all_gather_tp
)"},
  };
}

TEST(Shard, TextInTextOut) {
  for (const Case& c : cases()) {
    const Graph whole = parsed(c.text);
    const auto sharded = shard(whole, options_of(c.mesh, c.split, c.residual, c.queries, c.unique));
    ASSERT_TRUE(sharded.ok()) << c.what << ": " << sharded.status().message();
    EXPECT_EQ(nodes_of(*sharded), c.nodes) << c.what;
    EXPECT_EQ(parsed(to_text(*sharded)), *sharded) << c.what;
    // Weights and states keep their names; a weight that is split has the shape of a part.
    for (const Value& value : whole.values()) {
      if (value.role == ValueRole::kActivation) continue;
      const ValueId id = sharded->find(value.name);
      ASSERT_GE(id, 0) << value.name;
      Shape shape = value.type.shape();
      if (const auto at = c.split.find(value.name); at != c.split.end()) shape[at->second.second] /= 2;
      EXPECT_EQ(sharded->value(id).type.shape(), shape) << value.name;
    }
  }
}

TEST(Shard, OneRankIsTheGraphItself) {
  for (const Case& c : cases()) {
    const Graph whole = parsed(c.text);
    const auto sharded = shard(whole, options_of({}, c.split, RowSet::kTp, RowSet::kTp, RowSet::kTp));
    ASSERT_TRUE(sharded.ok());
    EXPECT_EQ(to_text(*sharded), to_text(whole));
  }
}

// Hidden width equal to the number of tokens: nothing may take one for the other.
TEST(Shard, TokensAsManyAsFeatures) {
  for (const Case& c : cases()) {
    std::string text = c.text, expect = c.nodes;
    for (size_t at = 0; (at = text.find("[tokens 8", at)) != text.npos; at += 8) text.replace(at, 9, "[tokens 16");
    const auto sharded = shard(parsed(text), options_of(c.mesh, c.split, c.residual, c.queries, c.unique, 16));
    ASSERT_TRUE(sharded.ok()) << c.what << ": " << sharded.status().message();
    const auto small = shard(parsed(c.text), options_of(c.mesh, c.split, c.residual, c.queries, c.unique));
    ASSERT_EQ(sharded->nodes().size(), small->nodes().size()) << c.what;
    for (size_t n = 0; n < small->nodes().size(); ++n) {
      EXPECT_EQ(op_name(sharded->nodes()[n].op), op_name(small->nodes()[n].op)) << c.what;
      for (size_t o = 0; o < small->nodes()[n].out.size(); ++o) {
        const Value &large = sharded->value(sharded->nodes()[n].out[o]), &little = small->value(small->nodes()[n].out[o]);
        EXPECT_EQ(large.type.placement, little.type.placement) << c.what << " " << large.name;
      }
    }
  }
}

// ---- What is refused

TEST(Shard, Refusals) {
  const struct {
    const char* what;
    const char* text;
    MeshSizes mesh;
    Split split;
    const char* message;
  } refusals[] = {
      {"heads", kAttention, {.tp = 3}, {{"wq", {MeshAxis::kTp, 0}}}, "'wq' F32[32,16]: dimension 0 is not divisible by tp 3"},
      {"failure_mode_29: a scale of codes for heads of two ranks", kCodes.c_str(), {.tp = 4}, {{"wq", {MeshAxis::kTp, 0}}, {"sink", {MeshAxis::kTp, 0}}},
       "graph attention: node 'c' (quantise_groups): quantise_groups: 1 heads of x cut a group of 2, which has one scale"},
      {"groups", kAttention, {.tp = 4}, kHeads, "'oa': 2 output groups cannot be split over 4 ranks"},
      {"heads that are cut", kAttention, {.tp = 8}, {{"wq", {MeshAxis::kTp, 0}}}, "'q': 4 heads cannot be split over 8 ranks"},
      {"blocks of a sum", kDense, {.tp = 16}, kDenseSplit, "'d': 8 canonical blocks cannot be split over 16 ranks"},
      {"shares of experts", kMoe, {.tp = 8}, kMoeShares, "'w1' BF16[4,12,16]: dimension 1 is not divisible by tp 8"},
      {"experts", kMoe, {.tp = 8, .ep = 8}, kMoeSplit, "'w1' BF16[4,12,16]: dimension 0 is not divisible by ep 8"},
  };
  for (const auto& c : refusals) {
    const auto sharded = shard(parsed(c.text), options_of(c.mesh, c.split, RowSet::kAll, RowSet::kAll, RowSet::kTp));
    ASSERT_FALSE(sharded.ok()) << c.what;
    EXPECT_EQ(sharded.status().message(), c.message) << c.what;
  }
}

// glm_moe_dsa.md 5.4: the scale of an int8 row is that of all inputs.
TEST(Shard, Int8RowsInSlicesShareTheirMagnitude) {
  const std::string text = R"(graph int8
input x: F32[tokens 8,32]
weight up: F32[32,32]
u = linear(x, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0}: F32[tokens 8,32]
weight down: I8[16,32]
weight down.scale: F32[16,1]
d = linear(u, down, down.scale) {dtype=BF16, act_quant=int8_row, groups=1, k_blocks=8, heads=0, scale_rows=1, scale_cols=32, rest=0}: BF16[tokens 8,16]
result d
)";
  const auto sharded = shard(parsed(text.c_str()), options_of({.tp = 2}, kDenseSplit, RowSet::kAll, RowSet::kAll, RowSet::kTp));
  ASSERT_TRUE(sharded.ok()) << sharded.status().message();
  const std::string nodes = R"(u = linear(x, up) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0}: F32[tokens 8,16] tp:shard(1)
d.row_absmax = row_absmax(u) {axis=tp, size=2} on comm: F32[tokens 8]
d.partial = linear(u, down, down.scale, d.row_absmax) {dtype=F32, act_quant=int8_row, groups=1, k_blocks=4, heads=0, scale_rows=1, scale_cols=32, rest=0}: F32[tokens 8,16] tp:partial
d = all_reduce(d.partial) {axis=tp, size=2, dtype=BF16} on comm: BF16[tokens 8,16]
)";
  EXPECT_NE(to_text(*sharded).find(nodes), std::string::npos) << to_text(*sharded);
}

constexpr const char* kAttributes = "{dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0}";

struct VerifierCase {
  const char* what;
  std::string text;
  const char* message;
};

// Every text is a graph as a faulty pass might make it.
TEST(Verifier, Refusals) {
  const std::string linear(kAttributes);
  const VerifierCase refusals[] = {
      {"a partial sum into a norm",
       "graph g\ninput x: F32[tokens 8,4] tp:shard(1)\nweight w: F32[6,4] tp:shard(1)\nweight n: F32[6]\n"
       "y = linear(x, w) " + linear + ": F32[tokens 8,6] tp:partial\n"
       "z = rms_norm(y, n) {eps=1e-06, rounding=once}: F32[tokens 8,6] tp:partial\n",
       "input 0 is a partial sum on axis tp; it must be reduced first"},
      {"a partial sum added to a whole one",
       "graph g\ninput x: F32[tokens 8,4] tp:partial\ninput w: F32[tokens 8,4]\ny = add(x, w): F32[tokens 8,4] tp:partial\n",
       "input 0 is a partial sum on axis tp; it must be reduced first"},
      {"local rows into a cache of all rows",
       "graph g\ninput kv: F32[tokens 4,8] tp:shard(0)\nstate window: F32[2,7,8]\nring_write(kv, window)\n",
       "input 0 is sharded on dimension 0 over axis tp, which this op needs whole"},
      {"local keys for the queries",
       "graph g\ninput q: F32[tokens 8,4,8]\ninput kv: F32[tokens 8,8] tp:shard(0)\nweight sink: F32[4]\nstate window: F32[2,7,8]\n"
       "o = sparse_attention(q, kv, sink, window) {window=8, ratio=0, scale=0.5, max_context=0, has_sink=true, value_width=0}: F32[tokens 8,4,8]\n",
       "input 1 is sharded on dimension 0 over axis tp, which this op needs whole"},
      {"all rows added to local ones",
       "graph g\ninput x: F32[tokens 8,4]\ninput w: F32[tokens 8,4] tp:shard(0)\ny = add(x, w): F32[tokens 8,4] tp:shard(0)\n",
       "axis tp splits other inputs but not input 0: F32[tokens 8,4]"},
      {"a second gather",
       "graph g\ninput x: F32[tokens 4,6] tp:shard(0)\n"
       "y = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,6]\n"
       "z = all_gather(y) {axis=tp, size=2, dim=0, capacity=16} on comm: F32[tokens 16,6]\n",
       "all_gather: the input is whole on tp, expected tp:shard(0)"},
      {"features for tokens, as many as there are", "graph g\ninput x: F32[tokens 8,4] tp:shard(1)\n"
       "y = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,4]\n",
       "all_gather: the input is tp:shard(1), expected tp:shard(0)"},
      {"a norm over a part of the features, as many as tokens",
       "graph g\ninput x: F32[tokens 4,4] tp:shard(1)\nweight n: F32[4]\nz = rms_norm(x, n) {eps=1e-06, rounding=once}: F32[tokens 4,4] tp:shard(0)\n",
       "input 0 is sharded on dimension 1 over axis tp, which this op needs whole"},
  };
  for (const VerifierCase& c : refusals) {
    const auto graph = parse_graph(c.text);
    const Status status = graph.ok() ? verify(*graph) : graph.status();
    ASSERT_FALSE(status.ok()) << c.what;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.what << ": " << status.message();
  }
}

// sharding.md 12: whole and local rows are never added, whichever stands first; nothing is promoted in silence.
TEST(Verifier, FailureMode12_OperandOrderDoesNotDecideTheShape) {
  for (const char* inputs : {"a, b", "b, a"}) {
    const auto graph = parse_graph(fmt::format(
        "graph g\ninput a: F32[tokens 8,4]\ninput b: F32[tokens 4,4] tp:shard(0)\ny = add({}): F32[tokens 8,4]\n", inputs));
    const Status status = graph.ok() ? verify(*graph) : graph.status();
    ASSERT_FALSE(status.ok()) << inputs;
    EXPECT_NE(status.message().find("add: a is F32[tokens "), std::string::npos) << status.message();
  }
  // Of as many rows, so that shapes alone would fit.
  for (const char* inputs : {"a, b", "b, a"}) {
    const auto graph = parse_graph(fmt::format(
        "graph g\ninput a: F32[tokens 8,4]\ninput b: F32[tokens 8,4] tp:shard(0)\ny = add({}): F32[tokens 8,4]\n", inputs));
    const Status status = graph.ok() ? verify(*graph) : graph.status();
    ASSERT_FALSE(status.ok()) << inputs;
    EXPECT_NE(status.message().find(fmt::format("axis tp splits other inputs but not input {}: F32[tokens 8,4]", inputs[0] == 'a' ? 0 : 1)),
              std::string::npos) << status.message();
  }
}

// sharding.md 12: what is whole is not summed over ranks, and what is a summand is not taken for the whole.
TEST(Verifier, FailureMode24_WholeValuesAreNotReducedAndPartsAreNotLeft) {
  const struct {
    const char* text;
    const char* message;
  } refusals[] = {
      {"graph g\ninput x: F32[tokens 8,4]\ny = reduce_scatter(x) {axis=tp, size=2, dtype=F32, capacity=4} on comm: F32[tokens 4,4] tp:shard(0)\n",
       "reduce_scatter: the input is whole on tp, expected tp:partial"},
      {"graph g\ninput x: F32[tokens 8,4]\ny = all_reduce(x) {axis=tp, size=2, dtype=F32} on comm: F32[tokens 8,4]\n",
       "all_reduce: the input is whole on tp, expected tp:partial"},
      {"graph g\ninput x: F32[tokens 8,4] tp:partial\ny = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,4]\n",
       "all_gather: the input is tp:partial, expected tp:shard(0)"},
      {"graph g\ninput x: F32[tokens 8,4] tp:partial\nweight w: F32[4,4]\ny = linear(x, w) "
       "{dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0}: F32[tokens 8,4] tp:partial\n",
       "input 0 is a partial sum on axis tp; it must be reduced first"},
      {"graph g\ninput x: F32[tokens 8,4] tp:partial\nresult x\n", "result 'x' is a partial sum"},
  };
  for (const auto& c : refusals) {
    const auto graph = parse_graph(c.text);
    const Status status = graph.ok() ? verify(*graph) : graph.status();
    ASSERT_FALSE(status.ok()) << c.text;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << status.message();
  }
}

TEST(Verifier, RefusesGraphsOfAnotherMesh) {
  const struct {
    const char* what;
    const char* text;
    MeshSizes mesh;
    const char* message;
  } refusals[] = {
      {"a gather over a group of another size",
       "graph g\ninput x: F32[tokens 4,6] tp:shard(0)\ny = all_gather(x) {axis=tp, size=2, dim=0, capacity=8} on comm: F32[tokens 8,6]\n",
       {.tp = 4}, "graph g: node 'y' (all_gather): a group of 2, but tp has 4 ranks"},
      {"a reduction over the ranks of two axes",
       "graph g\ninput x: F32[tokens 8,6] tp:partial\ny = all_reduce(x) {axis=tp, size=4, dtype=F32} on comm: F32[tokens 8,6]\n",
       {.pcp = 2, .tp = 2}, "graph g: node 'y' (all_reduce): a group of 4, but tp has 2 ranks"},
      {"a split over an axis that there is not", "graph g\ninput x: F32[tokens 4,6] pcp:shard(0)\n", {.tp = 2},
       "graph g: 'x' is F32[tokens 4,6] pcp:shard(0), but pcp has 1 rank"},
      {"rows times ranks",
       "graph g\ninput t: I32[tokens 8]\ninput x: F32[tokens 8,6] tp:shard(0)\ny = all_gather(x) {axis=tp, size=2, dim=0, capacity=16} on comm: "
       "F32[tokens 16,6]\n",
       {.tp = 2}, "graph g: 'y' has room for 16 of all rows, 't' for 8"},
      {"more rows than those of which they are a part", "graph g\ninput t: I32[tokens 8]\ninput x: F32[tokens 9,6] tp:shard(0)\n", {.tp = 2},
       "graph g: 'x' has room for 9 of rows split over tp, 't' only for 8 of all rows"},
  };
  for (const auto& c : refusals) {
    const Graph graph = parsed(c.text);
    EXPECT_TRUE(verify(graph).ok()) << c.what << ": " << verify(graph).message();
    const Status status = verify(graph, c.mesh);
    ASSERT_FALSE(status.ok()) << c.what;
    EXPECT_EQ(status.message(), c.message) << c.what;
  }
}

}  // namespace
}  // namespace weft
