// One rank of an engine (engine.h): its slices of the weights, its caches, the graphs by step shape. All ranks of a
// layout make the same calls in the same order.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
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
  int64_t weight_file_bytes = 0;     // this rank's slices of the weights that it used so far: mapped, not copied
  int64_t derived_weight_bytes = 0;  // this rank's slices of the weights that were made when the model was loaded
  int64_t cache_bytes = 0;           // reserved; touched as they fill
  int64_t arena_bytes = 0;           // of the largest trunk and draft step so far
  ArenaUse arena;                    // what fills it at the fullest moments of those steps
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

class RankEngine {
 public:
  // `world` is this rank's endpoint; null for a layout of one rank. It outlives the engine.
  // Refuses before anything is allocated when caches and the largest step of all ranks of this machine do not fit into
  // the memory that is free.
  static Result<std::unique_ptr<RankEngine>> create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                                    Communicator* world);

  const Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  MemoryUse memory() const;

  // Slots are numbered over all data-parallel groups: slot s is that of group s mod dp, which numbers it s / dp in its
  // caches.
  Result<int32_t> open_sequence();
  void close_sequence(int32_t slot);
  int64_t length(int32_t slot) const { return length_[static_cast<size_t>(slot)]; }
  Status truncate(int32_t slot, int64_t length);
  // Of a slot of this rank's group, what this rank's caches hold of it.
  SavedSequence save(int32_t slot) const { return caches_.save(local_slot(slot)); }
  Status restore(int32_t slot, const SavedSequence& saved);
  const CacheStore& caches() const { return caches_; }
  int index_of(MeshAxis axis) const { return ranks_.index_of(axis); }
  bool owns(int32_t slot) const { return slot_owner(slot, options_.layout.mesh.dp) == ranks_.index_of(MeshAxis::kDp); }
  int32_t local_slot(int32_t slot) const { return slot_on_owner(slot, options_.layout.mesh.dp); }

  // What is wrong with a step, and room for its tokens. The same on all ranks; a step that passed on one runs on all.
  Status reserve(std::span<const StepRequest> requests);
  Status step(std::span<const StepRequest> requests, const ValueObserver* observer);
  std::span<const float> logits(int64_t row) const;
  int64_t num_logit_rows() const { return pass_[static_cast<int>(GraphKind::kTrunk)].num_logits; }

  Status draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer);
  std::span<const float> draft_logits(int64_t row) const;
  int64_t num_draft_logit_rows() const { return pass_[static_cast<int>(GraphKind::kDraft)].num_logits; }

  // From now on steps are timed, from zero.
  void start_timing() { timer_ = std::make_unique<OpTimer>(); }
  std::vector<OpTime> op_times() const { return timer_ == nullptr ? std::vector<OpTime>() : timer_->times(); }

  // What this rank has sent, over all its groups, and in its group along one axis.
  CommCounters comm_counters() const;
  CommCounters comm_counters(MeshAxis axis) const;
  // What graphs and layout say that this rank sends along each axis, if steps are watched.
  const SentBytes& planned_bytes() const { return planned_; }

  // The graph of the last trunk or draft step; null if there was none.
  const Graph* last_graph(GraphKind kind) const { return last_graph_[static_cast<int>(kind)]; }

 private:
  struct ShapeKey {
    GraphKind kind;
    DraftFrom from;
    StepPhase phase;
    int64_t tokens, logits;
    auto operator<=>(const ShapeKey&) const = default;
  };

  // Rows of one request in a step.
  struct Item {
    int32_t slot = 0;
    int64_t first_position = 0;
    std::span<const int32_t> tokens;
    Logits logits = Logits::kLast;
    int64_t source_row = 0;  // draft: of the streams that the first token continues
  };
  // The last step of one kind.
  struct Pass {
    StepBatch batch;                     // rows of this rank's data-parallel group, of the last micro-batch
    int64_t num_logits = 0;              // of all groups
    TensorView logits;                   // all of them, in the order of the requests
    std::vector<TensorView> linked;      // what a draft may continue, of this group's rows; last pipeline stage only
    std::vector<int64_t> own_row;        // by row of all groups: its row in `linked`; -1: another group's
    std::vector<float> logits_store;     // where they were gathered
    std::vector<std::vector<std::byte>> linked_store;
  };
  struct Running {
    Executor executor;
    std::vector<std::string> received, sent;  // of the neighbouring pipeline stages
  };

  RankEngine() = default;
  GraphOptions graph_options(const ShapeKey& key) const;
  Result<StageGraph> build(const ShapeKey& key) const;
  Status join_groups(Communicator* world);
  // split=owned: decode steps fill the caches of a request on its owner alone. Before a step that needs them
  // everywhere, the owner sends what the others miss.
  Status sync(std::span<const Segment> segments);
  void mark_owned(std::span<const Segment> segments);
  // Decode: only rows of one new token or its drafts.
  StepPhase phase_of(std::span<const Item> items) const;
  // Derived weights of all graphs of this rank.
  Status announce_derived(const CacheCapacity& capacity);
  // Caches that the graphs of this rank name.
  Result<std::set<std::string>> state_names(const CacheCapacity& capacity) const;
  // Before anything is allocated.
  Status check_memory(const std::vector<CacheSpec>& specs, const CacheCapacity& capacity) const;
  Result<Running*> running(const ShapeKey& key);
  bool last_stage() const { return ranks_.index_of(MeshAxis::kPp) + 1 == ranks_.size_of(MeshAxis::kPp); }

  // A step in as many micro-batches as keep all pipeline stages busy.
  // `linked`: inputs of a draft, one row for every token.
  Status run(GraphKind kind, DraftFrom from, std::span<const Item> items, std::span<const Executor::Input> linked,
             const ValueObserver* observer);
  Status run_batch(GraphKind kind, DraftFrom from, StepPhase phase, std::span<const Item> items,
                   std::span<const Executor::Input> linked, bool whole, const ValueObserver* observer);
  // Adds to planned_ what goes between ranks beside the nodes of the graph: to the next stage, and the logits.
  void plan_between_graphs(const Running& run, const Pass& pass, const RowSets& rows, bool collects_logits);
  Status collect_logits(GraphKind kind, std::span<const Item> items, TensorView own);
  Status receive(const Running& run, const Pass& pass, const RowSets& rows, std::byte* arena);
  Status send(const Running& run, const Pass& pass, const RowSets& rows, std::byte* arena);
  std::byte* arena(GraphKind kind) const { return arena_[static_cast<int>(kind)].data(); }

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  DerivedWeights derived_;
  CacheStore caches_;
  RankContext ranks_;
  std::vector<std::unique_ptr<Communicator>> groups_;  // of ranks_
  Communicator* world_ = nullptr;
  int64_t steps_ = 0;
  static constexpr int64_t kSynced = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> synced_;         // by slot: positions from here on are on the owner alone
  std::vector<int64_t> length_;         // by slot of all groups
  std::vector<int32_t> free_slots_;
  std::map<ShapeKey, Running> running_;
  const Graph* last_graph_[2] = {};     // by GraphKind
  Buffer arena_[2];                     // by GraphKind, so that a draft step leaves the trunk's results alone
  Pass pass_[2];                        // by GraphKind
  std::vector<std::vector<std::byte>> draft_input_;  // by link: rows that the draft step reads
  struct Sending {
    Communicator::Request request;
    std::vector<std::byte> data;
  };
  std::deque<Sending> sending_;         // to the next pipeline stage
  SentBytes planned_{};
  std::unique_ptr<OpTimer> timer_;      // null: steps are not timed
};

}  // namespace weft
