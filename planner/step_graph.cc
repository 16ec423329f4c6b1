#include "planner/step_graph.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace weft {
namespace {

// "layers.3" of "layers.3.attn.wkv"; the whole name where it has no more.
std::string_view region_of(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return {};
  return name.substr(0, std::min(name.find('.', kPrefix.size()), name.size()));
}

std::string region_name(int64_t layer) { return fmt::format("layers.{}", layer); }

GraphOptions graph_options(const StepSetting& setting, const StepKey& key) {
  return {setting.mode, {key.tokens, key.logits}, setting.cache, {}, key.rows_of_set, setting.canonical_sums};
}

// The layers of a stage, and those of its neighbours that it exchanges values with.
struct StageLayers {
  std::vector<LayerShare> shares;
  size_t own_begin = 0, own_end = 0;  // of the stage, in shares
};

// whole_neighbour: of the stage before, all distinct layers instead of the last one.
Result<StageLayers> stage_layers(const StepSetting& setting, int stage, int64_t periods, bool whole_neighbour) {
  const Model& model = *setting.model;
  std::vector<std::string> kinds;
  for (int64_t l = 0; l < model.num_layers(); ++l) kinds.push_back(model.layer_kind(l));
  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> begins, stage_begins(model, setting.layout.mesh.pp));
  begins.push_back(model.num_layers());
  const auto begin = [&](int64_t s) { return begins[static_cast<size_t>(s)]; };
  StageLayers layers;
  const auto append = [&](int64_t of_stage) {
    const auto all = std::span<const std::string>(kinds);
    const auto first = begin(of_stage), count = begin(of_stage + 1) - first;
    const auto more =
        distinct_layers(all.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), first, periods);
    layers.shares.insert(layers.shares.end(), more.begin(), more.end());
  };
  if (stage > 0 && whole_neighbour) {
    append(stage - 1);
  } else if (stage > 0) {
    layers.shares.push_back({begin(stage) - 1, 1});
  }
  layers.own_begin = layers.shares.size();
  append(stage);
  layers.own_end = layers.shares.size();
  if (stage + 1 < setting.layout.mesh.pp) layers.shares.push_back({begin(stage + 1), 1});
  return layers;
}

}  // namespace

Result<SizedStep> SizedStep::build(const StepSetting& setting, const StepKey& key, int64_t periods,
                                   const WholeGraph& whole) {
  SizedStep sized;
  sized.step_.key = key;
  sized.threads_ = setting.threads;
  if (setting.expanded || key.kind == GraphKind::kDraft) {
    sized.complete_ = true;
    WEFT_RETURN_IF_ERROR(sized.build_graph(setting, {}, whole));
    return sized;
  }
  WEFT_ASSIGN_OR_RETURN(StageLayers layers, stage_layers(setting, key.stage, periods, false));
  Status built = sized.build_graph(setting, layers.shares, whole);
  if (!built.ok() &&
      key.stage > 0) {  // the last layer of the stage before takes more from those before it than streams
    WEFT_ASSIGN_OR_RETURN(layers, stage_layers(setting, key.stage, periods, true));
    built = sized.build_graph(setting, layers.shares, whole);
  }
  WEFT_RETURN_IF_ERROR(built);
  sized.complete_ = periods >= setting.model->num_layers();
  sized.find_joins(setting, layers.shares, layers.own_begin, layers.own_end);
  return sized;
}

Status SizedStep::build_graph(const StepSetting& setting, const std::vector<LayerShare>& shares,
                              const WholeGraph& whole) {
  GraphOptions options = graph_options(setting, step_.key);
  std::unordered_map<std::string, int64_t> count;
  for (const LayerShare& share : shares) {
    options.layers.push_back(share.layer);
    if (share.count > 1) count.emplace(region_name(share.layer), share.count);
  }
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Graph> graph, whole(step_.key.kind, options));
  WEFT_ASSIGN_OR_RETURN(StageGraph stage, stage_of(*graph, *setting.model, options, setting.layout, step_.key.phase,
                                                   step_.key.stage, false));
  step_.cache = setting.cache;
  step_.graph = std::move(stage.graph);
  step_.received = std::move(stage.received);
  step_.sent = std::move(stage.sent);
  step_.node_repeat.clear();
  step_.value_repeat.clear();
  const auto repeat = [&](std::string_view region) {
    if (region.empty() || count.empty()) return int64_t{1};
    const auto at = count.find(std::string(region));
    return at == count.end() ? int64_t{1} : at->second;
  };
  for (const Node& node : step_.graph.nodes()) step_.node_repeat.push_back(repeat(node.region));
  for (const Value& value : step_.graph.values()) {
    const bool kept = is_weight(value.role) || value.role == ValueRole::kState;
    step_.value_repeat.push_back(kept ? repeat(region_of(value.name)) : 1);
  }
  facts_ = size_free_facts(step_.graph, setting.model->caches(setting.mode, setting.cache));
  step_.alike = facts_.alike;
  plan();
  return {};
}

void SizedStep::plan() {
  MemoryPlan& memory = step_.memory;
  memory = plan_memory(step_.graph, {threads_}, step_.alike);
  memory.weight_bytes = memory.derived_bytes = memory.state_bytes = 0;
  for (size_t id = 0; id < step_.graph.values().size(); ++id) {
    const Value& value = step_.graph.values()[id];
    int64_t* kept = value.role == ValueRole::kWeight    ? &memory.weight_bytes
                    : value.role == ValueRole::kDerived ? &memory.derived_bytes
                    : value.role == ValueRole::kState   ? &memory.state_bytes
                                                        : nullptr;
    if (kept != nullptr) *kept += step_.value_repeat[id] * value.type.tensor.bytes();
  }
}

Status SizedStep::resize(const StepSetting& setting, const StepKey& key) {
  if (key == step_.key && setting.cache == step_.cache) return {};
  WEFT_CHECK(key.kind == step_.key.kind && key.phase == step_.key.phase && key.stage == step_.key.stage,
             "another step");
  step_.key = key;
  step_.cache = setting.cache;
  WEFT_RETURN_IF_ERROR(
      weft::resize(step_.graph, step_room(setting.layout, key.phase, graph_options(setting, key)), facts_));
  plan();
  return {};
}

// ---- Whether the layers that were left out would lie in the arena as those that are there.
//
// Where a layer's values lie depends on what is live when it begins, and on nothing else: a free gap is searched from the lowest
// offset, and the last one grows. So layers that begin alike lie alike, and so does all that follows.

void SizedStep::find_joins(const StepSetting& setting, const std::vector<LayerShare>& shares, size_t own_begin,
                           size_t own_end) {
  const auto& nodes = step_.graph.nodes();
  std::vector<int64_t> made(step_.graph.values().size(), -1), last_use(made.size(), -1);
  std::unordered_map<std::string_view, int64_t> first;  // node of a region
  for (size_t n = 0; n < nodes.size(); ++n) {
    const auto here = static_cast<int64_t>(n);
    for (ValueId id : nodes[n].in) last_use[static_cast<size_t>(id)] = here;
    for (ValueId id : nodes[n].out) made[static_cast<size_t>(id)] = last_use[static_cast<size_t>(id)] = here;
    first.emplace(nodes[n].region, here);
  }
  for (ValueId id : step_.graph.results()) last_use[static_cast<size_t>(id)] = static_cast<int64_t>(nodes.size());
  std::unordered_map<size_t, size_t> place;  // in begins_, by share
  const auto begin_of = [&](size_t share) {
    const auto [at, fresh] = place.emplace(share, begins_.size());
    if (!fresh) return at->second;
    std::vector<ValueId>& live = begins_.emplace_back();
    const auto node = first.find(region_name(shares[share].layer));
    for (size_t id = 0; node != first.end() && id < made.size(); ++id) {
      const bool in_arena = step_.memory.value_offset[id] != MemoryPlan::kNotInArena;
      if (in_arena && made[id] < node->second && last_use[id] >= node->second) live.push_back(static_cast<ValueId>(id));
    }
    return at->second;
  };
  const auto same_kinds = [&](size_t a, size_t b, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      if (setting.model->layer_kind(shares[a + k].layer) != setting.model->layer_kind(shares[b + k].layer))
        return false;
    }
    return true;
  };
  for (size_t i = own_begin; i < own_end;) {
    if (shares[i].count == 1) {
      ++i;
      continue;
    }
    size_t period = 0;
    while (i + period < own_end && shares[i + period].count > 1) ++period;
    Join join{begin_of(i + period), begin_of(i), 0};
    // An even number of periods was left out, so it is enough that every other one is alike.
    join.before = i >= own_begin + period && same_kinds(i - period, i, period) ? begin_of(i - period) : join.here;
    joins_.push_back(join);
    i += period;
  }
}

bool SizedStep::lie_alike(size_t a, size_t b) const {
  const auto live = [&](size_t place) {
    std::vector<std::pair<int64_t, int64_t>> all;  // offset, bytes
    for (const ValueId id : begins_[place]) {
      all.emplace_back(step_.memory.value_offset[static_cast<size_t>(id)], step_.graph.value(id).type.tensor.bytes());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  return live(a) == live(b);
}

bool SizedStep::settled() const {
  return complete_ || std::all_of(joins_.begin(), joins_.end(), [&](const Join& join) {
           return lie_alike(join.next, join.here) || (join.before != join.here && lie_alike(join.next, join.before));
         });
}

std::string SizedStep::peak_op() const {
  if (step_.memory.fullest_node < 0) return "";
  const Node& node = step_.graph.nodes()[static_cast<size_t>(step_.memory.fullest_node)];
  return node.out.empty() ? fmt::format("{} {}", node.region, op_name(node.op)) : step_.graph.value(node.out[0]).name;
}

int64_t StepGraph::num_nodes() const { return std::accumulate(node_repeat.begin(), node_repeat.end(), int64_t{0}); }

Result<StepGraph> build_step(const StepSetting& setting, const StepKey& key) {
  const WholeGraph whole = [&](GraphKind kind, const GraphOptions& options) -> Result<std::shared_ptr<const Graph>> {
    WEFT_ASSIGN_OR_RETURN(
        Graph graph, kind == GraphKind::kTrunk ? setting.model->build(options) : setting.model->build_draft(options));
    return std::make_shared<const Graph>(std::move(graph));
  };
  for (int64_t periods = SizedStep::kFewestPeriods;; ++periods) {
    WEFT_ASSIGN_OR_RETURN(SizedStep sized, SizedStep::build(setting, key, periods, whole));
    if (sized.settled()) return sized.step();
  }
}

}  // namespace weft
