#include "io/chat.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "io/chat_cases.h"
#include "io/chat_texts.h"

namespace weft {
namespace {

std::string sha256(std::string_view text) {
  // FIPS 180-4. The constants are the first 32 bits of the fractional parts of cube and square roots of primes.
  std::array<uint32_t, 64> k{};
  std::array<uint32_t, 8> h{};
  int primes = 0;
  for (int n = 2; primes < 64; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const auto fraction = [](long double x) { return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L); };
    k[static_cast<size_t>(primes)] = fraction(std::cbrt(static_cast<long double>(n)));
    if (primes < 8) h[static_cast<size_t>(primes)] = fraction(std::sqrt(static_cast<long double>(n)));
    ++primes;
  }
  std::string data(text);
  data += '\x80';
  while (data.size() % 64 != 56) data += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) data += static_cast<char>((text.size() * 8) >> shift);
  for (size_t block = 0; block < data.size(); block += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 64; ++i)
      w[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(data[block + i])) << (24 - 8 * (i % 4));
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::array<uint32_t, 8> s = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const uint32_t t1 = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const uint32_t s0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const uint32_t t2 = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string hex;
  for (uint32_t word : h) {
    char part[9];
    std::snprintf(part, sizeof(part), "%08x", word);
    hex += part;
  }
  return hex;
}

TEST(ChatTexts, LengthsAndHashes) {
  ASSERT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string tools = chat_tools_text({});
  EXPECT_EQ(tools.size(), 989u);
  EXPECT_EQ(sha256(tools), "c7d3159308f7d076bee8974ece110fda1f92f6e577306e602ba2b466b4dcd904");
  EXPECT_EQ(chat::kEffortAbsolute.size(), 476u);
  EXPECT_EQ(sha256(chat::kEffortAbsolute), "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
  EXPECT_EQ(chat::kEffortBeyond.size(), 528u);
  EXPECT_EQ(sha256(chat::kEffortBeyond), "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c");
}

ChatMessage make(ChatRole role, std::string content) {
  ChatMessage message;
  message.role = role;
  message.content = std::move(content);
  return message;
}
ChatMessage user(std::string text) { return make(ChatRole::kUser, std::move(text)); }
ChatMessage system(std::string text) { return make(ChatRole::kSystem, std::move(text)); }
ChatMessage developer(std::string text) { return make(ChatRole::kDeveloper, std::move(text)); }
ChatMessage reminder(std::string text) { return make(ChatRole::kLatestReminder, std::move(text)); }
ChatMessage assistant(std::string reasoning, std::string text, std::vector<ToolCall> calls = {}) {
  ChatMessage message = make(ChatRole::kAssistant, std::move(text));
  message.reasoning = std::move(reasoning);
  message.tool_calls = std::move(calls);
  return message;
}
ChatMessage unfinished(std::string text) {
  ChatMessage message = make(ChatRole::kAssistant, std::move(text));
  message.unfinished = true;
  return message;
}
ChatMessage tool(std::string id, std::string text) {
  ChatMessage message = make(ChatRole::kTool, std::move(text));
  message.tool_call_id = std::move(id);
  return message;
}
ChatMessage with_format(ChatMessage message, const char* schema) {
  message.response_format = OrderedJson::parse(schema);
  return message;
}
ChatMessage with_task(ChatMessage message, std::string task) {
  message.task = std::move(task);
  return message;
}
const OrderedJson kWeather =
    OrderedJson::parse(R"({"type": "function", "function": {"name": "get_w", "b": 1, "a": [1.0]}})");
ChatMessage with_tools(ChatMessage message) {
  message.tools = {kWeather};
  return message;
}

// The expected strings are written with short names for the special tokens.
std::string spelled(std::string text) {
  const std::pair<std::string_view, std::string> names[] = {
      {"[B]", std::string(chat::kBos)},
      {"[E]", std::string(chat::kEos)},
      {"[U]", std::string(chat::kUser)},
      {"[A]", std::string(chat::kAssistant)},
      {"[T]", std::string(chat::kThink)},
      {"[/T]", std::string(chat::kThinkEnd)},
      {"[R]", std::string(chat::kLatestReminder)},
      {"[D]", std::string(chat::kDsml)},
      {"[high]", std::string(chat::kEffortAbsolute)},
      {"[max]", std::string(chat::kEffortBeyond)},
      {"[tools]", chat_tools_text({&kWeather, 1})},
  };
  for (const auto& [name, value] : names) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size())
      text.replace(at, name.size(), value);
  }
  return text;
}

struct RenderCase {
  const char* what;
  std::vector<ChatMessage> messages;
  ChatOptions options;
  const char* expect;
};

std::vector<RenderCase> render_cases() {
  const ChatOptions chat{.thinking = false}, thinking{}, keep{.drop_thinking = false};
  const auto effort = [](ReasoningEffort e, EffortTexts t, bool think = true) {
    return ChatOptions{.thinking = think, .effort = e, .effort_texts = t};
  };
  const ToolCall call{"c1", "get_w", R"({"c": "x", "n": 3})"}, bare{"c2", "now", "{}"};
  const std::vector<ChatMessage> two = {user("U1"), assistant("R1", "A1"), user("U2")};
  return {
      {"nothing", {}, thinking, "[B]"},
      {"chat", two, chat, "[B][U]U1[A][/T]A1[E][U]U2[A][/T]"},
      {"thinking, history dropped", two, thinking, "[B][U]U1[A][/T]A1[E][U]U2[A][T]"},
      {"thinking, history kept", two, keep, "[B][U]U1[A][T]R1[/T]A1[E][U]U2[A][T]"},
      {"without BOS", {user("U")}, {.add_bos = false}, "[U]U[A][T]"},
      {"thinking with tools",
       {with_tools(system("S")), user("U1"), assistant("R1", "", {call}), tool("c1", "T1")},
       thinking,
       "[B]S\n\n[tools][U]U1[A][T]R1[/T]\n\n<[D]tool_calls>\n<[D]invoke name=\"get_w\">\n"
       "<[D]parameter name=\"c\" string=\"true\">x</[D]parameter>\n<[D]parameter name=\"n\" "
       "string=\"false\">3</[D]parameter>\n"
       "</[D]invoke>\n</[D]tool_calls>[E][U]<tool_result>T1</tool_result>[A][T]"},
      {"a call without arguments",
       {user("U"), assistant("", "A", {bare})},
       chat,
       "[B][U]U[A][/T]A\n\n<[D]tool_calls>\n<[D]invoke name=\"now\">\n\n</[D]invoke>\n</[D]tool_calls>[E]"},
      {"results in the order of the calls",
       {user("U"), assistant("", "", {call, bare}), tool("c2", "2"), user("and"), tool("c1", "1")},
       chat,
       "[B][U]U[A][/T]\n\n<[D]tool_calls>\n<[D]invoke name=\"get_w\">\n<[D]parameter name=\"c\" "
       "string=\"true\">x</[D]parameter>\n"
       "<[D]parameter name=\"n\" string=\"false\">3</[D]parameter>\n</[D]invoke>\n<[D]invoke "
       "name=\"now\">\n\n</[D]invoke>\n"
       "</[D]tool_calls>[E][U]<tool_result>1</tool_result>\n\nand\n\n<tool_result>2</tool_result>[A][/T]"},
      {"user messages in a row", {user("1"), user("2")}, chat, "[B][U]1\n\n2[A][/T]"},
      {"developer with tools", {with_tools(developer("D"))}, thinking, "[B][U]D\n\n[tools][A][T]"},
      {"developer before the last question goes", {developer("D"), user("U")}, thinking, "[B][U]U[A][T]"},
      {"developer stays in chat mode", {developer("D"), user("U")}, chat, "[B][U]D[U]U[A][/T]"},
      {"response format",
       {with_format(system("S"), R"({"type": "object"})"), user("U")},
       chat,
       "[B]S\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": "
       "\"object\"}[U]U[A][/T]"},
      {"reminder before", {reminder("R"), user("U")}, chat, "[B][R]R[U]U[A][/T]"},
      {"reminder behind", {user("U"), reminder("R")}, chat, "[B][U]U[A][/T][R]R"},
      {"task action", {with_task(user("U"), "action")}, thinking, "[B][U]U[A][T]<｜action｜>"},
      {"task action, chat", {with_task(user("U"), "action")}, chat, "[B][U]U[A][/T]<｜action｜>"},
      {"task title and its answer",
       {with_task(user("U"), "title"), assistant("R", "A")},
       thinking,
       "[B][U]U<｜title｜>A[E]"},
      {"unfinished answer", {user("U"), unfinished("A")}, chat, "[B][U]U[A][/T]A"},
      {"low", {user("U")}, effort(ReasoningEffort::kLow, EffortTexts::k0731), "[B][U]U[A][T]"},
      {"high, preview", {user("U")}, effort(ReasoningEffort::kHigh, EffortTexts::kPreview), "[B][U]U[A][T]"},
      {"max, preview",
       {system("S"), user("U")},
       effort(ReasoningEffort::kMax, EffortTexts::kPreview),
       "[B][high]S[U]U[A][T]"},
      {"high", {user("U")}, effort(ReasoningEffort::kHigh, EffortTexts::k0731), "[B][high][U]U[A][T]"},
      {"max", {user("U")}, effort(ReasoningEffort::kMax, EffortTexts::k0731), "[B][max][U]U[A][T]"},
      {"max without thinking", {user("U")}, effort(ReasoningEffort::kMax, EffortTexts::k0731, false), "[B][U]U[A][/T]"},
  };
}

TEST(RenderChat, Cases) {
  for (const RenderCase& c : render_cases()) {
    const auto prompt = render_chat(c.messages, c.options);
    ASSERT_TRUE(prompt.ok()) << c.what << ": " << prompt.status().message();
    EXPECT_EQ(*prompt, spelled(c.expect)) << c.what;
  }
}

TEST(RenderChat, Errors) {
  const ToolCall broken{"", "f", "{"}, list{"", "f", "[1]"};
  ChatMessage no_function = system("S");
  no_function.tools = {OrderedJson::parse(R"({"name": "f"})")};
  ChatMessage reasoning_user = user("U");
  reasoning_user.reasoning = "R";
  const std::pair<std::vector<ChatMessage>, const char*> cases[] = {
      {{user("U"), with_task(user("V"), "title")},
       "message 1 (user): a task must stand in the first message of its turn"},
      {{with_task(user("U"), "title"), user("V")},
       "message 1 (user): follows a message with a task, which only an answer can follow"},
      {{with_task(user("U"), "title"), system("S")}, "task 'title': only an answer can follow it"},
      {{with_task(user("U"), "sing")},
       "message 0 (user): task 'sing' is not one of action, query, authority, domain, title, read_url"},
      {{with_tools(user("U"))}, "message 0 (user): tools and response_format belong to system and developer messages"},
      {{no_function}, "message 0 (system): a tool needs an object \"function\""},
      {{developer("")}, "message 0 (developer): needs a content"},
      {{assistant("", "", {list})}, "arguments of the tool call 'f': expected a JSON object"},
      {{reasoning_user}, "message 0 (user): reasoning, tool calls and unfinished texts belong to assistant messages"},
      {{unfinished(""), user("U")}, "message 0 (assistant): only the last message may be unfinished"},
  };
  for (const auto& [messages, expect] : cases) {
    const auto prompt = render_chat(messages, {});
    ASSERT_FALSE(prompt.ok()) << expect;
    EXPECT_EQ(prompt.status().message(), expect);
  }
  const auto prompt = render_chat(std::vector{assistant("", "", {broken})}, {});
  ASSERT_FALSE(prompt.ok());
  EXPECT_TRUE(prompt.status().message().starts_with("arguments of the tool call 'f': byte 2"))
      << prompt.status().message();
}

struct ParseCase {
  const char* what;
  const char* text;
  AnswerOptions options;
  const char* error;  // "" = parsed
  ChatAnswer expect;
};

TEST(ParseChatAnswer, Cases) {
  const AnswerOptions chat{.thinking = false}, thinking{}, open{.thinking = false, .require_eos = false};
  const char* const kCalls =
      "\n\n<[D]tool_calls>\n<[D]invoke name=\"f\">\n<[D]parameter name=\"c\" string=\"true\">a \"b\"\n</[D]parameter>\n"
      "<[D]parameter name=\"n\" string=\"false\">[1, 2]</[D]parameter>\n</[D]invoke>\n<[D]invoke "
      "name=\"g\">\n\n</[D]invoke>\n"
      "</[D]tool_calls>[E]";
  const ParseCase cases[] = {
      {"chat", "A[E]", chat, "", {"", "A", {}}},
      {"thinking", "R[/T]A[E]", thinking, "", {"R", "A", {}}},
      {"cut", "A", open, "", {"", "A", {}}},
      {"calls", kCalls, chat, "", {"", "", {{"", "f", R"({"c": "a \"b\"\n", "n": [1, 2]})"}, {"", "g", "{}"}}}},
      {"no EOS", "A", chat, "answer: byte 1: expected the EOS token, found the end", {}},
      {"no </think>",
       "A[E]",
       thinking,
       "answer: byte 0: expected reasoning that ends with </think> before any tool call, found ",
       {}},
      {"text behind", "A[E]b", chat, "expected the end of the answer, found 'b'", {}},
      {"<think> inside", "a[T]b[E]", chat, "answer: special token '<think>' in the content", {}},
      {"calls, bad break",
       "\n\n<[D]tool_calls> <",
       chat,
       "expected '>' and a line break after the tool_calls tag, found '> <'",
       {}},
      {"calls, end",
       "\n\n<[D]tool_calls>\n",
       chat,
       "expected an invoke tag or the end of tool_calls, found the end",
       {}},
      {"string=maybe",
       "\n\n<[D]tool_calls>\n<[D]invoke name=\"f\">\n<[D]parameter name=\"c\" "
       "string=\"maybe\">x</[D]parameter>\n</[D]invoke>\n",
       chat,
       "expected true\"> or false\"> after string=, found 'maybe",
       {}},
      {"not JSON",
       "\n\n<[D]tool_calls>\n<[D]invoke name=\"f\">\n<[D]parameter name=\"c\" "
       "string=\"false\">x</[D]parameter>\n</[D]invoke>\n",
       chat,
       "answer: parameter 'c': byte 1",
       {}},
      {"twice",
       "\n\n<[D]tool_calls>\n<[D]invoke name=\"f\">\n<[D]parameter name=\"c\" string=\"false\">1</[D]parameter>\n"
       "<[D]parameter name=\"c\" string=\"false\">1</[D]parameter>\n</[D]invoke>\n",
       chat,
       "parameter 'c' comes twice",
       {}},
  };
  for (const ParseCase& c : cases) {
    const auto answer = parse_chat_answer(spelled(c.text), c.options);
    EXPECT_EQ(answer.ok(), *c.error == '\0') << c.what << ": " << answer.status().message();
    if (answer.ok()) {
      EXPECT_EQ(*answer, c.expect) << c.what;
    } else {
      EXPECT_NE(answer.status().message().find(c.error), std::string::npos)
          << c.what << ": " << answer.status().message();
    }
  }
}

TEST(PythonJson, Numbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"0.1", "0.1"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"1.5e300", "1.5e+300"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"123456789.125", "123456789.125"},
      {"1e-7", "1e-07"},
      {"12", "12"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {R"({"b":[1,null,true],"a":"\u0001\u007f\"\\\n"})",
       "{\"b\": [1, null, true], \"a\": \"\\u0001\x7f\\\"\\\\\\n\"}"},
  };
  for (const auto& [text, expect] : cases) EXPECT_EQ(python_json(OrderedJson::parse(text)), expect);
}

TEST(OfficialEncoder, Prompts) {
  const OrderedJson all = chat_cases("cases.json");
  ASSERT_GT(all["cases"].size(), 200u);
  for (const OrderedJson& c : all["cases"]) {
    std::vector<ChatMessage> messages;
    for (const OrderedJson& m : c["messages"]) messages.push_back(message_of(m));
    const auto prompt =
        render_chat(messages, {.thinking = c["thinking"],
                               .effort = c["max_effort"] ? ReasoningEffort::kMax : ReasoningEffort::kHigh,
                               .effort_texts = EffortTexts::kPreview,
                               .drop_thinking = c["drop_thinking"],
                               .add_bos = c["add_bos"]});
    ASSERT_TRUE(prompt.ok()) << prompt.status().message() << "\n" << c.dump();
    ASSERT_EQ(*prompt, text_of(c, "prompt")) << c.dump();
  }
}

TEST(OfficialEncoder, Answers) {
  const OrderedJson all = chat_cases("cases.json");
  for (const OrderedJson& c : all["answers"]) {
    const auto answer = parse_chat_answer(text_of(c, "text"), {.thinking = c["thinking"]});
    const OrderedJson& parsed = c["parsed"];
    ASSERT_EQ(answer.ok(), !parsed.is_null()) << answer.status().message() << "\n" << c.dump();
    if (!answer.ok()) continue;
    const ChatMessage expect = message_of(parsed);
    EXPECT_EQ(*answer, (ChatAnswer{expect.reasoning, expect.content, expect.tool_calls})) << c.dump();
  }
}

TEST(EncodeChat, SampleTokenizer) {
  const auto tokenizer = Tokenizer::load_directory(WEFT_SOURCE_DIR "/testdata/sample/austen-v4");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<ChatMessage> hello = {user("Hello")};
  const auto ids = encode_chat(*tokenizer, hello, {.thinking = false});
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  ASSERT_GE(ids->size(), 5u);
  EXPECT_EQ(ids->front(), tokenizer->bos_id());
  EXPECT_EQ((*ids)[1], tokenizer->find_token(chat::kUser));
  EXPECT_EQ((*ids)[ids->size() - 2], tokenizer->find_token(chat::kAssistant));
  EXPECT_EQ(ids->back(), tokenizer->find_token(chat::kThinkEnd));
  EXPECT_EQ(tokenizer->decode(*ids), spelled("[B][U]Hello[A][/T]"));

  const auto task = encode_chat(*tokenizer, std::vector{with_task(user("U"), "title")}, {});
  ASSERT_FALSE(task.ok());
  EXPECT_EQ(task.status().message(),
            "this tokenizer has no special token '<｜title｜>', which the chat format needs here");
}

}  // namespace
}  // namespace weft
