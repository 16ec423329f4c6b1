#include "planner/memory_ledger.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

namespace weft {
namespace {

// What is after the region: "window" of "layers.3.window", "window" of "mtp.0.window".
std::string_view cache_kind(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

// "self_attn.q_b_proj" of "layers.3.self_attn.q_b_proj"; names outside of layers as they are.
std::string_view without_layer(std::string_view name) {
  for (const std::string_view prefix : {"layers.", "mtp."}) {
    if (!name.starts_with(prefix)) continue;
    const size_t dot = name.find('.', prefix.size());
    if (dot != name.npos) return name.substr(dot + 1);
  }
  return name;
}

// Lines of the same kind are one.
void add_line(std::vector<LedgerLine>& lines, LedgerLine line) {
  const auto at = std::find_if(lines.begin(), lines.end(), [&](const LedgerLine& l) {
    return l.category == line.category && l.copies == line.copies && l.tensor == line.tensor && l.what == line.what &&
           l.storage == line.storage && l.reason == line.reason;
  });
  if (at == lines.end()) {
    lines.push_back(std::move(line));
    return;
  }
  at->bytes += line.bytes;
  at->tensors += line.tensors;
  at->unverified = at->unverified || line.unverified;
}

void sort_lines(std::vector<LedgerLine>& lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const LedgerLine& a, const LedgerLine& b) {
    return a.category != b.category ? a.category < b.category : a.bytes > b.bytes;
  });
}

// A persistent value of the stage, over all of its steps: as large as in the step that needs most of it.
struct Held {
  const Value* value = nullptr;
  int64_t repeat = 0;  // values like it, in all layers
  int64_t bytes() const { return value->type.tensor.bytes(); }
};

// By kind of layer and tensor: which layers of a kind stand for the others may differ from step to step.
using HeldValues = std::map<std::pair<int64_t, std::string_view>, Held>;

// A number for the kind of layer that a value is in; -1 outside of layers.
class LayerKinds {
 public:
  explicit LayerKinds(const Model& model) : model_(model) {}

  int64_t of(std::string_view name) {
    constexpr std::string_view kPrefix = "layers.";
    int64_t layer = -1;
    if (!name.starts_with(kPrefix)) return layer;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    const auto [at, fresh] = of_layer_.emplace(layer, 0);
    if (fresh)
      at->second = numbers_.emplace(model_.layer_kind(layer), static_cast<int64_t>(numbers_.size())).first->second;
    return at->second;
  }

 private:
  const Model& model_;
  std::map<int64_t, int64_t> of_layer_;
  std::map<std::string, int64_t> numbers_;
};

HeldValues held_values(const Model& model, std::span<const StepGraph* const> steps,
                       std::initializer_list<ValueRole> roles) {
  HeldValues held;
  LayerKinds kinds(model);
  for (const StepGraph* step : steps) {
    HeldValues here;
    for (size_t id = 0; id < step->graph.values().size(); ++id) {
      const Value& value = step->graph.values()[id];
      if (std::find(roles.begin(), roles.end(), value.role) == roles.end()) continue;
      const int64_t kind = kinds.of(value.name);
      Held& have = here[{kind, kind < 0 ? std::string_view(value.name) : without_layer(value.name)}];
      have.value = &value;
      have.repeat += step->value_repeat[id];
    }
    for (const auto& [key, value] : here) {
      Held& have = held[key];
      if (have.value == nullptr || value.bytes() > have.bytes()) have = value;
    }
  }
  return held;
}

struct Spread {
  int64_t copies = 1, pieces = 1;
  std::string reason;
};

// Ranks of the stage that hold the same, and along which axes they lie.
Spread spread_of(const Placements& placements, const MeshSizes& mesh) {
  Spread spread;
  const auto sharded = [&](MeshAxis axis) {
    return placements[static_cast<size_t>(axis)].kind == Placement::Kind::kSharded;
  };
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    if (sharded(static_cast<MeshAxis>(axis))) spread.pieces *= mesh.size(static_cast<MeshAxis>(axis));
  }
  spread.copies = std::max<int64_t>(mesh.stage() / spread.pieces, 1);
  if (spread.copies == 1) return spread;
  if (sharded(MeshAxis::kEp)) {
    spread.reason = fmt::format("the same experts in every group of {} ranks", mesh.ep);
    return spread;
  }
  for (const MeshAxis axis : {MeshAxis::kDp, MeshAxis::kPcp, MeshAxis::kTp}) {
    if (mesh.size(axis) == 1 || sharded(axis)) continue;
    spread.reason +=
        fmt::format("{}{} {}", spread.reason.empty() ? "whole on " : " x ", mesh_axis_name(axis), mesh.size(axis));
  }
  return spread;
}

// line: of one of `repeat` tensors.
void add(std::vector<LedgerLine>& lines, LedgerLine line, int64_t repeat) {
  line.bytes *= repeat;
  line.tensors = repeat;
  add_line(lines, std::move(line));
}

class Holdings {
 public:
  Holdings(const PlanRequest& request, const StepSetting& setting, LedgerDetail detail)
      : request_(request), setting_(setting), detail_(detail) {}

  void weights(const HeldValues& held) {
    for (const auto& [key, weight] : held) out_.weight_bytes += weight.bytes() * weight.repeat;
    for (const auto& [key, weight] : held) add_weight(weight.value->name, weight);
    for (const LedgerLine& line : out_.weights) out_.engine_bytes += line.bytes;
    out_.engine_bytes -= out_.weight_bytes;
  }

  void caches(const HeldValues& held) {
    std::map<std::string_view, CacheKind> kinds;
    const std::vector<CacheSpec> specs = setting_.model->caches(setting_.mode, setting_.cache);
    for (const CacheSpec& spec : specs) kinds.emplace(spec.name, spec.kind);
    std::vector<LedgerLine> rings, pages;
    for (const auto& [key, state] : held) {
      const std::string_view name = state.value->name;
      const auto kind = kinds.find(name);
      const bool appended = kind != kinds.end() && kind->second == CacheKind::kAppend;
      const ValueType& type = state.value->type;
      const Spread spread = spread_of(type.placement, setting_.layout.mesh);
      // Data-parallel groups have requests of their own.
      const int64_t copies = std::max<int64_t>(spread.copies / setting_.layout.mesh.dp, 1);
      add(appended ? pages : rings,
          {LedgerCategory::kCaches, std::string(cache_kind(name)), "", std::string(dtype_name(type.dtype())),
           state.bytes() / type.shape()[0], 1, copies,
           copies == 1 ? "" : fmt::format("on {} ranks of a data-parallel group", copies)},
          state.repeat);
    }
    for (LedgerLine& line : rings) out_.caches.push_back({std::move(line), false});
    for (LedgerLine& line : pages) out_.caches.push_back({std::move(line), true});
  }

  StageHoldings take() { return std::move(out_); }

 private:
  static int64_t bytes_of(int64_t elements, DType dtype) { return TensorType{dtype, {elements}}.bytes(); }

  // A weight as the engine holds it: weft's own, or changed by the rules of the engine profile.
  void add_weight(std::string_view name, const Held& weight) {
    const ValueType& type = weight.value->type;
    const WeightInfo info = setting_.model->weight_info(name);
    Spread spread = spread_of(type.placement, setting_.layout.mesh);
    int64_t elements = type.shape().num_elements();
    DType dtype = type.dtype();
    LedgerCategory category = weight.value->role == ValueRole::kDerived ? LedgerCategory::kDerived
                              : info.part == WeightInfo::Part::kScale   ? LedgerCategory::kScales
                              : info.part == WeightInfo::Part::kDerived ? LedgerCategory::kDerived
                                                                        : LedgerCategory::kWeights;
    std::string reason;
    bool unverified = false, omitted = false;
    std::vector<LedgerLine> extra;
    const std::string tensor(detail_ == LedgerDetail::kTensors ? without_layer(name) : std::string_view());
    if (request_.engine != nullptr) {
      const Shape& shape = type.shape();
      HeldWeight mine{.name = name,
                      .split = setting_.model->weight_split(name),
                      .is_scale = info.part == WeightInfo::Part::kScale,
                      .dtype = dtype};
      mine.elements = elements;
      mine.inputs = shape.rank() < 2 ? 1 : shape.back();
      mine.pieces = spread.pieces;
      mine.over_tp = type.placement[static_cast<size_t>(MeshAxis::kTp)].kind == Placement::Kind::kSharded;
      const EngineWeight held = engine_weight(*request_.engine, mine, setting_.layout);
      for (const EngineWeight::Line& copy : held.extra) {
        if (copy.lifetime == Lifetime::kLoad) continue;
        LedgerLine line{LedgerCategory::kEngineCopies,
                        copy.rule->name,
                        tensor,
                        copy.rule->dtype ? std::string(dtype_name(*copy.rule->dtype)) : "",
                        copy.bytes,
                        1,
                        spread.copies,
                        copy.rule->source};
        line.unverified = !copy.rule->verified;
        extra.push_back(std::move(line));
      }
      if (held.pieces != spread.pieces) {
        spread = {std::max<int64_t>(setting_.layout.mesh.stage() / held.pieces, 1), held.pieces, spread.reason};
      }
      elements = held.elements;
      dtype = held.dtype;
      omitted = held.omitted;
      unverified = held.unverified;
      if (!held.changed_by.empty()) reason = held.changed_by.back()->name;
    }
    if (!omitted) {
      LedgerLine line{category,
                      std::string(info.component),
                      tensor,
                      std::string(dtype_name(dtype)),
                      bytes_of(elements, dtype),
                      1,
                      spread.copies,
                      reason.empty() ? spread.reason : reason};
      line.unverified = unverified;
      add(out_.weights, std::move(line), weight.repeat);
    }
    for (LedgerLine& line : extra) add(out_.weights, std::move(line), weight.repeat);
  }

  const PlanRequest& request_;
  const StepSetting& setting_;
  const LedgerDetail detail_;
  StageHoldings out_;
};

class Ledger {
 public:
  Ledger(const PlanRequest& request, const StepSetting& setting, RankLedger& out)
      : request_(request), setting_(setting), out_(out) {}

  void hold(const StageHoldings& holdings) {
    out_.lines = holdings.weights;
    out_.weight_bytes = holdings.weight_bytes;
    out_.engine_bytes = holdings.engine_bytes;
    const CacheCapacity& capacity = setting_.cache;
    for (const StageHoldings::Cache& cache : holdings.caches) {
      LedgerLine line = cache.line;
      if (cache.pages) {
        out_.cache_bytes_per_token += static_cast<double>(line.bytes) / static_cast<double>(capacity.page_tokens);
      } else {
        out_.cache_bytes_per_request += line.bytes;
      }
      line.bytes *= cache.pages ? capacity.num_pages : capacity.num_slots;
      out_.cache_bytes += line.bytes;
      out_.lines.push_back(std::move(line));
    }
  }

  // The fullest trunk step and the fullest draft step have memory of their own.
  void arenas(std::span<const StepMemory> steps) {
    constexpr int kKinds = 2;
    int64_t arena[kKinds] = {};
    const StepMemory* fullest[kKinds] = {};
    for (const StepMemory& step : steps) {
      const auto kind = static_cast<size_t>(step.key.kind);
      arena[kind] = std::max(arena[kind], step.arena_bytes);
      if (fullest[kind] == nullptr || step.fullest.total() > fullest[kind]->fullest.total()) fullest[kind] = &step;
    }
    int64_t most = -1;
    for (int kind = 0; kind < kKinds; ++kind) {
      if (fullest[kind] == nullptr) continue;
      const StepMemory& step = *fullest[kind];
      out_.arena_bytes += arena[kind];
      out_.arena.activations += step.fullest.activations;
      out_.arena.communication += step.fullest.communication;
      out_.arena.scratch += step.fullest.scratch;
      if (step.fullest.total() <= most) continue;
      most = step.fullest.total();
      out_.peak_step = fmt::format("{} step of {} rows", step.key.phase == StepPhase::kPrefill ? "prefill" : "decode",
                                   step.key.tokens);
      if (step.key.kind == GraphKind::kDraft) out_.peak_step = "draft " + out_.peak_step;
      if (!step.peak_op.empty()) out_.peak_op = step.peak_op;
    }
    const auto line = [&](LedgerCategory category, std::string what, int64_t bytes) {
      if (bytes > 0) add(out_.lines, {category, std::move(what), "", "", bytes, 1, 1, ""}, 1);
    };
    line(LedgerCategory::kActivations, "values and inputs of a step", out_.arena.activations);
    line(LedgerCategory::kCommunication, "received values, buffers of collectives", out_.arena.communication);
    line(LedgerCategory::kScratch, "scratch of ops", out_.arena.scratch);
    line(LedgerCategory::kPadding, "gaps between values", out_.arena_bytes - out_.arena.total());
  }

  void reserves() {
    int64_t communicators = 0;
    for (int axis = 0; axis < kNumMeshAxes; ++axis)
      communicators += setting_.layout.mesh.size(static_cast<MeshAxis>(axis)) > 1 ? 1 : 0;
    const auto line = [&](std::string what, double bytes, std::string reason, bool unverified) {
      if (bytes <= 0) return;
      out_.reserve_bytes += static_cast<int64_t>(bytes);
      LedgerLine reserve{LedgerCategory::kReserve, std::move(what), "", "", static_cast<int64_t>(bytes), 1, 1,
                         std::move(reason)};
      reserve.unverified = unverified;
      add(out_.lines, std::move(reserve), 1);
    };
    if (request_.engine != nullptr) {
      for (const ReserveRule& rule : request_.engine->reserves) {
        const int64_t bytes = reserve_bytes(rule, communicators, setting_.model->max_position_embeddings());
        line(rule.name, static_cast<double>(bytes), rule.source, !rule.verified);
      }
    }
    line("left alone (--reserve)", request_.reserve_bytes, "", false);
  }

 private:
  const PlanRequest& request_;
  const StepSetting& setting_;
  RankLedger& out_;
};

}  // namespace

std::string_view ledger_category_name(LedgerCategory category) {
  switch (category) {
    case LedgerCategory::kWeights: return "weights";
    case LedgerCategory::kScales: return "scales and offsets";
    case LedgerCategory::kDerived: return "derived weights";
    case LedgerCategory::kEngineCopies: return "copies of the engine";
    case LedgerCategory::kCaches: return "caches";
    case LedgerCategory::kActivations: return "activations";
    case LedgerCategory::kCommunication: return "communication";
    case LedgerCategory::kScratch: return "scratch";
    case LedgerCategory::kPadding: return "padding";
    case LedgerCategory::kReserve: return "reserve";
  }
  return "";
}

int64_t RankLedger::of(LedgerCategory category) const {
  int64_t bytes = 0;
  for (const LedgerLine& line : lines) bytes += line.category == category ? line.bytes : 0;
  return bytes;
}

std::vector<LedgerLine> by_component(const std::vector<LedgerLine>& lines) {
  std::vector<LedgerLine> fewer;
  for (LedgerLine line : lines) {
    line.tensor.clear();
    add_line(fewer, std::move(line));
  }
  sort_lines(fewer);
  return fewer;
}

StageHoldings stage_holdings(const PlanRequest& request, const StepSetting& setting,
                             std::span<const StepGraph* const> steps, std::span<const StepGraph* const> unused,
                             LedgerDetail detail) {
  Holdings holdings(request, setting, detail);
  holdings.weights(held_values(*setting.model, steps, {ValueRole::kWeight, ValueRole::kDerived}));
  std::vector<const StepGraph*> all(steps.begin(), steps.end());
  all.insert(all.end(), unused.begin(), unused.end());
  holdings.caches(held_values(*setting.model, all, {ValueRole::kState}));
  return holdings.take();
}

RankLedger make_ledger(const PlanRequest& request, const StepSetting& setting, int stage, const StageHoldings& holdings,
                       std::span<const StepMemory> steps) {
  RankLedger ledger;
  ledger.stage = stage;
  ledger.ranks = setting.layout.mesh.stage();
  Ledger lines(request, setting, ledger);
  lines.hold(holdings);
  lines.arenas(steps);
  lines.reserves();
  sort_lines(ledger.lines);
  return ledger;
}

}  // namespace weft
