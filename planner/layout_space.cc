#include "planner/layout_space.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

#include <fmt/format.h>

namespace weft {
namespace {

std::vector<int> divisors(int64_t n) {
  std::vector<int> all;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(static_cast<int>(d));
  }
  return all;
}

// One choice of a layout: its values after the default, and how to set them. `usual`: those of SpaceBreadth::kUsual.
struct Variation {
  int num_values;  // beside the default
  uint32_t usual;  // bit i: value i + 1 is among the usual ones
  void (*set)(Layout&, int value);
};

template <auto Member>
constexpr Variation vary(int num_values, uint32_t usual) {
  return {num_values, usual, [](Layout& layout, int value) {
            using Field = std::remove_reference_t<decltype(layout.*Member)>;
            layout.*Member = static_cast<Field>(value);
          }};
}

// o_proj and prefetch are one choice: nothing is fetched early but streamed weights.
constexpr int kStreamedEarly = 3;
void set_o_proj(Layout& layout, int value) {
  layout.o_proj = static_cast<OProjChoice>(std::min(value, static_cast<int>(OProjChoice::kStreamed)));
  layout.prefetch = value == kStreamedEarly;
}

constexpr uint32_t bits(std::initializer_list<int> values) {
  uint32_t mask = 0;
  for (const int value : values) mask |= 1u << (value - 1);
  return mask;
}

// Besides the mesh and attention, which decide what of these is legal.
constexpr Variation kVariations[] = {
    vary<&Layout::sequence_parallel>(1, bits({1})),
    vary<&Layout::split>(3, bits({2, 3})),  // zigzag, owned
    {kStreamedEarly, bits({1, 3}), set_o_proj},
    vary<&Layout::lm_head>(1, 0),
    vary<&Layout::shared>(1, 0),
    vary<&Layout::gate>(3, bits({1, 2, 3})),
    vary<&Layout::router>(1, 0),
    vary<&Layout::dcp_mode>(1, bits({1})),
    vary<&Layout::ple>(2, bits({1, 2})),
    vary<&Layout::ple_tier>(1, bits({1})),
    vary<&Layout::moe>(1, bits({1})),
    vary<&Layout::compressor>(1, 0),
};

// A choice that would change nothing is skipped without a word: it is refused everywhere, and no rule of the model.
bool has_effect(const Layout& layout) { return choice_without_effect(layout).empty(); }

class Enumeration {
 public:
  Enumeration(const Model& model, const LayoutSpaceOptions& options) : model_(model), options_(options) {}

  LayoutSpace run(int64_t devices) {
    for (const int pp : divisors(devices)) {
      for (const int tp : divisors(devices / pp)) {
        for (const int pcp : divisors(devices / pp / tp)) {
          const int dp = static_cast<int>(devices / pp / tp / pcp);
          for (const int dcp : divisors(tp)) {
            for (const int ep : divisors(int64_t{dp} * pcp * tp)) {
              const bool groups_share = ep > pcp * tp;
              if (options_.one_instance && dp > 1 && !groups_share) continue;
              Layout layout;
              layout.mesh = {.dp = dp, .pp = pp, .pcp = pcp, .tp = tp, .dcp = dcp, .ep = ep};
              add_mesh(layout);
            }
          }
        }
      }
    }
    std::stable_sort(space_.refused.begin(), space_.refused.end(),
                     [](const RefusedLayouts& a, const RefusedLayouts& b) { return a.count > b.count; });
    return std::move(space_);
  }

 private:
  Status check(const Layout& layout) const {
    return options_.executor_limits ? model_.check_layout(layout) : weft::check_layout(layout);
  }

  bool legal(const Layout& layout) {
    const Status status = check(layout);
    if (status.ok()) return true;
    const std::string name = fmt::format("layout {}: ", to_string(layout));
    std::string rule = status.message();
    if (rule.starts_with(name)) rule.erase(0, name.size());
    const auto at = std::find_if(space_.refused.begin(), space_.refused.end(),
                                 [&](const RefusedLayouts& r) { return r.rule == rule; });
    if (at != space_.refused.end()) {
      ++at->count;
    } else {
      space_.refused.push_back({std::move(rule), to_string(layout), 1});
    }
    return false;
  }

  void add_mesh(Layout layout) {
    if (!legal(layout)) return;
    for (const auto attention : {AttentionChoice::kHeads, AttentionChoice::kDsaCp}) {
      layout.attention = attention;
      if (!has_effect(layout) || (attention != AttentionChoice::kHeads && !legal(layout))) continue;
      // What is legal alone on this mesh is combined; combinations are checked again.
      std::vector<std::vector<int>> values;
      for (const Variation& variation : kVariations) {
        values.push_back({0});
        for (int value = 1; value <= variation.num_values; ++value) {
          if (options_.breadth == SpaceBreadth::kUsual && (variation.usual >> (value - 1) & 1) == 0) continue;
          Layout alone = layout;
          variation.set(alone, value);
          if (has_effect(alone) && known(variation, value) && legal(alone)) values.back().push_back(value);
        }
      }
      combine(layout, values, 0);
    }
  }

  // Whether the model has what is chosen of (a gate, per-layer embeddings): other engines have other limits, but the same model.
  bool known(const Variation& variation, int value) const {
    if (options_.executor_limits) return true;
    Layout alone;
    alone.mesh = {.dp = 2, .tp = 2};  // where all of these choices change something
    variation.set(alone, value);
    const bool of_model = alone.gate != GateChoice::kReplicated || alone.ple != PleChoice::kReplicated ||
                          alone.ple_tier != PleTier::kMemory;
    return !of_model || model_.check_layout(alone).ok();
  }

  void combine(const Layout& layout, const std::vector<std::vector<int>>& values, size_t next) {
    if (next == values.size()) {
      if (has_effect(layout) && check(layout).ok()) space_.layouts.push_back(layout);
      return;
    }
    for (const int value : values[next]) {
      Layout with = layout;
      kVariations[next].set(with, value);
      combine(with, values, next + 1);
    }
  }

  const Model& model_;
  const LayoutSpaceOptions& options_;
  LayoutSpace space_;
};

}  // namespace

LayoutSpace enumerate_layouts(const Model& model, int64_t devices, const LayoutSpaceOptions& options) {
  return Enumeration(model, options).run(devices);
}

}  // namespace weft
