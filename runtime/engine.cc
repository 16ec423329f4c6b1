#include "runtime/engine.h"

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "comm/thread_comm.h"

namespace weft {
namespace {

enum class CommandKind : int32_t {
  kQuit,
  kOpen,
  kClose,
  kTruncate,
  kRestore,
  kStep,
  kDraft,
  kStartTrace,
  kStartTiming,
  kReport,
  kTakeTrace,
  kHashCaches,
  kSave,
  kOpTimes,  // from kReport on answered by every rank
};

MessageWriter message(CommandKind kind) {
  MessageWriter writer;
  writer.put(kind);
  return writer;
}

constexpr const char* kCommandName = "command of rank 0";

MessageWriter step_command(std::span<const StepRequest> requests) {
  MessageWriter writer = message(CommandKind::kStep);
  writer.put(static_cast<int64_t>(requests.size()));
  for (const StepRequest& r : requests) writer.put(r.slot).put(r.logits).put_list(r.tokens);
  return writer;
}

MessageWriter draft_command(std::span<const DraftRequest> requests, DraftFrom from) {
  MessageWriter writer = message(CommandKind::kDraft);
  writer.put(from).put(static_cast<int64_t>(requests.size()));
  for (const DraftRequest& r : requests) {
    writer.put(r.slot).put(r.first_row).put(r.first_position).put(r.logits).put_list(r.next_tokens);
  }
  return writer;
}

MessageWriter restore_command(int32_t slot, const SavedSequence& saved) {
  MessageWriter writer = message(CommandKind::kRestore);
  writer.put(slot).put(saved.length).put(static_cast<int64_t>(saved.rows.size()));
  for (const auto& rows : saved.rows) writer.put_list(std::span<const std::byte>(rows));
  return writer;
}

constexpr const char* kAnswerName = "answer to rank 0";

// Whether this rank's caches are up to date for the request: they are those of its data-parallel group, and with
// split=owned those of its owner.
bool has_caches_of(const RankEngine& rank, int32_t slot) {
  if (!rank.owns(slot)) return false;
  const Layout& layout = rank.options().layout;
  return layout.split != TokenSplit::kOwned ||
         slot_owner(rank.local_slot(slot), layout.mesh.tp) == rank.index_of(MeshAxis::kTp);
}

// A saved sequence has all caches of the model; a pipeline stage has some of them.
SavedSequence part_of(const SavedSequence& saved, const RankEngine& rank) {
  const std::vector<CacheSpec> all = rank.model().caches(rank.options().mode, rank.caches().capacity());
  const std::vector<CacheSpec>& own = rank.caches().specs();
  if (saved.rows.size() != all.size() || own.size() == all.size()) return saved;  // what does not fit is refused there
  SavedSequence part{saved.length, {}};
  size_t at = 0;
  for (const CacheSpec& spec : own) {
    while (all[at].name != spec.name) ++at;
    part.rows.push_back(saved.rows[at]);
  }
  return part;
}

// What a rank answers to one of the asking commands.
MessageWriter answer(const RankEngine& rank, StepTracer* tracer, MessageReader command) {
  MessageWriter writer;
  switch (command.get<CommandKind>()) {
    case CommandKind::kReport: {
      RankReport report{static_cast<int32_t>(rank.options().num_threads), rank.memory(), {}, rank.planned_bytes()};
      for (size_t axis = 0; axis < report.sent.size(); ++axis)
        report.sent[axis] = rank.comm_counters(static_cast<MeshAxis>(axis));
      return writer.put(report);
    }
    case CommandKind::kOpTimes: put(writer, rank.op_times()); return writer;
    case CommandKind::kTakeTrace: {
      WEFT_CHECK(tracer != nullptr, "no trace was started");
      put(writer, tracer->take());
      return writer;
    }
    case CommandKind::kSave: {
      const auto slot = command.get<int32_t>();
      if (!has_caches_of(rank, slot)) return writer.put(int64_t{0});
      const SavedSequence saved = rank.save(slot);
      writer.put(static_cast<int64_t>(saved.rows.size()));
      for (size_t i = 0; i < saved.rows.size(); ++i) {
        writer.put_text(rank.caches().specs()[i].name).put_list(std::span<const std::byte>(saved.rows[i]));
      }
      return writer;
    }
    case CommandKind::kHashCaches: {
      const auto slot = command.get<int32_t>();
      put(writer, rank.owns(slot) ? hash_caches(rank.caches(), rank.local_slot(slot)) : std::vector<CacheHashes>());
      return writer;
    }
    default: WEFT_CHECK(false, "not a question");
  }
}

// One command on a follower. False: it was the last one.
Result<bool> obey(RankEngine& rank, Communicator& world, std::unique_ptr<StepTracer>& tracer,
                  std::span<const std::byte> command) {
  MessageReader reader(command);
  const auto observe = [&](const Value& value, const TensorView& view, std::span<const int32_t> rows) {
    tracer->record(value, view, rows);
  };
  const ValueObserver observer(observe);
  const ValueObserver* watch = tracer != nullptr ? &observer : nullptr;
  switch (reader.get<CommandKind>()) {
    case CommandKind::kQuit: return false;
    case CommandKind::kOpen: {
      const auto expected = reader.get<int32_t>();
      WEFT_ASSIGN_OR_RETURN(const int32_t slot, rank.open_sequence());
      WEFT_CHECK(slot == expected, "slot {} here, {} on rank 0", slot, expected);
      return true;
    }
    case CommandKind::kClose: rank.close_sequence(reader.get<int32_t>()); return true;
    case CommandKind::kTruncate: {
      const auto slot = reader.get<int32_t>();
      WEFT_RETURN_IF_ERROR(rank.truncate(slot, reader.get<int64_t>()));
      return true;
    }
    case CommandKind::kRestore: {
      const auto slot = reader.get<int32_t>();
      SavedSequence saved;
      saved.length = reader.get<int64_t>();
      saved.rows.resize(static_cast<size_t>(reader.get<int64_t>()));
      for (auto& rows : saved.rows) rows = reader.get_list<std::byte>();
      WEFT_RETURN_IF_ERROR(rank.restore(slot, part_of(saved, rank)));
      return true;
    }
    case CommandKind::kStep: {
      std::vector<StepRequest> requests(static_cast<size_t>(reader.get<int64_t>()));
      std::vector<std::vector<int32_t>> tokens(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].slot = reader.get<int32_t>();
        requests[i].logits = reader.get<Logits>();
        tokens[i] = reader.get_list<int32_t>();
        requests[i].tokens = tokens[i];
      }
      WEFT_RETURN_IF_ERROR(rank.step(requests, watch));
      return true;
    }
    case CommandKind::kDraft: {
      const auto from = reader.get<DraftFrom>();
      std::vector<DraftRequest> requests(static_cast<size_t>(reader.get<int64_t>()));
      std::vector<std::vector<int32_t>> tokens(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].slot = reader.get<int32_t>();
        requests[i].first_row = reader.get<int64_t>();
        requests[i].first_position = reader.get<int64_t>();
        requests[i].logits = reader.get<Logits>();
        tokens[i] = reader.get_list<int32_t>();
        requests[i].next_tokens = tokens[i];
      }
      WEFT_RETURN_IF_ERROR(rank.draft(requests, from, watch));
      return true;
    }
    case CommandKind::kStartTrace: tracer = std::make_unique<StepTracer>(); return true;
    case CommandKind::kStartTiming: rank.start_timing(); return true;
    case CommandKind::kReport:
    case CommandKind::kOpTimes:
    case CommandKind::kTakeTrace:
    case CommandKind::kHashCaches:
    case CommandKind::kSave:
      WEFT_RETURN_IF_ERROR(
          gather_messages(world, kAnswerName, answer(rank, tracer.get(), MessageReader(command)).bytes()).status());
      return true;
  }
  WEFT_CHECK(false, "an unknown command");
}

Status follow_guarded(const std::shared_ptr<const Model>& model, const EngineOptions& options, Communicator& world) {
  try {
    return follow(model, options, world);
  } catch (const std::bad_alloc&) {
    return world.abort(machine_failed("out of memory"));
  } catch (const std::exception& error) {
    return world.abort(machine_failed(fmt::format("internal error: {}", error.what())));
  }
}

}  // namespace

Status follow(std::shared_ptr<const Model> model, const EngineOptions& options, Communicator& world) {
  auto rank = RankEngine::create(std::move(model), options, &world);
  if (!rank.ok()) return world.abort(rank.status());
  std::unique_ptr<StepTracer> tracer;
  while (true) {
    auto command = receive_message(world, kCommandName);
    if (!command.ok()) return command.status();
    const Result<bool> go_on = obey(**rank, world, tracer, *command);
    if (!go_on.ok()) return world.abort(go_on.status());
    if (!*go_on) return {};
  }
}

// The threads of ranks 1 and up. After a failure one of them may never come back: it is left behind then, with all that
// it uses.
class Engine::Threads {
 public:
  Threads() : state_(std::make_shared<State>()) {}

  void start(std::shared_ptr<const Model> model, const EngineOptions& options, std::unique_ptr<Communicator> endpoint) {
    auto follow = [state = state_, model = std::move(model), options, endpoint = std::move(endpoint)]() mutable {
      endpoint->set_step(0);  // from here on a thread that stands still is noticed
      (void)follow_guarded(model, options, *endpoint);  // a failure reaches rank 0 through its own next call
      endpoint.reset();
      model.reset();
      state->running.fetch_sub(1);
      state->running.notify_all();
    };
    state_->running.fetch_add(1);
    try {
      threads_.emplace_back(std::move(follow));
    } catch (...) {  // no thread to be had
      state_->running.fetch_sub(1);
      throw;
    }
  }
  void join(bool failed) {
    constexpr int kGraceMs = 500;
    for (int ms = 0; failed && ms < kGraceMs && state_->running.load() > 0; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool leave = failed && state_->running.load() > 0;
    for (std::thread& thread : threads_) leave ? thread.detach() : thread.join();
    threads_.clear();
  }

 private:
  struct State {
    std::atomic<int> running = 0;
  };
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

Engine::Engine() = default;

Status Engine::start_threads(const std::shared_ptr<const Model>& model, const EngineOptions& options) {
  const auto ranks = static_cast<int>(options.layout.mesh.world());
  if (ranks > kMaxRanks) {
    return invalid_argument(fmt::format("layout {} has {} ranks; threads of one process can be {} at most",
                                        to_string(options.layout), ranks, kMaxRanks));
  }
  auto endpoints = make_thread_world(ranks);
  thread_endpoint_ = std::move(endpoints[0]);
  world_ = thread_endpoint_.get();
  threads_ = std::make_unique<Threads>();
  for (int r = 1; r < ranks; ++r) {
    EngineOptions own = options;
    own.local_rank = r;
    threads_->start(model, own, std::move(endpoints[static_cast<size_t>(r)]));
  }
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                               Communicator* world) {
  WEFT_RETURN_IF_ERROR(model->check_layout(options.layout));
  WEFT_RETURN_IF_ERROR(model->check_mode(options.mode));
  std::unique_ptr<Engine> engine(new Engine);
  EngineOptions own = options;
  engine->world_ = world;
  if (world == nullptr && options.layout.mesh.world() > 1) {
    own.local_ranks = static_cast<int>(options.layout.mesh.world());
    own.local_rank = 0;
    WEFT_RETURN_IF_ERROR(engine->start_threads(model, own));
  }
  auto rank = RankEngine::create(std::move(model), own, engine->world_);
  if (!rank.ok()) return engine->world_ == nullptr ? rank.status() : engine->world_->abort(rank.status());
  engine->rank_ = std::move(*rank);
  if (engine->world_ != nullptr) engine->world_->begin_idle();
  return engine;
}

Engine::~Engine() {
  const bool failed = world_ != nullptr && !world_->failure().ok();
  if (world_ != nullptr && rank_ != nullptr && !failed) {
    (void)announce(message(CommandKind::kQuit).bytes());
    world_->begin_idle();
  }
  // Half made, because memory or threads ran out: the others must not wait for this rank.
  if (threads_ != nullptr && rank_ == nullptr && !failed) (void)world_->abort(machine_failed("rank 0 could not start"));
  rank_.reset();
  if (threads_ != nullptr) threads_->join(!world_->failure().ok());
}

Status Engine::announce(std::span<const std::byte> command) {
  if (world_ == nullptr) return {};
  world_->end_idle();
  return send_message(*world_, kCommandName, command);
}

namespace {

// Rank 0 waits for its caller again when a call ends.
class Idle {
 public:
  explicit Idle(Communicator* world) : world_(world) {}
  ~Idle() {
    if (world_ != nullptr) world_->begin_idle();
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

 private:
  Communicator* world_;
};

}  // namespace

Result<int32_t> Engine::open_sequence() {
  WEFT_ASSIGN_OR_RETURN(const int32_t slot, rank_->open_sequence());
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(message(CommandKind::kOpen).put(slot).bytes()));
  return slot;
}

void Engine::close_sequence(int32_t slot) {
  const Idle idle(world_);
  (void)announce(message(CommandKind::kClose).put(slot).bytes());  // a failure shows in the next step
  rank_->close_sequence(slot);
}

Status Engine::truncate(int32_t slot, int64_t length) {
  WEFT_RETURN_IF_ERROR(rank_->truncate(slot, length));
  const Idle idle(world_);
  return announce(message(CommandKind::kTruncate).put(slot).put(length).bytes());
}

Status Engine::restore(int32_t slot, const SavedSequence& saved) {
  WEFT_RETURN_IF_ERROR(rank_->restore(slot, part_of(saved, *rank_)));
  const Idle idle(world_);
  return world_ == nullptr ? Status() : announce(restore_command(slot, saved).bytes());
}

Status Engine::step(std::span<const Request> requests, const ValueObserver* observer) {
  if (world_ != nullptr) WEFT_RETURN_IF_ERROR(rank_->reserve(requests));
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(step_command(requests).bytes()));
  return watched(observer, [&](const ValueObserver* watch) { return rank_->step(requests, watch); });
}

Status Engine::draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer) {
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(draft_command(requests, from).bytes()));
  return watched(observer, [&](const ValueObserver* watch) { return rank_->draft(requests, from, watch); });
}

Status Engine::watched(const ValueObserver* observer, FunctionRef<Status(const ValueObserver*)> run) {
  const auto observe = [&](const Value& value, const TensorView& view, std::span<const int32_t> rows) {
    tracer_->record(value, view, rows);
    if (observer != nullptr) (*observer)(value, view, rows);
  };
  const ValueObserver tracing(observe);
  const Status status = run(tracer_ != nullptr ? &tracing : observer);
  return status.ok() || world_ == nullptr ? status : world_->abort(status);
}

Result<Engine::Messages> Engine::ask(std::span<const std::byte> command) {
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(command));
  const MessageWriter own = answer(*rank_, tracer_.get(), MessageReader(command));
  if (world_ == nullptr) return Messages{{own.bytes().begin(), own.bytes().end()}};
  return gather_messages(*world_, kAnswerName, own.bytes());
}

Result<SavedSequence> Engine::save(int32_t slot) {
  if (world_ == nullptr) return rank_->save(slot);
  WEFT_ASSIGN_OR_RETURN(const Messages messages, ask(message(CommandKind::kSave).put(slot).bytes()));
  // Of every cache one copy; where the dcp ranks hold entries in turn, the parts of one of their groups.
  const int dcp = options().layout.mesh.dcp;
  std::map<std::string, std::vector<std::vector<std::byte>>> caches;
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    MessageReader reader(messages[rank]);
    for (auto left = reader.get<int64_t>(); left > 0; --left) {
      std::vector<std::vector<std::byte>>& parts = caches[reader.get_text()];
      std::vector<std::byte> rows = reader.get_list<std::byte>();
      if (static_cast<int>(parts.size()) == static_cast<int>(rank) % dcp) parts.push_back(std::move(rows));
    }
  }
  SavedSequence saved{rank_->length(slot), {}};
  for (const CacheSpec& spec : model().caches(options().mode, rank_->caches().capacity())) {
    const auto at = caches.find(spec.name);
    WEFT_CHECK(at != caches.end() && static_cast<int>(at->second.size()) == dcp, "no ranks have cache '{}'", spec.name);
    const bool split = dcp > 1 && spec.kind == CacheKind::kAppend;
    saved.rows.push_back(split ? join_entries(spec, saved.length, at->second) : std::move(at->second[0]));
  }
  return saved;
}

Result<std::vector<RankReport>> Engine::reports() {
  WEFT_ASSIGN_OR_RETURN(const Messages messages, ask(message(CommandKind::kReport).bytes()));
  std::vector<RankReport> reports;
  for (const auto& bytes : messages) reports.push_back(MessageReader(bytes).get<RankReport>());
  return reports;
}

Status Engine::start_trace() {
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(message(CommandKind::kStartTrace).bytes()));
  tracer_ = std::make_unique<StepTracer>();
  return {};
}

Status Engine::start_timing() {
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(message(CommandKind::kStartTiming).bytes()));
  rank_->start_timing();
  return {};
}

Result<std::vector<std::vector<OpTime>>> Engine::op_times() {
  WEFT_ASSIGN_OR_RETURN(const Messages messages, ask(message(CommandKind::kOpTimes).bytes()));
  std::vector<std::vector<OpTime>> times;
  for (const auto& bytes : messages) {
    MessageReader reader(bytes);
    times.push_back(get_op_times(reader));
  }
  return times;
}

Result<std::vector<StepTrace>> Engine::take_trace() {
  WEFT_ASSIGN_OR_RETURN(const Messages messages, ask(message(CommandKind::kTakeTrace).bytes()));
  std::vector<StepTrace> traces;
  for (const auto& bytes : messages) {
    MessageReader reader(bytes);
    traces.push_back(get_step_trace(reader));
  }
  return traces;
}

Result<std::vector<std::vector<CacheHashes>>> Engine::cache_hashes(int32_t slot) {
  WEFT_ASSIGN_OR_RETURN(const Messages messages, ask(message(CommandKind::kHashCaches).put(slot).bytes()));
  std::vector<std::vector<CacheHashes>> caches;
  for (const auto& bytes : messages) {
    MessageReader reader(bytes);
    caches.push_back(get_cache_hashes(reader));
  }
  return caches;
}

}  // namespace weft
