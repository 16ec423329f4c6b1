#include "cli/chat_session.h"

#include <algorithm>

#include "cli/text_stream.h"

namespace weft {
namespace {

constexpr std::string_view kEndOfThought = "</think>";  // docs of the release's encoding

}  // namespace

Result<ChatSession> ChatSession::create(Engine& engine, const Tokenizer& tokenizer, Settings settings) {
  WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine.open_sequence());
  return ChatSession(engine, tokenizer, std::move(settings), slot);
}

ChatSession::ChatSession(Engine& engine, const Tokenizer& tokenizer, Settings settings, int32_t slot)
    : engine_(&engine), tokenizer_(&tokenizer), settings_(std::move(settings)), slot_(slot) {}

Status ChatSession::reset() {
  messages_.clear();
  if (!system_.empty()) {
    messages_.emplace_back();
    messages_.back().role = ChatRole::kSystem;
    messages_.back().content = system_;
  }
  said_text_.clear();
  said_tokens_.clear();
  return engine_->truncate(slot_, 0);
}

Status ChatSession::set_system(std::string text) {
  system_ = std::move(text);
  return reset();
}

// The tokens of an answer need not be those that encoding its text would give. So the tokens of what was said are kept,
// and only the text that comes after it is encoded; the format begins it with an added token, which is a boundary for
// the encoder.
Result<std::vector<int32_t>> ChatSession::prompt_tokens() {
  WEFT_ASSIGN_OR_RETURN(const std::string text, render_chat(messages_, settings_.format));
  const bool goes_on = !said_text_.empty() && text.starts_with(said_text_);
  if (!goes_on) {
    // First turn; or the format drops something of what was said (reasoning): then the sequence begins anew.
    WEFT_RETURN_IF_ERROR(engine_->truncate(slot_, 0));
    said_tokens_.clear();
    said_text_.clear();
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> rest,
                        tokenizer_->encode(std::string_view(text).substr(said_text_.size())));
  std::vector<int32_t> tokens = said_tokens_;
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  said_text_ = text;
  return tokens;
}

Result<GenerateResult> ChatSession::say(std::string text, const std::function<void(std::string_view)>& show,
                                        const std::function<bool()>& interrupted) {
  messages_.emplace_back();
  messages_.back().content = std::move(text);
  Result<std::vector<int32_t>> prompt = prompt_tokens();
  Result<GenerateResult> result =
      prompt.ok() ? answer(*prompt, show, interrupted) : Result<GenerateResult>(prompt.status());
  if (!result.ok()) {
    messages_.pop_back();
    said_text_.clear();  // the next turn begins the sequence anew
  }
  return result;
}

Result<GenerateResult> ChatSession::answer(const std::vector<int32_t>& prompt,
                                           const std::function<void(std::string_view)>& show,
                                           const std::function<bool()>& interrupted) {
  WEFT_ASSIGN_OR_RETURN(StopStrings stops, StopStrings::create(settings_.stops));
  TextStream stream(*tokenizer_, std::move(stops), SpecialTokens::kKeep, show);
  GenerateRequest request;
  request.prompt = prompt;
  request.sampling = settings_.sampling;
  request.max_tokens = settings_.max_tokens;
  request.stop_ids = settings_.stop_ids;
  request.drafts = settings_.drafts;
  request.slot = slot_;
  request.on_token = [&](const SampledToken& token) { return stream.push(token.id); };
  Generator generator(*engine_);
  WEFT_ASSIGN_OR_RETURN(const Generator::RequestId id, generator.submit(std::move(request)));
  while (!generator.idle()) {
    if (interrupted()) generator.cancel(id);
    WEFT_RETURN_IF_ERROR(generator.step());
  }
  stream.finish();
  GenerateResult result = generator.take(id).value();

  ChatMessage& said = messages_.emplace_back();
  said.role = ChatRole::kAssistant;
  said.content = stream.text();
  if (settings_.format.thinking) {
    const size_t end = std::min(said.content.find(kEndOfThought), said.content.size());
    said.reasoning = said.content.substr(0, end);
    said.content.erase(0, end + kEndOfThought.size());
  }
  said_text_ += stream.text();
  said_tokens_ = prompt;
  for (const SampledToken& token : result.tokens) said_tokens_.push_back(token.id);
  // The sequence may hold more than was shown (a stop string, half a character): then it is not what was said.
  if (tokenizer_->decode(said_tokens_) != said_text_) said_text_.clear();
  return result;
}

OrderedJson ChatSession::to_json() const {
  OrderedJson list = OrderedJson::array();
  for (const ChatMessage& message : messages_) {
    OrderedJson entry = {{"role", std::string(chat_role_name(message.role))}, {"content", message.content}};
    if (!message.reasoning.empty()) entry["reasoning_content"] = message.reasoning;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace weft
