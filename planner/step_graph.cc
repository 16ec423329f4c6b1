#include "planner/step_graph.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "models/distinct_layers.h"

namespace weft {
namespace {

constexpr int64_t kFewestPeriods = 2;

// "layers.3" of "layers.3.attn.wkv"; the whole name where it has no more.
std::string_view region_of(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return {};
  return name.substr(0, std::min(name.find('.', kPrefix.size()), name.size()));
}

class Builder {
 public:
  Builder(const StepSetting& setting, const StepKey& key) : setting_(setting), key_(key) {
    const int64_t layers = setting.model->num_layers();
    for (int64_t l = 0; l < layers; ++l) kinds_.push_back(setting.model->layer_kind(l));
  }

  Result<StepGraph> build() {
    if (setting_.expanded || key_.kind == GraphKind::kDraft) return build_from({});
    const int64_t layers = static_cast<int64_t>(kinds_.size());
    WEFT_ASSIGN_OR_RETURN(begins_, stage_begins(*setting_.model, setting_.layout.mesh.pp));
    begins_.push_back(layers);
    for (int64_t periods = kFewestPeriods;; ++periods) {
      Result<StepGraph> step = build_from(shares(periods));
      if (!step.ok() && key_.stage > 0 && !whole_neighbour_) {
        whole_neighbour_ = true;  // its last layer takes more from those before it than streams
        step = build_from(shares(periods));
      }
      if (!step.ok() || periods >= layers || settled(*step)) return step;
    }
  }

 private:
  std::span<const std::string> kinds_of(int64_t begin, int64_t end) const {
    return std::span<const std::string>(kinds_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  // Layers of the stage, and of its neighbours what it exchanges values with.
  std::vector<LayerShare> shares(int64_t periods) {
    const int64_t stages = setting_.layout.mesh.pp, stage = key_.stage;
    const auto begin = [&](int64_t s) { return begins_[static_cast<size_t>(s)]; };
    std::vector<LayerShare> all;
    const auto append = [&](const std::vector<LayerShare>& more) { all.insert(all.end(), more.begin(), more.end()); };
    if (stage > 0 && whole_neighbour_) {
      append(distinct_layers(kinds_of(begin(stage - 1), begin(stage)), begin(stage - 1), periods));
    } else if (stage > 0) {
      all.push_back({begin(stage) - 1, 1});
    }
    own_begin_ = all.size();
    append(distinct_layers(kinds_of(begin(stage), begin(stage + 1)), begin(stage), periods));
    own_end_ = all.size();
    if (stage + 1 < stages) all.push_back({begin(stage + 1), 1});
    return all;
  }

  Result<StepGraph> build_from(std::vector<LayerShare> shares) {
    GraphOptions options{setting_.mode, {key_.tokens, key_.logits}, setting_.cache, {}, key_.rows_of_set, setting_.canonical_sums};
    std::unordered_map<std::string, int64_t> count;
    for (const LayerShare& share : shares) {
      options.layers.push_back(share.layer);
      if (share.count > 1) count.emplace(fmt::format("layers.{}", share.layer), share.count);
    }
    WEFT_ASSIGN_OR_RETURN(StageGraph stage, build_stage(*setting_.model, key_.kind, options, setting_.layout, key_.phase, key_.stage));
    StepGraph step;
    step.key = key_;
    step.cache = setting_.cache;
    step.graph = std::move(stage.graph);
    step.received = std::move(stage.received);
    step.sent = std::move(stage.sent);
    const auto repeat = [&](std::string_view region) {
      if (region.empty() || count.empty()) return int64_t{1};
      const auto at = count.find(std::string(region));
      return at == count.end() ? int64_t{1} : at->second;
    };
    for (const Node& node : step.graph.nodes()) step.node_repeat.push_back(repeat(node.region));
    step.memory = plan_memory(step.graph, {setting_.threads});
    step.memory.weight_bytes = step.memory.derived_bytes = step.memory.state_bytes = 0;
    for (const Value& value : step.graph.values()) {
      int64_t* kept = value.role == ValueRole::kWeight    ? &step.memory.weight_bytes
                      : value.role == ValueRole::kDerived ? &step.memory.derived_bytes
                      : value.role == ValueRole::kState   ? &step.memory.state_bytes
                                                          : nullptr;
      const int64_t times = kept != nullptr ? repeat(region_of(value.name)) : 1;
      step.value_repeat.push_back(times);
      if (kept != nullptr) *kept += times * value.type.tensor.bytes();
    }
    shares_ = std::move(shares);
    return step;
  }

  // ---- Whether the layers that were left out would lie in the arena as those that are there.
  //
  // Where a layer's values lie depends on what is live when it begins, and on nothing else: a free gap is searched from the lowest
  // offset, and the last one grows. So layers that begin alike lie alike, and so does all that follows.

  using Live = std::vector<std::pair<int64_t, int64_t>>;  // offset, bytes; ascending

  Live live_before(const StepGraph& step, size_t node) const {
    Live live;
    for (size_t id = 0; id < step.memory.value_offset.size(); ++id) {
      if (step.memory.value_offset[id] == MemoryPlan::kNotInArena || made_[id] >= static_cast<int64_t>(node) ||
          last_use_[id] < static_cast<int64_t>(node)) {
        continue;
      }
      live.emplace_back(step.memory.value_offset[id], step.graph.values()[id].type.tensor.bytes());
    }
    std::sort(live.begin(), live.end());
    return live;
  }

  bool settled(const StepGraph& step) {
    const auto& nodes = step.graph.nodes();
    made_.assign(step.graph.values().size(), -1);
    last_use_.assign(step.graph.values().size(), -1);
    std::unordered_map<std::string_view, size_t> first;  // node of a region
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (ValueId id : nodes[n].in) last_use_[static_cast<size_t>(id)] = static_cast<int64_t>(n);
      for (ValueId id : nodes[n].out) made_[static_cast<size_t>(id)] = last_use_[static_cast<size_t>(id)] = static_cast<int64_t>(n);
      first.emplace(nodes[n].region, n);
    }
    for (ValueId id : step.graph.results()) last_use_[static_cast<size_t>(id)] = static_cast<int64_t>(nodes.size());
    const auto live_at = [&](size_t share) {
      const auto at = first.find(fmt::format("layers.{}", shares_[share].layer));
      return at == first.end() ? Live() : live_before(step, at->second);
    };
    for (size_t i = own_begin_; i < own_end_;) {
      if (shares_[i].count == 1) {
        ++i;
        continue;
      }
      size_t period = 0;
      while (i + period < own_end_ && shares_[i + period].count > 1) ++period;
      const Live next = live_at(i + period);
      bool alike = next == live_at(i);
      // Or every other period is alike: an even number of them was left out.
      if (!alike && i >= own_begin_ + period && same_kinds(i - period, i, period)) alike = next == live_at(i - period);
      if (!alike) return false;
      i += period;
    }
    return true;
  }

  bool same_kinds(size_t a, size_t b, size_t count) const {
    for (size_t k = 0; k < count; ++k) {
      if (kinds_[static_cast<size_t>(shares_[a + k].layer)] != kinds_[static_cast<size_t>(shares_[b + k].layer)]) return false;
    }
    return true;
  }

  const StepSetting& setting_;
  const StepKey& key_;
  std::vector<std::string> kinds_;
  std::vector<int64_t> begins_;  // first layer of every stage, then the number of layers
  std::vector<LayerShare> shares_;
  size_t own_begin_ = 0, own_end_ = 0;  // of the stage, in shares_
  bool whole_neighbour_ = false;        // of the stage before, all distinct layers instead of the last one
  std::vector<int64_t> made_, last_use_;
};

}  // namespace

int64_t StepGraph::num_nodes() const { return std::accumulate(node_repeat.begin(), node_repeat.end(), int64_t{0}); }

Result<StepGraph> build_step(const StepSetting& setting, const StepKey& key) { return Builder(setting, key).build(); }

}  // namespace weft
