// Text generation: many requests at a time over one Engine (continuous batching).
//
// A step takes the requests that are decoding (one row each, or one and its drafts), then fills up with chunks of
// waiting prompts, first come first served. A request is admitted when a slot is free and the cache pages of its
// longest possible text are: what has been admitted always runs to its end.
//
// The tokens of a request depend on (prompt, sampling) alone: not on the other requests, the step size, or the number
// of drafts.
//
// Drafts (MTP): after every trunk step the draft layer sees the same rows with the token that follows each, and names
// the token after that; fed with its own output it names more. The next trunk step computes the last token and its
// drafts at once, and drafts are kept as long as they are the tokens that the model itself samples there. Rejected
// positions are forgotten.
//
// One thread uses a Generator (and its Engine) at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/engine.h"
#include "runtime/sampling.h"

namespace weft {

enum class FinishReason {
  kStopToken,  // one of stop_ids was sampled
  kStopped,    // the callback said so (a stop string)
  kMaxTokens,
  kContextFull,  // prompt and answer fill the engine's max_context
  kCancelled,
};
std::string_view finish_reason_name(FinishReason reason);  // "stop", "stop", "length", "context", "cancelled"

// What the receiver of a token wants.
enum class TokenVerdict { kContinue, kStop };

struct GenerateRequest {
  std::vector<int32_t> prompt;  // all tokens so far: at least one, fewer than max_context
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // of the answer; none: until the context is full
  std::vector<int32_t> stop_ids;      // end the answer and are not part of it
  int64_t drafts = 0;                 // per step; at most the engine's max_drafts
  // Goes on in this open sequence: its tokens are the beginning of `prompt` (at least one token must be new), and it
  // stays open at the end, then holding a beginning of prompt and answer: Engine::length tells how much. Either all
  // requests of a sequence have drafts or none has (the draft layer's cache would have gaps: fewer drafts would be
  // accepted).
  std::optional<int32_t> slot;
  // Called with every token of the answer, in order, from within step(). May not call the generator.
  std::function<TokenVerdict(const SampledToken&)> on_token;
};

struct GenerateResult {
  FinishReason reason = FinishReason::kMaxTokens;
  std::vector<SampledToken> tokens;   // the answer, without the stop token
  std::optional<int32_t> stop_id;     // kStopToken: which one
  int64_t prompt_tokens = 0;          // of them:
  int64_t cached_tokens = 0;          // were in the slot already
  int64_t drafted = 0, accepted = 0;  // drafts that were verified; those that were kept
  double ttft_s = 0;                  // from submit to the first token, waiting included
  double prefill_s = 0;               // from the first chunk to the first token
  double decode_s = 0;                // from the first token to the end

  double prefill_tokens_per_s() const;  // 0: nothing to measure
  double decode_tokens_per_s() const;   // tokens after the first
};

class Generator {
 public:
  using RequestId = int64_t;

  // Borrows the engine.
  explicit Generator(Engine& engine);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // The error of a request that can never run: parameters, ids outside the vocabulary, a prompt that leaves no room for
  // an answer.
  Result<RequestId> submit(GenerateRequest request);
  // Ends a request: its result is there at once. No effect on a request that has ended.
  void cancel(RequestId id);

  bool idle() const { return waiting_.empty() && active_.empty(); }
  // One step of the engine. After an error (machine, non-finite logits) every request has ended as cancelled.
  Status step();
  // Steps until idle.
  Status run();

  // The result of a request that has ended, and forgets it. None: still running, or taken before.
  std::optional<GenerateResult> take(RequestId id);

 private:
  struct Active;
  struct Turn;  // what one request does in one step

  Status admit();
  int64_t missing_pages(const Active& request) const;
  std::vector<Turn> plan();
  Status run_step();
  Status run_trunk(std::vector<Turn>& turns);
  Status sample(Turn& turn, int64_t first_logits);
  Status run_drafts(const std::vector<Turn>& turns);
  void accept_token(Active& request, SampledToken token);
  void drop_finished();
  void end_all();

  Engine& engine_;
  Sampler sampler_;
  RequestId next_id_ = 0;
  std::deque<std::unique_ptr<Active>> waiting_;
  std::vector<std::unique_ptr<Active>> active_;  // in the order of admission
  size_t first_turn_ = 0;                        // who comes first when not all decoding requests fit into a step
  std::map<RequestId, GenerateResult> results_;
};

}  // namespace weft
