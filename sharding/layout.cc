#include "sharding/layout.h"

#include <fmt/format.h>

namespace weft {
namespace {

bool owned(const Layout& l) { return l.split == TokenSplit::kOwned; }
bool dsa_cp(const Layout& l) { return l.attention == AttentionChoice::kDsaCp; }

// Some ranks share the query tokens of a prefill step.
bool splits_prefill(const Layout& l) { return dsa_cp(l) || l.mesh.pcp > 1; }

constexpr LayoutRule<> kRules[] = {
    {"mesh", [](const Layout& l) { return check_mesh(l.mesh).message(); }},
    {"effect", choice_without_effect},
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
    {"moe_tp_without_ep",
     [](const Layout& l) -> std::string {
       if (l.moe != MoeChoice::kTp || l.mesh.ep == 1) return {};
       return fmt::format("moe=tp splits every expert over tp, ep {} keeps them whole; use one of the two", l.mesh.ep);
     }},
    {"full_queries_of_flat_splits",
     [](const Layout& l) -> std::string {
       if (l.queries == QueryRows::kLocal || (l.split == TokenSplit::kFlat && l.compressor == CompressorChoice::kFull))
         return {};
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

}  // namespace weft
