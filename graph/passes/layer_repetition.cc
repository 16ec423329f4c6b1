#include "graph/passes/layer_repetition.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr int64_t kLongestPeriod = 8;

bool is_of(std::string_view name, std::string_view region) {
  return name.size() > region.size() && name.starts_with(region) && name[region.size()] == '.';
}

// `name` with one of the regions `from` at its front, there the same one of `to`; nothing if there is none.
std::optional<std::string> renamed(std::string_view name, const std::vector<std::string>& from, const std::vector<std::string>& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (is_of(name, from[i])) return to[i] + std::string(name.substr(from[i].size()));
  }
  return std::nullopt;
}

bool has_weights(const Value& value) { return is_weight(value.role) || value.role == ValueRole::kState; }

// Values (other than outputs) and nodes in the order in which they were added; nodes without outputs as late as they may stand.
template <class OnValue, class OnNode>
Status walk(const Graph& graph, OnValue&& on_value, OnNode&& on_node) {
  size_t next = 0;
  for (size_t id = 0; id < graph.values().size(); ++id) {
    if (graph.values()[id].role != ValueRole::kActivation) {
      WEFT_RETURN_IF_ERROR(on_value(static_cast<ValueId>(id)));
      continue;
    }
    size_t maker = next;  // and what stands before it
    while (maker < graph.nodes().size() && (graph.nodes()[maker].out.empty() || graph.nodes()[maker].out[0] < static_cast<ValueId>(id))) ++maker;
    if (maker == graph.nodes().size() || graph.nodes()[maker].out[0] != static_cast<ValueId>(id)) continue;  // not a first output
    for (; next <= maker; ++next) WEFT_RETURN_IF_ERROR(on_node(next));
  }
  for (; next < graph.nodes().size(); ++next) WEFT_RETURN_IF_ERROR(on_node(next));
  return {};
}

using Images = std::map<ValueId, ValueId>;

Status copy_value(const Graph& from, ValueId id, const std::string& name, Graph& to, Images& images) {
  const Value& value = from.value(id);
  WEFT_ASSIGN_OR_RETURN(images[id], to.add_value(name, value.type, value.role));
  return {};
}

Status copy_node(const Node& node, std::vector<ValueId> in, const std::string& name, const std::string& region, Graph& to, Images& images) {
  WEFT_ASSIGN_OR_RETURN(const auto out, to.add_node(node.op, std::move(in), name, region, node.stream));
  for (size_t i = 0; i < out.size(); ++i) images[node.out[i]] = out[i];
  return {};
}

// ---- Finding runs

struct Layer {
  std::string region;
  size_t begin = 0, end = 0;  // nodes
};

struct Run {
  size_t first = 0, period = 0, count = 0;  // layers
  Images carried;                           // enters the first period -> leaves it
  std::vector<Images> outputs;              // by period: outputs of the first one -> of this one
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), maker_(graph.values().size(), -1) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      for (ValueId id : node.out) maker_[static_cast<size_t>(id)] = static_cast<int64_t>(n);
      if (node.region.empty()) continue;
      if (!layers_.empty() && layers_.back().region == node.region && layers_.back().end == n) {
        layers_.back().end = n + 1;
      } else {
        layers_.push_back({node.region, n, n + 1});
      }
    }
  }

  std::vector<Run> runs() const {
    std::vector<Run> runs;
    for (size_t first = 0; first < layers_.size();) {
      Run best;
      for (size_t period = 1; period <= kLongestPeriod && first + 2 * period <= layers_.size(); ++period) {
        Run run = longest(first, period);
        if ((run.count - 1) * period > (best.count == 0 ? 0 : (best.count - 1) * best.period)) best = std::move(run);
      }
      first += best.count == 0 ? 1 : best.count * best.period;
      if (best.count != 0) runs.push_back(std::move(best));
    }
    return runs;
  }

  std::vector<std::string> regions(const Run& run, size_t number) const {
    std::vector<std::string> names;
    for (size_t i = 0; i < run.period; ++i) names.push_back(layers_[run.first + number * run.period + i].region);
    return names;
  }

 private:
  Run longest(size_t first, size_t period) const {
    Run run{first, period, 1, {}, {Images()}};
    for (size_t l = 0; l < period; ++l) {
      for (size_t n = layers_[first + l].begin; n < layers_[first + l].end; ++n) {
        for (ValueId id : graph_.nodes()[n].out) run.outputs[0][id] = id;
      }
    }
    while (first + (run.count + 1) * period <= layers_.size() && add_period(run)) ++run.count;
    while (run.count > 1 && !closed(run)) --run.count;
    return run;
  }

  // Whether the period behind the run is equal; then it is in run.outputs.
  bool add_period(Run& run) const {
    const std::vector<std::string> from = regions(run, 0), to = regions(run, run.count);
    Images outputs, carried = run.carried;
    for (size_t l = 0; l < run.period; ++l) {
      const Layer &a = layers_[run.first + l], &b = layers_[run.first + run.count * run.period + l];
      const Layer& before = layers_[run.first + run.count * run.period + l - 1];
      if (b.begin != before.end || a.end - a.begin != b.end - b.begin) return false;
      if (l > 0 && a.begin != layers_[run.first + l - 1].end) return false;
      for (size_t i = 0; i < a.end - a.begin; ++i) {
        const Node &x = graph_.nodes()[a.begin + i], &y = graph_.nodes()[b.begin + i];
        if (x.op != y.op || x.stream != y.stream || x.in.size() != y.in.size() || types_of(graph_, x.out) != types_of(graph_, y.out)) return false;
        for (size_t k = 0; k < x.in.size(); ++k) {
          if (!same_input(run, x.in[k], y.in[k], from, to, outputs, carried)) return false;
        }
        for (size_t k = 0; k < x.out.size(); ++k) outputs[x.out[k]] = y.out[k];
      }
    }
    run.carried = std::move(carried);
    run.outputs.push_back(std::move(outputs));
    return true;
  }

  bool same_input(const Run& run, ValueId x, ValueId y, const std::vector<std::string>& from, const std::vector<std::string>& to,
                  const Images& outputs, Images& carried) const {
    const Value &a = graph_.value(x), &b = graph_.value(y);
    if (a.type != b.type || has_weights(a) != has_weights(b)) return false;
    if (run.outputs[0].contains(x)) {
      const auto at = outputs.find(x);
      return at != outputs.end() && at->second == y;
    }
    if (has_weights(a)) {
      const auto name = renamed(a.name, from, to);
      return name ? *name == b.name : x == y;
    }
    if (x == y) return !carried.contains(x);
    if (run.count == 1) {
      if (!run.outputs[0].contains(y)) return false;
      return carried.emplace(x, y).first->second == y;
    }
    const auto leaves = carried.find(x);
    return leaves != carried.end() && run.outputs[run.count - 1].at(leaves->second) == y;
  }

  // Nothing outside sees more of the run than what leaves its last period.
  bool closed(const Run& run) const {
    std::map<ValueId, size_t> period_of;
    for (size_t p = 0; p < run.count; ++p) {
      for (const auto& [first, here] : run.outputs[p]) period_of[here] = p;
    }
    const auto leaves_last = [&](ValueId id) {
      return std::any_of(run.carried.begin(), run.carried.end(), [&](const auto& c) { return run.outputs[run.count - 1].at(c.second) == id; });
    };
    const size_t begin = layers_[run.first].begin, end = layers_[run.first + run.count * run.period - 1].end;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (begin <= n && n < end) continue;
      for (ValueId id : graph_.nodes()[n].in) {
        if (period_of.contains(id) && !leaves_last(id)) return false;
      }
    }
    return std::none_of(graph_.results().begin(), graph_.results().end(), [&](ValueId id) { return period_of.contains(id) && !leaves_last(id); });
  }

  const Graph& graph_;
  std::vector<int64_t> maker_;
  std::vector<Layer> layers_;
};

}  // namespace

FoldedGraph fold_layers(const Graph& graph) {
  const Finder finder(graph);
  FoldedGraph folded{Graph(graph.name()), {}};
  std::vector<std::string> dropped;
  Images stands_for;  // what leaves the last period of a run -> what leaves the first
  for (const Run& run : finder.runs()) {
    LayerRun layers;
    layers.regions = finder.regions(run, 0);
    for (size_t p = 1; p < run.count; ++p) {
      layers.copies.push_back(finder.regions(run, p));
      dropped.insert(dropped.end(), layers.copies.back().begin(), layers.copies.back().end());
    }
    for (const auto& [enters, leaves] : run.carried) {
      const auto before = stands_for.find(enters);  // of the run before
      layers.carried.emplace_back(graph.value(before == stands_for.end() ? enters : before->second).name, graph.value(leaves).name);
      stands_for[run.outputs[run.count - 1].at(leaves)] = leaves;
    }
    folded.runs.push_back(std::move(layers));
  }
  if (folded.runs.empty()) {
    folded.graph = graph;
    return folded;
  }
  Images images;
  const auto image = [&](ValueId id) {
    const auto at = stands_for.find(id);
    return images.at(at == stands_for.end() ? id : at->second);
  };
  const Status status = walk(
      graph,
      [&](ValueId id) -> Status {
        const Value& value = graph.value(id);
        if (has_weights(value) && std::any_of(dropped.begin(), dropped.end(), [&](const auto& r) { return is_of(value.name, r); })) return {};
        return copy_value(graph, id, value.name, folded.graph, images);
      },
      [&](size_t n) -> Status {
        const Node& node = graph.nodes()[n];
        if (std::find(dropped.begin(), dropped.end(), node.region) != dropped.end()) return {};
        std::vector<ValueId> in;
        for (ValueId id : node.in) in.push_back(image(id));
        return copy_node(node, std::move(in), node.out.empty() ? "" : graph.value(node.out[0]).name, node.region, folded.graph, images);
      });
  WEFT_CHECK(status.ok(), "{}", status.message());
  for (ValueId id : graph.results()) folded.graph.mark_result(image(id));
  return folded;
}

Result<Graph> expand_layers(const Graph& folded, const std::vector<LayerRun>& runs) {
  const auto error = [&](const std::string& what) { return invalid_argument(fmt::format("graph {}: {}", folded.name(), what)); };
  Graph graph(folded.name());
  Images images;

  struct Carried {
    ValueId enters, leaves;
  };
  std::vector<std::vector<Carried>> carried(runs.size());
  std::map<size_t, size_t> run_ending_at;  // by the last node of its period
  for (size_t r = 0; r < runs.size(); ++r) {
    for (const auto& [enters, leaves] : runs[r].carried) {
      const Carried both{folded.find(enters), folded.find(leaves)};
      if (both.enters < 0 || both.leaves < 0) return error(fmt::format("no value '{}'", both.enters < 0 ? enters : leaves));
      const ValueType &before = folded.value(both.enters).type, &after = folded.value(both.leaves).type;
      if (before != after) {
        return error(fmt::format("'{}' enters the layers as {}, '{}' leaves them as {}", enters, to_string(before), leaves, to_string(after)));
      }
      carried[r].push_back(both);
    }
    std::optional<size_t> last;
    for (size_t n = 0; n < folded.nodes().size(); ++n) {
      const auto& regions = runs[r].regions;
      if (std::find(regions.begin(), regions.end(), folded.nodes()[n].region) != regions.end()) last = n;
    }
    if (!last) return error(fmt::format("no nodes of '{}'", runs[r].regions.empty() ? "" : runs[r].regions[0]));
    run_ending_at[*last] = r;
  }

  const auto add_copies = [&](size_t r) -> Status {
    const LayerRun& run = runs[r];
    Images before = images;  // of the period before
    for (const auto& to : run.copies) {
      if (to.size() != run.regions.size()) return error(fmt::format("a copy of {} layers of a period of {}", to.size(), run.regions.size()));
      Images here;
      const auto add_weight = [&](ValueId id) -> Status {
        if (!has_weights(folded.value(id))) return {};
        const auto name = renamed(folded.value(id).name, run.regions, to);
        return name ? copy_value(folded, id, *name, graph, here) : Status();
      };
      const auto add_layer_node = [&](size_t n) -> Status {
        const Node& node = folded.nodes()[n];
        const auto region = std::find(run.regions.begin(), run.regions.end(), node.region);
        if (region == run.regions.end()) return {};
        std::vector<ValueId> in;
        for (ValueId id : node.in) {
          const auto enters = std::find_if(carried[r].begin(), carried[r].end(), [&](const Carried& c) { return c.enters == id; });
          in.push_back(here.contains(id) ? here.at(id) : enters != carried[r].end() ? before.at(enters->leaves) : images.at(id));
        }
        const auto name = node.out.empty() ? std::string() : renamed(folded.value(node.out[0]).name, run.regions, to);
        if (!name) return error(fmt::format("'{}' is made in {}, but not named after it", folded.value(node.out[0]).name, node.region));
        return copy_node(node, std::move(in), *name, to[static_cast<size_t>(region - run.regions.begin())], graph, here);
      };
      WEFT_RETURN_IF_ERROR(walk(folded, add_weight, add_layer_node));
      before = std::move(here);
    }
    for (const Carried& c : carried[r]) images[c.leaves] = before.at(c.leaves);
    return {};
  };

  const auto add_node_and_copies = [&](size_t n) -> Status {
    const Node& node = folded.nodes()[n];
    std::vector<ValueId> in;
    for (ValueId id : node.in) in.push_back(images.at(id));
    WEFT_RETURN_IF_ERROR(
        copy_node(node, std::move(in), node.out.empty() ? "" : folded.value(node.out[0]).name, node.region, graph, images));
    const auto run = run_ending_at.find(n);
    return run == run_ending_at.end() ? Status() : add_copies(run->second);
  };
  const auto add_value = [&](ValueId id) { return copy_value(folded, id, folded.value(id).name, graph, images); };
  WEFT_RETURN_IF_ERROR(walk(folded, add_value, add_node_and_copies));
  for (ValueId id : folded.results()) graph.mark_result(images.at(id));
  return graph;
}

}  // namespace weft
