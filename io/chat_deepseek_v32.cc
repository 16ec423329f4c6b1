// The chat format of DeepSeek-V3.2 (glm_moe_dsa.md 6), as the release's encoding folder defines it. With the names of
// chat.h:
//
//   chat            B S U U1 A </think> A1 E U U2 A </think>
//   thinking        B S U U1 A </think> A1 E U U2 A <think>
//   tools           B S{tools} U U1 A <think> R1 </think> A1 {calls} E {results} <think>
//
// Reasoning stays only behind the last question; results stand in the order of their calls.
#include <algorithm>

#include <fmt/format.h>

#include "io/chat_formats.h"
#include "io/chat_texts.h"

namespace weft::chat {
namespace {

// Around the schemas of the tools, one a line.
constexpr std::string_view kV32ToolsHead =
    "## Tools\n"
    "\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following as part of your reply "
    "to the user:\n"
    "<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects "
    "should use JSON "
    "format. The \"string\" attribute should be set to \"true\" for string type parameters and \"false\" for other "
    "types (numbers, "
    "booleans, arrays, objects).\n"
    "\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking "
    "block. Here is "
    "an example:\n"
    "\n"
    "<｜DSML｜function_calls>\n"
    "...\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n"
    "\n"
    "<think>...thinking about results</think>\n"
    "\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n";
constexpr std::string_view kV32ToolsTail = "\n</functions>\n";

bool asks(const ChatMessage& message) {
  return message.role == ChatRole::kUser || message.role == ChatRole::kDeveloper;
}

// Tools and the format of the answer, each behind a blank line.
std::string declarations(const ChatMessage& message) {
  std::string out;
  if (!message.tools.empty()) {
    out += "\n\n";
    out += kV32ToolsHead;
    std::string_view separator;
    for (const OrderedJson& tool : message.tools) {
      out += separator;
      out += python_json(tool.at("function"));
      separator = "\n";
    }
    out += kV32ToolsTail;
  }
  if (message.response_format) out += fmt::format("\n\n{}{}", kResponseFormat, python_json(*message.response_format));
  return out;
}

class Renderer {
 public:
  Renderer(Messages messages, const ChatOptions& options) : options_(options) {
    size_t last = messages.size();
    while (last > 0 && !asks(messages[last - 1])) --last;
    for (size_t i = 0; i < messages.size(); ++i) {
      // Developer messages before the last question are dropped with the reasoning.
      const bool dropped =
          options.thinking && options.drop_thinking && i + 1 < last && messages[i].role == ChatRole::kDeveloper;
      if (!dropped) messages_.push_back({i, &messages[i]});
    }
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (asks(*messages_[i].message)) last_question_ = static_cast<ptrdiff_t>(i);
    }
  }

  Result<std::string> run() {
    if (options_.add_bos) out_ += kBos;
    for (size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& message = *messages_[i].message;
      switch (message.role) {
        case ChatRole::kSystem: out_ += message.content + declarations(message); break;
        case ChatRole::kDeveloper:
          ask(i, fmt::format("{}\n\n# The user's message is: {}", declarations(message), message.content));
          break;
        case ChatRole::kUser: ask(i, message.content); break;
        case ChatRole::kTool: WEFT_RETURN_IF_ERROR(result(i)); break;
        case ChatRole::kAssistant: WEFT_RETURN_IF_ERROR(answer(i)); break;
        case ChatRole::kLatestReminder: return error(i, "this format has no such role");
      }
      if (!message.task.empty()) return error(i, "this format has no tasks");
    }
    return std::move(out_);
  }

 private:
  struct Place {
    size_t index;  // among all messages
    const ChatMessage* message;
  };

  Status error(size_t i, std::string_view what) const {
    return message_error(messages_[i].index, *messages_[i].message, what);
  }
  std::string_view think(bool thinks) const { return options_.thinking && thinks ? kThink : kThinkEnd; }

  void ask(size_t i, std::string_view content) {
    out_ += fmt::format("{}{}{}{}", kUser, content, kAssistant, think(static_cast<ptrdiff_t>(i) == last_question_));
  }

  Status result(size_t i) {
    size_t answer = i;
    while (answer > 0 && messages_[answer].message->role == ChatRole::kTool) --answer;
    const std::vector<ToolCall>& calls = messages_[answer].message->tool_calls;
    const size_t number = i - answer;  // from 1
    if (messages_[answer].message->role != ChatRole::kAssistant || number > calls.size())
      return error(i, "answers no tool call");
    if (number == 1) out_ += "\n\n<function_results>";
    out_ += fmt::format("\n<result>{}</result>", messages_[i].message->content);
    if (number == calls.size()) {
      out_ += fmt::format("\n</function_results>\n\n{}", think(static_cast<ptrdiff_t>(i) >= last_question_));
    }
    return {};
  }

  Status answer(size_t i) {
    const ChatMessage& message = *messages_[i].message;
    if (options_.thinking && static_cast<ptrdiff_t>(i) > last_question_) {
      if (message.reasoning.empty() && message.tool_calls.empty()) {
        return error(i, "needs reasoning or tool calls behind the last question when thinking");
      }
      out_ += message.reasoning;
      out_ += kThinkEnd;
    }
    out_ += message.content;
    if (!message.tool_calls.empty()) {
      out_ += fmt::format("\n\n{}>", kFunctionCallsOpen);
      for (const ToolCall& call : message.tool_calls) {
        WEFT_ASSIGN_OR_RETURN(const std::string text, dsml_call(call));
        out_ += "\n" + text;
      }
      out_ += fmt::format("\n{}", kFunctionCallsClose);
    }
    if (!message.unfinished) out_ += kEos;
    return {};
  }

  const ChatOptions& options_;
  std::vector<Place> messages_;
  ptrdiff_t last_question_ = -1;
  std::string out_;
};

}  // namespace

Result<std::string> render_deepseek_v32(Messages messages, const ChatOptions& options) {
  for (size_t i = 0; i < messages.size(); ++i) WEFT_RETURN_IF_ERROR(check_message(messages[i], i, messages.size()));
  return Renderer(messages, options).run();
}

std::vector<std::string_view> tokens_of_deepseek_v32(Messages messages, const ChatOptions& options) {
  std::vector<std::string_view> tokens = {kUser, kAssistant, kThink, kThinkEnd, kEos};
  if (options.add_bos) tokens.push_back(kBos);
  const bool tools =
      std::ranges::any_of(messages, [](const ChatMessage& m) { return !m.tools.empty() || !m.tool_calls.empty(); });
  if (tools) tokens.push_back(kDsml);
  return tokens;
}

}  // namespace weft::chat
