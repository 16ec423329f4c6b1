#include "sharding/layout.h"

#include <fmt/format.h>

namespace weft {
namespace {

bool owned(const Layout& l) { return l.split == TokenSplit::kOwned; }
bool dsa_cp(const Layout& l) { return l.attention == AttentionChoice::kDsaCp; }
bool full_queries(const Layout& l) { return l.queries == QueryRows::kFull; }

// Some ranks share the query tokens of a prefill step.
bool splits_prefill(const Layout& l) { return dsa_cp(l) || l.mesh.pcp > 1; }

constexpr LayoutRule<> kRules[] = {
    {"mesh", [](const Layout& l) { return check_mesh(l.mesh).message(); }},
    {"split_needs_ranks",
     [](const Layout& l) -> std::string {
       if (l.split == TokenSplit::kFlat || owned(l) || splits_prefill(l)) return {};
       return fmt::format("split={} has no tokens to split: it needs pcp > 1 or dsa_cp", token_split_name(l.split));
     }},
    {"one_token_split",
     [](const Layout& l) -> std::string {
       if (!dsa_cp(l) || l.mesh.pcp == 1) return {};
       return fmt::format("dsa_cp splits tokens over tp, pcp {} would split them again; use one of the two",
                          l.mesh.pcp);
     }},
    {"owned_without_pcp",
     [](const Layout& l) -> std::string {
       if (!owned(l) || l.mesh.pcp == 1) return {};
       return fmt::format("owned keeps a request's caches on one rank, pcp {} on all its ranks; use pcp 1", l.mesh.pcp);
     }},
    {"owned_without_dcp",
     [](const Layout& l) -> std::string {
       if (!owned(l) || l.mesh.dcp == 1) return {};
       return fmt::format("owned keeps a request's caches on one rank, dcp {} spreads them; use one of the two",
                          l.mesh.dcp);
     }},
    {"dcp_without_prefill_split",
     [](const Layout& l) -> std::string {
       if (l.mesh.dcp == 1 || !splits_prefill(l)) return {};
       return fmt::format("dcp {} spreads the caches that {} needs whole on every rank; use one of the two", l.mesh.dcp,
                          dsa_cp(l) ? "dsa_cp" : fmt::format("pcp {}", l.mesh.pcp));
     }},
    {"merge_needs_dcp",
     [](const Layout& l) -> std::string {
       if (l.dcp_mode == DcpMode::kRows || l.mesh.dcp > 1) return {};
       return "dcp_mode=merge has nothing to merge: it needs dcp > 1";
     }},
    {"group_major_needs_dsa_cp",
     [](const Layout& l) -> std::string {
       if (l.o_proj != OProjChoice::kGroupMajor || dsa_cp(l)) return {};
       if (owned(l)) return "owned exchanges group-major rows as it is; leave o_proj=group_major out";
       return "o_proj=group_major is an exchange of heads for tokens: it needs dsa_cp";
     }},
    {"whole_o_proj_needs_all_heads",
     [](const Layout& l) -> std::string {
       const bool whole = l.o_proj == OProjChoice::kReplicated || l.o_proj == OProjChoice::kStreamed;
       if (!whole || l.mesh.tp == 1 || dsa_cp(l) || owned(l)) return {};
       return fmt::format(
           "o_proj={} needs all heads of a token on its rank, tp {} splits them: use dsa_cp, owned or o_proj=sharded",
           l.o_proj == OProjChoice::kReplicated ? "replicated" : "streamed", l.mesh.tp);
     }},
    {"prefetch_needs_streamed_weights",
     [](const Layout& l) -> std::string {
       if (!l.prefetch || l.o_proj == OProjChoice::kStreamed) return {};
       return "prefetch=on starts gathers of weights early: it needs o_proj=streamed";
     }},
    {"moe_tp_without_ep",
     [](const Layout& l) -> std::string {
       if (l.moe != MoeChoice::kTp || l.mesh.ep == 1) return {};
       return fmt::format("moe=tp splits every expert over tp, ep {} keeps them whole; use one of the two", l.mesh.ep);
     }},
    {"compressor_split_needs_tokens",
     [](const Layout& l) -> std::string {
       if (l.compressor == CompressorChoice::kFull || splits_prefill(l)) return {};
       return "compressor=split compresses the rank's own tokens: it needs dsa_cp or pcp > 1";
     }},
    {"full_queries_need_dsa_cp",
     [](const Layout& l) -> std::string {
       if (!full_queries(l) || (dsa_cp(l) && l.sequence_parallel)) return {};
       return "queries=full takes a rank's rows behind attention: it needs dsa_cp and sp";
     }},
    {"full_queries_need_whole_o_proj",
     [](const Layout& l) -> std::string {
       if (!full_queries(l) || l.o_proj == OProjChoice::kReplicated) return {};
       return "queries=full takes a rank's rows in front of a whole output projection: it needs o_proj=replicated";
     }},
    {"full_queries_of_flat_splits",
     [](const Layout& l) -> std::string {
       if (!full_queries(l) || (l.split == TokenSplit::kFlat && l.compressor == CompressorChoice::kFull)) return {};
       return "queries=full computes all rows on every rank: leave split and compressor=split out";
     }},
};

}  // namespace

std::span<const LayoutRule<>> layout_rules() { return kRules; }

Status check_layout(const Layout& layout) { return check_rules(layout_rules(), layout); }

Status check_step(const Layout& layout, StepPhase phase) {
  if (phase == StepPhase::kDecode || !owned(layout) || dsa_cp(layout) || layout.mesh.tp == 1) return {};
  const std::string name = to_string(layout);
  return invalid_argument(
      fmt::format("layout {}: owned is for decode steps: its rank-local caches cannot be filled by heads "
                  "split over tp {}; prefill with dsa_cp",
                  name, layout.mesh.tp));
}

std::optional<QuerySplit> query_split(const Layout& layout, StepPhase phase) {
  if (phase == StepPhase::kDecode) {
    if (owned(layout) && layout.mesh.tp > 1) return QuerySplit{MeshAxis::kTp, TokenSplit::kOwned};
    return std::nullopt;
  }
  if (layout.mesh.pcp > 1) return QuerySplit{MeshAxis::kPcp, layout.split};
  if (dsa_cp(layout) && layout.mesh.tp > 1) {
    return QuerySplit{MeshAxis::kTp, owned(layout) ? TokenSplit::kFlat : layout.split};
  }
  return std::nullopt;
}

bool exchanges_group_major(const Layout& layout, StepPhase phase) {
  const std::optional<QuerySplit> split = query_split(layout, phase);
  if (!split || split->axis != MeshAxis::kTp) return false;
  return layout.o_proj == OProjChoice::kGroupMajor ||
         (layout.o_proj == OProjChoice::kSharded && split->split == TokenSplit::kOwned);
}

}  // namespace weft
