// Which layouts the DSA-MLA family takes, and why not others.
#include <algorithm>

#include "graph/ops/linear_op.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"
#include "models/layout_graph.h"

namespace weft::glm_moe_dsa {
namespace {

using Rule = LayoutRule<Config>;
constexpr Rule kRules[] = {
    {"heads", [](const Layout& l, const Config& c) { return check_shares("num_attention_heads", c.num_attention_heads, "tp", l.mesh.tp); }},
    {"output blocks", [](const Layout& l, const Config& c) {
       const bool never_split = l.split == TokenSplit::kOwned || l.queries == QueryRows::kFull;
       return l.o_proj == OProjChoice::kReplicated && l.attention == AttentionChoice::kDsaCp && never_split
                  ? std::string()
                  : check_canonical_blocks("o_proj", c.num_attention_heads * c.v_head_dim, l.mesh.tp);
     }},
    {"vocabulary", [](const Layout& l, const Config& c) {
       return l.lm_head == WeightChoice::kReplicated ? "" : check_shares("vocab_size", c.vocab_size, "tp", l.mesh.tp);
     }},
    {"dense layers", [](const Layout& l, const Config& c) {
       if (c.first_k_dense_replace == 0) return std::string();
       return check_inner("intermediate_size", "mlp.down_proj", c.intermediate_size, l.mesh.tp);
     }},
    {"shared expert", [](const Layout& l, const Config& c) {
       if (l.shared == WeightChoice::kReplicated) return std::string();
       return check_inner("moe_intermediate_size x n_shared_experts", "shared_experts.down_proj",
                          c.moe_intermediate_size * c.n_shared_experts, l.mesh.tp);
     }},
    {"experts", [](const Layout& l, const Config& c) { return check_shares("n_routed_experts", c.n_routed_experts, "ep", l.mesh.ep); }},
    {"shares of experts", [](const Layout& l, const Config& c) {
       return check_expert_shares(l, c.moe_intermediate_size, c.hidden_size);
     }},
    {"stages", [](const Layout& l, const Config& c) {
       const int64_t starts = std::count(c.full_indexer.begin(), c.full_indexer.end(), true);
       if (l.mesh.pp <= starts) return std::string();
       return fmt::format("{} pipeline stages, but only {} of {} layers have an indexer of their own and can begin one", l.mesh.pp, starts,
                          c.num_hidden_layers);
     }},
    {"compressor", [](const Layout& l, const Config&) {
       return l.compressor == CompressorChoice::kFull ? std::string() : "GLM-5 and DeepSeek-V3.2 have no compressors to split";
     }},
    {"gate", [](const Layout& l, const Config&) {
       return l.gate == GateChoice::kReplicated ? std::string() : "GLM-5 and DeepSeek-V3.2 have no gate on the attention output";
     }},
    {"ple", [](const Layout& l, const Config&) {
       return l.ple == PleChoice::kReplicated && l.ple_tier == PleTier::kMemory ? std::string()
                                                                              : "GLM-5 and DeepSeek-V3.2 have no per-layer embeddings";
     }},
};

}  // namespace

Status check_layout(const Config& config, const Layout& layout) {
  WEFT_RETURN_IF_ERROR(check_executable(layout));
  return check_rules(std::span<const Rule>(kRules), layout, config);
}

}  // namespace weft::glm_moe_dsa
