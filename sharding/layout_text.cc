// The text form of layouts: one table of choices serves the parser, the printer and the messages.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <utility>

#include "base/shown_text.h"
#include "sharding/layout.h"

namespace weft {
namespace {

template <auto Member, size_t N>
constexpr LayoutChoice choice(std::string_view key, const LayoutValue (&values)[N]) {
  return {key, values, [](const Layout& layout) { return static_cast<int>(layout.*Member); },
          [](Layout& layout, int value) {
            using Field = std::remove_reference_t<decltype(layout.*Member)>;
            layout.*Member = static_cast<Field>(value);
          }};
}

// ---- What a value needs to change anything. `met` may rely on the needs of the choices before it in kChoices.

bool is_dsa_cp(const Layout& l) { return l.attention == AttentionChoice::kDsaCp; }

constexpr LayoutNeed kNoNeed = {};
constexpr LayoutNeed over_tp(const char* why) {
  return {why, "tp > 1", [](const Layout& l) { return l.mesh.tp > 1; }};
}
constexpr LayoutNeed of_local_tokens(const char* why) {
  return {why, "pcp > 1 or dsa_cp", [](const Layout& l) { return l.mesh.pcp > 1 || is_dsa_cp(l); }};
}
constexpr LayoutNeed of_all_heads(const char* why) {
  return {why, "dsa_cp or owned", [](const Layout& l) { return is_dsa_cp(l) || l.split == TokenSplit::kOwned; }};
}
constexpr LayoutNeed of_a_gate(const char* why) {
  return {why, "several ranks in a stage", [](const Layout& l) { return l.mesh.stage() > 1; }};
}

constexpr LayoutValue kAttention[] = {{"heads", kNoNeed}, {"dsa_cp", over_tp("splits the query tokens over tp")}};
constexpr LayoutValue kSequenceParallel[] = {{"off", kNoNeed},
                                             {"on", over_tp("splits the rows between the sublayers over tp")}};
constexpr LayoutValue kSplit[] = {{"flat", kNoNeed},
                                  {"per_request", of_local_tokens("splits the query tokens of prefill")},
                                  {"zigzag", of_local_tokens("splits the query tokens of prefill")},
                                  {"owned", over_tp("gives every tp rank requests of its own")}};
constexpr LayoutValue kOProj[] = {
    {"sharded", kNoNeed},
    {"replicated", of_all_heads("projects all heads of a rank's own tokens")},
    {"streamed", of_all_heads("projects all heads of a rank's own tokens")}};
constexpr LayoutValue kWeight[] = {{"sharded", kNoNeed}, {"replicated", over_tp("keeps whole what tp splits")}};
constexpr LayoutValue kGate[] = {{"replicated", kNoNeed},
                                 {"k_sharded", of_a_gate("splits the gate over ranks")},
                                 {"n_sharded", of_a_gate("splits the gate over ranks")},
                                 {"streamed", of_a_gate("splits the gate over ranks")}};
constexpr LayoutValue kRouter[] = {
    {"local", kNoNeed},
    {"full",
     {"routes rows before they are sliced for the experts",
      "ep > 1 and ranks with the same rows in front of them (tp without sp, or pcp)", [](const Layout& l) {
        const bool tp_slices = l.mesh.tp > 1 && (!l.sequence_parallel || l.queries == QueryRows::kFull);
        return l.mesh.ep > 1 && (l.mesh.pcp > 1 || tp_slices);
      }}}};
constexpr LayoutValue kDcpMode[] = {
    {"rows", kNoNeed},
    {"merge", {"merges partial softmaxes of dcp ranks", "dcp > 1", [](const Layout& l) { return l.mesh.dcp > 1; }}}};
constexpr LayoutValue kPle[] = {{"replicated", kNoNeed},
                                {"sharded", over_tp("splits tables over tp")},
                                {"etp", {"splits tables over dp x tp", "dp x tp > 1", [](const Layout& l) {
                                           return int64_t{l.mesh.dp} * l.mesh.tp > 1;
                                         }}}};
constexpr LayoutValue kPleTier[] = {{"memory", kNoNeed}, {"mapped", kNoNeed}};
constexpr LayoutValue kPrefetch[] = {{"off", kNoNeed},
                                     {"on", {"starts gathers of weights early", "o_proj=streamed", [](const Layout& l) {
                                               return l.o_proj == OProjChoice::kStreamed;
                                             }}}};
constexpr LayoutValue kMoe[] = {{"ep", kNoNeed}, {"tp", over_tp("splits every expert over tp")}};
constexpr LayoutValue kCompressor[] = {{"full", kNoNeed}, {"split", of_local_tokens("compresses a rank's own tokens")}};
constexpr LayoutValue kQueries[] = {
    {"local", kNoNeed},
    {"full",
     {"takes a rank's rows behind attention, in front of a whole output projection", "dsa_cp, sp and o_proj=replicated",
      [](const Layout& l) { return is_dsa_cp(l) && l.sequence_parallel && l.o_proj == OProjChoice::kReplicated; }}}};

constexpr LayoutChoice kChoices[] = {
    choice<&Layout::attention>("attention", kAttention),
    choice<&Layout::sequence_parallel>("sequence_parallel", kSequenceParallel),
    choice<&Layout::split>("split", kSplit),
    choice<&Layout::o_proj>("o_proj", kOProj),
    choice<&Layout::lm_head>("lm_head", kWeight),
    choice<&Layout::shared>("shared", kWeight),
    choice<&Layout::gate>("gate", kGate),
    choice<&Layout::router>("router", kRouter),
    choice<&Layout::dcp_mode>("dcp_mode", kDcpMode),
    choice<&Layout::ple>("ple", kPle),
    choice<&Layout::ple_tier>("ple_tier", kPleTier),
    choice<&Layout::prefetch>("prefetch", kPrefetch),
    choice<&Layout::moe>("moe", kMoe),
    choice<&Layout::compressor>("compressor", kCompressor),
    choice<&Layout::queries>("queries", kQueries),
};
constexpr size_t kNumChoicesBeforeEp = 3;  // where the canonical form has ep

// Short spellings of one value of a choice.
struct Flag {
  std::string_view name, key;
  int value;
};
constexpr Flag kFlags[] = {{"dsa_cp", "attention", 1}, {"sp", "sequence_parallel", 1}, {"owned", "split", 3}};

struct Axis {
  std::string_view name;
  int MeshSizes::*size;
};
constexpr Axis kAxes[] = {{"dp", &MeshSizes::dp},   {"pp", &MeshSizes::pp},   {"tp", &MeshSizes::tp},
                          {"pcp", &MeshSizes::pcp}, {"dcp", &MeshSizes::dcp}, {"ep", &MeshSizes::ep}};

const LayoutChoice* find_choice(std::string_view key) {
  const auto it = std::ranges::find(kChoices, key, &LayoutChoice::key);
  return it == std::end(kChoices) ? nullptr : it;
}

// One value as the canonical form writes it: "sp", "moe=tp".
std::string text_of(const LayoutChoice& choice, int value) {
  const auto flag =
      std::ranges::find_if(kFlags, [&](const Flag& f) { return f.key == choice.key && f.value == value; });
  if (flag != std::end(kFlags)) return std::string(flag->name);
  return fmt::format("{}={}", choice.key, choice.values[static_cast<size_t>(value)].name);
}

template <class Range, class Name>
std::string names_of(const Range& range, Name name) {
  std::string text;
  for (const auto& item : range) text += fmt::format("{}{}", text.empty() ? "" : ", ", std::invoke(name, item));
  return text;
}

std::string allowed_sizes() { return fmt::format("a size of {}, e.g. tp4", names_of(kAxes, &Axis::name)); }

std::string allowed_items() {
  return fmt::format("{}; {}; or key=value with one of {}", allowed_sizes(), names_of(kFlags, &Flag::name),
                     names_of(kChoices, &LayoutChoice::key));
}

constexpr size_t kFoundBytes = 40;  // a piece of the text, which is shown before

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status parse() {
    for (bool first = true; first || pos_ < text_.size(); first = false) {
      if (!first) ++pos_;  // the plus
      WEFT_RETURN_IF_ERROR(parse_item(first));
    }
    return {};
  }

  Layout layout;
  std::set<std::string_view> given;  // axes and keys

 private:
  Status error(size_t position, std::string_view found, std::string_view allowed) const {
    return invalid_argument(fmt::format("layout '{}': position {}: found {}; allowed: {}", shown(text_), position + 1,
                                        found.empty() ? "nothing" : fmt::format("'{}'", shown(found, kFoundBytes)),
                                        allowed));
  }

  Status note_given(size_t position, std::string_view found, std::string_view name) {
    if (given.insert(name).second) return {};
    return error(position, found, fmt::format("'{}' once", name));
  }

  Status parse_item(bool first) {
    const size_t end = std::min(text_.find('+', pos_), text_.size());
    const std::string_view item = text_.substr(pos_, end - pos_);
    const size_t equals = item.find('=');
    const auto flag = std::ranges::find(kFlags, item, &Flag::name);
    const bool sizes = equals == item.npos && flag == std::end(kFlags);
    if (first && !sizes) return error(pos_, item, allowed_sizes());
    if (sizes) return parse_sizes(end, first);
    const std::string_view key = equals == item.npos ? flag->key : item.substr(0, equals);
    const LayoutChoice* choice = find_choice(key);
    if (choice == nullptr) return error(pos_, key, allowed_items());
    WEFT_RETURN_IF_ERROR(note_given(pos_, item, choice->key));
    int value = flag == std::end(kFlags) ? -1 : flag->value;
    if (equals != item.npos) {
      const std::string_view name = item.substr(equals + 1);
      const auto it = std::ranges::find(choice->values, name, &LayoutValue::name);
      if (it == choice->values.end()) {
        return error(pos_ + equals + 1, name, names_of(choice->values, &LayoutValue::name));
      }
      value = static_cast<int>(it - choice->values.begin());
    }
    choice->set(layout, value);
    pos_ = end;
    return {};
  }

  Status parse_sizes(size_t end, bool first) {
    do {
      const size_t start = pos_;
      while (pos_ < end && !is_digit(text_[pos_])) ++pos_;
      const std::string_view name = text_.substr(start, pos_ - start);
      const auto axis = std::ranges::find(kAxes, name, &Axis::name);
      if (axis == std::end(kAxes)) {
        return error(start, text_.substr(start, end - start), first ? allowed_sizes() : allowed_items());
      }
      WEFT_RETURN_IF_ERROR(note_given(start, name, axis->name));
      const size_t number = pos_;
      while (pos_ < end && is_digit(text_[pos_])) ++pos_;
      const std::string_view digits = text_.substr(number, pos_ - number);
      int value = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), value);  // stays 0 when out of range
      if (value < 1 || value > kMaxAxisSize || digits[0] == '0') {
        return error(number, digits, fmt::format("a number in 1..{}", kMaxAxisSize));
      }
      layout.mesh.*(axis->size) = value;
    } while (pos_ < end);
    return {};
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  std::string_view text_;
  size_t pos_ = 0;
};

// A missing dp: from the number of ranks, or from ep where that is the only size.
Status derive_dp(std::string_view text, const std::set<std::string_view>& given, std::optional<int64_t> ranks,
                 MeshSizes& mesh) {
  if (given.contains("dp")) return {};
  if (ranks) {
    const int64_t others = int64_t{mesh.pp} * mesh.pcp * mesh.tp;
    if (*ranks < 1 || *ranks % others != 0 || *ranks / others > kMaxAxisSize) {
      return invalid_argument(fmt::format("layout '{}': {} ranks are not a multiple of pp {} x pcp {} x tp {} = {}",
                                          shown(text), *ranks, mesh.pp, mesh.pcp, mesh.tp, others));
    }
    mesh.dp = static_cast<int>(*ranks / others);
    return {};
  }
  const bool other_sizes =
      std::ranges::any_of(kAxes, [&](const Axis& axis) { return axis.name != "ep" && given.contains(axis.name); });
  if (!other_sizes) mesh.dp = mesh.ep;
  return {};
}

}  // namespace

Result<Layout> parse_layout(std::string_view text, std::optional<int64_t> ranks) {
  Parser parser(text);
  WEFT_RETURN_IF_ERROR(parser.parse());
  WEFT_RETURN_IF_ERROR(derive_dp(text, parser.given, ranks, parser.layout.mesh));
  WEFT_RETURN_IF_ERROR(check_layout(parser.layout));
  if (ranks && parser.layout.mesh.world() != *ranks) {
    return invalid_argument(
        fmt::format("layout '{}' has {} ranks, expected {}", shown(text), parser.layout.mesh.world(), *ranks));
  }
  return parser.layout;
}

std::span<const LayoutChoice> layout_choices() { return kChoices; }

std::string choice_without_effect(const Layout& layout) {
  for (const LayoutChoice& choice : kChoices) {
    const int value = choice.get(layout);
    const LayoutNeed& need = choice.values[static_cast<size_t>(value)].need;
    if (need.met == nullptr || need.met(layout)) continue;
    return fmt::format("{} {}: it needs {}; else leave it out", text_of(choice, value), need.why, need.what);
  }
  return {};
}

std::string to_string(const Layout& layout) {
  const MeshSizes& mesh = layout.mesh;
  const bool only_ep = mesh == MeshSizes{.dp = mesh.ep, .ep = mesh.ep};  // the reader derives dp
  std::string text, ep;
  for (const Axis& axis : kAxes) {
    const int size = mesh.*(axis.size);
    if (size == 1 || (only_ep && axis.name == "dp")) continue;
    (axis.name == "ep" ? ep : text) += fmt::format("{}{}", axis.name, size);
  }
  if (text.empty()) text = std::exchange(ep, {});
  if (text.empty()) text = "tp1";
  for (size_t i = 0; i < std::size(kChoices); ++i) {
    if (i == kNumChoicesBeforeEp && !ep.empty()) text += "+" + ep;
    if (const int value = kChoices[i].get(layout); value != 0) text += fmt::format("+{}", text_of(kChoices[i], value));
  }
  return text;
}

}  // namespace weft
