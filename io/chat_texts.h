// Strings of the DeepSeek-V4 chat format, as the releases' encoding/encoding_dsv4.py writes them. They are part of what
// the models were trained on: every byte counts. chat_texts_test.cc holds their lengths and SHA-256.
#pragma once

#include <string_view>

namespace weft::chat {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

inline constexpr std::string_view kToolCallsOpen = "<｜DSML｜tool_calls";
inline constexpr std::string_view kToolCallsClose = "</｜DSML｜tool_calls>";
inline constexpr std::string_view kInvokeOpen = "<｜DSML｜invoke";
inline constexpr std::string_view kInvokeClose = "</｜DSML｜invoke";
inline constexpr std::string_view kParameterOpen = "<｜DSML｜parameter";
inline constexpr std::string_view kParameterClose = "</｜DSML｜parameter";

inline constexpr std::string_view kResultOpen = "<tool_result>";
inline constexpr std::string_view kResultClose = "</tool_result>";

// Before the JSON schema of a response format.
inline constexpr std::string_view kResponseFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// Around the schemas of the tools, one a line.
extern const std::string_view kToolsHead, kToolsTail;

// The preview releases' `max`, and `high` since 0731.
extern const std::string_view kEffortAbsolute;
// `max` since 0731.
extern const std::string_view kEffortBeyond;

// A message's task and the token that asks for it.
struct Task {
  std::string_view name, token;
};
inline constexpr Task kTasks[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

}  // namespace weft::chat
