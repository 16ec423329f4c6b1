// The pass that shards a graph where caches are in play: entries on the dcp ranks in turn, fetched or merged; compressors and keys
// on the rows of each rank. Text in, text out.
#include "graph/passes/shard.h"

#include <gtest/gtest.h>

#include <sstream>

#include "comm/bytes.h"
#include "graph/text.h"

namespace weft {
namespace {

constexpr const char* kCompressed = R"(graph compressed
input x: F32[tokens 8,16]
weight wq: F32[32,16]
q = linear(x, wq) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=4, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,4,8]
weight wkv: F32[8,16]
kv = linear(x, wkv) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,8]
weight wc: F32[16,16]
c = linear(x, wc) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,16]
weight norm: F32[8]
state ring: F32[2,7,32]
state entries: F32[3,64,8]
compressor(c, c, norm, ring, entries) {ratio=4, eps=1e-06, theta=10000, rotary_dims=4, factor=1, beta_fast=32, beta_slow=1, original_max_position_embeddings=0, quantised=false, format=fp8, begin=0, end=0, block=0, hadamard=false} in layers.0
weight wi: F32[16,16]
iq = linear(x, wi) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=2, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,2,8]
weight ww: F32[2,16]
iw = linear(x, ww) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 8,2]
state keys: F32[3,64,8]
picks = index_topk(iq, iw, keys) {ratio=4, top_k=6, weight_scale=1, max_context=512, rounded_to=F32} in layers.0: I32[tokens 8,6]
weight sink: F32[4]
state window: F32[2,7,8]
o = sparse_attention(q, kv, sink, window, entries, picks) {window=8, ratio=4, scale=0.5, max_context=512, has_sink=true, value_width=0} in layers.0: F32[tokens 8,4,8]
ring_write(kv, window) in layers.0
result o
)";

std::string nodes_of(const Graph& graph) {
  std::istringstream text(to_text(graph));
  std::string nodes;
  for (std::string line; std::getline(text, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (line.empty() || kind == "graph" || kind == "input" || kind == "weight") continue;
    nodes += line + "\n";
  }
  return nodes;
}

ShardOptions options_of(const MeshSizes& mesh) {
  ShardOptions options;
  options.mesh = mesh;
  options.weight_placement = [](const Value& weight) {
    Placements placements;
    if (weight.name == "wq" || weight.name == "sink") placements[static_cast<size_t>(MeshAxis::kTp)] = Placement::sharded(0);
    return placements;
  };
  options.capacity = {8, rows_per_rank(mesh.tp, 8), rows_per_rank(mesh.pcp, 8), rows_per_rank(mesh.tp, rows_per_rank(mesh.pcp, 8))};
  return options;
}

ShardOptions with_split_entries(const MeshSizes& mesh, bool merge) {
  ShardOptions options = options_of(mesh);
  options.split_entries = [](const Value& state) { return state.name == "entries" || state.name == "keys"; };
  options.merge_partials = merge;
  return options;
}

struct Case {
  const char* what;
  ShardOptions options;
  std::vector<const char*> lines;  // among the others, in this order
  const char* absent;
};

TEST(ShardCaches, TextInTextOut) {
  ShardOptions split = options_of({.pcp = 2});
  split.weight_placement = [](const Value&) { return Placements(); };
  split.queries = split.residual = RowSet::kPcp;
  split.keys = RowSet::kPcp;
  const Case cases[] = {
      {"dcp: scores where the keys are, entries from their owners", with_split_entries({.tp = 4, .dcp = 2}, false),
       {"state ring: F32[2,7,32]\n", "state entries: F32[3,32,8] dcp:shard(1)\n", "state keys: F32[3,32,8] dcp:shard(1)\n", "state window: F32[2,7,8]\n",
        "compressor(c, c, norm, ring, entries) {ratio=4,",
        "picks.candidates = index_candidates(iq, iw, keys) {size=2, ratio=4, top_k=6, weight_scale=1, max_context=512, rounded_to=F32} in layers.0: I32[tokens 8,6,2] dcp:shard(1)\n",
        "picks.candidates.all_gather_dcp = all_gather(picks.candidates) {axis=dcp, size=2, dim=1, capacity=8} in layers.0 on comm: I32[tokens 8,12,2]\n",
        "picks = merge_topk(picks.candidates.all_gather_dcp) {ratio=4, top_k=6} in layers.0: I32[tokens 8,6]\n",
        "o.entries = fetch_entries(entries, picks) {axis=dcp, size=2, ratio=4, max_context=512, capacity=48} in layers.0 on comm: F32[48,8], I32[tokens 8,6]\n",
        "o = sparse_attention(q, kv, sink, window, o.entries, o.entries.1) ", "ring_write(kv, window)"},
       "partial"},
      {"merge: heads to the entries, partial results back", with_split_entries({.tp = 4, .dcp = 2}, true),
       {"picks = merge_topk(", "o.heads = gather_heads(q) {axis=dcp, size=2} in layers.0 on comm: F32[tokens 8,2,8] tp:shard(1)\n",
        "o.partial = partial_attention(o.heads, kv, window, entries, picks) {size=2, window=8, ratio=4, scale=0.5, max_context=512, "
        "has_sink=false, value_width=0} in layers.0: F32[tokens 8,2,9] tp:shard(1) dcp:partial\n",
        "o = merge_partials(o.partial, sink) {axis=dcp, size=2, dtype=F32} in layers.0 on comm: F32[tokens 8,1,8] tp:shard(1)\n"},
       "fetch_entries"},
      {"compressor=split: the rows of each rank, and keys are gathered behind their projection", split,
       {"state entries: F32[3,64,8]\n", "kv = linear(x.slice_rows_pcp, wkv)", "c = linear(x.slice_rows_pcp, wc)",
        "split_compressor(c, c, norm, ring, entries) {axis=pcp, size=2, ratio=4,", "picks = index_topk(iq, iw, keys)",
        "kv.all_gather_pcp = all_gather(kv) {axis=pcp, size=2, dim=0, capacity=8} in layers.0 on comm: F32[tokens 8,8]\n",
        "o = sparse_attention(q, kv.all_gather_pcp, sink, window, entries, picks)", "ring_write(kv.all_gather_pcp, window)"},
       "all_gather(x"},
  };
  const auto whole = parse_graph(kCompressed);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  for (const Case& c : cases) {
    const auto sharded = shard(*whole, c.options);
    ASSERT_TRUE(sharded.ok()) << c.what << ": " << sharded.status().message();
    const std::string text = nodes_of(*sharded);
    size_t at = 0;
    for (const char* line : c.lines) {
      at = text.find(line, at);
      ASSERT_NE(at, text.npos) << c.what << ": " << line << "\n" << text;
    }
    EXPECT_EQ(text.find(c.absent), text.npos) << c.what << "\n" << text;
    EXPECT_EQ(*parse_graph(to_text(*sharded)), *sharded) << c.what;
  }
}

TEST(ShardCaches, Refusals) {
  const auto whole = parse_graph(kCompressed);
  ASSERT_TRUE(whole.ok());
  ShardOptions local = with_split_entries({.tp = 4, .dcp = 2}, false);
  local.queries = RowSet::kTp;
  EXPECT_EQ(shard(*whole, local).status().message(), "'entries': entries that dcp ranks hold in turn are read and written by all rows");
  ShardOptions uneven = with_split_entries({.tp = 3, .dcp = 3}, false);
  uneven.weight_placement = [](const Value&) { return Placements(); };
  EXPECT_EQ(shard(*whole, uneven).status().message(), "'entries' F32[3,64,8]: dimension 1 is not divisible by dcp 3");
}

}  // namespace
}  // namespace weft
