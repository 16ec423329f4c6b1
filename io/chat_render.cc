#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "io/chat_formats.h"
#include "io/chat_texts.h"
#include "io/json.h"

namespace weft {
namespace {

constexpr std::pair<ChatRole, std::string_view> kRoles[] = {
    {ChatRole::kSystem, "system"}, {ChatRole::kUser, "user"},           {ChatRole::kAssistant, "assistant"},
    {ChatRole::kTool, "tool"},     {ChatRole::kDeveloper, "developer"}, {ChatRole::kLatestReminder, "latest_reminder"},
};

// What a user turn is made of: user messages and tool results, in their order.
struct Block {
  const ChatMessage* message;
  bool is_result() const { return message->role == ChatRole::kTool; }
};

// A message, or several user and tool messages that became one user turn.
struct Turn {
  ChatRole role;
  const ChatMessage* message;  // the first one
  std::vector<Block> blocks;   // user turns
  std::string task;
};

using chat::message_error;

const chat::Task* find_task(std::string_view name) {
  const auto* it = std::ranges::find(chat::kTasks, name, &chat::Task::name);
  return it == std::end(chat::kTasks) ? nullptr : it;
}

std::string task_names() {
  std::string names;
  for (const chat::Task& task : chat::kTasks) names += fmt::format("{}{}", names.empty() ? "" : ", ", task.name);
  return names;
}

// Joins user and tool messages. A task ends its turn: what follows is a new one.
Result<std::vector<Turn>> join_turns(std::span<const ChatMessage> messages) {
  std::vector<Turn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    WEFT_RETURN_IF_ERROR(chat::check_message(message, i, messages.size()));
    const bool in_user_turn = message.role == ChatRole::kUser || message.role == ChatRole::kTool;
    if (!in_user_turn) {
      turns.push_back({message.role, &message, {}, message.task});
      continue;
    }
    const bool open = !turns.empty() && turns.back().role == ChatRole::kUser;
    if (!open) {
      turns.push_back({ChatRole::kUser, &message, {{&message}}, message.task});
    } else if (!turns.back().task.empty()) {
      return message_error(i, message, "follows a message with a task, which only an answer can follow");
    } else if (!message.task.empty()) {
      return message_error(i, message, "a task must stand in the first message of its turn");
    } else {
      turns.back().blocks.push_back({&message});
    }
  }
  return turns;
}

// Tool results stand in the order of the calls that they answer; text between them keeps its place.
void sort_results(std::vector<Turn>& turns) {
  std::map<std::string_view, size_t> order;
  for (Turn& turn : turns) {
    if (turn.role == ChatRole::kAssistant && !turn.message->tool_calls.empty()) {
      order.clear();
      const auto& calls = turn.message->tool_calls;
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].id.empty()) order[calls[i].id] = i;
      }
    }
    if (turn.role != ChatRole::kUser || order.empty()) continue;
    const auto place = [&](const Block& block) {
      const auto it = order.find(block.message->tool_call_id);
      return it == order.end() ? 0 : it->second;
    };
    std::vector<Block> results;
    std::ranges::copy_if(turn.blocks, std::back_inserter(results), &Block::is_result);
    std::ranges::stable_sort(results, {}, place);
    auto next = results.begin();
    for (Block& block : turn.blocks) {
      if (block.is_result()) block = *next++;
    }
  }
}

bool starts_answer(const Turn& turn) { return turn.role == ChatRole::kUser || turn.role == ChatRole::kDeveloper; }

// Index of the last user or developer turn; -1 if there is none.
ptrdiff_t last_question(const std::vector<Turn>& turns) {
  const auto it = std::ranges::find_if(turns.rbegin(), turns.rend(), starts_answer);
  return turns.rend() - it - 1;
}

std::string declarations(const ChatMessage& message) {
  std::string out;
  if (!message.tools.empty()) out += "\n\n" + chat_tools_text(message.tools);
  if (message.response_format) {
    out += fmt::format("\n\n{}{}", chat::kResponseFormat, python_json(*message.response_format));
  }
  return out;
}

class Renderer {
 public:
  Renderer(std::vector<Turn> turns, const ChatOptions& options) : turns_(std::move(turns)), options_(options) {
    drop_ =
        options.drop_thinking && std::ranges::none_of(turns_, [](const Turn& t) { return !t.message->tools.empty(); });
    if (options_.thinking && drop_) {
      // Developer turns before the last question go with the reasoning.
      const ptrdiff_t last = last_question(turns_);
      std::vector<Turn> kept;
      for (size_t i = 0; i < turns_.size(); ++i) {
        if (turns_[i].role != ChatRole::kDeveloper || static_cast<ptrdiff_t>(i) >= last) kept.push_back(turns_[i]);
      }
      turns_ = std::move(kept);
    }
    last_question_ = last_question(turns_);
  }

  Result<std::string> run() {
    if (options_.add_bos) out_ += chat::kBos;
    if (options_.thinking && !turns_.empty()) out_ += chat_effort_text(options_.effort, options_.effort_texts);
    for (size_t i = 0; i < turns_.size(); ++i) {
      WEFT_RETURN_IF_ERROR(write_turn(i));
      WEFT_RETURN_IF_ERROR(write_transition(i));
    }
    return std::move(out_);
  }

 private:
  bool has_reasoning(size_t i) const { return !drop_ || static_cast<ptrdiff_t>(i) > last_question_; }

  Status write_turn(size_t i) {
    const Turn& turn = turns_[i];
    const ChatMessage& message = *turn.message;
    switch (turn.role) {
      case ChatRole::kSystem: out_ += message.content + declarations(message); break;
      case ChatRole::kDeveloper:
        out_ += fmt::format("{}{}{}", chat::kUser, message.content, declarations(message));
        break;
      case ChatRole::kLatestReminder: out_ += fmt::format("{}{}", chat::kLatestReminder, message.content); break;
      case ChatRole::kAssistant: return write_assistant(i);
      default: write_user(turn); break;
    }
    return {};
  }

  void write_user(const Turn& turn) {
    out_ += chat::kUser;
    std::string_view separator;
    for (const Block& block : turn.blocks) {
      out_ += separator;
      if (block.is_result()) out_ += chat::kResultOpen;
      out_ += block.message->content;
      if (block.is_result()) out_ += chat::kResultClose;
      separator = "\n\n";
    }
  }

  Status write_assistant(size_t i) {
    const ChatMessage& message = *turns_[i].message;
    const bool answers_task = i > 0 && !turns_[i - 1].task.empty();
    if (options_.thinking && !answers_task && has_reasoning(i)) {
      out_ += message.reasoning;
      out_ += chat::kThinkEnd;
    }
    out_ += message.content;
    if (!message.tool_calls.empty()) {
      out_ += fmt::format("\n\n{}>\n", chat::kToolCallsOpen);
      for (const ToolCall& call : message.tool_calls) {
        WEFT_ASSIGN_OR_RETURN(const std::string text, chat::dsml_call(call));
        out_ += text + "\n";
      }
      out_ += chat::kToolCallsClose;
    }
    if (!message.unfinished) out_ += chat::kEos;
    return {};
  }

  // What stands between a turn and the answer to it.
  Status write_transition(size_t i) {
    const Turn& turn = turns_[i];
    if (i + 1 < turns_.size() && turns_[i + 1].role != ChatRole::kAssistant &&
        turns_[i + 1].role != ChatRole::kLatestReminder) {
      if (turn.task.empty()) return {};
      return invalid_argument(fmt::format("task '{}': only an answer can follow it", turn.task));
    }
    const std::string_view think = options_.thinking ? chat::kThink : chat::kThinkEnd;
    if (!turn.task.empty()) {
      if (turn.task == "action") out_ += fmt::format("{}{}", chat::kAssistant, think);
      out_ += find_task(turn.task)->token;
    } else if (starts_answer(turn)) {
      const bool thinks = !drop_ || static_cast<ptrdiff_t>(i) >= last_question_;
      out_ += fmt::format("{}{}", chat::kAssistant, thinks ? think : chat::kThinkEnd);
    }
    return {};
  }

  std::vector<Turn> turns_;
  const ChatOptions& options_;
  bool drop_ = false;
  ptrdiff_t last_question_ = -1;
  std::string out_;
};

// The special tokens that a conversation's prompt is made of.
std::vector<std::string_view> needed_tokens(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (options.format == ChatFormat::kDeepseekV32) return chat::tokens_of_deepseek_v32(messages, options);
  if (options.format != ChatFormat::kDeepseekV4) return chat::tokens_of_glm(messages, options);
  std::vector<std::string_view> tokens = {chat::kUser, chat::kAssistant, chat::kThink, chat::kThinkEnd, chat::kEos};
  if (options.add_bos) tokens.push_back(chat::kBos);
  for (const ChatMessage& message : messages) {
    if (!message.tools.empty() || !message.tool_calls.empty()) tokens.push_back(chat::kDsml);
    if (message.role == ChatRole::kLatestReminder) tokens.push_back(chat::kLatestReminder);
    if (const chat::Task* task = find_task(message.task)) tokens.push_back(task->token);
  }
  return tokens;
}

}  // namespace

namespace chat {

Status message_error(size_t index, const ChatMessage& message, std::string_view what) {
  return invalid_argument(fmt::format("message {} ({}): {}", index, chat_role_name(message.role), what));
}

Status check_message(const ChatMessage& message, size_t index, size_t count) {
  const ChatRole role = message.role;
  const auto error = [&](std::string_view what) { return message_error(index, message, what); };
  if (role != ChatRole::kAssistant &&
      (!message.tool_calls.empty() || !message.reasoning.empty() || message.unfinished)) {
    return error("reasoning, tool calls and unfinished texts belong to assistant messages");
  }
  const bool declares = role == ChatRole::kSystem || role == ChatRole::kDeveloper;
  if (!declares && (!message.tools.empty() || message.response_format)) {
    return error("tools and response_format belong to system and developer messages");
  }
  for (const OrderedJson& tool : message.tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (function == tool.end() || !function->is_object()) return error("a tool needs an object \"function\"");
  }
  if (role == ChatRole::kDeveloper && message.content.empty()) return error("needs a content");
  if (message.unfinished && index + 1 != count) return error("only the last message may be unfinished");
  if (message.task.empty()) return {};
  if (role != ChatRole::kUser && role != ChatRole::kDeveloper) return error("a task belongs to a user message");
  if (find_task(message.task) == nullptr) {
    return error(fmt::format("task '{}' is not one of {}", message.task, task_names()));
  }
  return {};
}

Result<OrderedJson> call_arguments(const ToolCall& call) {
  const std::string where = fmt::format("arguments of the tool call '{}'", call.name);
  WEFT_RETURN_IF_ERROR(parse_json(call.arguments, where).status());
  OrderedJson arguments = OrderedJson::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) return invalid_argument(where + ": expected a JSON object");
  return arguments;
}

Result<std::string> dsml_call(const ToolCall& call) {
  std::string out = fmt::format("{} name=\"{}\">\n", kInvokeOpen, call.name);
  WEFT_ASSIGN_OR_RETURN(const OrderedJson arguments, call_arguments(call));
  std::string_view separator;
  for (const auto& item : arguments.items()) {
    const bool is_string = item.value().is_string();
    out += fmt::format("{}{} name=\"{}\" string=\"{}\">{}{}>", separator, kParameterOpen, item.key(), is_string,
                       is_string ? item.value().get<std::string>() : python_json(item.value()), kParameterClose);
    separator = "\n";
  }
  return out + fmt::format("\n{}>", kInvokeClose);
}

}  // namespace chat

std::string_view chat_role_name(ChatRole role) {
  return std::ranges::find(kRoles, role, &std::pair<ChatRole, std::string_view>::first)->second;
}

std::optional<ChatRole> parse_chat_role(std::string_view name) {
  const auto* it = std::ranges::find(kRoles, name, &std::pair<ChatRole, std::string_view>::second);
  return it == std::end(kRoles) ? std::nullopt : std::optional(it->first);
}

std::string_view chat_effort_text(ReasoningEffort effort, EffortTexts texts) {
  if (texts == EffortTexts::kPreview) return effort == ReasoningEffort::kMax ? chat::kEffortAbsolute : "";
  switch (effort) {
    case ReasoningEffort::kLow: return "";
    case ReasoningEffort::kHigh: return chat::kEffortAbsolute;
    case ReasoningEffort::kMax: return chat::kEffortBeyond;
  }
  return "";
}

std::string chat_tools_text(std::span<const OrderedJson> tools) {
  std::string out(chat::kToolsHead);
  std::string_view separator;
  for (const OrderedJson& tool : tools) {
    out += separator;
    out += python_json(tool.at("function"));
    separator = "\n";
  }
  out += chat::kToolsTail;
  return out;
}

Result<std::string> render_chat(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (options.format == ChatFormat::kDeepseekV32) return chat::render_deepseek_v32(messages, options);
  if (options.format != ChatFormat::kDeepseekV4) return chat::render_glm(messages, options);
  WEFT_ASSIGN_OR_RETURN(std::vector<Turn> turns, join_turns(messages));
  sort_results(turns);
  return Renderer(std::move(turns), options).run();
}

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                         const ChatOptions& options) {
  for (std::string_view text : needed_tokens(messages, options)) {
    const std::optional<TokenId> id = tokenizer.find_token(text);
    if (!id || !tokenizer.is_added(*id)) {
      return invalid_argument(
          fmt::format("this tokenizer has no special token '{}', which the chat format needs here", text));
    }
  }
  WEFT_ASSIGN_OR_RETURN(const std::string prompt, render_chat(messages, options));
  return tokenizer.encode(prompt);
}

}  // namespace weft
