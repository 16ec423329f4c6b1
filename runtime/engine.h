// One model on all ranks of a layout: steps over any mix of requests.
//
// A sequence lives in a slot. A step appends tokens to any number of sequences at once (prefill chunks, decode rows and
// draft verification alike) and gives logits at the rows that were asked for. The bits of a sequence's logits do not
// depend on how its tokens were cut into steps, nor on what else is in the step, nor on the number of threads, nor on
// the layout.
//
// Rank 0 decides, the others follow: every call that changes something is broadcast to them first, so that all ranks
// make the same calls in the same order (and only rank 0 samples). Followers are threads of this process, or the
// processes of an MPI job, which call follow(). A failure of any rank ends all of them with one message
// (comm/communicator.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/rank_report.h"

namespace weft {

class Engine {
 public:
  using Logits = weft::Logits;
  using Request = StepRequest;
  using DraftRequest = weft::DraftRequest;
  using DraftFrom = weft::DraftFrom;

  // `world`: the endpoint of rank 0 of an MPI job whose other ranks call follow(); null: the ranks are threads. Refuses
  // before anything is allocated when caches and the largest step do not fit into the memory that is free.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                                Communicator* world = nullptr);
  ~Engine();

  const Model& model() const { return rank_->model(); }
  const EngineOptions& options() const { return rank_->options(); }
  MemoryUse memory() const { return rank_->memory(); }  // of rank 0

  Result<int32_t> open_sequence();
  void close_sequence(int32_t slot);
  int64_t length(int32_t slot) const { return rank_->length(slot); }
  Status truncate(int32_t slot, int64_t length);
  // All caches of the model, in its order, from the ranks that have them: the same bytes in every layout.
  Result<SavedSequence> save(int32_t slot);
  Status restore(int32_t slot, const SavedSequence& saved);
  const CacheStore& caches() const { return rank_->caches(); }  // of rank 0

  // Appends every request's tokens to its sequence (at most one request per slot; together at most max_step_tokens).
  // observer: see executor.h (weft dump, weft check); it sees the values of rank 0.
  Status step(std::span<const Request> requests, const ValueObserver* observer = nullptr);
  // Logits of the last step: rows in the order of the requests, ascending positions within one. Valid until the next
  // step.
  std::span<const float> logits(int64_t row) const { return rank_->logits(row); }
  int64_t num_logit_rows() const { return rank_->num_logit_rows(); }

  // Draft layer (max_drafts > 0). draft() continues the last step: for every request, rows of the sequence's hidden
  // states with the token that follows each give the draft layer's logits, and its cache advances with the trunk's.
  Status draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer = nullptr);
  std::span<const float> draft_logits(int64_t row) const { return rank_->draft_logits(row); }
  int64_t num_draft_logit_rows() const { return rank_->num_draft_logit_rows(); }

  // Bytes that rank 0 has sent, by kind of collective.
  CommCounters comm_counters() const { return rank_->comm_counters(); }

  // What every rank says of itself, by rank. Collective, like step().
  Result<std::vector<RankReport>> reports();
  // From now on every rank keeps a trace of each step and draft; taken after each.
  Status start_trace();
  Result<std::vector<StepTrace>> take_trace();
  // From now on every rank times the ops of its steps, from zero; by rank.
  Status start_timing();
  Result<std::vector<std::vector<OpTime>>> op_times();
  // Of the caches that each rank has: of its pipeline stage, and nothing where another data-parallel group has the
  // sequence.
  Result<std::vector<std::vector<CacheHashes>>> cache_hashes(int32_t slot);

  // The graph that the ranks ran last; null if there was none.
  const Graph* last_graph(GraphKind kind) const { return rank_->last_graph(kind); }

 private:
  class Threads;

  Engine();
  using Messages = std::vector<std::vector<std::byte>>;
  // Announces the command, runs it here as well, and gives what every rank answered.
  Result<Messages> ask(std::span<const std::byte> command);
  // Runs a step with an observer that traces, too, where a trace was started; a failure here is one of all ranks.
  Status watched(const ValueObserver* observer, FunctionRef<Status(const ValueObserver*)> run);
  Status start_threads(const std::shared_ptr<const Model>& model, const EngineOptions& options);
  // Tells the followers what comes; nothing for one rank.
  Status announce(std::span<const std::byte> command);

  std::unique_ptr<Communicator> thread_endpoint_;  // of rank 0; the others belong to their threads
  std::unique_ptr<Threads> threads_;
  Communicator* world_ = nullptr;
  std::unique_ptr<RankEngine> rank_;
  std::unique_ptr<StepTracer> tracer_;
};

// Makes an engine with these options on the ranks that its caller has: threads, or the processes of a job.
using EngineMaker = std::function<Result<std::unique_ptr<Engine>>(const EngineOptions& options)>;

// What ranks other than 0 of an MPI job do instead of Engine::create: they follow rank 0's engine until it ends.
Status follow(std::shared_ptr<const Model> model, const EngineOptions& options, Communicator& world);

}  // namespace weft
