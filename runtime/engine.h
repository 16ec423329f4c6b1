// One model on one rank: weights, caches, graphs by step shape, and steps over any mix of requests.
//
// A sequence lives in a slot. A step appends tokens to any number of sequences at once (prefill chunks, decode rows and draft
// verification alike) and gives logits at the rows that were asked for. The bits of a sequence's logits do not depend on how its
// tokens were cut into steps, nor on what else is in the step, nor on the number of threads.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/cache_store.h"
#include "runtime/executor.h"

namespace weft {

struct EngineOptions {
  NumericMode mode;
  int num_threads = 0;               // 0: one per usable physical core
  Isa isa = max_isa();
  int64_t max_sequences = 1;         // slots
  int64_t max_context = 0;           // tokens of the longest sequence; 0: min(model's maximum, 8192)
  int64_t total_context = 0;         // tokens of all sequences together; 0: max_sequences * max_context
  int64_t max_step_tokens = 512;     // longest step; longer prompts are cut into chunks by the callers
  int64_t max_drafts = 0;            // draft tokens per sequence and step; 0: no draft layer is loaded
};

// What a user is told about memory: bytes by category.
struct MemoryUse {
  int64_t weight_file_bytes = 0;     // mapped, not copied
  int64_t cache_bytes = 0;           // reserved; touched as they fill
  int64_t arena_bytes = 0;           // activations and scratch of the largest step so far
};

class Engine {
 public:
  enum class Logits { kNone, kLast, kAll };
  struct Request {
    int32_t slot = 0;
    std::span<const int32_t> tokens;
    Logits logits = Logits::kLast;
  };

  // Refuses before anything is allocated when caches and the largest step do not fit into the memory that is free.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const Model> model, const EngineOptions& options);

  const Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  MemoryUse memory() const;

  Result<int32_t> open_sequence() { return caches_.open(); }
  void close_sequence(int32_t slot) { caches_.close(slot); }
  int64_t length(int32_t slot) const { return caches_.length(slot); }
  Status truncate(int32_t slot, int64_t length) { return caches_.truncate(slot, length); }
  SavedSequence save(int32_t slot) const { return caches_.save(slot); }
  Status restore(int32_t slot, const SavedSequence& saved) { return caches_.restore(slot, saved); }
  const CacheStore& caches() const { return caches_; }

  // Appends every request's tokens to its sequence (at most one request per slot; together at most max_step_tokens).
  // observer: see executor.h (weft dump, weft check).
  Status step(std::span<const Request> requests, const ValueObserver* observer = nullptr);
  // Logits of the last step: rows in the order of the requests, ascending positions within one. Valid until the next step.
  std::span<const float> logits(int64_t row) const;
  int64_t num_logit_rows() const { return static_cast<int64_t>(batch_.logit_rows.size()); }

  // ---- Draft layer (max_drafts > 0). draft() continues the last step: for every request, rows of the sequence's hidden states
  // with the token that follows each give the draft layer's logits, and its cache advances with the trunk's.
  struct DraftRequest {
    int32_t slot = 0;
    int64_t first_row = 0;                 // row of the last trunk step (or of the last draft step)
    int64_t first_position = 0;            // its position
    std::span<const int32_t> next_tokens;  // the token after each row, one per row
    Logits logits = Logits::kLast;
  };
  enum class DraftFrom { kTrunk, kDraft };  // whose hidden states
  Status draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer = nullptr);
  std::span<const float> draft_logits(int64_t row) const;

 private:
  enum class Kind { kTrunk, kDraft };
  struct ShapeKey {
    Kind kind;
    int64_t tokens, logits;
    auto operator<=>(const ShapeKey&) const = default;
  };

  Engine() = default;
  GraphOptions graph_options(int64_t tokens, int64_t logits) const;
  Result<Graph> build(Kind kind, int64_t tokens, int64_t logits) const;
  Status check_memory() const;
  Result<Executor*> executor(Kind kind, int64_t tokens, int64_t logits);
  // A row of a request in a step under construction.
  void append(StepBatch& batch, int32_t slot, int64_t first_position, std::span<const int32_t> tokens, Logits logits) const;
  std::byte* arena(Kind kind) const { return arena_[static_cast<int>(kind)].data(); }

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  CacheStore caches_;
  std::map<ShapeKey, Executor> executors_;
  Buffer arena_[2];                     // by Kind, so that a draft step leaves the trunk's results alone
  StepBatch batch_, draft_batch_;
  TensorView logits_, draft_logits_;
  TensorView hidden_, draft_hidden_;    // streams of the rows of the last trunk and draft step
  std::vector<std::byte> draft_input_;  // streams that the draft step reads
};

}  // namespace weft
