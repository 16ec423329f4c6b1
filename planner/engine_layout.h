// The layout that another engine runs where one is asked for in weft's words.
#pragma once

#include "models/model.h"
#include "planner/engine_profile.h"
#include "sharding/layout.h"

namespace weft {

// Attention of DeepSeek's kind: an index selection picks which entries of a cache each token attends to, and an entry is one latent
// for all heads, whose values are part of its key. Decided by the ops of a graph and their shapes, never by a model's name.
bool has_dsa_structure(const Graph& graph);
// ... of any layer.
Result<bool> has_dsa_structure(const Model& model);

// Engines with dsa_cp_with_sequence_parallel: sp on a model with DSA is dsa_cp+sp+o_proj=replicated+queries=full, with router=full
// where ranks share experts.
// Errors: dsa_cp without sp, which such an engine does not have.
Result<Layout> engine_layout(const EngineProfile& engine, const Model& model, const Layout& layout);

}  // namespace weft
