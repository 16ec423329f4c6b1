// The chat format of GLM-5, 5.1 and 5.2 (glm_moe_dsa.md 6), as the template of the releases defines it:
//
//   [gMASK]<sop> <|system|>Reasoning Effort: Max <|system|>{tools} <|system|>S <|user|>U1
//   <|assistant|><think></think>A1 <|user|>U2 <|assistant|><think>R2</think>A2 {calls} <|observation|>{results}
//   <|assistant|><think>
//
// without blanks between the parts. The effort is there in 5.2 alone, when thinking. Reasoning stays only behind the
// last question (or everywhere: drop_thinking off). Nothing ends an answer but the token that begins the next message.
#include <algorithm>

#include <fmt/format.h>

#include "io/chat_formats.h"
#include "io/chat_texts.h"
#include "io/json.h"
#include "io/unicode_utf8.h"

namespace weft::chat {
namespace {

constexpr std::string_view kPrefix[] = {"[gMASK]", "<sop>"};
constexpr std::string_view kGlmSystem = "<|system|>", kGlmUser = "<|user|>", kGlmAssistant = "<|assistant|>",
                           kObservation = "<|observation|>", kResponseOpen = "<tool_response>",
                           kResponseClose = "</tool_response>";

// Around the schemas of the tools, each in a line of its own.
constexpr std::string_view kGlmToolsHead =
    "\n# Tools\n"
    "\n"
    "You may call one or more functions to assist with the user query.\n"
    "\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n";
constexpr std::string_view kGlmToolsTail =
    "</tools>\n"
    "\n"
    "For each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</"
    "arg_key>"
    "<arg_value>{arg-value-2}</arg_value>...</tool_call>";

// What Python's str.strip() takes off.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view stripped(std::string_view text) {
  size_t begin = 0, end = 0;  // of what is not white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(at));
    const bool space = unit.kind == Utf8Unit::Kind::kCharacter && is_space(unit.code_point);
    at += unit.size;
    if (space && end == 0) begin = at;
    if (!space) end = at;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

std::string tool_text(const OrderedJson& tool) {
  OrderedJson shown = tool.at("function");
  for (const char* hidden : {"defer_loading", "strict"}) shown.erase(hidden);
  return python_json(shown);
}

bool is_deferred(const OrderedJson& tool) {
  const auto flag = tool.at("function").find("defer_loading");
  return flag != tool.at("function").end() && flag->is_boolean() && flag->get<bool>();
}

Result<std::string> call_text(const ToolCall& call) {
  WEFT_ASSIGN_OR_RETURN(const OrderedJson arguments, call_arguments(call));
  std::string out = fmt::format("{}{}", kToolCallOpen, call.name);
  for (const auto& item : arguments.items()) {
    out += fmt::format("{}{}{}{}{}{}", kArgKeyOpen, item.key(), kArgKeyClose, kArgValueOpen,
                       item.value().is_string() ? item.value().get<std::string>() : python_json(item.value()),
                       kArgValueClose);
  }
  return out + std::string(kToolCallClose);
}

Status check(const ChatMessage& message, size_t index, size_t count) {
  WEFT_RETURN_IF_ERROR(check_message(message, index, count));
  if (message.role == ChatRole::kDeveloper || message.role == ChatRole::kLatestReminder) {
    return message_error(index, message, "this format has no such role");
  }
  if (!message.task.empty()) return message_error(index, message, "this format has no tasks");
  if (message.response_format) return message_error(index, message, "this format has no response_format");
  return {};
}

}  // namespace

Result<std::string> render_glm(Messages messages, const ChatOptions& options) {
  std::string out;
  if (options.add_bos) out = fmt::format("{}{}", kPrefix[0], kPrefix[1]);
  if (options.thinking && options.format == ChatFormat::kGlm52) {
    out += fmt::format("{}Reasoning Effort: {}", kGlmSystem, options.effort == ReasoningEffort::kHigh ? "High" : "Max");
  }
  ptrdiff_t last_question = -1;
  std::string tools;
  bool has_tools = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    WEFT_RETURN_IF_ERROR(check(messages[i], i, messages.size()));
    if (messages[i].role == ChatRole::kUser) last_question = static_cast<ptrdiff_t>(i);
    has_tools = has_tools || !messages[i].tools.empty();
    for (const OrderedJson& tool : messages[i].tools) {
      if (!is_deferred(tool)) tools += tool_text(tool) + "\n";
    }
  }
  if (has_tools) out += fmt::format("{}{}{}{}", kGlmSystem, kGlmToolsHead, tools, kGlmToolsTail);

  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    switch (message.role) {
      case ChatRole::kSystem: out += fmt::format("{}{}", kGlmSystem, message.content); break;
      case ChatRole::kUser: out += fmt::format("{}{}", kGlmUser, message.content); break;
      case ChatRole::kTool:
        if (i == 0 || messages[i - 1].role != ChatRole::kTool) out += kObservation;
        out += fmt::format("{}{}{}", kResponseOpen, message.content, kResponseClose);
        break;
      default: {
        std::string_view reasoning = message.reasoning, content = message.content;
        if (const size_t end = content.rfind(kThinkEnd);
            reasoning.empty() && end != content.npos) {  // both in one text
          reasoning = content.substr(0, content.find(kThinkEnd));
          if (const size_t begin = reasoning.rfind(kThink); begin != reasoning.npos)
            reasoning.remove_prefix(begin + kThink.size());
          content.remove_prefix(end + kThinkEnd.size());
        }
        const bool shown = !options.drop_thinking || static_cast<ptrdiff_t>(i) > last_question;
        out += fmt::format("{}{}{}{}{}", kGlmAssistant, kThink, shown ? reasoning : std::string_view(), kThinkEnd,
                           message.unfinished ? content : stripped(content));
        for (const ToolCall& call : message.tool_calls) {
          WEFT_ASSIGN_OR_RETURN(const std::string text, call_text(call));
          out += text;
        }
      }
    }
  }
  if (messages.empty() || messages.back().role != ChatRole::kAssistant) {
    out += fmt::format("{}{}{}", kGlmAssistant, kThink, options.thinking ? std::string_view() : kThinkEnd);
  }
  return out;
}

std::vector<std::string_view> tokens_of_glm(Messages messages, const ChatOptions& options) {
  std::vector<std::string_view> tokens = {kGlmUser, kGlmAssistant, kThink, kThinkEnd};
  if (options.add_bos) tokens.insert(tokens.end(), std::begin(kPrefix), std::end(kPrefix));
  const auto any = [&](auto&& has) { return std::ranges::any_of(messages, has); };
  const bool system = any([](const ChatMessage& m) { return m.role == ChatRole::kSystem || !m.tools.empty(); });
  if (system || (options.thinking && options.format == ChatFormat::kGlm52)) tokens.push_back(kGlmSystem);
  if (any([](const ChatMessage& m) { return m.role == ChatRole::kTool; })) {
    tokens.insert(tokens.end(), {kObservation, kResponseOpen, kResponseClose});
  }
  if (any([](const ChatMessage& m) { return !m.tool_calls.empty(); })) {
    tokens.insert(tokens.end(),
                  {kToolCallOpen, kToolCallClose, kArgKeyOpen, kArgKeyClose, kArgValueOpen, kArgValueClose});
  }
  return tokens;
}

namespace {

class AnswerParser {
 public:
  AnswerParser(std::string_view text, const AnswerOptions& options) : text_(text), options_(options) {}

  Result<ChatAnswer> run() {
    for (std::string_view stop : kGlmStops) {  // the token that ended the answer may still be there
      if (text_.ends_with(stop)) {
        text_.remove_suffix(stop.size());
        break;
      }
    }
    if (options_.thinking) {
      const size_t end = text_.find(kThinkEnd);
      if (end == text_.npos) return error("expected reasoning that ends with </think>");
      answer_.reasoning = text_.substr(0, end);
      at_ = end + kThinkEnd.size();
    }
    const size_t calls = std::min(text_.find(kToolCallOpen, at_), text_.size());
    answer_.content = stripped(text_.substr(at_, calls - at_));
    at_ = calls;
    while (at_ < text_.size()) WEFT_RETURN_IF_ERROR(call());
    return std::move(answer_);
  }

 private:
  Status error(std::string_view what) const {
    constexpr size_t kShown = 40;
    return invalid_argument(
        fmt::format("answer: byte {}: {}, found {}", at_, what,
                    at_ == text_.size() ? std::string("the end") : fmt::format("'{}'", text_.substr(at_, kShown))));
  }

  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  // What stands before a token, which is taken too.
  Result<std::string_view> until(std::string_view token) {
    const size_t end = text_.find(token, at_);
    if (end == text_.npos) return error(fmt::format("expected text that ends with {}", token));
    const std::string_view text = text_.substr(at_, end - at_);
    at_ = end + token.size();
    return text;
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  Status call() {
    if (!take(kToolCallOpen)) return error("expected a tool call or the end");
    ToolCall call;
    const size_t end = std::min(text_.find(kArgKeyOpen, at_), text_.find(kToolCallClose, at_));
    if (end == text_.npos) return error("expected a tool call that ends with </tool_call>");
    call.name = stripped(text_.substr(at_, end - at_));
    at_ = end;
    std::vector<std::string> names;
    while (take(kArgKeyOpen)) {
      WEFT_ASSIGN_OR_RETURN(const std::string_view key, until(kArgKeyClose));
      skip_space();
      if (!take(kArgValueOpen)) return error("expected <arg_value>");
      WEFT_ASSIGN_OR_RETURN(const std::string_view value, until(kArgValueClose));
      skip_space();
      const std::string name(key);
      if (std::ranges::find(names, name) != names.end()) return error(fmt::format("argument '{}' comes twice", name));
      names.push_back(name);
      call.arguments += fmt::format("{}{}: {}", call.arguments.empty() ? "" : ", ", python_json(name),
                                    json_of(call.name, name, value));
    }
    if (!take(kToolCallClose)) return error("expected <arg_key> or </tool_call>");
    skip_space();
    call.arguments = "{" + call.arguments + "}";
    answer_.tool_calls.push_back(std::move(call));
    return {};
  }

  // Strings are written as they are, other values as JSON: the tool's schema says which, or else what the text can be.
  std::string json_of(std::string_view tool, const std::string& name, std::string_view value) const {
    const std::string as_string = python_json(std::string(value));
    for (const OrderedJson& known : options_.tools) {
      const auto at = [](const OrderedJson* json, const char* key) {
        if (json == nullptr || !json->is_object()) return static_cast<const OrderedJson*>(nullptr);
        const auto found = json->find(key);
        return found == json->end() ? nullptr : &*found;
      };
      const OrderedJson* function = at(&known, "function");
      const OrderedJson* known_name = at(function, "name");
      if (known_name == nullptr || *known_name != std::string(tool)) continue;
      const OrderedJson* type = at(at(at(at(function, "parameters"), "properties"), name.c_str()), "type");
      if (type != nullptr && *type == "string") return as_string;
    }
    const OrderedJson parsed = OrderedJson::parse(value, nullptr, /*allow_exceptions=*/false);
    return parsed.is_discarded() || parsed.is_string() || !parse_json(value, "argument").ok() ? as_string
                                                                                              : std::string(value);
  }

  std::string_view text_;
  const AnswerOptions& options_;
  size_t at_ = 0;
  ChatAnswer answer_;
};

}  // namespace

Result<ChatAnswer> parse_glm_answer(std::string_view text, const AnswerOptions& options) {
  return AnswerParser(text, options).run();
}

}  // namespace weft::chat
