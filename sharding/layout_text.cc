// The text form of layouts: one table of choices serves the parser, the printer and the messages.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <utility>

#include "sharding/layout.h"

namespace weft {
namespace {

struct Choice {
  std::string_view key;
  std::span<const std::string_view> values;  // in the order of the enumerators; the first is the default
  int (*get)(const Layout&);
  void (*set)(Layout&, int);
};

template <auto Member, size_t N>
constexpr Choice choice(std::string_view key, const std::string_view (&values)[N]) {
  return {key, values, [](const Layout& layout) { return static_cast<int>(layout.*Member); },
          [](Layout& layout, int value) {
            using Field = std::remove_reference_t<decltype(layout.*Member)>;
            layout.*Member = static_cast<Field>(value);
          }};
}

constexpr std::string_view kOffOn[] = {"off", "on"};
constexpr std::string_view kAttention[] = {"heads", "dsa_cp"};
constexpr std::string_view kSplit[] = {"flat", "per_request", "zigzag", "owned"};
constexpr std::string_view kOProj[] = {"sharded", "group_major", "replicated", "streamed"};
constexpr std::string_view kWeight[] = {"sharded", "replicated"};
constexpr std::string_view kGate[] = {"replicated", "k_sharded", "n_sharded", "streamed"};
constexpr std::string_view kRouter[] = {"local", "full"};
constexpr std::string_view kDcpMode[] = {"rows", "merge"};
constexpr std::string_view kPle[] = {"replicated", "sharded", "etp"};
constexpr std::string_view kPleTier[] = {"memory", "mapped"};
constexpr std::string_view kMoe[] = {"ep", "tp"};
constexpr std::string_view kCompressor[] = {"full", "split"};
constexpr std::string_view kQueries[] = {"local", "full"};

constexpr Choice kChoices[] = {
    choice<&Layout::attention>("attention", kAttention),
    choice<&Layout::sequence_parallel>("sequence_parallel", kOffOn),
    choice<&Layout::split>("split", kSplit),
    choice<&Layout::o_proj>("o_proj", kOProj),
    choice<&Layout::lm_head>("lm_head", kWeight),
    choice<&Layout::shared>("shared", kWeight),
    choice<&Layout::gate>("gate", kGate),
    choice<&Layout::router>("router", kRouter),
    choice<&Layout::dcp_mode>("dcp_mode", kDcpMode),
    choice<&Layout::ple>("ple", kPle),
    choice<&Layout::ple_tier>("ple_tier", kPleTier),
    choice<&Layout::prefetch>("prefetch", kOffOn),
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

const Choice* find_choice(std::string_view key) {
  const auto it = std::ranges::find(kChoices, key, &Choice::key);
  return it == std::end(kChoices) ? nullptr : it;
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
                     names_of(kChoices, &Choice::key));
}

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
    return invalid_argument(fmt::format("layout '{}': position {}: found {}; allowed: {}", text_, position + 1,
                                        found.empty() ? "nothing" : fmt::format("'{}'", found), allowed));
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
    const Choice* choice = find_choice(key);
    if (choice == nullptr) return error(pos_, key, allowed_items());
    WEFT_RETURN_IF_ERROR(note_given(pos_, item, choice->key));
    int value = flag == std::end(kFlags) ? -1 : flag->value;
    if (equals != item.npos) {
      const std::string_view name = item.substr(equals + 1);
      const auto it = std::ranges::find(choice->values, name);
      if (it == choice->values.end()) {
        return error(pos_ + equals + 1, name, names_of(choice->values, std::identity()));
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

// A missing dp: from the number of devices, or from ep where that is the only size.
Status derive_dp(std::string_view text, const std::set<std::string_view>& given, std::optional<int64_t> devices,
                 MeshSizes& mesh) {
  if (given.contains("dp")) return {};
  if (devices) {
    const int64_t others = int64_t{mesh.pp} * mesh.pcp * mesh.tp;
    if (*devices < 1 || *devices % others != 0 || *devices / others > kMaxAxisSize) {
      return invalid_argument(fmt::format("layout '{}': {} devices are not a multiple of pp {} x pcp {} x tp {} = {}",
                                          text, *devices, mesh.pp, mesh.pcp, mesh.tp, others));
    }
    mesh.dp = static_cast<int>(*devices / others);
    return {};
  }
  const bool other_sizes =
      std::ranges::any_of(kAxes, [&](const Axis& axis) { return axis.name != "ep" && given.contains(axis.name); });
  if (!other_sizes) mesh.dp = mesh.ep;
  return {};
}

}  // namespace

Result<Layout> parse_layout(std::string_view text, std::optional<int64_t> devices) {
  Parser parser(text);
  WEFT_RETURN_IF_ERROR(parser.parse());
  WEFT_RETURN_IF_ERROR(derive_dp(text, parser.given, devices, parser.layout.mesh));
  WEFT_RETURN_IF_ERROR(check_layout(parser.layout));
  if (devices && parser.layout.mesh.world() != *devices) {
    return invalid_argument(
        fmt::format("layout '{}' is for {} devices, there are {}", text, parser.layout.mesh.world(), *devices));
  }
  return parser.layout;
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
    const Choice& choice = kChoices[i];
    const int value = choice.get(layout);
    if (value == 0) continue;
    const auto flag =
        std::ranges::find_if(kFlags, [&](const Flag& f) { return f.key == choice.key && f.value == value; });
    if (flag != std::end(kFlags)) {
      text += fmt::format("+{}", flag->name);
    } else {
      text += fmt::format("+{}={}", choice.key, choice.values[value]);
    }
  }
  return text;
}

}  // namespace weft
