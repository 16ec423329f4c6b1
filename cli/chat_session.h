// A conversation in one sequence of the engine: what was said stays in the caches, only what is new is computed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/run_args.h"
#include "runtime/generate.h"

namespace weft {

class ChatSession {
 public:
  struct Settings {
    ChatOptions format;
    SamplingParams sampling;
    std::vector<int32_t> stop_ids;
    std::vector<std::string> stops;
    std::optional<int64_t> max_tokens;
    int64_t drafts = 0;
  };

  // Borrows engine and tokenizer. Takes one sequence of the engine.
  static Result<ChatSession> create(Engine& engine, const Tokenizer& tokenizer, Settings settings);

  // Forgets everything but the system message.
  Status reset();
  Status set_system(std::string text);  // and reset
  const std::vector<ChatMessage>& messages() const { return messages_; }

  // One turn: the answer goes to `show` as it comes. `interrupted` is asked between steps; what was said until then
  // stays. After an error the conversation is as before the turn, but its caches are lost.
  Result<GenerateResult> say(std::string text, const std::function<void(std::string_view)>& show,
                             const std::function<bool()>& interrupted);

  // [{"role", "content"}, ...]
  OrderedJson to_json() const;

 private:
  ChatSession(Engine& engine, const Tokenizer& tokenizer, Settings settings, int32_t slot);
  Result<std::vector<int32_t>> prompt_tokens();
  Result<GenerateResult> answer(const std::vector<int32_t>& prompt, const std::function<void(std::string_view)>& show,
                                const std::function<bool()>& interrupted);

  Engine* engine_;
  const Tokenizer* tokenizer_;
  Settings settings_;
  int32_t slot_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  // What the sequence stands for: `said_text_` is the text of `said_tokens_`, of which the engine holds a beginning.
  std::string said_text_;
  std::vector<int32_t> said_tokens_;
};

}  // namespace weft
