// Graphs of models in layouts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "models/layout_graph.h"
#include "models/test_support.h"

namespace weft {

// By its folder in model_configs/: "deepseek-v4-flash".
inline std::shared_ptr<const Model> published(const std::string& name) {
  return model_of(Checkpoint::open_headers_only(std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs" / name));
}

inline GraphOptions graph_options(const Model& model, int64_t tokens, int64_t max_context) {
  GraphOptions options;
  options.mode = model.mode(DType::kBF16, std::nullopt);
  options.shape = {tokens, 2};
  options.cache.num_slots = 4;
  options.cache.num_pages = 8;
  options.cache.max_context = max_context;
  return options;
}

inline Layout layout_of(const std::string& text) {
  auto layout = parse_layout(text);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return layout.ok() ? *layout : Layout();
}

inline Graph trunk_of(const Model& model, const GraphOptions& options, const std::string& layout, StepPhase phase) {
  auto graph = build_for_layout(model, GraphKind::kTrunk, options, layout_of(layout), phase);
  EXPECT_TRUE(graph.ok()) << layout << ": " << graph.status().message();
  return graph.ok() ? std::move(*graph) : Graph();
}

// One of a list, by a seed.
class RandomChoice {
 public:
  explicit RandomChoice(uint64_t seed) : random_(seed) {}
  template <class T>
  T operator()(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }
  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  std::mt19937_64 random_;
};

// Every layout that a family's contract takes gives a graph that its mesh verifies, in both phases, draft layer included,
// whatever the number of rows. `vary` adds the choices that this family has besides. At least `fewest` layouts are taken, and refused.
template <class Vary>
void expect_taken_layouts_can_be_built(std::span<const std::shared_ptr<const Model>> models, uint64_t seeds, int fewest, Vary vary) {
  int taken = 0, refused = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    RandomChoice one_of(seed);
    Layout layout;
    layout.mesh = {one_of({1, 1, 1, 2}), one_of({1, 1, 1, 2}), one_of({1, 1, 2, 3}), one_of({1, 2, 2, 3, 4}), 1, 1};
    layout.mesh.ep = one_of({1, 1, 2, 3, static_cast<int>(layout.mesh.stage())});
    layout.attention = one_of({AttentionChoice::kHeads, AttentionChoice::kDsaCp});
    layout.sequence_parallel = one_of({false, true});
    layout.split = one_of({TokenSplit::kFlat, TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned});
    layout.o_proj = one_of({OProjChoice::kSharded, OProjChoice::kSharded, OProjChoice::kReplicated, OProjChoice::kStreamed});
    layout.lm_head = one_of({WeightChoice::kSharded, WeightChoice::kReplicated});
    layout.shared = one_of({WeightChoice::kSharded, WeightChoice::kReplicated});
    vary(layout, one_of);
    const Model& model = *models[one_of.below(models.size())];
    if (!model.check_layout(layout).ok()) {
      ++refused;
      continue;
    }
    ++taken;
    GraphOptions options;
    options.mode = model.mode(one_of({DType::kF32, DType::kBF16}), one_of({false, true}));
    options.shape = {one_of({1, 2, 7, 32}), one_of({1, 3})};
    options.cache.num_slots = 3;
    options.cache.num_pages = 4;
    options.cache.max_context = 512;
    options.cache.page_tokens *= layout.mesh.dcp;
    for (const GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
      if (kind == GraphKind::kDraft && model.num_draft_layers() == 0) continue;
      for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
        const auto graph = build_for_layout(model, kind, options, layout, phase);
        ASSERT_TRUE(graph.ok()) << "seed " << seed << " " << to_string(layout) << ": " << graph.status().message();
        const Status status = verify(*graph, layout.mesh);
        ASSERT_TRUE(status.ok()) << "seed " << seed << " " << to_string(layout) << ": " << status.message();
      }
    }
  }
  EXPECT_GT(taken, fewest);
  EXPECT_GT(refused, fewest);
}

}  // namespace weft
