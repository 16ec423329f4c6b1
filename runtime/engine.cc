#include "runtime/engine.h"

#include "comm/thread_comm.h"

#include <cstring>

namespace weft {
namespace {

enum class CommandKind : int32_t { kQuit, kOpen, kClose, kTruncate, kRestore, kStep, kDraft };

// A command as bytes; both sides are of one build.
class Writer {
 public:
  explicit Writer(CommandKind kind) { put(kind); }
  template <class T>
  Writer& put(const T& value) {
    return put_all(std::span<const T>(&value, 1));
  }
  template <class T>
  Writer& put_all(std::span<const T> values) {
    const size_t end = bytes_.size();
    bytes_.resize(end + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + end, values.data(), values.size_bytes());
    return *this;
  }
  template <class T>
  Writer& put_list(std::span<const T> values) {
    return put(static_cast<int64_t>(values.size())).put_all(values);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value;
    WEFT_CHECK(bytes_.size() >= sizeof(T), "a command of {} bytes too few", sizeof(T) - bytes_.size());
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> get_list() {
    std::vector<T> values(static_cast<size_t>(get<int64_t>()));
    for (T& value : values) value = get<T>();
    return values;
  }

 private:
  std::span<const std::byte> bytes_;
};

constexpr const char* kCommandName = "command of rank 0";

Status send_command(Communicator& world, std::span<const std::byte> command) {
  int64_t size = static_cast<int64_t>(command.size());
  WEFT_RETURN_IF_ERROR(world.broadcast(kCommandName, &size, sizeof(size), 0));
  return world.broadcast(kCommandName, const_cast<std::byte*>(command.data()), size, 0);
}

Result<std::vector<std::byte>> receive_command(Communicator& world) {
  int64_t size = 0;
  WEFT_RETURN_IF_ERROR(world.broadcast(kCommandName, &size, sizeof(size), 0));
  std::vector<std::byte> command(static_cast<size_t>(size));
  WEFT_RETURN_IF_ERROR(world.broadcast(kCommandName, command.data(), size, 0));
  return command;
}

Writer step_command(std::span<const StepRequest> requests) {
  Writer writer(CommandKind::kStep);
  writer.put(static_cast<int64_t>(requests.size()));
  for (const StepRequest& r : requests) writer.put(r.slot).put(r.logits).put_list(r.tokens);
  return writer;
}

Writer draft_command(std::span<const DraftRequest> requests, DraftFrom from) {
  Writer writer(CommandKind::kDraft);
  writer.put(from).put(static_cast<int64_t>(requests.size()));
  for (const DraftRequest& r : requests) {
    writer.put(r.slot).put(r.first_row).put(r.first_position).put(r.logits).put_list(r.next_tokens);
  }
  return writer;
}

Writer restore_command(int32_t slot, const SavedSequence& saved) {
  Writer writer(CommandKind::kRestore);
  writer.put(slot).put(saved.length).put(static_cast<int64_t>(saved.rows.size()));
  for (const auto& rows : saved.rows) writer.put_list(std::span<const std::byte>(rows));
  return writer;
}

// One command on a follower. False: it was the last one.
Result<bool> obey(RankEngine& rank, std::span<const std::byte> command) {
  Reader reader(command);
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
      WEFT_RETURN_IF_ERROR(rank.restore(slot, saved));
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
      WEFT_RETURN_IF_ERROR(rank.step(requests, nullptr));
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
      WEFT_RETURN_IF_ERROR(rank.draft(requests, from, nullptr));
      return true;
    }
  }
  WEFT_CHECK(false, "an unknown command");
}

}  // namespace

Status follow(std::shared_ptr<const Model> model, const EngineOptions& options, Communicator& world) {
  auto rank = RankEngine::create(std::move(model), options, &world);
  if (!rank.ok()) return world.abort(rank.status());
  while (true) {
    auto command = receive_command(world);
    if (!command.ok()) return command.status();
    const Result<bool> go_on = obey(**rank, *command);
    if (!go_on.ok()) return world.abort(go_on.status());
    if (!*go_on) return {};
  }
}

Status Engine::start_threads(const std::shared_ptr<const Model>& model, const EngineOptions& options) {
  const auto ranks = static_cast<int>(options.layout.mesh.world());
  auto endpoints = make_thread_world(ranks);
  for (int r = 1; r < ranks; ++r) {
    EngineOptions own = options;
    own.local_rank = r;
    threads_.emplace_back([model, own, endpoint = std::move(endpoints[static_cast<size_t>(r)])]() mutable {
      // The failure reaches rank 0 through its own next call.
      (void)follow(std::move(model), own, *endpoint);
    });
  }
  endpoints.resize(1);
  thread_world_ = std::move(endpoints);
  world_ = thread_world_[0].get();
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const Model> model, const EngineOptions& options,
                                               Communicator* world) {
  WEFT_RETURN_IF_ERROR(model->check_layout(options.layout));
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
  if (world_ != nullptr && rank_ != nullptr && world_->failure().ok()) (void)announce(Writer(CommandKind::kQuit).bytes());
  rank_.reset();
  for (std::thread& thread : threads_) thread.join();
}

Status Engine::announce(std::span<const std::byte> command) {
  if (world_ == nullptr) return {};
  world_->end_idle();
  return send_command(*world_, command);
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
  WEFT_RETURN_IF_ERROR(announce(Writer(CommandKind::kOpen).put(slot).bytes()));
  return slot;
}

void Engine::close_sequence(int32_t slot) {
  const Idle idle(world_);
  (void)announce(Writer(CommandKind::kClose).put(slot).bytes());  // a failure shows in the next step
  rank_->close_sequence(slot);
}

Status Engine::truncate(int32_t slot, int64_t length) {
  WEFT_RETURN_IF_ERROR(rank_->truncate(slot, length));
  const Idle idle(world_);
  return announce(Writer(CommandKind::kTruncate).put(slot).put(length).bytes());
}

Status Engine::restore(int32_t slot, const SavedSequence& saved) {
  WEFT_RETURN_IF_ERROR(rank_->restore(slot, saved));
  const Idle idle(world_);
  return world_ == nullptr ? Status() : announce(restore_command(slot, saved).bytes());
}

Status Engine::step(std::span<const Request> requests, const ValueObserver* observer) {
  if (world_ == nullptr) return rank_->step(requests, observer);
  WEFT_RETURN_IF_ERROR(rank_->reserve(requests));
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(step_command(requests).bytes()));
  const Status status = rank_->step(requests, observer);
  return status.ok() ? status : world_->abort(status);
}

Status Engine::draft(std::span<const DraftRequest> requests, DraftFrom from, const ValueObserver* observer) {
  if (world_ == nullptr) return rank_->draft(requests, from, observer);
  const Idle idle(world_);
  WEFT_RETURN_IF_ERROR(announce(draft_command(requests, from).bytes()));
  const Status status = rank_->draft(requests, from, observer);
  return status.ok() ? status : world_->abort(status);
}

}  // namespace weft
