// The pass that starts prefetches early: text in, text out; what it may not change; the memory that it costs.
#include "graph/passes/hoist_prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/memory_plan.h"
#include "graph/passes/layer_repetition.h"
#include "graph/text.h"

namespace weft {
namespace {

Graph parsed(const std::string& text) {
  auto graph = parse_graph(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

// A layer as shard() leaves it: `big` and `after` are gathered in front of the linear layers that use them, `after` over two axes.
std::string layer(const std::string& name, const std::string& x) {
  std::string text = R"(weight L.n: F32[8]
weight L.big: F32[4,8] tp:shard(0)
weight L.after: F32[2,8] pcp:shard(0) tp:shard(0)
L.norm = rms_norm(X, L.n) {eps=0.5, rounding=once} in L: F32[tokens 4,8]
L.big.all_gather_tp = all_gather(L.big) {axis=tp, size=2, dim=0, capacity=8} in L on prefetch: F32[8,8]
L.u = linear(L.norm, L.big.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in L: F32[tokens 4,8]
L.after.all_gather_pcp = all_gather(L.after) {axis=pcp, size=2, dim=0, capacity=4} in L on prefetch: F32[4,8] tp:shard(0)
L.after.all_gather_tp = all_gather(L.after.all_gather_pcp) {axis=tp, size=2, dim=0, capacity=8} in L on prefetch: F32[8,8]
L.y = linear(L.u, L.after.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in L: F32[tokens 4,8]
)";
  for (size_t at = 0; (at = text.find("L.", at)) != text.npos; at += name.size()) text.replace(at, 1, name);
  for (size_t at = 0; (at = text.find("in L", at)) != text.npos; ++at) text.replace(at + 3, 1, name);
  text.replace(text.find("(X,"), 2, "(" + x);
  return text;
}

std::string model(int layers) {
  std::string text = "graph g\ninput x: F32[tokens 4,8]\n", x = "x";
  for (int l = 0; l < layers; ++l) {
    const std::string name = "layers." + std::to_string(l);
    text += layer(name, x);
    x = name + ".y";
  }
  return text + "result " + x + "\n";
}

std::vector<std::string> order_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.push_back(graph.value(node.out[0]).name);
  return names;
}

TEST(HoistPrefetch, TextInTextOut) {
  const auto hoisted = hoist_prefetch(parsed(model(2)));
  ASSERT_TRUE(hoisted.ok()) << hoisted.status().message();
  EXPECT_EQ(to_text(*hoisted), R"(graph g
input x: F32[tokens 4,8]
weight layers.0.n: F32[8]
weight layers.0.big: F32[4,8] tp:shard(0)
weight layers.0.after: F32[2,8] pcp:shard(0) tp:shard(0)
weight layers.1.n: F32[8]
weight layers.1.big: F32[4,8] tp:shard(0)
weight layers.1.after: F32[2,8] pcp:shard(0) tp:shard(0)
layers.0.big.all_gather_tp = all_gather(layers.0.big) {axis=tp, size=2, dim=0, capacity=8} in layers.0 on prefetch: F32[8,8]
layers.0.after.all_gather_pcp = all_gather(layers.0.after) {axis=pcp, size=2, dim=0, capacity=4} in layers.0 on prefetch: F32[4,8] tp:shard(0)
layers.0.after.all_gather_tp = all_gather(layers.0.after.all_gather_pcp) {axis=tp, size=2, dim=0, capacity=8} in layers.0 on prefetch: F32[8,8]
layers.0.norm = rms_norm(x, layers.0.n) {eps=0.5, rounding=once} in layers.0: F32[tokens 4,8]
layers.0.u = linear(layers.0.norm, layers.0.big.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,8]
layers.0.y = linear(layers.0.u, layers.0.after.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.0: F32[tokens 4,8]
layers.1.big.all_gather_tp = all_gather(layers.1.big) {axis=tp, size=2, dim=0, capacity=8} in layers.1 on prefetch: F32[8,8]
layers.1.after.all_gather_pcp = all_gather(layers.1.after) {axis=pcp, size=2, dim=0, capacity=4} in layers.1 on prefetch: F32[4,8] tp:shard(0)
layers.1.after.all_gather_tp = all_gather(layers.1.after.all_gather_pcp) {axis=tp, size=2, dim=0, capacity=8} in layers.1 on prefetch: F32[8,8]
layers.1.norm = rms_norm(layers.0.y, layers.1.n) {eps=0.5, rounding=once} in layers.1: F32[tokens 4,8]
layers.1.u = linear(layers.1.norm, layers.1.big.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.1: F32[tokens 4,8]
layers.1.y = linear(layers.1.u, layers.1.after.all_gather_tp) {dtype=F32, act_quant=none, groups=1, k_blocks=1, heads=0, scale_rows=0, scale_cols=0, rest=0} in layers.1: F32[tokens 4,8]
result layers.1.y
)");
  const auto again = hoist_prefetch(*hoisted);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *hoisted);
}

TEST(HoistPrefetch, WhatCannotGoStays) {
  const struct {
    const char* what;
    const char* text;
    std::vector<std::string> order;
  } cases[] = {
      {"rows of the layer", "graph g\ninput x: F32[tokens 2,4] tp:shard(0)\nweight n: F32[4]\n"
       "a = rms_norm(x, n) {eps=1, rounding=once} in layers.0: F32[tokens 2,4] tp:shard(0)\n"
       "b = all_gather(a) {axis=tp, size=2, dim=0, capacity=4} in layers.0 on prefetch: F32[tokens 4,4]\nresult b\n",
       {"a", "b"}},
      {"not of a layer", "graph g\ninput x: F32[tokens 4,4]\nweight n: F32[2] tp:shard(0)\nweight m: F32[4]\n"
       "a = rms_norm(x, m) {eps=1, rounding=once}: F32[tokens 4,4]\n"
       "n.all = all_gather(n) {axis=tp, size=2, dim=0, capacity=4} on prefetch: F32[4]\n"
       "b = rms_norm(a, n.all) {eps=1, rounding=once}: F32[tokens 4,4]\nresult b\n",
       {"a", "n.all", "b"}},
      {"of another stream", "graph g\ninput x: F32[tokens 4,4]\nweight n: F32[2] tp:shard(0)\nweight m: F32[4]\n"
       "a = rms_norm(x, m) {eps=1, rounding=once} in layers.0: F32[tokens 4,4]\n"
       "n.all = all_gather(n) {axis=tp, size=2, dim=0, capacity=4} in layers.0 on comm: F32[4]\n"
       "b = rms_norm(a, n.all) {eps=1, rounding=once} in layers.0: F32[tokens 4,4]\nresult b\n",
       {"a", "n.all", "b"}},
  };
  for (const auto& c : cases) {
    const Graph graph = parsed(c.text);
    const auto hoisted = hoist_prefetch(graph);
    ASSERT_TRUE(hoisted.ok()) << c.what << ": " << hoisted.status().message();
    EXPECT_EQ(order_of(*hoisted), c.order) << c.what;
    EXPECT_EQ(*hoisted, graph) << c.what;
  }
}

TEST(HoistPrefetch, CommutesWithRepetition) {
  const Graph whole = parsed(model(4));
  const FoldedGraph folded = fold_layers(whole);
  ASSERT_EQ(folded.runs.size(), 1u);
  ASSERT_EQ(folded.runs[0].count(), 4);
  const auto expanded = expand_layers(*hoist_prefetch(folded.graph), folded.runs);
  ASSERT_TRUE(expanded.ok()) << expanded.status().message();
  EXPECT_EQ(order_of(*expanded), order_of(*hoist_prefetch(whole)));
}

// Both gathered weights of a layer are there when its products are computed, and count as communication; those of the next layer are
// not there yet.
TEST(HoistPrefetch, BuffersLiveFromTheStart) {
  constexpr int64_t kWeight = 8 * 8 * 4;
  const auto fullest = [](const Graph& graph) { return plan_memory(graph, {}).fullest.communication; };
  const Graph late = parsed(model(3));
  const auto early = hoist_prefetch(late);
  ASSERT_TRUE(early.ok()) << early.status().message();
  EXPECT_EQ(fullest(late), kWeight);
  EXPECT_EQ(fullest(*early), 2 * kWeight);
  EXPECT_GE(plan_memory(*early, {}).arena_bytes, plan_memory(late, {}).arena_bytes + kWeight / 2);
}

}  // namespace
}  // namespace weft
