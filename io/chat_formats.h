// What the chat formats share, and their parts behind the functions of chat.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat.h"

namespace weft::chat {

// "message 3 (user): what".
Status message_error(size_t index, const ChatMessage& message, std::string_view what);
// What holds in every format.
Status check_message(const ChatMessage& message, size_t index, size_t count);

// The arguments of a tool call: a JSON object.
Result<OrderedJson> call_arguments(const ToolCall& call);
// A call between invoke tags, as DeepSeek-V3.2 and V4 write it.
Result<std::string> dsml_call(const ToolCall& call);

using Messages = std::span<const ChatMessage>;
Result<std::string> render_deepseek_v32(Messages messages, const ChatOptions& options);
Result<std::string> render_glm(Messages messages, const ChatOptions& options);
// Special tokens that the prompt may have.
std::vector<std::string_view> tokens_of_deepseek_v32(Messages messages, const ChatOptions& options);
std::vector<std::string_view> tokens_of_glm(Messages messages, const ChatOptions& options);

Result<ChatAnswer> parse_glm_answer(std::string_view text, const AnswerOptions& options);

// Of DeepSeek-V3.2: around the tool calls, and around their results.
inline constexpr std::string_view kFunctionCallsOpen = "<｜DSML｜function_calls";
inline constexpr std::string_view kFunctionCallsClose = "</｜DSML｜function_calls>";

// Of GLM.
inline constexpr std::string_view kToolCallOpen = "<tool_call>", kToolCallClose = "</tool_call>";
inline constexpr std::string_view kArgKeyOpen = "<arg_key>", kArgKeyClose = "</arg_key>";
inline constexpr std::string_view kArgValueOpen = "<arg_value>", kArgValueClose = "</arg_value>";
inline constexpr std::string_view kGlmStops[] = {"<|user|>", "<|observation|>", "<|endoftext|>"};

}  // namespace weft::chat
