#include "runtime/derived_weights.h"

#include <gtest/gtest.h>

#include <atomic>

#include "graph/memory_plan.h"
#include "graph/text.h"
#include "models/test_support.h"

namespace weft {
namespace {

// Element (slice, i) of "w" is 100 * slice + i.
class Deriving : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;
  Status derive(std::string_view value_name, int64_t first, const TensorView& rows) const override {
    if (value_name != "w") return ForwardingModel::derive(value_name, first, rows);
    const int64_t slices = rows.shape()[0], width = rows.shape().num_elements() / slices;
    for (int64_t i = 0; i < slices * width; ++i)
      rows.as<float>()[i] = static_cast<float>(100 * (first + i / width) + i % width);
    made_ += slices;
    return {};
  }
  int64_t made() const { return made_; }

 private:
  mutable std::atomic<int64_t> made_{0};
};

Graph graph_of(std::string_view values) {
  auto graph = parse_graph("graph g\n" + std::string(values));
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return std::move(*graph);
}

TEST(DerivedWeights, AreCountedApartAndHaveATextForm) {
  const std::string text = "graph g\nweight a: BF16[3,4]\nderived w: F32[8,3] tp:shard(0)\n";
  const auto graph = parse_graph(text);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(to_text(*graph), text);
  const MemoryPlan plan = plan_memory(*graph, {1});
  EXPECT_EQ(plan.weight_bytes, 24);
  EXPECT_EQ(plan.derived_bytes, 96);
}

// The slices that any graph needs, made once.
TEST(DerivedWeights, OfOneRank) {
  const Deriving model(load_test_model("sample/austen-v4"));
  RankContext ranks;
  ranks.index[static_cast<int>(MeshAxis::kTp)] = 2;
  ranks.size[static_cast<int>(MeshAxis::kTp)] = 4;
  const Graph part = graph_of("derived w: F32[8,3] tp:shard(0)\n"), whole = graph_of("derived w: F32[32,3]\n"),
              none = graph_of("weight w2: F32[32,3]\n");
  ThreadPool pool(2);
  for (const bool with_whole : {false, true}) {
    DerivedWeights derived;
    derived.announce(none, ranks);
    EXPECT_EQ(derived.bytes(), 0);
    derived.announce(part, ranks);
    if (with_whole) derived.announce(whole, ranks);
    derived.announce(part, ranks);
    EXPECT_EQ(derived.bytes(), with_whole ? 32 * 12 : 8 * 12);
    const int64_t before = model.made();
    ASSERT_TRUE(derived.make(model, pool).ok());
    EXPECT_EQ(model.made() - before, with_whole ? 32 : 8);
    const TensorView view = derived.view(part.value(0), ranks);
    EXPECT_EQ(view.type, part.value(0).type.tensor);
    for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(view.as<float>()[i], static_cast<float>(100 * (16 + i / 3) + i % 3));
    if (!with_whole) continue;
    EXPECT_EQ(derived.view(whole.value(0), ranks).as<float>()[95], 3102);
  }
}

TEST(DerivedWeights, ErrorsOfTheModelAreTold) {
  const Deriving model(load_test_model("sample/austen-v4"));
  DerivedWeights derived;
  derived.announce(graph_of("derived other: F32[4,3]\n"), {});
  ThreadPool pool(1);
  EXPECT_EQ(derived.make(model, pool).message(), "there is no derived weight 'other'");
}

}  // namespace
}  // namespace weft
