// A layout: sizes of the mesh axes and one named choice per component. The one description that the command line, the
// passes, the planner and the contracts of the model families read.
//
// Text form, e.g. "tp4+dsa_cp+sp", "dp2tp4+ep8+ple=etp", "tp2pcp2", "pcp2+split=zigzag", "ep4":
//
//   layout = item *( "+" item )         the first item holds sizes
//   item   = 1*( axis size ) | flag | key "=" value
//   axis   = "dp" | "pp" | "pcp" | "tp" | "dcp" | "ep"     each at most once, in any order and any item
//   flag   = "dsa_cp" (attention=dsa_cp) | "sp" (sequence_parallel=on) | "owned" (split=owned)
//
// Sizes and choices that are not named keep their defaults below; no choice switches another one on, and one that would
// change nothing is refused (layout_choices says what each needs). Two sizes are
// derived: a missing dp is ranks / (pp * pcp * tp) where the number of ranks is given; without it, a layout whose
// only size is ep is that of `ep` ranks side by side, dp = ep. to_string prints the canonical form: sizes other than 1
// as dp pp tp pcp dcp ("tp1" if all are 1), then dsa_cp, sp, the split, ep, and the other choices in the order of the
// struct, defaults left out.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "sharding/mesh.h"
#include "sharding/token_split.h"

namespace weft {

// heads   query heads are split over tp, all tokens on every rank
// dsa_cp  prefill steps: the tp ranks split the query tokens, with all heads; K side on all tokens, caches replicated.
//         Decode steps: heads are slices of the full weights; with split=owned all heads of the owned requests.
enum class AttentionChoice { kHeads, kDsaCp };

// Where the output projection's weights are, once attention has all heads of local tokens (dsa_cp, owned):
//   sharded      over tp; heads -> tokens all_to_all, groups of heads whole, and partial sums in fp32 that are reduced:
//                to all tokens without sequence_parallel (L2a), to local ones with it (L2d), to owned ones with owned
//                (L8). The rows that arrive are read where they lie, in whatever order: there is no transpose that a
//                choice could save
//   replicated   a full copy per rank, no collective (L2c)
//   streamed     over tp; gathered into a shared full buffer before use (L2b); `prefetch` starts the gather early
// What the boundary after it holds is not chosen here: all tokens without sequence_parallel, local tokens with it.
enum class OProjChoice { kSharded, kReplicated, kStreamed };

enum class WeightChoice { kSharded, kReplicated };
// Queries of prefill with dsa_cp:
//   local  a rank attends with the rows that it has
//   full   with all rows and all heads on every rank; the rows are sliced behind attention, in front of a whole output
//          projection. Decode steps have all rows up to there, too, and between the sublayers. What the DSA-CP proposal
//          of msmodeling computes: more than is needed, and an upper bound of it (sharding.md 14)
enum class QueryRows { kLocal, kFull };
enum class GateChoice { kReplicated, kKSharded, kNSharded, kStreamed };
enum class RouterChoice { kLocal, kFull };      // gate GEMM on the token slice, or on the rows from which it is taken
// Exact fetch of the rows (bitwise), or in decode steps partial softmax (tolerance).
enum class DcpMode { kRows, kMerge };
enum class PleChoice { kReplicated, kSharded, kEtp };
enum class PleTier { kMemory, kMapped };
enum class MoeChoice { kEp, kTp };              // whole experts per rank, or the width of each over tp (w2 by column)
enum class CompressorChoice { kFull, kSplit };  // every rank compresses all tokens, or the owner of a row does (L11)

struct Layout {
  MeshSizes mesh;
  AttentionChoice attention = AttentionChoice::kHeads;
  bool sequence_parallel = false;
  TokenSplit split = TokenSplit::kFlat;  // kOwned: decode steps; prefill steps of dsa_cp are then split flat
  OProjChoice o_proj = OProjChoice::kSharded;
  WeightChoice lm_head = WeightChoice::kSharded;
  WeightChoice shared = WeightChoice::kSharded;  // shared experts
  GateChoice gate = GateChoice::kReplicated;     // gate on the attention output (HY-V4)
  RouterChoice router = RouterChoice::kLocal;
  DcpMode dcp_mode = DcpMode::kRows;
  PleChoice ple = PleChoice::kReplicated;        // per-layer embedding tables: kSharded over tp, kEtp over dp x tp
  PleTier ple_tier = PleTier::kMemory;
  bool prefetch = false;
  MoeChoice moe = MoeChoice::kEp;
  CompressorChoice compressor = CompressorChoice::kFull;
  QueryRows queries = QueryRows::kLocal;

  bool operator==(const Layout&) const = default;
};

// Errors name the position in the text (from 1), what was found and what is allowed. The result has passed
// check_layout; with `ranks` its world is that number.
Result<Layout> parse_layout(std::string_view text, std::optional<int64_t> ranks = std::nullopt);

std::string to_string(const Layout& layout);

// A prefill step has at least one row that belongs to a prompt (mixed steps too); a decode step has only decode and
// draft rows.
enum class StepPhase { kPrefill, kDecode };

// One rule of a contract. Facts are what it looks at beside the layout (a model's config); `violation` says what is
// wrong, what is usable instead, or "" when the rule holds.
template <class... Facts>
struct LayoutRule {
  const char* name;
  std::string (*violation)(const Layout& layout, const Facts&... facts);
};

// The first violated rule: "layout tp6: num_attention_heads 64 is not divisible by ...".
template <class... Facts>
Status check_rules(std::span<const LayoutRule<Facts...>> rules, const Layout& layout, const Facts&... facts) {
  for (const LayoutRule<Facts...>& rule : rules) {
    const std::string violation = rule.violation(layout, facts...);
    if (!violation.empty()) return invalid_argument("layout " + to_string(layout) + ": " + violation);
  }
  return {};
}

// The choices of the text form, in the order of the struct: the one table that the parser, the printer, the messages
// and the rule "effect" read. Value i of a choice is enumerator i; the first is the default.
struct LayoutNeed {
  const char* why = nullptr;               // "splits every expert over tp"
  const char* what = nullptr;              // "tp > 1"
  bool (*met)(const Layout&) = nullptr;    // null: the value changes something in every layout
};
struct LayoutValue {
  std::string_view name;
  LayoutNeed need;
};
struct LayoutChoice {
  std::string_view key;
  std::span<const LayoutValue> values;
  int (*get)(const Layout&);
  void (*set)(Layout&, int value);
};
std::span<const LayoutChoice> layout_choices();

// The first choice that is not the default and changes nothing on this mesh beside the other choices, with what it
// needs; "" if there is none.
std::string choice_without_effect(const Layout& layout);

// The rules that hold for every family; each family's contract adds its own.
std::span<const LayoutRule<>> layout_rules();
Status check_layout(const Layout& layout);

// split=owned keeps caches on one rank, which only dsa_cp's replicated prefill can fill.
Status check_step(const Layout& layout, StepPhase phase);

// Which ranks split the query tokens of a step, and how; nothing where every rank computes all rows.
// (The local rows between the sublayers of sequence_parallel are always a flat split over tp, apart from this.)
struct QuerySplit {
  MeshAxis axis = MeshAxis::kTp;
  TokenSplit split = TokenSplit::kFlat;
  bool operator==(const QuerySplit&) const = default;
};
std::optional<QuerySplit> query_split(const Layout& layout, StepPhase phase);

}  // namespace weft
