// Verifier, shard rules, memory plan.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include <random>

#include "graph/builder.h"
#include "graph/memory_plan.h"
#include "graph/op_samples.h"
#include "graph/text.h"

namespace weft {
namespace {

ValueType rows_of(int64_t rows, int64_t width) { return {{DType::kF32, {rows, width}}, Rows::kTokens}; }

// ---- Shard rules

struct ShardCase {
  const char* what;
  ShardRule rule;
  std::vector<const char*> in;  // placements of F32[8,8] values
  const char* expect;           // placements of the outputs, joined by " |", or "error: ..."
};

const ShardRule kLinear = {{"tk", "nk", "nk"}, {"tn"}, "tnk", "k"};
const ShardRule kNorm = {{"tw", "w"}, {"tw"}, "t", ""};
const ShardRule kRoute = {{"te", "e"}, {"tk", "tk"}, "t", ""};
const ShardRule kSum = {{"td", "td"}, {"td"}, "td", "", true};

const ShardCase kShardCases[] = {
    {"whole", kLinear, {"", ""}, ""},
    {"inputs split: a partial sum", kLinear, {" tp:shard(1)", " tp:shard(1)"}, " tp:partial"},
    {"outputs split", kLinear, {"", " tp:shard(0)"}, " tp:shard(1)"},
    {"tokens split", kLinear, {" pcp:shard(0)", ""}, " pcp:shard(0)"},
    {"tokens and outputs on two axes", kLinear, {" pcp:shard(0)", " tp:shard(0)"}, " pcp:shard(0) tp:shard(1)"},
    {"tokens and inputs on two axes",
     kLinear,
     {" pcp:shard(0) tp:shard(1)", " tp:shard(1)"},
     " pcp:shard(0) tp:partial"},
    {"the scale goes with its weight", kLinear, {"", " tp:shard(0)", " tp:shard(0)"}, " tp:shard(1)"},
    {"the scale is whole",
     kLinear,
     {"", " tp:shard(0)", ""},
     "error: axis tp splits other inputs but not input 2: F32[8,8]"},
    {"x split, weight whole",
     kLinear,
     {" tp:shard(1)", ""},
     "error: axis tp splits other inputs but not input 1: F32[8,8]"},
    {"weight split by inputs, x whole",
     kLinear,
     {"", " tp:shard(1)"},
     "error: axis tp splits other inputs but not input 0: F32[8,8]"},
    {"x by inputs, weight by outputs",
     kLinear,
     {" tp:shard(1)", " tp:shard(0)"},
     "error: axis tp splits dimension 0 of input 1 but another one elsewhere"},
    {"partial x", kLinear, {" tp:partial", ""}, "error: input 0 is a partial sum on axis tp; it must be reduced first"},
    {"tokens of a norm", kNorm, {" dcp:shard(0)", ""}, " dcp:shard(0)"},
    {"width of a norm",
     kNorm,
     {" tp:shard(1)", ""},
     "error: input 0 is sharded on dimension 1 over axis tp, which this op needs whole"},
    {"partial sum into a norm",
     kNorm,
     {" ep:partial", ""},
     "error: input 0 is a partial sum on axis ep; it must be reduced first"},
    {"two outputs", kRoute, {" pcp:shard(0)", ""}, " pcp:shard(0) | pcp:shard(0)"},
    {"sum of partial sums", kSum, {" tp:partial", " tp:partial"}, " tp:partial"},
    {"partial and whole", kSum, {" tp:partial", ""}, "error: partial sums on axis tp are mixed with whole values"},
    {"partial and split",
     kSum,
     {" tp:partial", " tp:shard(0)"},
     "error: partial sums on axis tp are mixed with whole values"},
    {"partial on one axis, split on another",
     kSum,
     {" pcp:shard(0) tp:partial", " pcp:shard(0) tp:partial"},
     " pcp:shard(0) tp:partial"},
    {"split alike", kSum, {" tp:shard(1)", " tp:shard(1)"}, " tp:shard(1)"},
    {"a value that is not looked at", {{"t", ""}, {"t"}, "t", ""}, {" pcp:shard(0)", " tp:partial"}, " pcp:shard(0)"},
};

ValueType type_with(const std::string& placements) {
  const auto graph = parse_graph("graph g\ninput x: F32[8,8]" + placements);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph->value(0).type;
}

TEST(ShardRule, Table) {
  for (const ShardCase& c : kShardCases) {
    ValueTypes in;
    for (const char* placements : c.in) in.push_back(type_with(placements));
    const auto out = apply_shard_rule(c.rule, in);
    std::string found = out.ok() ? "" : "error: " + out.status().message();
    if (out.ok()) {
      for (const Placements& p : *out) found += (found.empty() ? "" : " |") + to_string(p);
    }
    EXPECT_EQ(found, c.expect) << c.what;
  }
}

// Ops that move values say themselves where they lie (graph/ops/collective_test.cc); received rows are split over ep alone.
bool follows_tokens(const Op& op) {
  return !std::holds_alternative<ExpertSlots>(op) &&
         std::visit([](const auto& o) { return !requires { o.placements(TypeSpan()); }; }, op);
}

// Rows of a step split over ranks: allowed for every op that does not write caches, and the outputs are split by rows.
TEST(ShardRule, TokensOfEveryOp) {
  std::mt19937_64 random(3);
  for (OpSample sample : op_samples(random)) {
    if (!follows_tokens(sample.op)) continue;
    for (ValueType& type : sample.in) {
      if (type.rows == Rows::kTokens) type.placement[static_cast<int>(MeshAxis::kPcp)] = Placement::sharded(0);
    }
    const std::string name(op_name(sample.op));
    // Queries may be split, the keys that they see may not.
    if (name == "sparse_attention" || name == "partial_attention") sample.in[1].placement = {};
    Graph graph;
    const auto out = add_sample(graph, sample, "n");
    const bool writes = !std::visit([](const auto& op) { return op.mutates(); }, sample.op).empty();
    if (writes) {
      EXPECT_FALSE(out.ok()) << name << " took a part of the tokens";
      continue;
    }
    ASSERT_TRUE(out.ok()) << out.status().message();
    for (ValueId id : *out) {
      EXPECT_EQ(graph.value(id).type.placement[static_cast<int>(MeshAxis::kPcp)], Placement::sharded(0)) << name;
    }
  }
}

// ---- Verifier

TEST(Verify, EveryOpIsAGoodGraph) {
  std::mt19937_64 random(1);
  for (const OpSample& sample : op_samples(random)) {
    Graph graph("g");
    ASSERT_TRUE(add_sample(graph, sample, "n").ok());
    EXPECT_TRUE(verify(graph).ok()) << verify(graph).message();
  }
}

TEST(Verify, NamesAreUnique) {
  Graph graph("g");
  (void)graph.add_value("x", rows_of(2, 4), ValueRole::kInput);
  (void)graph.add_value("x", rows_of(2, 4), ValueRole::kInput);
  EXPECT_EQ(verify(graph).message(), "graph g: two values are named 'x'");
}

TEST(Verify, WhatAnOpChangesIsAState) {
  Graph graph("g");
  const auto x = graph.add_value("x", rows_of(2, 4), ValueRole::kInput);
  const auto ring = graph.add_value("ring", {{DType::kF32, {1, 3, 4}}}, ValueRole::kWeight);
  ASSERT_TRUE(graph.add_node(RingWrite{}, {*x, *ring}, "write").ok());
  EXPECT_EQ(verify(graph).message(), "graph g: node 'ring_write' changes 'ring', which is not a state");
}

TEST(Verify, ResultsAreNotPartial) {
  Graph graph("g");
  ValueType x = rows_of(2, 4), w = {{DType::kF32, {3, 4}}};
  x.placement[static_cast<int>(MeshAxis::kTp)] = w.placement[static_cast<int>(MeshAxis::kTp)] = Placement::sharded(1);
  const auto xi = graph.add_value("x", x, ValueRole::kInput), wi = graph.add_value("w", w, ValueRole::kWeight);
  const auto y = graph.add_node(Linear{}, {*xi, *wi}, "y");
  ASSERT_TRUE(y.ok()) << y.status().message();
  EXPECT_TRUE(verify(graph).ok());
  graph.mark_result((*y)[0]);
  EXPECT_EQ(verify(graph).message(), "graph g: result 'y' is a partial sum");
}

TEST(Verify, AddNodeSaysWhichNodeAndWhy) {
  Graph graph("g");
  const auto x = graph.add_value("x", rows_of(2, 4), ValueRole::kInput);
  EXPECT_EQ(graph.add_node(Add{}, {*x}, "layers.0.sum").status().message(),
            "graph g: node 'layers.0.sum' (add): add: 1 inputs, expected 2 to 2");
}

TEST(Builder, TheFirstErrorSticks) {
  GraphBuilder builder("g");
  const ValueId x = builder.input("x", rows_of(2, 4));
  builder.set_region("layers.0");
  EXPECT_GE(builder.add(Add{}, {x, x}, "good"), 0);
  EXPECT_EQ(builder.add(Add{}, {x}, "bad"), -1);
  EXPECT_EQ(builder.add(Add{}, {x, x}, "later"), -1);
  EXPECT_EQ(builder.finish().status().message(), "graph g: node 'layers.0.bad' (add): add: 1 inputs, expected 2 to 2");
}

TEST(Builder, SharedWeightsAreOneValue) {
  GraphBuilder builder("g");
  const ValueId x = builder.input("x", rows_of(2, 4)), w = builder.weight("w", {DType::kF32, {4}});
  EXPECT_EQ(builder.weight("w", {DType::kF32, {4}}), w);
  builder.set_region("layers.0");
  builder.result(builder.add(RmsNorm{}, {x, w}, "y"));
  const auto graph = builder.finish();
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->find("layers.0.y"), 2);
  EXPECT_EQ(graph->nodes()[0].region, "layers.0");
}

// ---- Memory plan

int64_t align(int64_t n) { return (n + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

// First and last node at which a value must be in memory, straight from the definition.
bool live_at(const Graph& graph, ValueId id, int node) {
  const int count = static_cast<int>(graph.nodes().size());
  int made = 0, last = -1;  // inputs are there from the start
  for (int n = 0; n < count; ++n) {
    const Node& at = graph.nodes()[n];
    if (std::count(at.out.begin(), at.out.end(), id) > 0) made = last = n;
    if (std::count(at.in.begin(), at.in.end(), id) > 0) last = n;
  }
  for (ValueId result : graph.results()) {
    if (result == id) last = count;
  }
  return made <= node && node <= last;
}

void expect_good_plan(const Graph& graph, const MemoryPlan& plan, const std::string& where) {
  const auto in_arena = [&](ValueId id) {
    const ValueRole role = graph.value(id).role;
    return role == ValueRole::kInput || role == ValueRole::kActivation;
  };
  int64_t end = 0;
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values().size()); ++id) {
    ASSERT_EQ(plan.value_offset[id] != MemoryPlan::kNotInArena, in_arena(id)) << where << " " << graph.value(id).name;
  }
  for (int n = 0; n < static_cast<int>(graph.nodes().size()); ++n) {
    struct Piece {
      std::string name;
      int64_t begin, bytes;
    };
    std::vector<Piece> pieces = {{"scratch", plan.scratch_offset[n], plan.scratch_bytes[n]}};
    for (ValueId id = 0; id < static_cast<ValueId>(graph.values().size()); ++id) {
      if (!in_arena(id) || !live_at(graph, id, n)) continue;
      pieces.push_back({graph.value(id).name, plan.value_offset[id], graph.value(id).type.tensor.bytes()});
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].bytes == 0) continue;
      EXPECT_EQ(pieces[i].begin % kArenaAlignment, 0) << where << " " << pieces[i].name;
      end = std::max(end, align(pieces[i].begin + pieces[i].bytes));
      for (size_t j = 0; j < i; ++j) {
        if (pieces[j].bytes == 0) continue;
        EXPECT_FALSE(pieces[i].begin < pieces[j].begin + pieces[j].bytes &&
                     pieces[j].begin < pieces[i].begin + pieces[i].bytes)
            << where << " node " << n << ": " << pieces[i].name << " and " << pieces[j].name << " overlap";
      }
    }
  }
  EXPECT_LE(end, plan.arena_bytes) << where;
}

TEST(MemoryPlan, LiveValuesNeverOverlap) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    Graph graph("g");
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 9);
    std::vector<ValueId> matrices;  // [tokens, width]
    for (int i = 0; i < 3; ++i) {
      matrices.push_back(*graph.add_value(
          "in" + std::to_string(i), rows_of(tokens, 4 * (1 + static_cast<int64_t>(random() % 40))), ValueRole::kInput));
    }
    for (int i = 0; i < 30; ++i) {
      const ValueId x = matrices[random() % matrices.size()];
      const std::string name = "n" + std::to_string(i);
      const int64_t width = graph.value(x).type.shape()[1];
      Result<std::vector<ValueId>> out = std::vector<ValueId>();
      switch (random() % 4) {
        case 0: out = graph.add_node(Add{}, {x, x}, name); break;
        case 1: out = graph.add_node(RmsNorm{}, {x}, name); break;
        case 2: {
          const int64_t next = 4 * (1 + static_cast<int64_t>(random() % 40));
          const auto w = graph.add_value(name + ".w", {{DType::kF32, {next, width}}}, ValueRole::kWeight);
          out = graph.add_node(Linear{}, {x, *w}, name);
          break;
        }
        default: {
          const auto e = graph.add_value(name + ".gate", rows_of(tokens, 8), ValueRole::kInput);
          out = graph.add_node(MoeRoute{RouteBy::kScore, 2}, {*e}, name);  // two outputs that nobody may use
          ASSERT_TRUE(out.ok()) << out.status().message();
          if (random() % 2 == 0) graph.mark_result((*out)[1]);
          continue;
        }
      }
      ASSERT_TRUE(out.ok()) << out.status().message();
      matrices.push_back(out->back());
      if (random() % 8 == 0) graph.mark_result(matrices.back());
    }
    const WorkEnv env{1 + static_cast<int>(seed % 4)};
    const MemoryPlan plan = plan_memory(graph, env);
    expect_good_plan(graph, plan, "seed " + std::to_string(seed));
    EXPECT_EQ(plan, plan_memory(graph, env));
  }
}

TEST(MemoryPlan, EveryOpGetsItsScratch) {
  std::mt19937_64 random(5);
  Graph graph("g");
  int i = 0;
  int64_t weights = 0, states = 0;
  for (const OpSample& sample : op_samples(random))
    ASSERT_TRUE(add_sample(graph, sample, "n" + std::to_string(i++)).ok());
  for (const Value& value : graph.values()) {
    if (value.role == ValueRole::kWeight) weights += value.type.tensor.bytes();
    if (value.role == ValueRole::kState) states += value.type.tensor.bytes();
  }
  const MemoryPlan plan = plan_memory(graph, {3});
  expect_good_plan(graph, plan, "all ops");
  EXPECT_EQ(plan.weight_bytes, weights);
  EXPECT_EQ(plan.state_bytes, states);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const Work work = std::visit(
        [&](const auto& op) { return op.work(types_of(graph, node.in), types_of(graph, node.out), {3}); }, node.op);
    EXPECT_EQ(plan.scratch_bytes[n], work.scratch_bytes) << op_name(node.op);
  }
}

// x -> norm -> norm -> ...: two values are live at a time, so two places are enough.
TEST(MemoryPlan, AChainNeedsTwoPlaces) {
  for (int length : {1, 2, 3, 20}) {
    Graph graph("chain");
    ValueId x = *graph.add_value("x", rows_of(5, 12), ValueRole::kInput);
    for (int i = 0; i < length; ++i) x = (*graph.add_node(RmsNorm{}, {x}, "n" + std::to_string(i)))[0];
    EXPECT_EQ(plan_memory(graph, {1}).arena_bytes, 2 * align(5 * 12 * 4)) << length;
  }
}

TEST(MemoryPlan, ResultsSurvive) {
  Graph graph("g");
  const ValueId x = *graph.add_value("x", rows_of(4, 16), ValueRole::kInput);
  const ValueId kept = (*graph.add_node(RmsNorm{}, {x}, "kept"))[0];
  ValueId y = x;
  for (int i = 0; i < 5; ++i) y = (*graph.add_node(RmsNorm{}, {y}, "n" + std::to_string(i)))[0];
  graph.mark_result(kept);
  const MemoryPlan plan = plan_memory(graph, {1});
  for (ValueId id = kept + 1; id < static_cast<ValueId>(graph.values().size()); ++id) {
    EXPECT_NE(plan.value_offset[id], plan.value_offset[kept]);
  }
  expect_good_plan(graph, plan, "results");
}

}  // namespace
}  // namespace weft
