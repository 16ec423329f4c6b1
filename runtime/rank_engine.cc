#include "runtime/rank_engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/bytes.h"
#include "models/engine_sizes.h"

namespace weft {
namespace {

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMaxRows = int64_t{1} << 30;  // of a step: ops count rows in 32 bits

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
  const auto rows = [](std::string_view what, int64_t count) -> Status {
    if (count >= 1 && count <= kMaxRows) return {};
    return invalid_argument(fmt::format("{} {}; expected 1 to {}", count, what, kMaxRows));
  };
  WEFT_RETURN_IF_ERROR(rows("sequences", o.max_sequences));
  WEFT_RETURN_IF_ERROR(rows("tokens per step", o.max_step_tokens));
  if (o.max_drafts < 0) return invalid_argument(fmt::format("{} draft tokens", o.max_drafts));
  if (o.max_drafts > 0 && engine->model_->num_draft_layers() == 0) {
    return invalid_argument("this checkpoint has no draft (MTP) layer: run without --mtp");
  }
  if (o.isa > max_isa()) {
    return invalid_argument(fmt::format("--isa {}: this CPU reaches {}", isa_name(o.isa), isa_name(max_isa())));
  }
  WEFT_RETURN_IF_ERROR(engine->model_->check_layout(o.layout));
  WEFT_RETURN_IF_ERROR(engine->model_->check_mode(o.mode));
  WEFT_RETURN_IF_ERROR(engine->join_groups(world));
  if (o.total_context == 0) o.total_context = o.max_sequences * o.max_context;
  std::vector<int> cores = usable_cores();
  if (o.num_threads == 0) o.num_threads = std::max(static_cast<int>(cores.size()) / o.local_ranks, 1);
  if (o.num_threads < 1) return invalid_argument(fmt::format("{} threads; at least 1 is needed", o.num_threads));
  // Every rank of this machine has cores of its own, if there are enough.
  const size_t first = static_cast<size_t>(o.local_rank) * static_cast<size_t>(o.num_threads);
  if (static_cast<size_t>(o.local_ranks) * static_cast<size_t>(o.num_threads) <= cores.size()) {
    cores = {cores.begin() + static_cast<ptrdiff_t>(first),
             cores.begin() + static_cast<ptrdiff_t>(first) + o.num_threads};
  } else {
    cores.clear();
  }
  engine->pool_ = std::make_unique<ThreadPool>(o.num_threads, cores);

  const CacheCapacity capacity = cache_capacity(o.layout, {.max_sequences = o.max_sequences,
                                                           .max_context = o.max_context,
                                                           .total_context = o.total_context,
                                                           .max_step_tokens = o.max_step_tokens,
                                                           .max_drafts = o.max_drafts});
  const CacheShard shard{{1, o.layout.mesh.dcp}, engine->ranks_.index_of(MeshAxis::kDcp)};
  auto specs = engine->model_->caches(o.mode, capacity);
  if (o.layout.mesh.pp > 1) {  // of this stage's layers
    WEFT_ASSIGN_OR_RETURN(std::set<std::string> names, engine->state_names(capacity));
    std::erase_if(specs, [&](const CacheSpec& spec) { return !names.contains(spec.name); });
  }
  WEFT_RETURN_IF_ERROR(engine->announce_derived(capacity));
  WEFT_RETURN_IF_ERROR(engine->check_memory(specs, capacity));
  WEFT_ASSIGN_OR_RETURN(engine->caches_, CacheStore::create(std::move(specs), capacity, shard));
  engine->synced_.assign(static_cast<size_t>(capacity.num_slots), kSynced);
  engine->length_.assign(static_cast<size_t>(o.max_sequences), 0);
  for (int64_t slot = o.max_sequences; slot-- > 0;) engine->free_slots_.push_back(static_cast<int32_t>(slot));
  WEFT_RETURN_IF_ERROR(engine->derived_.make(*engine->model_, *engine->pool_));
  return engine;
}

GraphOptions RankEngine::graph_options(const ShapeKey& key) const {
  GraphOptions options{options_.mode, {key.tokens, key.logits}, caches_.capacity()};
  options.draft_from = key.from;
  return options;
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

Result<StageGraph> RankEngine::build(const ShapeKey& key) const {
  return build_stage(*model_, key.kind, graph_options(key), options_.layout, key.phase,
                     ranks_.index_of(MeshAxis::kPp));
}

Result<std::set<std::string>> RankEngine::state_names(const CacheCapacity& capacity) const {
  std::set<std::string> names;
  for (GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
    if (kind == GraphKind::kDraft && model_->num_draft_layers() == 0) continue;  // as one rank has them, drafts or not
    WEFT_ASSIGN_OR_RETURN(const StageGraph stage,
                          build_stage(*model_, kind, {options_.mode, {1, 1}, capacity}, options_.layout,
                                      StepPhase::kDecode, ranks_.index_of(MeshAxis::kPp)));
    for (const Value& value : stage.graph.values()) {
      if (value.role == ValueRole::kState) names.insert(value.name);
    }
  }
  return names;
}

Status RankEngine::announce_derived(const CacheCapacity& capacity) {
  for (GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
    if (kind == GraphKind::kDraft && options_.max_drafts == 0) continue;
    for (StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      WEFT_ASSIGN_OR_RETURN(const StageGraph stage,
                            build_stage(*model_, kind, {options_.mode, {1, 1}, capacity}, options_.layout, phase,
                                        ranks_.index_of(MeshAxis::kPp)));
      derived_.announce(stage.graph, ranks_);
      if (derived_.bytes() == 0) return {};  // a family has them everywhere or nowhere
    }
  }
  return {};
}

StepPhase RankEngine::phase_of(std::span<const Item> items) const {
  for (const Item& item : items) {
    if (static_cast<int64_t>(item.tokens.size()) > 1 + options_.max_drafts) return StepPhase::kPrefill;
  }
  return StepPhase::kDecode;
}

Status RankEngine::check_memory(const std::vector<CacheSpec>& specs, const CacheCapacity& capacity) const {
  WEFT_ASSIGN_OR_RETURN(const StageGraph stage,
                        build_stage(*model_, GraphKind::kTrunk,
                                    {options_.mode, {options_.max_step_tokens, options_.max_sequences}, capacity},
                                    options_.layout, StepPhase::kPrefill, ranks_.index_of(MeshAxis::kPp)));
  const int64_t ranks = options_.local_ranks;
  const int64_t arena = ranks * plan_memory(stage.graph, {pool_->size()}).arena_bytes;
  int64_t caches = 0;
  for (const CacheSpec& spec : specs) caches += ranks * cache_type(spec, capacity, options_.layout.mesh.dcp).bytes();
  const int64_t derived = ranks * derived_.bytes(), all = arena + caches + derived;
  const int64_t available = available_memory_bytes();
  if (all <= available) return {};
  return check_failed(
      fmt::format("out of memory: caches {:.2f} GiB (context {}, {} sequences) + step memory {:.2f} GiB (steps of {} "
                  "tokens){}{} = {:.2f} GiB, "
                  "but {:.2f} GiB are free; lower --ctx, the number of sequences or the step size",
                  static_cast<double>(caches) / kGiB, options_.max_context, options_.max_sequences,
                  static_cast<double>(arena) / kGiB, options_.max_step_tokens,
                  derived == 0 ? "" : fmt::format(" + derived weights {:.2f} GiB", static_cast<double>(derived) / kGiB),
                  ranks == 1 ? "" : fmt::format(" of {} ranks", ranks), static_cast<double>(all) / kGiB,
                  static_cast<double>(available) / kGiB));
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

CommCounters RankEngine::comm_counters(MeshAxis axis) const {
  const Communicator* group = ranks_.group_of(axis);
  return group == nullptr ? CommCounters() : group->counters();
}

MemoryUse RankEngine::memory() const {
  MemoryUse use;
  use.derived_weight_bytes = derived_.bytes();
  use.cache_bytes = caches_.reserved_bytes();
  for (const Buffer& arena : arena_) use.arena_bytes += arena.size();
  ArenaUse fullest[2];                              // by GraphKind
  std::map<std::string_view, int64_t> weights;      // a slice may be larger in another phase
  for (const auto& [key, running] : running_) {
    ArenaUse& of_kind = fullest[static_cast<int>(key.kind)];
    const ArenaUse& found = running.executor.memory_plan().fullest;
    if (found.total() > of_kind.total()) of_kind = found;
    for (const Value& value : running.executor.graph().values()) {
      if (value.role != ValueRole::kWeight) continue;
      int64_t& bytes = weights[value.name];
      bytes = std::max(bytes, value.type.tensor.bytes());
    }
  }
  for (const auto& [name, bytes] : weights) use.weight_file_bytes += bytes;
  for (const ArenaUse& arena : fullest) {
    use.arena.activations += arena.activations;
    use.arena.communication += arena.communication;
    use.arena.scratch += arena.scratch;
  }
  return use;
}

Result<RankEngine::Running*> RankEngine::running(const ShapeKey& key) {
  auto at = running_.find(key);
  if (at == running_.end()) {
    WEFT_ASSIGN_OR_RETURN(StageGraph stage, build(key));
    WEFT_ASSIGN_OR_RETURN(Executor made, Executor::create(std::move(stage.graph), *model_, derived_, caches_, *pool_,
                                                          options_.isa, ranks_));
    Buffer& arena = arena_[static_cast<int>(key.kind)];
    if (made.memory_plan().arena_bytes > arena.size()) {
      WEFT_ASSIGN_OR_RETURN(arena, Buffer::allocate(made.memory_plan().arena_bytes));
    }
    at = running_.emplace(key, Running{std::move(made), std::move(stage.received), std::move(stage.sent)}).first;
  }
  return &at->second;
}

// ---- Sequences

Result<int32_t> RankEngine::open_sequence() {
  if (free_slots_.empty()) {
    return invalid_argument(
        fmt::format("all {} sequence slots are in use; raise the number of sequences", options_.max_sequences));
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  if (owns(slot)) caches_.open_at(local_slot(slot));
  return slot;
}

void RankEngine::close_sequence(int32_t slot) {
  if (owns(slot)) {
    caches_.close(local_slot(slot));
    synced_[static_cast<size_t>(local_slot(slot))] = kSynced;
  }
  length_[static_cast<size_t>(slot)] = 0;
  free_slots_.push_back(slot);
}

Status RankEngine::truncate(int32_t slot, int64_t length) {
  if (owns(slot)) WEFT_RETURN_IF_ERROR(caches_.truncate(local_slot(slot), length));
  length_[static_cast<size_t>(slot)] = length;
  return {};
}

Status RankEngine::restore(int32_t slot, const SavedSequence& saved) {
  if (owns(slot)) WEFT_RETURN_IF_ERROR(caches_.restore(local_slot(slot), saved));
  length_[static_cast<size_t>(slot)] = saved.length;
  return {};
}

// ---- Steps

Status RankEngine::sync(std::span<const Segment> segments) {
  Communicator* group = ranks_.group_of(MeshAxis::kTp);
  if (options_.layout.split != TokenSplit::kOwned || group == nullptr) return {};
  for (const Segment& segment : segments) {
    int64_t& from = synced_[static_cast<size_t>(segment.request)];
    const int64_t length = caches_.length(segment.request);
    if (from < length) {
      const int owner = slot_owner(segment.request, group->size());
      std::vector<std::byte> rows = caches_.rows_since(segment.request, from, length);
      planned_[static_cast<size_t>(MeshAxis::kTp)] +=
          broadcast_bytes(group->size(), group->rank(), owner, static_cast<int64_t>(rows.size()));
      WEFT_RETURN_IF_ERROR(
          group->broadcast("caches of an owned request", rows.data(), static_cast<int64_t>(rows.size()), owner));
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

Status RankEngine::reserve(std::span<const StepRequest> requests) {
  int64_t num_tokens = 0;
  const int64_t vocab = model_->vocab_size();
  for (const StepRequest& request : requests) {
    if (request.tokens.empty()) return invalid_argument("a step with no tokens for a sequence");
    num_tokens += static_cast<int64_t>(request.tokens.size());
  }
  if (num_tokens == 0) return invalid_argument("a step without tokens");
  if (num_tokens > options_.max_step_tokens) {
    return invalid_argument(fmt::format("a step of {} tokens; at most {} fit", num_tokens, options_.max_step_tokens));
  }
  for (const StepRequest& request : requests) {
    for (int32_t token : request.tokens) {
      if (token >= 0 && token < vocab) continue;
      return invalid_argument(fmt::format("token id {} is outside the vocabulary of {}", token, vocab));
    }
  }
  for (const StepRequest& request : requests) {
    const auto count = static_cast<int64_t>(request.tokens.size());
    if (length(request.slot) + count > options_.max_context) {
      return invalid_argument(fmt::format("a sequence of {} tokens is longer than the context of {}; raise --ctx",
                                          length(request.slot) + count, options_.max_context));
    }
    if (owns(request.slot)) WEFT_RETURN_IF_ERROR(caches_.reserve(local_slot(request.slot), count));
  }
  return {};
}

Status RankEngine::step(std::span<const StepRequest> requests, const ValueObserver* observer) {
  WEFT_RETURN_IF_ERROR(reserve(requests));
  std::vector<Item> items;
  for (const StepRequest& r : requests) items.push_back({r.slot, length(r.slot), r.tokens, r.logits});
  WEFT_RETURN_IF_ERROR(run(GraphKind::kTrunk, DraftFrom::kTrunk, items, {}, observer));
  for (const StepRequest& request : requests) {
    const auto count = static_cast<int64_t>(request.tokens.size());
    if (owns(request.slot)) caches_.advance(local_slot(request.slot), count);
    length_[static_cast<size_t>(request.slot)] += count;
  }
  return {};
}

Status RankEngine::draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer) {
  WEFT_CHECK(options_.max_drafts > 0, "no draft layer was asked for");
  const Pass& source = pass_[from == DraftFrom::kTrunk ? 0 : 1];
  const std::vector<Model::DraftLink> links = model_->draft_links(from);
  draft_input_.assign(links.size(), {});
  std::vector<Item> items;
  for (const DraftRequest& request : requests) {
    items.push_back({request.slot, request.first_position, request.next_tokens, request.logits});
    const auto count = static_cast<int64_t>(request.next_tokens.size());
    WEFT_CHECK(count > 0 && request.first_row + count <= static_cast<int64_t>(source.own_row.size()),
               "rows {} + {} of {}", request.first_row, count, source.own_row.size());
    if (!owns(request.slot) || !last_stage()) continue;
    for (size_t i = 0; i < links.size(); ++i) {
      const TensorView& linked = source.linked[i];
      const int64_t row_bytes = TensorType{linked.dtype(), Shape(linked.shape().dims().subspan(1))}.bytes();
      const auto* rows = linked.as<std::byte>() + source.own_row[static_cast<size_t>(request.first_row)] * row_bytes;
      draft_input_[i].insert(draft_input_[i].end(), rows, rows + count * row_bytes);
    }
  }
  std::vector<Executor::Input> inputs;
  for (size_t i = 0; i < links.size() && last_stage(); ++i) {
    inputs.push_back({links[i].input, {source.linked[i].type, draft_input_[i].data(), {}}});
  }
  // One graph serves both kinds of drafts, unless those that continue a draft are given more.
  const bool differ = links.size() != model_->draft_links(DraftFrom::kTrunk).size();
  return run(GraphKind::kDraft, differ ? from : DraftFrom::kTrunk, items, inputs, observer);
}

namespace {

// Adds the time of its life to the timer's steps.
class StepTime {
 public:
  explicit StepTime(OpTimer* timer) : timer_(timer) {}
  ~StepTime() {
    if (timer_ != nullptr) timer_->add_step(OpTimer::Clock::now() - start_);
  }
  StepTime(const StepTime&) = delete;
  StepTime& operator=(const StepTime&) = delete;

 private:
  OpTimer* timer_;
  OpTimer::Clock::time_point start_ = OpTimer::Clock::now();
};

}  // namespace

Status RankEngine::run(GraphKind kind, DraftFrom from, std::span<const Item> items,
                       std::span<const Executor::Input> linked, const ValueObserver* observer) {
  const StepTime time(timer_.get());
  const StepPhase phase = phase_of(items);
  Pass& pass = pass_[static_cast<int>(kind)];
  pass.own_row.clear();
  pass.num_logits = 0;
  pass.logits_store.clear();
  pass.linked.clear();
  pass.linked_store.clear();
  int64_t total = 0;
  for (const Item& item : items) total += static_cast<int64_t>(item.tokens.size());
  const int64_t batches = micro_batches(options_.layout, kind, phase, total);
  if (batches == 1) return run_batch(kind, from, phase, items, linked, true, observer);
  // Equal numbers of rows; a request that is cut goes on in the next micro-batch, as in a chunked prefill.
  std::vector<Item> part;
  size_t index = 0, used = 0;  // next token
  for (int64_t b = 0; b < batches; ++b) {
    int64_t left = total * (b + 1) / batches - total * b / batches;
    part.clear();
    while (left > 0) {
      const Item& item = items[index];
      const size_t count = std::min(static_cast<size_t>(left), item.tokens.size() - used);
      const bool ends = used + count == item.tokens.size();
      part.push_back(
          {item.slot, item.first_position + static_cast<int64_t>(used), item.tokens.subspan(used, count),
           item.logits == Logits::kAll || (item.logits == Logits::kLast && ends) ? item.logits : Logits::kNone});
      left -= static_cast<int64_t>(count);
      used = ends ? 0 : used + count;
      index += ends ? 1 : 0;
    }
    WEFT_RETURN_IF_ERROR(run_batch(kind, from, phase, part, linked, false, observer));
  }
  return {};
}

namespace {

bool wants(Logits logits, size_t i, size_t count) {
  return logits == Logits::kAll || (logits == Logits::kLast && i + 1 == count);
}

}  // namespace

Status RankEngine::run_batch(GraphKind kind, DraftFrom from, StepPhase phase, std::span<const Item> items,
                             std::span<const Executor::Input> linked, bool whole, const ValueObserver* observer) {
  Pass& pass = pass_[static_cast<int>(kind)];
  StepBatch batch;
  int64_t all_logits = 0;
  // By data-parallel group. All ranks take the graph of the group that has most: experts exchange rows between groups.
  std::vector<int64_t> group_tokens(static_cast<size_t>(options_.layout.mesh.dp), 0), group_logits = group_tokens;
  // An observer of less than a whole step is told which rows of it the batch has.
  const bool names_rows = observer != nullptr && !(whole && options_.layout.mesh.dp == 1);
  std::vector<int32_t> step_rows, step_logits;  // by row and logit row of the batch: which they are of the step
  const auto hidden_rows =
      static_cast<int64_t>(std::count_if(pass.own_row.begin(), pass.own_row.end(), [](int64_t r) { return r >= 0; }));
  for (const Item& item : items) {
    const bool own = owns(item.slot);
    const size_t n = item.tokens.size();
    const auto group = static_cast<size_t>(slot_owner(item.slot, options_.layout.mesh.dp));
    if (own) {
      const auto rows = static_cast<int64_t>(n);
      batch.segments.push_back({local_slot(item.slot), batch.num_tokens(), rows, item.first_position + rows});
    }
    for (size_t i = 0; i < n; ++i) {
      const bool logit = wants(item.logits, i, n);
      if (own && names_rows) step_rows.push_back(static_cast<int32_t>(pass.own_row.size()));
      if (own && logit && names_rows) step_logits.push_back(static_cast<int32_t>(pass.num_logits + all_logits));
      all_logits += logit ? 1 : 0;
      group_logits[group] += logit ? 1 : 0;
      pass.own_row.push_back(own ? hidden_rows + batch.num_tokens() : -1);
      if (!own) continue;
      if (logit) batch.logit_rows.push_back(static_cast<int32_t>(batch.num_tokens()));
      batch.tokens.push_back(item.tokens[i]);
      batch.positions.push_back(static_cast<int32_t>(item.first_position + static_cast<int64_t>(i)));
    }
    group_tokens[group] += static_cast<int64_t>(n);
  }
  batch.pages = caches_.block_tables();
  pass.batch = std::move(batch);
  WEFT_ASSIGN_OR_RETURN(
      Running * run,
      running({kind, from, phase,
               row_capacity(*std::max_element(group_tokens.begin(), group_tokens.end()), options_.max_step_tokens),
               row_capacity(*std::max_element(group_logits.begin(), group_logits.end()), options_.max_step_tokens)}));
  last_graph_[static_cast<int>(kind)] = &run->executor.graph();
  if (world_ != nullptr) world_->set_step(++steps_);
  WEFT_ASSIGN_OR_RETURN(const RowSets rows, make_row_sets(pass.batch, row_set_options(options_.layout, phase), ranks_));
  const bool collects_logits = !whole || options_.layout.mesh.pp > 1 || options_.layout.mesh.dp > 1;
  if (phase == StepPhase::kPrefill) WEFT_RETURN_IF_ERROR(sync(pass.batch.segments));
  if (observer != nullptr) plan_between_graphs(*run, pass, rows, collects_logits);
  std::byte* const memory = arena(kind);
  const bool runs = kind == GraphKind::kTrunk || last_stage();
  WEFT_RETURN_IF_ERROR(receive(*run, pass, rows, memory));
  if (runs) {
    std::vector<Executor::Input> inputs(linked.begin(), linked.end());
    for (Executor::Input& input : inputs) input.view.type.shape[0] = pass.batch.num_tokens();
    std::vector<int32_t> named;
    const auto name_rows = [&](const Value& value, const TensorView& view, std::span<const int32_t> batch_rows) {
      const std::vector<int32_t>& all = value.type.rows == Rows::kLogits ? step_logits : step_rows;
      named.clear();
      for (const int32_t row : batch_rows) named.push_back(all[static_cast<size_t>(row)]);
      const bool has_all = batch_rows.empty() && view.shape()[0] > 0 &&
                           (value.type.rows == Rows::kLogits || value.type.rows == Rows::kTokens);
      (*observer)(value, view, has_all ? std::span<const int32_t>(all) : named);
    };
    const ValueObserver in_step(name_rows);
    const ValueObserver* watch = names_rows ? &in_step : observer;
    WEFT_RETURN_IF_ERROR(run->executor.run(pass.batch, rows, inputs, memory,
                                           {watch, watch != nullptr ? &planned_ : nullptr, timer_.get()}));
  }
  WEFT_RETURN_IF_ERROR(send(*run, pass, rows, memory));
  if (phase == StepPhase::kDecode) mark_owned(pass.batch.segments);

  TensorView logits;
  if (last_stage()) logits = run->executor.value(kLogitsResult, pass.batch, memory);
  if (last_stage() && options_.max_drafts > 0) {
    const auto links = model_->draft_links(kind == GraphKind::kTrunk ? DraftFrom::kTrunk : DraftFrom::kDraft);
    pass.linked.resize(links.size());
    pass.linked_store.resize(links.size());
    for (size_t i = 0; i < links.size(); ++i) {
      const bool made = run->executor.graph().find(links[i].result) >= 0;
      TensorView& view = pass.linked[i];
      view = run->executor.value(made ? links[i].result : links[i].input, pass.batch, memory);
      if (whole) continue;  // else the arena goes to the next micro-batch
      std::vector<std::byte>& store = pass.linked_store[i];
      store.insert(store.end(), view.as<std::byte>(), view.as<std::byte>() + view.type.bytes());
      view.type.shape[0] += hidden_rows;
      view.data = store.data();
    }
  }
  pass.num_logits += all_logits;
  if (collects_logits) return collect_logits(kind, items, logits);
  pass.logits = logits;
  return {};
}

void RankEngine::plan_between_graphs(const Running& run, const Pass& pass, const RowSets& rows, bool collects_logits) {
  for (const std::string& name : run.sent) {
    planned_[static_cast<size_t>(MeshAxis::kPp)] +=
        run.executor.held(name, pass.batch, rows, arena(GraphKind::kTrunk)).type.bytes();
  }
  if (!collects_logits) return;
  const SentBytes logits = logit_bytes(options_.layout, ranks_.index_of(MeshAxis::kPp),
                                       static_cast<int64_t>(pass.batch.logit_rows.size()), model_->vocab_size());
  for (size_t axis = 0; axis < logits.size(); ++axis) planned_[axis] += logits[axis];
}

// Every rank gets the logits of all groups, in the order of the requests.
Status RankEngine::collect_logits(GraphKind kind, std::span<const Item> items, TensorView own) {
  Pass& pass = pass_[static_cast<int>(kind)];
  const int64_t vocab = model_->vocab_size(), row_bytes = vocab * static_cast<int64_t>(sizeof(float));
  std::vector<int64_t> counts(static_cast<size_t>(options_.layout.mesh.dp), 0), order;  // group of every row
  for (const Item& item : items) {
    const auto group = static_cast<size_t>(slot_owner(item.slot, options_.layout.mesh.dp));
    for (size_t i = 0; i < item.tokens.size(); ++i) {
      if (!wants(item.logits, i, item.tokens.size())) continue;
      ++counts[group];
      order.push_back(static_cast<int64_t>(group));
    }
  }
  const auto rows = static_cast<int64_t>(order.size());
  const int64_t own_rows = counts[static_cast<size_t>(ranks_.index_of(MeshAxis::kDp))];
  std::vector<float> mine(static_cast<size_t>(own_rows * vocab)), all(static_cast<size_t>(rows * vocab));
  if (own.data != nullptr) std::memcpy(mine.data(), own.data, static_cast<size_t>(own_rows * row_bytes));
  if (Communicator* stages = ranks_.group_of(MeshAxis::kPp)) {
    WEFT_RETURN_IF_ERROR(stages->broadcast("logits", mine.data(), own_rows * row_bytes, stages->size() - 1));
  }
  if (Communicator* groups = ranks_.group_of(MeshAxis::kDp)) {
    WEFT_RETURN_IF_ERROR(groups->all_gather_v("logits", {mine.data(), all.data(), rows, row_bytes}, counts));
  } else {
    all = std::move(mine);
  }
  std::vector<int64_t> next(counts.size(), 0);
  std::exclusive_scan(counts.begin(), counts.end(), next.begin(), int64_t{0});
  for (const int64_t group : order) {
    const float* row = all.data() + next[static_cast<size_t>(group)]++ * vocab;
    pass.logits_store.insert(pass.logits_store.end(), row, row + vocab);
  }
  pass.logits = {{DType::kF32, {pass.num_logits, vocab}}, pass.logits_store.data(), {}};
  return {};
}

Status RankEngine::receive(const Running& run, const Pass& pass, const RowSets& rows, std::byte* memory) {
  for (const std::string& name : run.received) {
    Communicator& stages = *ranks_.group_of(MeshAxis::kPp);
    const TensorView view = run.executor.held(name, pass.batch, rows, memory);
    WEFT_RETURN_IF_ERROR(stages.recv(name, stages.rank() - 1, contiguous_block(view.data, view.type.bytes())));
  }
  return {};
}

Status RankEngine::send(const Running& run, const Pass& pass, const RowSets& rows, std::byte* memory) {
  constexpr size_t kMostInFlight = 2;
  for (const std::string& name : run.sent) {
    Communicator& stages = *ranks_.group_of(MeshAxis::kPp);
    const TensorView view = run.executor.held(name, pass.batch, rows, memory);
    if (sending_.size() == kMostInFlight) {
      WEFT_RETURN_IF_ERROR(stages.wait(sending_.front().request));
      sending_.pop_front();
    }
    Sending sending;
    sending.data.assign(view.as<std::byte>(), view.as<std::byte>() + view.type.bytes());
    WEFT_ASSIGN_OR_RETURN(sending.request, stages.start_send(name, stages.rank() + 1,
                                                             contiguous_block(sending.data.data(), view.type.bytes())));
    sending_.push_back(std::move(sending));
  }
  return {};
}

namespace {

std::span<const float> row_of(const TensorView& logits, int64_t row) {
  WEFT_CHECK(0 <= row && row < logits.shape()[0], "logit row {} of {}", row, logits.shape()[0]);
  const int64_t width = logits.shape()[1];
  return {logits.as<float>() + row * width, static_cast<size_t>(width)};
}

}  // namespace

std::span<const float> RankEngine::logits(int64_t row) const { return row_of(pass_[0].logits, row); }
std::span<const float> RankEngine::draft_logits(int64_t row) const { return row_of(pass_[1].logits, row); }

}  // namespace weft
