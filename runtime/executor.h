// Runs one graph: binds weights and caches once, then one step at a time in the planned memory.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "graph/memory_plan.h"
#include "models/model.h"
#include "runtime/cache_store.h"
#include "runtime/derived_weights.h"
#include "runtime/op_times.h"

namespace weft {

// Called after every node with each of its outputs, first dimension = valid rows. `rows`: which rows of the step (or of
// its logit rows) they are where the rank has not all of them; else empty.
using ValueObserver = FunctionRef<void(const Value& value, const TensorView& view, std::span<const int32_t> rows)>;

// What is to be seen of a run; null: nothing.
struct RunWatch {
  const ValueObserver* observer = nullptr;
  SentBytes* sent = nullptr;  // what the ops say that this rank sends is added there
  OpTimer* timer = nullptr;
};

class Executor {
 public:
  // The graph of one rank (models/layout_graph.h); its weights are bound to this rank's slices of the model's.
  // Borrows model, derived weights, caches, pool and ranks: they outlive the executor. `arena` of
  // memory_plan().arena_bytes is given with every run.
  static Result<Executor> create(Graph graph, const Model& model, const DerivedWeights& derived,
                                 const CacheStore& caches, ThreadPool& pool, Isa isa, const RankContext& ranks);

  const Graph& graph() const { return graph_; }
  const MemoryPlan& memory_plan() const { return plan_; }

  // Inputs other than tokens and positions, by name; their first dimension is the number of rows of the batch.
  struct Input {
    std::string_view name;
    TensorView view;
  };
  // Runs the step in `arena`; `rows` are this rank's of the same batch. Values of results stay valid until the arena is
  // used again.
  Status run(const StepBatch& batch, const RowSets& rows, std::span<const Input> inputs, std::byte* arena,
             const RunWatch& watch = {});

  // A value by its own name, as this rank holds it: an input that is filled before run() (values of another pipeline
  // stage), or a result.
  TensorView held(std::string_view name, const StepBatch& batch, const RowSets& rows, std::byte* arena) const {
    return view_of(graph_.find(name), batch, &rows, arena);
  }
  // A result or input of the last run. The name must exist; a result goes by the name that it has in the graph of one
  // rank.
  TensorView value(std::string_view name, const StepBatch& batch, std::byte* arena) const;

 private:
  Executor() = default;

  // A step that is being run.
  struct Step {
    const StepBatch& batch;
    const RowSets& rows;
    std::byte* arena;
    const RunWatch& watch;
    // Prefetches under way, in the order of their start: every rank waits for them at the same nodes.
    struct Started {
      size_t node;
      Communicator* group;
      Communicator::Request request;
    };
    std::vector<Started> started = {};
    std::vector<TensorView> in = {}, out = {};  // of the node
  };
  Status run_node(size_t n, Step& step);
  // Waits for the prefetches that the node uses; what else is under way goes on.
  Status finish_inputs(const Node& node, Step& step);
  Status finish(const Step::Started& one, const Step& step);
  Status failed_at(const Node& node, const Status& status) const;
  void observe(const Node& node, std::span<const TensorView> out, const Step& step) const;
  TensorView view_of(ValueId id, const StepBatch& batch, const RowSets* rows, std::byte* arena) const;

  Graph graph_;
  MemoryPlan plan_;
  std::vector<TensorView> bound_;  // by value: weights and states
  ThreadPool* pool_ = nullptr;
  const RankContext* ranks_ = nullptr;
  int64_t received_rows_ = 0;  // of the last expert_dispatch
  Isa isa_ = Isa::kScalar;
};

}  // namespace weft
