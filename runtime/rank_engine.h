// One rank of an engine (engine.h): its slices of the weights, its caches, the graphs by step shape. All ranks of a layout make
// the same calls in the same order.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/layout_graph.h"
#include "models/model.h"
#include "runtime/cache_store.h"
#include "runtime/executor.h"

namespace weft {

struct EngineOptions {
  NumericMode mode;
  Layout layout;                     // of all ranks (sharding/layout.h)
  int num_threads = 0;               // of one rank; 0: the usable physical cores, shared by the ranks of this machine
  int local_ranks = 1, local_rank = 0;  // ranks on this machine, and which of them this is
  Isa isa = max_isa();
  int64_t max_sequences = 1;         // slots
  int64_t max_context = 0;           // tokens of the longest sequence; 0: min(model's maximum, 8192)
  int64_t total_context = 0;         // tokens of all sequences together; 0: max_sequences * max_context
  int64_t max_step_tokens = 512;     // longest step; longer prompts are cut into chunks by the callers
  int64_t max_drafts = 0;            // draft tokens per sequence and step; 0: no draft layer is loaded
};

// What a user is told about memory: bytes by category, of one rank.
struct MemoryUse {
  int64_t weight_file_bytes = 0;     // mapped, not copied
  int64_t cache_bytes = 0;           // reserved; touched as they fill
  int64_t arena_bytes = 0;           // activations and scratch of the largest step so far
};

enum class Logits { kNone, kLast, kAll };
struct StepRequest {
  int32_t slot = 0;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kLast;
};

// See Engine::draft.
struct DraftRequest {
  int32_t slot = 0;
  int64_t first_row = 0;                 // row of the last trunk step (or of the last draft step)
  int64_t first_position = 0;            // its position
  std::span<const int32_t> next_tokens;  // the token after each row, one per row
  Logits logits = Logits::kLast;
};
enum class DraftFrom { kTrunk, kDraft };  // whose hidden states

class RankEngine {
 public:
  // `world` is this rank's endpoint; null for a layout of one rank. It outlives the engine.
  // Refuses before anything is allocated when caches and the largest step of all ranks of this machine do not fit into the
  // memory that is free.
  static Result<std::unique_ptr<RankEngine>> create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                                    Communicator* world);

  const Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  MemoryUse memory() const;

  Result<int32_t> open_sequence() { return caches_.open(); }
  void close_sequence(int32_t slot) {
    caches_.close(slot);
    synced_[static_cast<size_t>(slot)] = kSynced;
  }
  int64_t length(int32_t slot) const { return caches_.length(slot); }
  Status truncate(int32_t slot, int64_t length) { return caches_.truncate(slot, length); }
  SavedSequence save(int32_t slot) const { return caches_.save(slot); }
  Status restore(int32_t slot, const SavedSequence& saved) { return caches_.restore(slot, saved); }
  const CacheStore& caches() const { return caches_; }

  // What is wrong with a step, and room for its tokens. The same on all ranks; a step that passed on one runs on all.
  Status reserve(std::span<const StepRequest> requests);
  Status step(std::span<const StepRequest> requests, const ValueObserver* observer);
  std::span<const float> logits(int64_t row) const;
  int64_t num_logit_rows() const { return static_cast<int64_t>(batch_.logit_rows.size()); }

  Status draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer);
  std::span<const float> draft_logits(int64_t row) const;

  // What this rank has sent, over all its groups.
  CommCounters comm_counters() const;

 private:
  struct ShapeKey {
    GraphKind kind;
    StepPhase phase;
    int64_t tokens, logits;
    auto operator<=>(const ShapeKey&) const = default;
  };

  RankEngine() = default;
  GraphOptions graph_options(int64_t tokens, int64_t logits) const;
  Result<Graph> build(const ShapeKey& key) const;
  Status join_groups(Communicator* world);
  // split=owned: decode steps fill the caches of a request on its owner alone. Before a step that needs them everywhere, the
  // owner sends what the others miss.
  Status sync(std::span<const Segment> segments);
  void mark_owned(std::span<const Segment> segments);
  // Decode: only rows of one new token or its drafts.
  StepPhase phase_of(const StepBatch& batch) const;
  Status check_memory() const;
  Result<Executor*> executor(GraphKind kind, const StepBatch& batch);
  // A row of a request in a step under construction.
  void append(StepBatch& batch, int32_t slot, int64_t first_position, std::span<const int32_t> tokens, Logits logits) const;
  std::byte* arena(GraphKind kind) const { return arena_[static_cast<int>(kind)].data(); }

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  CacheStore caches_;
  RankContext ranks_;
  std::vector<std::unique_ptr<Communicator>> groups_;  // of ranks_
  Communicator* world_ = nullptr;
  int64_t steps_ = 0;
  static constexpr int64_t kSynced = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> synced_;         // by slot: positions from here on are on the owner alone
  std::map<ShapeKey, Executor> executors_;
  Buffer arena_[2];                     // by GraphKind, so that a draft step leaves the trunk's results alone
  StepBatch batch_, draft_batch_;
  TensorView logits_, draft_logits_;
  TensorView hidden_, draft_hidden_;    // streams of the rows of the last trunk and draft step
  std::vector<std::byte> draft_input_;  // streams that the draft step reads
};

}  // namespace weft
