#include "runtime/generate.h"

#include <algorithm>

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double rate(int64_t count, double seconds) {
  return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopped: return "stop";
    case FinishReason::kMaxTokens: return "length";
    case FinishReason::kContextFull: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

double GenerateResult::prefill_tokens_per_s() const { return rate(prompt_tokens - cached_tokens, prefill_s); }
double GenerateResult::decode_tokens_per_s() const { return rate(static_cast<int64_t>(tokens.size()) - 1, decode_s); }

struct Generator::Active {
  RequestId id = 0;
  GenerateRequest request;
  int64_t max_answer = 0;           // tokens, by max_tokens and the context
  bool limited_by_context = false;  // max_answer is
  int32_t slot = 0;
  TokenCounts counts;
  std::vector<int32_t> drafts;  // of the tokens after the newest one
  std::optional<FinishReason> finished;
  GenerateResult result;
  Clock::time_point submitted, admitted, first_token;

  bool keeps_slot() const { return request.slot.has_value(); }
  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t answer_left() const { return max_answer - static_cast<int64_t>(result.tokens.size()); }
  // Drafts that the next step could verify: it gives one token more than there are drafts.
  int64_t drafts_wanted() const { return finished ? 0 : std::min(request.drafts, answer_left() - 1); }
};

struct Generator::Turn {
  Active* active = nullptr;
  std::vector<int32_t> tokens;  // computed in this step
  std::vector<int32_t> next;    // the token after each row that is kept; for a prompt chunk the prompt's
  int64_t first_row = 0;        // in the step
  int64_t first_position = 0;
  int64_t num_drafts = 0;  // the last ones of `tokens`
  bool samples = false;    // the last row, and with drafts the rows before each draft, give tokens
};

Generator::Generator(Engine& engine) : engine_(engine) {}
Generator::~Generator() { end_all(); }

Result<Generator::RequestId> Generator::submit(GenerateRequest request) {
  WEFT_RETURN_IF_ERROR(validate(request.sampling));
  const auto size = static_cast<int64_t>(request.prompt.size());
  const int64_t context = engine_.options().max_context;
  if (size == 0) return invalid_argument("the prompt has no tokens; at least one is needed");
  if (size >= context) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens; a context of {} takes at most {}, so that there is room for an "
                    "answer; raise --ctx",
                    size, context, context - 1));
  }
  const int64_t vocab = engine_.model().vocab_size();
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocab)
      return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", id, vocab));
  }
  if (request.max_tokens && *request.max_tokens < 1) {
    return invalid_argument(fmt::format("max_tokens: {} is not >= 1", *request.max_tokens));
  }
  if (request.drafts < 0 || request.drafts > engine_.options().max_drafts) {
    return invalid_argument(fmt::format("{} drafts per step; the engine was opened for 0 to {}", request.drafts,
                                        engine_.options().max_drafts));
  }
  auto active = std::make_unique<Active>();
  active->id = next_id_++;
  active->submitted = Clock::now();
  active->max_answer = context - size;
  active->limited_by_context = true;
  if (request.max_tokens && *request.max_tokens < active->max_answer) {
    active->max_answer = *request.max_tokens;
    active->limited_by_context = false;
  }
  active->result.prompt_tokens = size;
  if (request.slot) {
    active->slot = *request.slot;
    active->result.cached_tokens = engine_.length(active->slot);
    WEFT_CHECK(active->result.cached_tokens < size, "slot {} holds {} tokens of a prompt of {}", active->slot,
               active->result.cached_tokens, size);
  }
  const CacheCapacity& capacity = engine_.caches().capacity();
  if (const int64_t pages = (size + active->max_answer + capacity.page_tokens - 1) / capacity.page_tokens;
      pages > capacity.num_pages) {
    return invalid_argument(
        fmt::format("prompt and answer may take {} cache pages of {} tokens; there are {}; lower max_tokens", pages,
                    capacity.page_tokens, capacity.num_pages));
  }
  active->request = std::move(request);
  if (active->request.sampling.has_penalties()) active->counts.add_prompt(active->request.prompt);
  waiting_.push_back(std::move(active));
  return waiting_.back()->id;
}

void Generator::cancel(RequestId id) {
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& a) { return a->id == id; });
  if (waiting != waiting_.end()) {
    (*waiting)->result.reason = FinishReason::kCancelled;
    results_.emplace(id, std::move((*waiting)->result));
    waiting_.erase(waiting);
  }
  for (const auto& active : active_) {
    if (active->id == id) active->finished = FinishReason::kCancelled;
  }
  drop_finished();
}

Status Generator::step() {
  Status status = run_step();
  if (!status.ok()) end_all();
  return status;
}

Status Generator::run() {
  while (!idle()) WEFT_RETURN_IF_ERROR(step());
  return {};
}

std::optional<GenerateResult> Generator::take(RequestId id) {
  auto node = results_.extract(id);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

Status Generator::run_step() {
  WEFT_RETURN_IF_ERROR(admit());
  std::vector<Turn> turns = plan();
  if (turns.empty()) return {};
  WEFT_RETURN_IF_ERROR(run_trunk(turns));
  int64_t first_logits = 0;
  for (Turn& turn : turns) {
    if (!turn.samples) continue;
    WEFT_RETURN_IF_ERROR(sample(turn, first_logits));
    first_logits += turn.num_drafts + 1;
  }
  WEFT_RETURN_IF_ERROR(run_drafts(turns));
  drop_finished();
  return {};
}

// Pages that the request may still ask for.
int64_t Generator::missing_pages(const Active& active) const {
  const int64_t page_tokens = engine_.caches().capacity().page_tokens;
  const int64_t all = (active.prompt_size() + active.max_answer + page_tokens - 1) / page_tokens;
  return all - static_cast<int64_t>(engine_.caches().block_tables()[active.slot].size());
}

Status Generator::admit() {
  int64_t pages = engine_.caches().free_pages();
  for (const auto& active : active_) pages -= missing_pages(*active);
  while (!waiting_.empty()) {
    Active& next = *waiting_.front();
    if (!next.keeps_slot()) {
      Result<int32_t> slot = engine_.open_sequence();
      if (!slot.ok()) return active_.empty() ? slot.status() : Status();
      next.slot = *slot;
    }
    const int64_t needed = missing_pages(next);
    if (needed > pages) {
      if (!next.keeps_slot()) engine_.close_sequence(next.slot);
      if (!active_.empty()) return {};
      return invalid_argument(
          fmt::format("a request may need {} more cache pages, {} are free; close other sequences", needed, pages));
    }
    pages -= needed;
    next.admitted = Clock::now();
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return {};
}

std::vector<Generator::Turn> Generator::plan() {
  std::vector<Turn> turns;
  int64_t room = engine_.options().max_step_tokens;
  // Answers first: a long prompt may not hold them up.
  const size_t count = active_.size();
  size_t taken = 0;
  for (; taken < count && room > 0; ++taken) {
    Active& active = *active_[(first_turn_ + taken) % count];
    if (active.result.tokens.empty()) continue;
    Turn turn;
    turn.active = &active;
    turn.samples = true;
    turn.num_drafts = std::min(static_cast<int64_t>(active.drafts.size()), room - 1);
    turn.tokens.push_back(active.result.tokens.back().id);
    turn.tokens.insert(turn.tokens.end(), active.drafts.begin(), active.drafts.begin() + turn.num_drafts);
    room -= turn.num_drafts + 1;
    turns.push_back(std::move(turn));
  }
  first_turn_ = taken < count ? (first_turn_ + taken) % count : 0;
  for (const auto& active : active_) {
    if (room == 0) break;
    if (!active->result.tokens.empty()) continue;
    const auto& prompt = active->request.prompt;
    const int64_t begin = engine_.length(active->slot), end = std::min(begin + room, active->prompt_size());
    Turn turn;
    turn.active = active.get();
    turn.tokens.assign(prompt.begin() + begin, prompt.begin() + end);
    turn.next.assign(prompt.begin() + begin + 1, prompt.begin() + std::min(end + 1, active->prompt_size()));
    turn.samples = end == active->prompt_size();
    room -= end - begin;
    turns.push_back(std::move(turn));
  }
  return turns;
}

Status Generator::run_trunk(std::vector<Turn>& turns) {
  std::vector<Engine::Request> requests;
  int64_t row = 0;
  for (Turn& turn : turns) {
    const Active& active = *turn.active;
    turn.first_row = row;
    turn.first_position = engine_.length(active.slot);
    row += static_cast<int64_t>(turn.tokens.size());
    requests.push_back({active.slot, turn.tokens,
                        !turn.samples         ? Engine::Logits::kNone
                        : turn.num_drafts > 0 ? Engine::Logits::kAll
                                              : Engine::Logits::kLast});
  }
  return engine_.step(requests);
}

// The model's own tokens at the turn's rows, as long as the rows stand for the text: up to the first draft that is not
// one of them.
Status Generator::sample(Turn& turn, int64_t first_logits) {
  Active& active = *turn.active;
  const auto rows = static_cast<int64_t>(turn.tokens.size());
  int64_t kept = rows - turn.num_drafts;  // rows
  active.result.drafted += turn.num_drafts;
  for (int64_t i = 0;; ++i) {
    WEFT_ASSIGN_OR_RETURN(SampledToken token, sampler_.sample(engine_.logits(first_logits + i), active.request.sampling,
                                                              active.counts, turn.first_position + kept));
    const int32_t id = token.id;
    turn.next.push_back(id);
    accept_token(active, std::move(token));
    const bool drafted = i < turn.num_drafts && turn.tokens[kept] == id;
    if (drafted) ++active.result.accepted;
    if (!drafted || active.finished) break;
    ++kept;
  }
  return engine_.truncate(active.slot, turn.first_position + kept);
}

void Generator::accept_token(Active& active, SampledToken token) {
  if (active.result.tokens.empty()) active.first_token = Clock::now();
  const std::vector<int32_t>& stops = active.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
    active.result.stop_id = token.id;
    active.finished = FinishReason::kStopToken;
    return;
  }
  if (active.request.sampling.has_penalties()) active.counts.add_answer(token.id);
  active.result.tokens.push_back(std::move(token));
  if (active.request.on_token && active.request.on_token(active.result.tokens.back()) == TokenVerdict::kStop) {
    active.finished = FinishReason::kStopped;
  } else if (active.answer_left() == 0) {
    active.finished = active.limited_by_context ? FinishReason::kContextFull : FinishReason::kMaxTokens;
  }
}

// Drafts are drawn as the model's own token will be, with the same random number: so they agree more often than the
// most probable ones would.
Status Generator::run_drafts(const std::vector<Turn>& turns) {
  struct Chain {
    Active* active;
    int64_t row;       // of the last draft step
    int64_t position;  // of that row
  };
  std::vector<Engine::DraftRequest> requests;
  std::vector<Chain> chains;
  int64_t row = 0;
  for (const Turn& turn : turns) {
    Active& active = *turn.active;
    active.drafts.clear();
    if (active.request.drafts == 0 || (active.finished && !active.keeps_slot())) continue;
    const auto rows = static_cast<int64_t>(turn.next.size());
    const bool wanted = turn.samples && active.drafts_wanted() > 0;
    requests.push_back({active.slot, turn.first_row, turn.first_position, turn.next,
                        wanted ? Engine::Logits::kLast : Engine::Logits::kNone});
    row += rows;
    if (wanted) chains.push_back({&active, row - 1, turn.first_position + rows - 1});
  }
  auto from = Engine::DraftFrom::kTrunk;
  while (!requests.empty()) {
    WEFT_RETURN_IF_ERROR(engine_.draft(requests, from));
    for (size_t i = 0; i < chains.size(); ++i) {
      Active& active = *chains[i].active;
      WEFT_ASSIGN_OR_RETURN(const SampledToken token,
                            sampler_.sample(engine_.draft_logits(static_cast<int64_t>(i)), active.request.sampling,
                                            active.counts, chains[i].position + 2));
      active.drafts.push_back(token.id);
      if (active.request.sampling.has_penalties()) active.counts.add_answer(token.id);
    }
    std::erase_if(chains, [](const Chain& c) {
      return static_cast<int64_t>(c.active->drafts.size()) >= c.active->drafts_wanted();
    });
    from = Engine::DraftFrom::kDraft;
    requests.clear();
    for (size_t i = 0; i < chains.size(); ++i) {
      Chain& chain = chains[i];
      requests.push_back(
          {chain.active->slot, chain.row, ++chain.position, {&chain.active->drafts.back(), 1}, Engine::Logits::kLast});
      chain.row = static_cast<int64_t>(i);
    }
  }
  for (const Turn& turn : turns) {
    if (!turn.active->request.sampling.has_penalties()) continue;
    for (const int32_t id : turn.active->drafts) turn.active->counts.remove_answer(id);
  }
  return {};
}

void Generator::drop_finished() {
  for (auto& active : active_) {
    if (!active->finished) continue;
    GenerateResult& result = active->result;
    result.reason = *active->finished;
    const bool any_token = !result.tokens.empty() || result.stop_id;
    result.ttft_s = any_token ? seconds_between(active->submitted, active->first_token) : 0;
    result.prefill_s = any_token ? seconds_between(active->admitted, active->first_token) : 0;
    result.decode_s = any_token ? seconds_between(active->first_token, Clock::now()) : 0;
    if (!active->keeps_slot()) engine_.close_sequence(active->slot);
    results_.emplace(active->id, std::move(result));
    active.reset();
  }
  std::erase(active_, nullptr);
}

void Generator::end_all() {
  while (!waiting_.empty()) cancel(waiting_.front()->id);
  for (const auto& active : active_) active->finished = FinishReason::kCancelled;
  drop_finished();
}

}  // namespace weft
