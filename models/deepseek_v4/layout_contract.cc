// Which layouts DeepSeek-V4 takes, and why not others.
#include "models/deepseek_v4/deepseek_v4.h"
#include "models/layout_graph.h"

namespace weft::deepseek_v4 {
namespace {

using Rule = LayoutRule<Config>;
constexpr Rule kRules[] = {
    {"heads", [](const Layout& l, const Config& c) { return check_shares("num_attention_heads", c.num_attention_heads, "tp", l.mesh.tp); }},
    {"groups", [](const Layout& l, const Config& c) { return check_shares("o_groups", c.o_groups, "tp", l.mesh.tp); }},
    {"output blocks", [](const Layout& l, const Config& c) { return check_canonical_blocks("wo_b", c.o_groups * c.o_lora_rank, l.mesh.tp); }},
    {"vocabulary", [](const Layout& l, const Config& c) {
       return l.lm_head == WeightChoice::kReplicated ? "" : check_shares("vocab_size", c.vocab_size, "tp", l.mesh.tp);
     }},
    {"shared expert", [](const Layout& l, const Config& c) {
       if (l.shared == WeightChoice::kReplicated) return std::string();
       return check_inner("moe_intermediate_size x n_shared_experts", "shared_experts.w2",
                          c.moe_intermediate_size * c.n_shared_experts, l.mesh.tp);
     }},
    {"experts", [](const Layout& l, const Config& c) { return check_shares("n_routed_experts", c.n_routed_experts, "ep", l.mesh.ep); }},
    {"shares of experts", [](const Layout& l, const Config& c) {
       return check_expert_shares(l, c.moe_intermediate_size, c.hidden_size);
     }},
    {"stages", [](const Layout& l, const Config& c) {
       if (l.mesh.pp <= c.num_hidden_layers) return std::string();
       return fmt::format("{} pipeline stages for {} layers; at most one stage per layer", l.mesh.pp, c.num_hidden_layers);
     }},
    {"gate", [](const Layout& l, const Config&) {
       return l.gate == GateChoice::kReplicated ? std::string() : "DeepSeek-V4 has no gate on the attention output";
     }},
    {"ple", [](const Layout& l, const Config&) {
       return l.ple == PleChoice::kReplicated && l.ple_tier == PleTier::kMemory ? std::string()
                                                                              : "DeepSeek-V4 has no per-layer embeddings";
     }},
};

}  // namespace

Status check_layout(const Config& config, const Layout& layout) {
  WEFT_RETURN_IF_ERROR(check_executable(layout));
  return check_rules(std::span<const Rule>(kRules), layout, config);
}

}  // namespace weft::deepseek_v4
