// The layouts that a search looks at: all combinations of mesh sizes and choices that the model's contract takes, each way to split
// a model once.
//
// A choice without effect keeps its default (sharding/layout.h refuses it), so no two layouts of a space are the same split under two
// names.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "sharding/layout.h"

namespace weft {

// usual  mesh sizes, ep, attention, sequence_parallel, split (flat, zigzag, owned), o_proj (streamed with prefetch), moe, dcp_mode, gate, ple
// all    every value of every choice
enum class SpaceBreadth { kUsual, kAll };

struct LayoutSpaceOptions {
  SpaceBreadth breadth = SpaceBreadth::kUsual;
  bool executor_limits = true;  // what weft can run; false: all that follows the rules of every family (other engines)
  // Without data-parallel groups that share nothing: those are copies of an instance of fewer devices.
  bool one_instance = false;
};

// Layouts that break one rule of the contract.
struct RefusedLayouts {
  std::string rule;     // its text: "num_attention_heads 64 is not divisible by tp 6; ..."
  std::string example;  // the first of them
  int64_t count = 0;    // meshes, or choices on a mesh; combinations with further choices are not counted
};

struct LayoutSpace {
  std::vector<Layout> layouts;          // in a fixed order: fewer stages, then smaller tp first
  std::vector<RefusedLayouts> refused;  // most frequent first
};

// devices >= 1.
LayoutSpace enumerate_layouts(const Model& model, int64_t devices, const LayoutSpaceOptions& options = {});

}  // namespace weft
