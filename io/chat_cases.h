// testdata/chat/*.json: what the releases' own encoders and templates make of random conversations (tools/tokenizer_fixtures.py).
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "io/chat.h"

namespace weft {

inline std::string text_of(const OrderedJson& object, const char* key) { return object.value(key, std::string()); }

inline ChatMessage message_of(const OrderedJson& json) {
  ChatMessage message;
  message.role = parse_chat_role(text_of(json, "role")).value();
  message.content = text_of(json, "content");
  message.reasoning = text_of(json, "reasoning_content");
  message.tool_call_id = text_of(json, "tool_call_id");
  message.task = text_of(json, "task");
  message.unfinished = json.value("wo_eos", false);
  if (json.contains("tools")) message.tools = json["tools"].get<std::vector<OrderedJson>>();
  if (json.contains("response_format")) message.response_format = json["response_format"];
  for (const OrderedJson& call : json.value("tool_calls", OrderedJson::array())) {
    message.tool_calls.push_back({text_of(call, "id"), text_of(call["function"], "name"), text_of(call["function"], "arguments")});
  }
  return message;
}

inline std::vector<ChatMessage> messages_of(const OrderedJson& json) {
  std::vector<ChatMessage> messages;
  for (const OrderedJson& m : json) messages.push_back(message_of(m));
  return messages;
}

inline OrderedJson chat_cases(const std::string& file) {
  std::ifstream in(WEFT_SOURCE_DIR "/testdata/chat/" + file);
  return OrderedJson::parse(std::string(std::istreambuf_iterator<char>(in), {}));
}

}  // namespace weft
