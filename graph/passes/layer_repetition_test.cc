// Folding on chains of small layers; real models: models/deepseek_v4/layout_graph_test.cc.
#include "graph/passes/layer_repetition.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "graph/text.h"

namespace weft {
namespace {

// Norms that follow one another, each with a weight of its own; `eps` by layer. An invariant is added in each.
std::string chain(const std::vector<double>& eps, const std::string& results = "") {
  std::string text = "graph chain\ninput x: F32[tokens 4,8]\ninput bias: F32[tokens 4,8]\n", x = "x";
  for (size_t l = 0; l < eps.size(); ++l) {
    const std::string layer = fmt::format("layers.{}", l);
    text += fmt::format("weight {}.w: F32[8]\n", layer);
    text += fmt::format("{0}.n = rms_norm({1}, {0}.w) {{eps={2}, rounding=once}} in {0}: F32[tokens 4,8]\n", layer, x, eps[l]);
    text += fmt::format("{0}.y = add({0}.n, bias) in {0}: F32[tokens 4,8]\n", layer);
    x = layer + ".y";
  }
  return text + "weight last: F32[8]\n" + fmt::format("out = rms_norm({}, last) {{eps=1, rounding=once}}: F32[tokens 4,8]\n", x) + results +
         "result out\n";
}

Graph parsed(const std::string& text) {
  auto graph = parse_graph(text);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

TEST(LayerRepetition, FindsRunsAndPeriods) {
  const struct {
    std::vector<double> eps;
    std::vector<std::pair<std::vector<std::string>, int64_t>> runs;  // first period, number of periods
  } cases[] = {
      {{0.5}, {}},
      {{0.5, 0.25}, {}},
      {{0.5, 0.5}, {{{"layers.0"}, 2}}},
      {{0.5, 0.5, 0.5, 0.5}, {{{"layers.0"}, 4}}},
      {{0.25, 0.5, 0.5, 0.125}, {{{"layers.1"}, 2}}},
      {{0.5, 0.25, 0.5, 0.25, 0.5, 0.25}, {{{"layers.0", "layers.1"}, 3}}},
      {{0.5, 0.5, 0.25, 0.25, 0.25}, {{{"layers.0"}, 2}, {{"layers.2"}, 3}}},
      {{0.5, 0.25, 0.5, 0.25, 0.5}, {{{"layers.0", "layers.1"}, 2}}},
  };
  for (const auto& c : cases) {
    const Graph graph = parsed(chain(c.eps));
    const FoldedGraph folded = fold_layers(graph);
    ASSERT_EQ(folded.runs.size(), c.runs.size()) << to_text(graph);
    size_t layers = c.eps.size();
    for (size_t r = 0; r < c.runs.size(); ++r) {
      EXPECT_EQ(folded.runs[r].regions, c.runs[r].first);
      EXPECT_EQ(folded.runs[r].count(), c.runs[r].second);
      layers -= (static_cast<size_t>(c.runs[r].second) - 1) * c.runs[r].first.size();
    }
    EXPECT_EQ(folded.graph.nodes().size(), 2 * layers + 1);
    EXPECT_TRUE(verify(folded.graph).ok());
    const auto expanded = expand_layers(folded.graph, folded.runs);
    ASSERT_TRUE(expanded.ok()) << expanded.status().message();
    EXPECT_EQ(to_text(*expanded), to_text(graph));
    EXPECT_TRUE(*expanded == graph);
  }
}

TEST(LayerRepetition, LayersThatAreSeenFromOutsideStay) {
  const FoldedGraph folded = fold_layers(parsed(chain({0.5, 0.5, 0.5, 0.5}, "result layers.1.y\n")));
  ASSERT_EQ(folded.runs.size(), 2u);  // two and two: what leaves the first run is a result
  EXPECT_EQ(folded.runs[0].count(), 2);
  EXPECT_EQ(folded.runs[1].regions, (std::vector<std::string>{"layers.2"}));
  EXPECT_TRUE(fold_layers(parsed(chain({0.5, 0.5}, "result layers.0.n\n"))).runs.empty());
}

TEST(LayerRepetition, ExpandSaysWhatDoesNotFit) {
  const FoldedGraph folded = fold_layers(parsed(chain({0.5, 0.5, 0.5})));
  const auto message = [](const Graph& graph, const std::vector<LayerRun>& runs) { return expand_layers(graph, runs).status().message(); };
  ASSERT_EQ(folded.runs.size(), 1u);
  std::vector<LayerRun> runs = folded.runs;
  runs[0].carried[0].second = "layers.0.gone";
  EXPECT_EQ(message(folded.graph, runs), "graph chain: no value 'layers.0.gone'");
  runs = folded.runs;
  runs[0].regions = {"layers.7"};
  EXPECT_EQ(message(folded.graph, runs), "graph chain: no nodes of 'layers.7'");
  runs = folded.runs;
  runs[0].copies[1].push_back("layers.9");
  EXPECT_EQ(message(folded.graph, runs), "graph chain: a copy of 2 layers of a period of 1");
  // A pass that splits the rows inside of the layer, and leaves them split.
  const Graph split = parsed(
      "graph g\ninput x: F32[tokens 4,8]\ny = slice_rows(x) {axis=tp, size=2, capacity=2} in layers.0: F32[tokens 2,8] tp:shard(0)\nresult y\n");
  EXPECT_EQ(message(split, {{{"layers.0"}, {{"layers.1"}}, {{"x", "y"}}}}),
            "graph g: 'x' enters the layers as F32[tokens 4,8], 'y' leaves them as F32[tokens 2,8] tp:shard(0)");
  const Graph nameless = parsed("graph g\ninput x: F32[tokens 4,8]\ny = add(x, x) in layers.0: F32[tokens 4,8]\nresult y\n");
  EXPECT_EQ(message(nameless, {{{"layers.0"}, {{"layers.1"}}, {{"x", "y"}}}}), "graph g: 'y' is made in layers.0, but not named after it");
}

}  // namespace
}  // namespace weft
