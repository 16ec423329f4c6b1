// The chat formats of the models: messages to prompt text, answer text back to its parts.
//
// The text is encoded with every added token recognised (AddedTokens::kAll). DeepSeek-V4, by the docs of the release's encoding/
// folder (DeepSeek-V3.2: chat_deepseek_v32.cc; GLM: chat_glm.cc): B = BOS, E = EOS, U = <｜User｜>, A = <｜Assistant｜>:
//
//   chat                        B S U U1 A </think> A1 E U U2 A </think>
//   thinking, history dropped   B [effort] S U U1 A </think> A1 E U U2 A <think>
//   thinking with tools         B [effort] S{tools} U U1 A <think> R1 </think> A1 {calls} E U {results} A <think>
//
// Several user and tool messages in a row are one turn, joined by a blank line; tool results stand in the order of the
// calls that they answer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "io/tokenizer.h"

namespace weft {

using OrderedJson = nlohmann::ordered_json;  // prompts keep the order of keys

enum class ChatRole { kSystem, kUser, kAssistant, kTool, kDeveloper, kLatestReminder };

std::string_view chat_role_name(ChatRole role);  // "system", ..., "latest_reminder"
std::optional<ChatRole> parse_chat_role(std::string_view name);

struct ToolCall {
  std::string id;  // the caller's name for this call; not part of the prompt, it only orders tool results
  std::string name;
  std::string arguments;  // the text of a JSON object

  bool operator==(const ToolCall&) const = default;
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::string reasoning;                       // assistant
  std::vector<ToolCall> tool_calls;            // assistant
  std::string tool_call_id;                    // tool: which call this answers
  std::vector<OrderedJson> tools;              // system, developer: {"type": "function", "function": {...}}
  std::optional<OrderedJson> response_format;  // system, developer: a JSON schema
  std::string task;                            // user: action, query, authority, domain, title or read_url; "" = none
  bool unfinished = false;                     // assistant: no EOS, the model goes on with this text
};

enum class ChatFormat { kDeepseekV4, kDeepseekV32, kGlm5, kGlm52 };

enum class ReasoningEffort { kLow, kHigh, kMax };

// Which paragraphs an effort stands for. The preview releases know one paragraph, for kMax; from 0731 on it belongs to
// kHigh, and kMax has a stronger one. kLow adds nothing in both.
enum class EffortTexts { kPreview, k0731 };

struct ChatOptions {
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kLow;  // thinking only
  EffortTexts effort_texts = EffortTexts::k0731;
  // Leave out the reasoning of assistant turns (and the developer messages) before the last user turn. A conversation
  // that declares tools always keeps them.
  bool drop_thinking = true;
  bool add_bos = true;  // GLM: [gMASK]<sop>
  ChatFormat format = ChatFormat::kDeepseekV4;
};

// Errors name the message by its place, from 0.
Result<std::string> render_chat(std::span<const ChatMessage> messages, const ChatOptions& options);

// render_chat, then encode; an error if a special token of the prompt is not one token of this tokenizer.
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                         const ChatOptions& options);

struct ChatAnswer {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;  // ids empty

  bool operator==(const ChatAnswer&) const = default;
};

struct AnswerOptions {
  bool thinking = true;     // the prompt ended with <think>
  bool require_eos = true;  // false: the caller has cut the EOS token off; GLM: its stop tokens may be there or not
  ChatFormat format = ChatFormat::kDeepseekV4;
  std::span<const OrderedJson> tools = {};  // GLM: the types of their arguments; without them by the look of a value
};

// DeepSeek: strict; whatever is not the exact format is an error that says what was expected and where (byte).
Result<ChatAnswer> parse_chat_answer(std::string_view text, const AnswerOptions& options);

// The fixed texts of the format (io/chat_texts.cc).
std::string_view chat_effort_text(ReasoningEffort effort, EffortTexts texts);
std::string chat_tools_text(std::span<const OrderedJson> tools);

// JSON as the release's encoder writes it: ", " and ": " between items, non-ASCII kept, numbers as Python prints them.
std::string python_json(const OrderedJson& value);

}  // namespace weft
