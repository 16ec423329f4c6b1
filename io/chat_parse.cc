#include <algorithm>

#include <fmt/format.h>

#include "io/chat_formats.h"
#include "io/chat_texts.h"
#include "io/json.h"

namespace weft {
namespace {

class AnswerParser {
 public:
  AnswerParser(std::string_view text, const AnswerOptions& options) : text_(text), options_(options) {}

  Result<ChatAnswer> run() {
    if (options_.thinking) WEFT_RETURN_IF_ERROR(reasoning());
    WEFT_RETURN_IF_ERROR(content());
    for (std::string_view token : {chat::kBos, chat::kEos, chat::kThink, chat::kThinkEnd, chat::kDsml}) {
      for (const std::string* part : {&answer_.reasoning, &answer_.content}) {
        if (part->find(token) != std::string::npos) {
          return invalid_argument(fmt::format("answer: special token '{}' in the {}", token,
                                              part == &answer_.content ? "content" : "reasoning"));
        }
      }
    }
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
  Status expect(std::string_view token, std::string_view shown) {
    return take(token) ? Status() : error(fmt::format("expected {}", shown));
  }

  bool is_v4() const { return options_.format == ChatFormat::kDeepseekV4; }
  std::string_view calls_close() const { return is_v4() ? chat::kToolCallsClose : chat::kFunctionCallsClose; }
  std::string tool_calls_start() const {
    return fmt::format("\n\n{}", is_v4() ? chat::kToolCallsOpen : chat::kFunctionCallsOpen);
  }

  Status reasoning() {
    const size_t end = text_.find(chat::kThinkEnd);
    if (end == std::string_view::npos || text_.find(tool_calls_start()) < end) {
      return error("expected reasoning that ends with </think> before any tool call");
    }
    answer_.reasoning = text_.substr(0, end);
    at_ = end + chat::kThinkEnd.size();
    return {};
  }

  Status content() {
    const size_t eos = text_.find(chat::kEos, at_);
    const size_t calls = text_.find(tool_calls_start(), at_);
    if (calls != std::string_view::npos && (eos == std::string_view::npos || calls < eos)) {
      answer_.content = text_.substr(at_, calls - at_);
      at_ = calls + tool_calls_start().size();
      WEFT_RETURN_IF_ERROR(tool_calls());
      take(chat::kEos);  // as the release's parser: the calls end an answer by themselves
    } else if (eos != std::string_view::npos) {
      answer_.content = text_.substr(at_, eos - at_);
      at_ = eos + chat::kEos.size();
    } else {
      if (options_.require_eos) {
        at_ = text_.size();
        return error("expected the EOS token");
      }
      answer_.content = text_.substr(at_);
      at_ = text_.size();
    }
    return at_ == text_.size() ? Status() : error("expected the end of the answer");
  }

  Status tool_calls() {
    WEFT_RETURN_IF_ERROR(expect(">\n", "'>' and a line break after the tool_calls tag"));
    while (!take(calls_close())) {
      WEFT_RETURN_IF_ERROR(expect(chat::kInvokeOpen, "an invoke tag or the end of tool_calls"));
      WEFT_RETURN_IF_ERROR(invoke());
    }
    return {};
  }

  Status invoke() {
    WEFT_RETURN_IF_ERROR(expect(" name=\"", "the name of the invoked tool"));
    // The name may hold quotes: it ends where the tag does.
    const size_t stop = std::min(text_.find(chat::kParameterOpen, at_), text_.find(chat::kInvokeClose, at_));
    const size_t end = text_.find("\">\n", at_);
    if (end == std::string_view::npos || end > stop)
      return error("expected a name that ends with '\">' and a line break");
    ToolCall call;
    call.name = text_.substr(at_, end - at_);
    at_ = end + 3;
    std::vector<std::string> names;
    while (take(chat::kParameterOpen)) WEFT_RETURN_IF_ERROR(parameter(names, call.arguments));
    if (names.empty()) take("\n");  // a call without arguments has an empty line here
    WEFT_RETURN_IF_ERROR(expect(chat::kInvokeClose, "a parameter or the end of invoke"));
    WEFT_RETURN_IF_ERROR(expect(">\n", "'>' and a line break after the end of invoke"));
    call.arguments = "{" + call.arguments + "}";
    answer_.tool_calls.push_back(std::move(call));
    return {};
  }

  // After "<｜DSML｜parameter": adds `"name": value` to the arguments.
  Status parameter(std::vector<std::string>& names, std::string& arguments) {
    WEFT_RETURN_IF_ERROR(expect(" name=\"", "the name of the parameter"));
    constexpr std::string_view kMiddle = "\" string=\"";
    const size_t close = text_.find(chat::kParameterClose, at_);
    const size_t name_end = text_.find(kMiddle, at_);
    if (close == std::string_view::npos) return error("expected a parameter that ends with its closing tag");
    if (name_end > close) return error("expected the parameter's name and string=\"true\" or string=\"false\"");
    const std::string name(text_.substr(at_, name_end - at_));
    if (std::ranges::find(names, name) != names.end()) return error(fmt::format("parameter '{}' comes twice", name));
    at_ = name_end + kMiddle.size();
    const bool is_string = take("true\">");
    if (!is_string) WEFT_RETURN_IF_ERROR(expect("false\">", "true\"> or false\"> after string="));
    const std::string value(text_.substr(at_, close - at_));
    if (!is_string) WEFT_RETURN_IF_ERROR(parse_json(value, fmt::format("answer: parameter '{}'", name)).status());
    at_ = close + chat::kParameterClose.size();
    WEFT_RETURN_IF_ERROR(expect(">\n", "'>' and a line break after the end of a parameter"));
    if (!names.empty()) arguments += ", ";
    arguments += fmt::format("{}: {}", python_json(name), is_string ? python_json(value) : value);
    names.push_back(name);
    return {};
  }

  std::string_view text_;
  const AnswerOptions& options_;
  size_t at_ = 0;
  ChatAnswer answer_;
};

}  // namespace

Result<ChatAnswer> parse_chat_answer(std::string_view text, const AnswerOptions& options) {
  if (options.format == ChatFormat::kGlm5 || options.format == ChatFormat::kGlm52)
    return chat::parse_glm_answer(text, options);
  return AnswerParser(text, options).run();
}

}  // namespace weft
