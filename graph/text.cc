#include "graph/text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr std::string_view kStreamNames[] = {"compute", "comm", "prefetch"};
constexpr std::pair<ValueRole, std::string_view> kRoleNames[] = {
    {ValueRole::kInput, "input"}, {ValueRole::kWeight, "weight"}, {ValueRole::kDerived, "derived"},
    {ValueRole::kState, "state"}};

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || c == '/' || c == '+';
}

std::string quoted(std::string_view name) {
  bool plain = !name.empty();
  for (char c : name) plain = plain && is_plain(c);
  if (plain) return std::string(name);
  std::string text = "\"";
  for (char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + '"';
}

template <class>
constexpr bool kNoTextForm = false;

// ---- Printing

template <class T>
std::string attribute_text(const T& value) {
  if constexpr (std::is_same_v<T, DType>) {
    return std::string(dtype_name(value));
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(EnumText<T>::kNames[static_cast<size_t>(value)]);
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
    return fmt::format("{}", value);  // shortest form that reads back as the same number
  } else {
    static_assert(kNoTextForm<T>, "an attribute of this type has no text form");
  }
}

std::string op_text(const Graph& graph, const Node& node) {
  std::string inputs, attributes;
  for (ValueId id : node.in) inputs += fmt::format("{}{}", inputs.empty() ? "" : ", ", quoted(graph.value(id).name));
  std::visit(
      [&](const auto& op) {
        op.visit_fields(op, [&](std::string_view name, const auto& value) {
          attributes += fmt::format("{}{}={}", attributes.empty() ? "" : ", ", name, attribute_text(value));
        });
      },
      node.op);
  return fmt::format("{}({}){}", op_name(node.op), inputs,
                     attributes.empty() ? "" : fmt::format(" {{{}}}", attributes));
}

std::string types_text(const Graph& graph, const std::vector<ValueId>& ids) {
  std::string text;
  for (ValueId id : ids) text += fmt::format("{}{}", text.empty() ? "" : ", ", to_string(graph.value(id).type));
  return text;
}

std::string node_text(const Graph& graph, const Node& node) {
  std::string text;
  if (!node.out.empty()) text += quoted(graph.value(node.out[0]).name) + " = ";
  text += op_text(graph, node);
  if (!node.region.empty()) text += " in " + quoted(node.region);
  if (node.stream != Stream::kCompute) text += fmt::format(" on {}", kStreamNames[static_cast<int>(node.stream)]);
  if (!node.out.empty()) text += ": " + types_text(graph, node.out);
  return text;
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", quoted(graph.name()));
  ValueId printed = 0;
  // Inputs, weights and states that were added before value `end`.
  const auto print_values = [&](ValueId end) {
    for (; printed < end; ++printed) {
      const Value& value = graph.value(printed);
      for (const auto& [role, name] : kRoleNames) {
        if (role == value.role) text += fmt::format("{} {}: {}\n", name, quoted(value.name), to_string(value.type));
      }
    }
  };
  for (const Node& node : graph.nodes()) {
    ValueId before = 0;  // what must be there: the inputs and, so that ids stay, all that is older than the outputs
    for (ValueId id : node.in) before = std::max(before, id + 1);
    print_values(node.out.empty() ? before : node.out[0]);
    text += node_text(graph, node) + "\n";
  }
  print_values(static_cast<ValueId>(graph.values().size()));
  for (ValueId id : graph.results()) text += fmt::format("result {}\n", quoted(graph.value(id).name));
  return text;
}

std::string summarise(const Graph& graph) {
  int64_t weights = 0, states = 0, weight_bytes = 0, state_bytes = 0;
  for (const Value& value : graph.values()) {
    if (is_weight(value.role)) ++weights, weight_bytes += value.type.tensor.bytes();
    if (value.role == ValueRole::kState) ++states, state_bytes += value.type.tensor.bytes();
  }
  std::string text = fmt::format("graph {}: {} nodes, {} weights ({} bytes), {} states ({} bytes)\n", graph.name(),
                                 graph.nodes().size(), weights, weight_bytes, states, state_bytes);
  for (const Node& node : graph.nodes()) {
    std::string reads, changes;
    for (ValueId id : node.in) {
      const Value& value = graph.value(id);
      if (is_weight(value.role)) reads += fmt::format(" {}", to_string(value.type));
    }
    for (int index : std::visit([](const auto& op) { return op.mutates(); }, node.op)) {
      changes += " " + graph.value(node.in[index]).name;
    }
    const std::string name = node.out.empty() ? node.region : graph.value(node.out[0]).name;
    std::string line = fmt::format("{:<36} {:<17} {}", name, op_name(node.op), types_text(graph, node.out));
    if (!reads.empty()) line += "  weights" + reads;
    if (!changes.empty()) line += "  changes" + changes;
    while (line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

// ---- Parsing

namespace {

// One line, read from left to right.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }
  bool next_is(char c) {
    skip_spaces();
    return !rest_.empty() && rest_[0] == c;
  }
  bool accept(char c) {
    if (!next_is(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  Status expect(char c) {
    if (accept(c)) return {};
    return invalid_argument(fmt::format("expected '{}', found '{}'", c, shown()));
  }
  // The next plain word, which stays unread unless it is `word`.
  bool accept_word(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word) || (rest_.size() > word.size() && is_plain(rest_[word.size()]))) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  Result<std::string> name(std::string_view what) {
    skip_spaces();
    if (!rest_.empty() && rest_[0] == '"') return quoted_name();
    size_t n = 0;
    while (n < rest_.size() && is_plain(rest_[n])) ++n;
    if (n == 0) return invalid_argument(fmt::format("expected {}, found '{}'", what, shown()));
    std::string text(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return text;
  }
  Result<int64_t> dim() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0)
      return invalid_argument(fmt::format("expected a dimension, found '{}'", shown()));
    rest_.remove_prefix(end - rest_.data());
    return value;
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\r')) rest_.remove_prefix(1);
  }
  std::string_view shown() const { return rest_.empty() ? "the end of the line" : rest_.substr(0, 20); }
  Result<std::string> quoted_name() {
    std::string text;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        return text;
      }
      if (rest_[i] == '\\' && i + 1 < rest_.size()) {
        ++i;
        text += rest_[i] == 'n' ? '\n' : rest_[i];
      } else {
        text += rest_[i];
      }
    }
    return invalid_argument("a quoted name does not end");
  }

  std::string_view rest_;
};

template <class T>
Status parse_attribute(std::string_view text, T& value) {
  if constexpr (std::is_same_v<T, DType>) {
    const auto dtype = parse_dtype(text);
    if (!dtype) return invalid_argument(fmt::format("'{}' is not a dtype", text));
    value = *dtype;
    return {};
  } else if constexpr (std::is_enum_v<T>) {
    std::string known;
    for (size_t i = 0; i < EnumText<T>::kNames.size(); ++i) {
      if (EnumText<T>::kNames[i] == text) {
        value = static_cast<T>(i);
        return {};
      }
      known += fmt::format("{}{}", i == 0 ? "" : ", ", EnumText<T>::kNames[i]);
    }
    return invalid_argument(fmt::format("'{}' is not one of {}", text, known));
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false") return invalid_argument(fmt::format("'{}' is not true or false", text));
    value = text == "true";
    return {};
  } else {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return {};
    return invalid_argument(fmt::format("'{}' is not {}", text, std::is_same_v<T, double> ? "a number" : "an integer"));
  }
}

// Calls f with a default-made op of every kind, in the order of the variant.
template <class F, class... T>
void for_each_kind(std::type_identity<std::variant<T...>>, F&& f) {
  (f(T{}), ...);
}

Result<Op> op_of_name(std::string_view name) {
  std::optional<Op> found;
  std::string known;
  for_each_kind(std::type_identity<Op>(), [&](auto op) {
    if (op.kName == name) found = op;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", op.kName);
  });
  if (found) return *std::move(found);
  return invalid_argument(fmt::format("unknown op '{}', known are {}", name, known));
}

Status set_attributes(Op& op, std::unordered_map<std::string, std::string>& given) {
  Status status;
  std::visit(
      [&](auto& o) {
        o.visit_fields(o, [&](const char* name, auto& value) {
          if (!status.ok()) return;
          const auto at = given.find(name);
          if (at == given.end()) {
            status = invalid_argument(fmt::format("{} lacks the attribute '{}'", o.kName, name));
            return;
          }
          if (Status s = parse_attribute(at->second, value); !s.ok()) {
            status = invalid_argument(fmt::format("attribute {}: {}", name, s.message()));
          }
          given.erase(at);
        });
      },
      op);
  WEFT_RETURN_IF_ERROR(status);
  if (!given.empty()) {
    return invalid_argument(fmt::format("{} has no attribute '{}'", op_name(op), given.begin()->first));
  }
  return {};
}

Result<ValueType> read_type(LineReader& line) {
  ValueType type;
  WEFT_ASSIGN_OR_RETURN(const std::string dtype, line.name("a dtype"));
  WEFT_RETURN_IF_ERROR(parse_attribute(dtype, type.tensor.dtype));
  WEFT_RETURN_IF_ERROR(line.expect('['));
  if (line.accept_word("tokens")) type.rows = Rows::kTokens;
  if (line.accept_word("logits")) type.rows = Rows::kLogits;
  if (line.accept_word("received")) type.rows = Rows::kReceived;
  std::vector<int64_t> dims;
  // Bits of the tensor fit in int64, so that nothing that multiplies dimensions can overflow.
  int64_t bits = dtype_bits(type.dtype());
  if (!line.accept(']')) {
    do {
      WEFT_ASSIGN_OR_RETURN(const int64_t dim, line.dim());
      if (__builtin_mul_overflow(bits, std::max<int64_t>(dim, 1), &bits))
        return invalid_argument("the tensor is too large");
      dims.push_back(dim);
    } while (line.accept(','));
    WEFT_RETURN_IF_ERROR(line.expect(']'));
  }
  if (dims.size() > Shape::kMaxRank) {
    return invalid_argument(fmt::format("{} dimensions, at most {}", dims.size(), Shape::kMaxRank));
  }
  if (dims.empty() && type.rows != Rows::kStatic) return invalid_argument("a value of rows needs a first dimension");
  if (bits % 8 != 0) return invalid_argument("the tensor does not fill whole bytes");
  type.tensor.shape = Shape(dims);
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    if (!line.accept_word(mesh_axis_name(static_cast<MeshAxis>(axis)))) continue;
    WEFT_RETURN_IF_ERROR(line.expect(':'));
    if (line.accept_word("partial")) {
      type.placement[axis] = Placement::partial();
    } else if (line.accept_word("shard")) {
      WEFT_RETURN_IF_ERROR(line.expect('('));
      WEFT_ASSIGN_OR_RETURN(const int64_t dim, line.dim());
      WEFT_RETURN_IF_ERROR(line.expect(')'));
      if (dim >= type.shape().rank()) return invalid_argument(fmt::format("there is no dimension {} to shard", dim));
      type.placement[axis] = Placement::sharded(static_cast<int>(dim));
    } else {
      return invalid_argument("a placement is shard(DIM) or partial");
    }
  }
  return type;
}

Status expect_end(LineReader& line) {
  if (line.at_end()) return {};
  WEFT_ASSIGN_OR_RETURN(const std::string found, line.name("the end of the line"));
  return invalid_argument(fmt::format("expected the end of the line, found '{}'", found));
}

Result<ValueId> read_value(LineReader& line, const Graph& graph) {
  WEFT_ASSIGN_OR_RETURN(const std::string name, line.name("a value"));
  const ValueId id = graph.find(name);
  if (id < 0) return invalid_argument(fmt::format("value '{}' is not defined above", name));
  return id;
}

Status read_declaration(LineReader& line, ValueRole role, Graph& graph) {
  WEFT_ASSIGN_OR_RETURN(std::string name, line.name("a name"));
  WEFT_RETURN_IF_ERROR(line.expect(':'));
  WEFT_ASSIGN_OR_RETURN(const ValueType type, read_type(line));
  WEFT_RETURN_IF_ERROR(expect_end(line));
  if (graph.find(name) >= 0) return invalid_argument(fmt::format("value '{}' is defined twice", name));
  return graph.add_value(std::move(name), type, role).status();
}

// A node line whose first word was read: the output's name, if `=` follows, else the op.
Status read_node(LineReader& line, std::string first, Graph& graph) {
  std::string name, op_word = std::move(first);
  if (line.accept('=')) {
    name = std::move(op_word);
    if (graph.find(name) >= 0) return invalid_argument(fmt::format("value '{}' is defined twice", name));
    WEFT_ASSIGN_OR_RETURN(op_word, line.name("an op"));
  }
  WEFT_ASSIGN_OR_RETURN(Op op, op_of_name(op_word));
  WEFT_RETURN_IF_ERROR(line.expect('('));
  std::vector<ValueId> in;
  if (!line.accept(')')) {
    do {
      WEFT_ASSIGN_OR_RETURN(const ValueId id, read_value(line, graph));
      in.push_back(id);
    } while (line.accept(','));
    WEFT_RETURN_IF_ERROR(line.expect(')'));
  }
  std::unordered_map<std::string, std::string> given;
  if (line.accept('{')) {
    do {
      WEFT_ASSIGN_OR_RETURN(std::string key, line.name("an attribute"));
      WEFT_RETURN_IF_ERROR(line.expect('='));
      WEFT_ASSIGN_OR_RETURN(std::string value, line.name("a value of the attribute"));
      if (!given.emplace(key, std::move(value)).second) {
        return invalid_argument(fmt::format("attribute '{}' is given twice", key));
      }
    } while (line.accept(','));
    WEFT_RETURN_IF_ERROR(line.expect('}'));
  }
  WEFT_RETURN_IF_ERROR(set_attributes(op, given));
  std::string region;
  Stream stream = Stream::kCompute;
  if (line.accept_word("in")) {
    WEFT_ASSIGN_OR_RETURN(region, line.name("a region"));
  }
  if (line.accept_word("on")) {
    WEFT_ASSIGN_OR_RETURN(const std::string word, line.name("a stream"));
    const auto at = std::find(std::begin(kStreamNames), std::end(kStreamNames), word);
    if (at == std::end(kStreamNames)) return invalid_argument(fmt::format("unknown stream '{}'", word));
    stream = static_cast<Stream>(at - std::begin(kStreamNames));
  }
  ValueTypes types;
  if (!name.empty()) {
    WEFT_RETURN_IF_ERROR(line.expect(':'));
    do {
      WEFT_ASSIGN_OR_RETURN(const ValueType type, read_type(line));
      types.push_back(type);
    } while (line.accept(','));
  }
  WEFT_RETURN_IF_ERROR(expect_end(line));

  WEFT_ASSIGN_OR_RETURN(const std::vector<ValueId> out,
                        graph.add_node(std::move(op), std::move(in), name, region, stream));
  if (out.size() != types.size()) {
    return invalid_argument(fmt::format("{} has {} outputs, the text has {}", op_word, out.size(), types.size()));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const ValueType& inferred = graph.value(out[i]).type;
    if (inferred == types[i]) continue;
    return invalid_argument(
        fmt::format("output {} of {} is {}, the text says {}", i, op_word, to_string(inferred), to_string(types[i])));
  }
  return {};
}

}  // namespace

Result<Graph> parse_graph(std::string_view text) {
  std::optional<Graph> graph;
  const auto read_line = [&](std::string_view content) -> Status {
    LineReader line(content);
    if (line.at_end() || line.accept('#')) return {};
    WEFT_ASSIGN_OR_RETURN(std::string first, line.name("a name or an op"));
    if (!graph) {
      if (first != "graph") return invalid_argument(fmt::format("expected 'graph NAME' first, found '{}'", first));
      std::string name;
      WEFT_ASSIGN_OR_RETURN(name, line.name("the graph's name"));
      graph.emplace(std::move(name));
      return expect_end(line);
    }
    if (line.next_is('=')) return read_node(line, std::move(first), *graph);  // whatever the value is called
    for (const auto& [role, word] : kRoleNames) {
      if (first == word) return read_declaration(line, role, *graph);
    }
    if (first == "result") {
      WEFT_ASSIGN_OR_RETURN(const ValueId id, read_value(line, *graph));
      graph->mark_result(id);
      return expect_end(line);
    }
    return read_node(line, std::move(first), *graph);
  };
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (Status status = read_line(text.substr(0, end)); !status.ok()) {
      return invalid_argument(fmt::format("graph text, line {}: {}", number, status.message()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!graph) return invalid_argument("graph text: empty, expected 'graph NAME'");
  return *std::move(graph);
}

}  // namespace weft
