// The chat formats of DeepSeek-V3.2 and GLM.
#include <gtest/gtest.h>

#include "io/chat_cases.h"
#include "io/chat_formats.h"
#include "io/chat_texts.h"

namespace weft {
namespace {

ChatMessage make(ChatRole role, std::string content) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(content);
  return message;
}

std::string rendered(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  const auto prompt = render_chat(messages, options);
  return prompt.ok() ? *prompt : "error: " + prompt.status().message();
}

TEST(ChatFormats, PromptsOfTheEncoderOfV32) {
  const OrderedJson all = chat_cases("deepseek_v32.json");
  ASSERT_GT(all["cases"].size(), 50u);
  for (const OrderedJson& c : all["cases"]) {
    const auto prompt = render_chat(messages_of(c["messages"]), {.thinking = c["thinking"],
                                                                 .drop_thinking = c["drop_thinking"],
                                                                 .add_bos = c["add_bos"],
                                                                 .format = ChatFormat::kDeepseekV32});
    ASSERT_EQ(prompt.ok(), !c["prompt"].is_null()) << prompt.status().message() << "\n" << c.dump();
    if (!prompt.ok()) continue;
    ASSERT_EQ(*prompt, text_of(c, "prompt")) << c.dump();
  }
}

TEST(ChatFormats, AnswersOfTheEncoderOfV32) {
  int parsed_ones = 0;
  const OrderedJson all = chat_cases("deepseek_v32.json");
  for (const OrderedJson& c : all["answers"]) {
    const auto answer =
        parse_chat_answer(text_of(c, "text"), {.thinking = c["thinking"], .format = ChatFormat::kDeepseekV32});
    const OrderedJson& parsed = c["parsed"];
    ASSERT_EQ(answer.ok(), !parsed.is_null()) << answer.status().message() << "\n" << c.dump();
    if (!answer.ok()) continue;
    ++parsed_ones;
    const ChatMessage expect = message_of(parsed);
    EXPECT_EQ(*answer, (ChatAnswer{expect.reasoning, expect.content, expect.tool_calls})) << c.dump();
  }
  EXPECT_GT(parsed_ones, 15);
}

TEST(ChatFormats, PromptsOfTheTemplateOfGlm) {
  const OrderedJson all = chat_cases("glm.json");
  ASSERT_GT(all["cases"].size(), 50u);
  for (const OrderedJson& c : all["cases"]) {
    const ChatOptions options{.thinking = c["thinking"],
                              .effort = c["high_effort"] ? ReasoningEffort::kHigh : ReasoningEffort::kLow,
                              .drop_thinking = c["drop_thinking"],
                              .format = ChatFormat::kGlm52};
    ASSERT_EQ(rendered(messages_of(c["messages"]), options), text_of(c, "prompt")) << c.dump();
  }
}

// What an assistant message of those prompts was made of comes back from its text.
TEST(ChatFormats, AnswersOfGlmComeBack) {
  int with_calls = 0;
  const OrderedJson all = chat_cases("glm.json");
  for (const OrderedJson& c : all["cases"]) {
    const std::vector<ChatMessage> messages = messages_of(c["messages"]);
    for (ChatMessage said : messages) {
      if (said.role != ChatRole::kAssistant) continue;
      const std::string prompt = rendered({said}, {.add_bos = false, .format = ChatFormat::kGlm5});
      const std::string_view start = "<|assistant|><think>";
      ASSERT_TRUE(prompt.starts_with(start)) << prompt;
      // The declared types say that the text "3" is a string; nothing else could.
      std::vector<OrderedJson> tools;
      for (const ToolCall& call : said.tool_calls) {
        OrderedJson properties = OrderedJson::object();
        const OrderedJson arguments = OrderedJson::parse(call.arguments);
        for (const auto& item : arguments.items()) {
          if (item.value().is_string()) properties[item.key()] = {{"type", "string"}};
        }
        tools.push_back(
            {{"type", "function"}, {"function", {{"name", call.name}, {"parameters", {{"properties", properties}}}}}});
      }
      if (said.tool_calls.size() > 1) tools.clear();  // of one name, with other types
      for (std::string_view stop : {"<|user|>", "<|observation|>", ""}) {
        const auto answer = parse_chat_answer(prompt.substr(start.size()) + std::string(stop),
                                              {.thinking = true, .format = ChatFormat::kGlm5, .tools = tools});
        ASSERT_TRUE(answer.ok()) << answer.status().message() << "\n" << prompt;
        const bool in_content = said.reasoning.empty() && said.content.find(chat::kThinkEnd) != std::string::npos;
        EXPECT_EQ(answer->reasoning, in_content ? "before" : said.reasoning);
        ASSERT_EQ(answer->tool_calls.size(), said.tool_calls.size());
        for (size_t i = 0; i < said.tool_calls.size(); ++i) {
          EXPECT_EQ(answer->tool_calls[i].name, said.tool_calls[i].name);
          EXPECT_EQ(OrderedJson::parse(answer->tool_calls[i].arguments),
                    OrderedJson::parse(said.tool_calls[i].arguments))
              << prompt;
          ++with_calls;
        }
      }
    }
  }
  EXPECT_GT(with_calls, 20);
}

TEST(ChatFormats, GlmExamples) {
  const ChatMessage hello = make(ChatRole::kUser, "Hello"), system = make(ChatRole::kSystem, "Be brief.");
  ChatMessage said = make(ChatRole::kAssistant, " Hi. ");
  said.reasoning = "short";
  const ChatOptions glm5{.format = ChatFormat::kGlm5}, glm52{.format = ChatFormat::kGlm52};
  EXPECT_EQ(rendered({hello}, glm5), "[gMASK]<sop><|user|>Hello<|assistant|><think>");
  EXPECT_EQ(rendered({hello}, glm52), "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hello<|assistant|><think>");
  ChatOptions silent = glm52;
  silent.thinking = false;
  EXPECT_EQ(rendered({system, hello}, silent),
            "[gMASK]<sop><|system|>Be brief.<|user|>Hello<|assistant|><think></think>");
  EXPECT_EQ(rendered({hello, said, hello}, glm5),
            "[gMASK]<sop><|user|>Hello<|assistant|><think></think>Hi.<|user|>Hello<|assistant|><think>");
  ChatOptions keep = glm5;
  keep.drop_thinking = false;
  EXPECT_EQ(rendered({hello, said, hello}, keep),
            "[gMASK]<sop><|user|>Hello<|assistant|><think>short</think>Hi.<|user|>Hello<|assistant|><think>");
  said.unfinished = true;
  EXPECT_EQ(rendered({hello, said}, glm5), "[gMASK]<sop><|user|>Hello<|assistant|><think>short</think> Hi. ");
}

TEST(ChatFormats, Refusals) {
  const ChatMessage hello = make(ChatRole::kUser, "Hello");
  ChatMessage task = hello;
  task.task = "title";
  ChatMessage format = make(ChatRole::kSystem, "");
  format.response_format = OrderedJson{{"type", "object"}};
  const struct {
    std::vector<ChatMessage> messages;
    ChatFormat format;
    const char* error;
  } cases[] = {
      {{make(ChatRole::kDeveloper, "x"), hello},
       ChatFormat::kGlm5,
       "message 0 (developer): this format has no such role"},
      {{hello, make(ChatRole::kLatestReminder, "x")},
       ChatFormat::kGlm52,
       "message 1 (latest_reminder): this format has no such role"},
      {{make(ChatRole::kLatestReminder, "x")},
       ChatFormat::kDeepseekV32,
       "message 0 (latest_reminder): this format has no such role"},
      {{task}, ChatFormat::kGlm5, "message 0 (user): this format has no tasks"},
      {{task}, ChatFormat::kDeepseekV32, "message 0 (user): this format has no tasks"},
      {{format, hello}, ChatFormat::kGlm5, "message 0 (system): this format has no response_format"},
      {{hello, make(ChatRole::kTool, "x")}, ChatFormat::kDeepseekV32, "message 1 (tool): answers no tool call"},
      {{hello, make(ChatRole::kAssistant, "x")},
       ChatFormat::kDeepseekV32,
       "message 1 (assistant): needs reasoning or tool calls behind the last question when thinking"},
  };
  for (const auto& c : cases) EXPECT_EQ(rendered(c.messages, {.format = c.format}), std::string("error: ") + c.error);
  const struct {
    const char *text, *error;
  } answers[] = {
      {"no end", "answer: byte 0: expected reasoning that ends with </think>"},
      {"</think><tool_call>f", "answer: byte 19: expected a tool call that ends with </tool_call>"},
      {"</think><tool_call>f<arg_key>k</arg_key>v</tool_call>", "expected <arg_value>"},
      {"</think><tool_call>f<arg_key>k</arg_key><arg_value>1</arg_value><arg_key>k</arg_key><arg_value>1</arg_value></"
       "tool_call>",
       "argument 'k' comes twice"},
      {"</think><tool_call>f</tool_call>text", "expected a tool call or the end"},
  };
  for (const auto& c : answers) {
    const auto answer = parse_chat_answer(c.text, {.format = ChatFormat::kGlm5});
    ASSERT_FALSE(answer.ok()) << c.text;
    EXPECT_NE(answer.status().message().find(c.error), std::string::npos) << answer.status().message();
  }
}

}  // namespace
}  // namespace weft
