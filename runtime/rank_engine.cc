#include "runtime/rank_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft {
namespace {

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kGiB = int64_t{1} << 30;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Graphs are built for powers of two rows: at most one size for each, and at most twice the memory that the rows need.
int64_t bucket(int64_t rows, int64_t largest) {
  return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1)))), largest);
}

}  // namespace

Result<std::unique_ptr<RankEngine>> RankEngine::create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                                       Communicator* world) {
  std::unique_ptr<RankEngine> engine(new RankEngine);
  engine->model_ = std::move(model);
  EngineOptions& o = engine->options_ = options;
  const int64_t limit = engine->model_->max_position_embeddings();
  if (o.max_context == 0) o.max_context = std::min(limit, kDefaultContext);
  if (o.max_context < 1 || o.max_context > limit) {
    return invalid_argument(fmt::format("a context of {} tokens; this model takes 1 to {}", o.max_context, limit));
  }
  if (o.max_sequences < 1) return invalid_argument(fmt::format("{} sequences; at least 1 is needed", o.max_sequences));
  if (o.max_step_tokens < 1) return invalid_argument(fmt::format("{} tokens per step; at least 1 is needed", o.max_step_tokens));
  if (o.max_drafts < 0) return invalid_argument(fmt::format("{} draft tokens", o.max_drafts));
  if (o.max_drafts > 0 && engine->model_->num_draft_layers() == 0) {
    return invalid_argument("this checkpoint has no draft (MTP) layer: run without --mtp");
  }
  if (o.isa > max_isa()) {
    return invalid_argument(fmt::format("--isa {}: this CPU reaches {}", isa_name(o.isa), isa_name(max_isa())));
  }
  WEFT_RETURN_IF_ERROR(engine->model_->check_layout(o.layout));
  WEFT_RETURN_IF_ERROR(engine->join_groups(world));
  if (o.total_context == 0) o.total_context = o.max_sequences * o.max_context;
  std::vector<int> cores = usable_cores();
  if (o.num_threads == 0) o.num_threads = std::max(static_cast<int>(cores.size()) / o.local_ranks, 1);
  if (o.num_threads < 1) return invalid_argument(fmt::format("{} threads; at least 1 is needed", o.num_threads));
  // Every rank of this machine has cores of its own, if there are enough.
  const size_t first = static_cast<size_t>(o.local_rank) * static_cast<size_t>(o.num_threads);
  if (static_cast<size_t>(o.local_ranks) * static_cast<size_t>(o.num_threads) <= cores.size()) {
    cores = {cores.begin() + static_cast<ptrdiff_t>(first), cores.begin() + static_cast<ptrdiff_t>(first) + o.num_threads};
  } else {
    cores.clear();
  }
  engine->pool_ = std::make_unique<ThreadPool>(o.num_threads, cores);

  CacheCapacity capacity;
  capacity.num_slots = o.max_sequences;
  capacity.max_context = o.max_context;
  capacity.draft_rows = o.max_drafts;
  // Every sequence may leave its last page unfilled.
  capacity.num_pages = ceil_div(o.total_context, capacity.page_tokens) + (o.max_sequences - 1);
  auto specs = engine->model_->caches(o.mode, capacity);
  WEFT_ASSIGN_OR_RETURN(engine->caches_, CacheStore::create(std::move(specs), capacity));
  engine->synced_.assign(static_cast<size_t>(o.max_sequences), kSynced);
  WEFT_RETURN_IF_ERROR(engine->check_memory());
  return engine;
}

GraphOptions RankEngine::graph_options(int64_t tokens, int64_t logits) const {
  return {options_.mode, {tokens, logits}, caches_.capacity()};
}

Status RankEngine::join_groups(Communicator* world) {
  WEFT_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::create(options_.layout.mesh));
  world_ = world;
  WEFT_RETURN_IF_ERROR(mesh.check_world(world == nullptr ? 1 : world->size()));
  if (world == nullptr) return {};
  ranks_.rank = world->rank();
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    const auto a = static_cast<MeshAxis>(axis);
    ranks_.size[axis] = mesh.size(a);
    ranks_.index[axis] = mesh.index(a, world->rank());
    if (mesh.size(a) == 1) continue;
    WEFT_ASSIGN_OR_RETURN(auto group, world->subgroup(mesh.group(a, world->rank())));
    ranks_.group[axis] = group.get();
    groups_.push_back(std::move(group));
  }
  return {};
}

Result<Graph> RankEngine::build(const ShapeKey& key) const {
  return build_for_layout(*model_, key.kind, graph_options(key.tokens, key.logits), options_.layout, key.phase);
}

StepPhase RankEngine::phase_of(const StepBatch& batch) const {
  for (const Segment& segment : batch.segments) {
    if (segment.len > 1 + options_.max_drafts) return StepPhase::kPrefill;
  }
  return StepPhase::kDecode;
}

// Nothing is touched yet: the caches are only reserved.
Status RankEngine::check_memory() const {
  WEFT_ASSIGN_OR_RETURN(const Graph graph, build({GraphKind::kTrunk, StepPhase::kPrefill, options_.max_step_tokens,
                                                  options_.max_sequences}));
  const int64_t ranks = options_.local_ranks;
  const int64_t arena = ranks * plan_memory(graph, {pool_->size()}).arena_bytes, caches = ranks * caches_.reserved_bytes();
  const int64_t available = available_memory_bytes();
  if (arena + caches <= available) return {};
  return check_failed(fmt::format(
      "out of memory: caches {:.2f} GiB (context {}, {} sequences) + step memory {:.2f} GiB (steps of {} tokens){} = {:.2f} GiB, "
      "but {:.2f} GiB are free; lower --ctx, the number of sequences or the step size",
      static_cast<double>(caches) / kGiB, options_.max_context, options_.max_sequences, static_cast<double>(arena) / kGiB,
      options_.max_step_tokens, ranks == 1 ? "" : fmt::format(" of {} ranks", ranks),
      static_cast<double>(arena + caches) / kGiB, static_cast<double>(available) / kGiB));
}

CommCounters RankEngine::comm_counters() const {
  CommCounters sum;
  for (const auto& group : groups_) {
    for (size_t kind = 0; kind < sum.kinds.size(); ++kind) {
      sum.kinds[kind].calls += group->counters().kinds[kind].calls;
      sum.kinds[kind].bytes_sent += group->counters().kinds[kind].bytes_sent;
    }
    sum.moved_bytes += group->counters().moved_bytes;
  }
  return sum;
}

MemoryUse RankEngine::memory() const {
  MemoryUse use;
  use.cache_bytes = caches_.reserved_bytes();
  for (const Buffer& arena : arena_) use.arena_bytes += arena.size();
  for (const auto& [key, executor] : executors_) {
    use.weight_file_bytes = std::max(use.weight_file_bytes, executor.memory_plan().weight_bytes);
  }
  return use;
}

Result<Executor*> RankEngine::executor(GraphKind kind, const StepBatch& batch) {
  const ShapeKey key{kind, phase_of(batch), bucket(batch.num_tokens(), options_.max_step_tokens),
                     bucket(static_cast<int64_t>(batch.logit_rows.size()), options_.max_step_tokens)};
  auto at = executors_.find(key);
  if (at == executors_.end()) {
    WEFT_ASSIGN_OR_RETURN(Graph graph, build(key));
    WEFT_ASSIGN_OR_RETURN(Executor made, Executor::create(std::move(graph), *model_, caches_, *pool_, options_.isa, ranks_));
    Buffer& arena = arena_[static_cast<int>(kind)];
    if (made.memory_plan().arena_bytes > arena.size()) {
      WEFT_ASSIGN_OR_RETURN(arena, Buffer::allocate(made.memory_plan().arena_bytes));
    }
    at = executors_.emplace(key, std::move(made)).first;
  }
  return &at->second;
}

Status RankEngine::sync(std::span<const Segment> segments) {
  Communicator* group = ranks_.group_of(MeshAxis::kTp);
  if (options_.layout.split != TokenSplit::kOwned || group == nullptr) return {};
  for (const Segment& segment : segments) {
    int64_t& from = synced_[static_cast<size_t>(segment.request)];
    const int64_t length = caches_.length(segment.request);
    if (from < length) {
      const int owner = slot_owner(segment.request, group->size());
      std::vector<std::byte> rows = caches_.rows_since(segment.request, from, length);
      WEFT_RETURN_IF_ERROR(group->broadcast("caches of an owned request", rows.data(), static_cast<int64_t>(rows.size()), owner));
      caches_.set_rows_since(segment.request, from, length, rows);
    }
    from = kSynced;
  }
  return {};
}

void RankEngine::mark_owned(std::span<const Segment> segments) {
  if (options_.layout.split != TokenSplit::kOwned) return;
  for (const Segment& segment : segments) {
    int64_t& from = synced_[static_cast<size_t>(segment.request)];
    from = std::min(from, segment.first_position());
  }
}

void RankEngine::append(StepBatch& batch, int32_t slot, int64_t first_position, std::span<const int32_t> tokens, Logits logits) const {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t row0 = batch.num_tokens();
  batch.segments.push_back({slot, row0, n, first_position + n});
  for (int64_t i = 0; i < n; ++i) {
    batch.tokens.push_back(tokens[i]);
    batch.positions.push_back(static_cast<int32_t>(first_position + i));
    if (logits == Logits::kAll || (logits == Logits::kLast && i == n - 1)) {
      batch.logit_rows.push_back(static_cast<int32_t>(row0 + i));
    }
  }
}

Status RankEngine::reserve(std::span<const StepRequest> requests) {
  StepBatch batch;
  for (const StepRequest& request : requests) {
    if (request.tokens.empty()) return invalid_argument("a step with no tokens for a sequence");
    append(batch, request.slot, length(request.slot), request.tokens, request.logits);
  }
  if (batch.num_tokens() == 0) return invalid_argument("a step without tokens");
  if (batch.num_tokens() > options_.max_step_tokens) {
    return invalid_argument(fmt::format("a step of {} tokens; at most {} fit", batch.num_tokens(), options_.max_step_tokens));
  }
  const int64_t vocab = model_->vocab_size();
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab) {
      return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", batch.tokens[i], vocab));
    }
  }
  for (const StepRequest& request : requests) {
    WEFT_RETURN_IF_ERROR(caches_.reserve(request.slot, static_cast<int64_t>(request.tokens.size())));
  }
  return {};
}

Status RankEngine::step(std::span<const StepRequest> requests, const ValueObserver* observer) {
  WEFT_RETURN_IF_ERROR(reserve(requests));
  StepBatch batch;
  for (const StepRequest& request : requests) {
    append(batch, request.slot, length(request.slot), request.tokens, request.logits);
  }
  batch.pages = caches_.block_tables();
  WEFT_ASSIGN_OR_RETURN(Executor * run, executor(GraphKind::kTrunk, batch));
  batch_ = std::move(batch);
  if (world_ != nullptr) world_->set_step(++steps_);
  WEFT_ASSIGN_OR_RETURN(const RowSets rows, make_row_sets(batch_, row_set_options(options_.layout, phase_of(batch_)), ranks_));
  const bool decode = phase_of(batch_) == StepPhase::kDecode;
  if (!decode) WEFT_RETURN_IF_ERROR(sync(batch_.segments));
  WEFT_RETURN_IF_ERROR(run->run(batch_, rows, {}, arena(GraphKind::kTrunk), observer));
  if (decode) mark_owned(batch_.segments);
  for (const StepRequest& request : requests) caches_.advance(request.slot, static_cast<int64_t>(request.tokens.size()));
  logits_ = run->value(kLogitsResult, batch_, arena(GraphKind::kTrunk));
  if (options_.max_drafts > 0) hidden_ = run->value(model_->hidden_value(model_->num_layers() - 1), batch_, arena(GraphKind::kTrunk));
  return {};
}

Status RankEngine::draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer) {
  WEFT_CHECK(options_.max_drafts > 0, "no draft layer was asked for");
  const TensorView& source = from == DraftFrom::kTrunk ? hidden_ : draft_hidden_;
  const int64_t row_bytes = TensorType{source.dtype(), {source.shape()[1], source.shape()[2]}}.bytes();
  StepBatch batch;
  draft_input_.clear();
  for (const DraftRequest& request : requests) {
    append(batch, request.slot, request.first_position, request.next_tokens, request.logits);
    const auto* rows = source.as<std::byte>() + request.first_row * row_bytes;
    const auto count = static_cast<int64_t>(request.next_tokens.size());
    WEFT_CHECK(count > 0 && request.first_row + count <= source.shape()[0], "rows {} + {} of {}", request.first_row, count,
               source.shape()[0]);
    draft_input_.insert(draft_input_.end(), rows, rows + count * row_bytes);
  }
  batch.pages = caches_.block_tables();
  WEFT_ASSIGN_OR_RETURN(Executor * run, executor(GraphKind::kDraft, batch));
  draft_batch_ = std::move(batch);
  TensorType type = source.type;
  type.shape[0] = draft_batch_.num_tokens();
  const Executor::Input input{kHiddenInput, {type, draft_input_.data(), {}}};
  if (world_ != nullptr) world_->set_step(++steps_);
  WEFT_ASSIGN_OR_RETURN(const RowSets sets, make_row_sets(draft_batch_, row_set_options(options_.layout, phase_of(draft_batch_)), ranks_));
  const bool decode = phase_of(draft_batch_) == StepPhase::kDecode;
  if (!decode) WEFT_RETURN_IF_ERROR(sync(draft_batch_.segments));
  WEFT_RETURN_IF_ERROR(run->run(draft_batch_, sets, {&input, 1}, arena(GraphKind::kDraft), observer));
  if (decode) mark_owned(draft_batch_.segments);
  draft_logits_ = run->value(kLogitsResult, draft_batch_, arena(GraphKind::kDraft));
  draft_hidden_ = run->value(model_->draft_hidden_value(), draft_batch_, arena(GraphKind::kDraft));
  return {};
}

namespace {

std::span<const float> row_of(const TensorView& logits, int64_t row) {
  WEFT_CHECK(0 <= row && row < logits.shape()[0], "logit row {} of {}", row, logits.shape()[0]);
  const int64_t width = logits.shape()[1];
  return {logits.as<float>() + row * width, static_cast<size_t>(width)};
}

}  // namespace

std::span<const float> RankEngine::logits(int64_t row) const { return row_of(logits_, row); }
std::span<const float> RankEngine::draft_logits(int64_t row) const { return row_of(draft_logits_, row); }

}  // namespace weft
