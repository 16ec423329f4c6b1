#include "comm/thread_comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>

#include "comm/board.h"
#include "comm/tree_sum.h"

namespace weft {
namespace {

// What a rank shows its peers during a call.
struct Call {
  OpRecord op = {};
  std::span<const Blocks> send = {};
  const float* src = nullptr;
  std::byte* dst = nullptr;
};

// One rank in one group. A rank that returns from a call because of a failure takes its buffers with it, so it must
// know that no peer reads them: a reader says `reading`, then looks whether anybody `left`; who leaves says so, then
// waits for the readers. Both in sequential consistency: at least one of the two sees the other.
struct alignas(64) Seat {
  std::atomic<uint64_t> arrived{0};  // barriers that this rank has entered
  std::atomic<bool> reading{false};
  std::atomic<bool> left{false};
  std::atomic<bool> joined{false};  // while the group forms
  // By parity of the sequence: a peer may still compare the last call when this rank shows the next. It cannot be two
  // calls behind.
  std::array<Call, 2> calls;
};

struct Message {
  enum State { kPosted, kClaimed, kConsumed, kWithdrawn };
  OpRecord op;
  Blocks data;
  int from = 0;
  int64_t number = 0;  // of the messages between these two ranks
  std::atomic<int> state{kPosted};
};

struct Inbox {
  std::mutex mutex;
  std::deque<std::shared_ptr<Message>> messages;
  std::atomic<uint64_t> posted{0};  // so that a waiting rank needs no lock to see that nothing came
};

struct Group {
  Group(uint64_t group_id, std::vector<int> world_ranks)
      : id(group_id),
        members(std::move(world_ranks)),
        seats(std::make_unique<Seat[]>(members.size())),
        inboxes(std::make_unique<Inbox[]>(members.size())) {
    for (const int member : members) set.add(member);
  }

  uint64_t id;
  std::vector<int> members;
  RankSet set;
  std::unique_ptr<Seat[]> seats;
  std::unique_ptr<Inbox[]> inboxes;
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};

struct World {
  World(int num_ranks, const CommOptions& options)
      : memory(static_cast<std::byte*>(::operator new[](Board::bytes(num_ranks), std::align_val_t{64}))),
        board((std::memset(memory.get(), 0, Board::bytes(num_ranks)), memory.get()), num_ranks, Board::Ranks::kThreads,
              options) {}

  std::unique_ptr<std::byte, AlignedDelete> memory;
  Board board;
  std::mutex mutex;  // of what follows
  uint64_t next_group = 1;
  std::map<std::pair<uint64_t, std::vector<int>>, std::pair<std::shared_ptr<Group>, size_t>> forming;
};

class ThreadComm final : public Communicator {
 public:
  enum class Role { kWorld, kSubgroup };

  ThreadComm(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank, Role role)
      : Communicator(rank, group->members),
        world_(std::move(world)),
        group_(std::move(group)),
        board_(world_->board),
        me_(group_->members[rank]),
        role_(role),
        seat_(group_->seats[rank]),
        messages_to_(group_->members.size()),
        messages_from_(group_->members.size()) {}

  ~ThreadComm() override {
    withdraw_all();
    if (role_ == Role::kWorld) board_.leave(me_);
  }

  Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks) override;

  void set_step(int64_t step) override {
    board_.slot(me_).step.store(step, std::memory_order_relaxed);
    board_.note_thread(me_);
  }
  void tick() override { board_.slot(me_).ticks.fetch_add(1, std::memory_order_relaxed); }
  void begin_idle() override { board_.slot(me_).idle.store(1, std::memory_order_relaxed); }
  void end_idle() override { board_.slot(me_).idle.store(0, std::memory_order_relaxed); }
  Status abort(const Status& status) override { return board_.abort(me_, status); }
  Status failure() override { return board_.failure(); }

 private:
  struct Pending {
    OpRecord op;
    int peer = 0;
    Blocks data;
    int64_t number = 0;
    std::shared_ptr<Message> sent;  // null: a receive
    std::vector<Blocks> exchange_send = {}, exchange_recv = {};  // of a collective
  };

  Status do_exchange(OpRecord& op, std::span<const Blocks> send, std::span<const Blocks> recv) override;
  Status do_reduce_scatter(OpRecord& op, const Reduction& reduction) override;
  Status do_all_reduce(OpRecord& op, const Reduction& reduction) override;
  Status do_all_reduce_max(OpRecord& op, const float* src, float* dst, int64_t count) override;
  Status do_broadcast(OpRecord& op, const Blocks& data, int root) override;
  Status do_barrier(OpRecord& op) override;
  Result<Request> do_start(OpRecord& op, int peer, const Blocks& data) override;
  Result<Request> do_start_exchange(OpRecord& op, std::span<const Blocks> send, std::span<const Blocks> recv) override;
  Status do_wait(Request request) override;

  // A call is open (all ranks are in it, with the same operation; their buffers may be read), meets again between
  // phases, and is closed (nobody reads any more).
  Status open(OpRecord& op, Call call);
  Status meet(const OpRecord& op);
  Status close(const OpRecord& op);
  Status leave(Status status);
  const Call& call_of(int peer, const OpRecord& op) const { return group_->seats[peer].calls[op.sequence % 2]; }

  void sum_own_rows(const OpRecord& op, const Reduction& reduction, std::byte* dst);
  void complete(OpRecord& op);
  Status wait_for_send(Pending& pending);
  Status receive(const Pending& pending);
  std::shared_ptr<Message> take_message(int from, int64_t number);
  void withdraw(Message& message);
  void withdraw_all();

  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  Board& board_;
  int me_;  // world rank
  Role role_;
  Seat& seat_;
  uint64_t phase_ = 0;
  int64_t sequence_ = 0;
  std::vector<int64_t> messages_to_, messages_from_;
  std::unordered_map<int64_t, Pending> pending_;
  int64_t next_request_ = 0;
};

void ThreadComm::complete(OpRecord& op) {
  op.group = group_->id;
  op.members = group_->set;
  op.step = board_.slot(me_).step.load(std::memory_order_relaxed);
}

Status ThreadComm::open(OpRecord& op, Call call) {
  if (board_.failed()) return leave(board_.failure());
  complete(op);
  op.sequence = sequence_++;
  board_.begin_op(me_, op);
  call.op = op;
  seat_.calls[op.sequence % 2] = call;
  WEFT_RETURN_IF_ERROR(meet(op));
  for (int peer = 0; peer < size(); ++peer) {
    const OpRecord& other = call_of(peer, op).op;
    if (other.call_hash != op.call_hash) return leave(board_.mismatch(me_, op, group_->members[peer], other));
  }
  if (size() == 1) return {};
  seat_.reading.store(true);
  for (int peer = 0; peer < size(); ++peer) {
    if (group_->seats[peer].left.load()) return leave(board_.failure());
  }
  return {};
}

Status ThreadComm::meet(const OpRecord& op) {
  const uint64_t phase = ++phase_;
  seat_.arrived.store(phase, std::memory_order_release);
  Wait wait(board_, me_, op);
  for (int peer = 0; peer < size(); ++peer) {
    while (group_->seats[peer].arrived.load(std::memory_order_acquire) < phase) {
      if (!wait.pause()) continue;
      RankSet missing;
      for (int other = 0; other < size(); ++other) {
        if (group_->seats[other].arrived.load(std::memory_order_acquire) < phase) missing.add(group_->members[other]);
      }
      if (Status status = wait.poll(missing); !status.ok()) return leave(std::move(status));
    }
  }
  return {};
}

Status ThreadComm::close(const OpRecord& op) {
  seat_.reading.store(false, std::memory_order_release);
  WEFT_RETURN_IF_ERROR(meet(op));
  board_.end_op(me_);
  return {};
}

Status ThreadComm::leave(Status status) {
  seat_.reading.store(false);
  seat_.left.store(true);
  withdraw_all();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(board_.options().timeout_s);
  for (int peer = 0; peer < size(); ++peer) {
    // Copies are short; only a stopped thread takes longer, and then the process must end anyway.
    while (group_->seats[peer].reading.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  return status;
}

Status ThreadComm::do_exchange(OpRecord& op, std::span<const Blocks> send, std::span<const Blocks> recv) {
  WEFT_RETURN_IF_ERROR(open(op, {.send = send}));
  for (int i = 0; i < size(); ++i) {
    const int peer = (rank() + i) % size();  // everybody starts with another one
    const Blocks& from = call_of(peer, op).send[rank()];
    const Blocks& to = recv[peer];
    if (from.total_bytes() != to.total_bytes()) {
      return leave(
          board_.fail(StatusCode::kMachineFailed,
                      fmt::format("{}: rank {} sends {} bytes to this rank, which expects {}", board_.where(me_),
                                  group_->members[peer], from.total_bytes(), to.total_bytes())));
    }
    if (from.base == to.base) continue;  // the rank's own rows, in place
    copy_blocks(from, to);
    if (peer != rank()) counters_.moved_bytes += to.total_bytes();
  }
  return close(op);
}

void ThreadComm::sum_own_rows(const OpRecord& op, const Reduction& reduction, std::byte* dst) {
  const int64_t first = reduction.first_rows[rank()] * reduction.width;
  const int64_t count = reduction.first_rows[rank() + 1] * reduction.width - first;
  if (count == 0) return;
  std::array<const float*, kMaxRanks> sources;
  for (int peer = 0; peer < size(); ++peer) sources[peer] = call_of(peer, op).src + first;
  tree_sum({sources.data(), static_cast<size_t>(size())}, count, dst, reduction.dst_dtype);
  counters_.moved_bytes += (size() - 1) * count * static_cast<int64_t>(sizeof(float));
}

Status ThreadComm::do_reduce_scatter(OpRecord& op, const Reduction& reduction) {
  WEFT_RETURN_IF_ERROR(open(op, {.src = reduction.src}));
  sum_own_rows(op, reduction, static_cast<std::byte*>(reduction.dst));
  return close(op);
}

Status ThreadComm::do_all_reduce(OpRecord& op, const Reduction& reduction) {
  auto* dst = static_cast<std::byte*>(reduction.dst);
  const int64_t row_bytes = reduction.width * dtype_bits(reduction.dst_dtype) / 8;
  const auto& first = reduction.first_rows;
  WEFT_RETURN_IF_ERROR(open(op, {.src = reduction.src, .dst = dst}));
  sum_own_rows(op, reduction, dst + first[rank()] * row_bytes);
  WEFT_RETURN_IF_ERROR(meet(op));
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    const int64_t offset = first[peer] * row_bytes, bytes = (first[peer + 1] - first[peer]) * row_bytes;
    if (bytes == 0) continue;
    std::memcpy(dst + offset, call_of(peer, op).dst + offset, bytes);
    counters_.moved_bytes += bytes;
  }
  return close(op);
}

Status ThreadComm::do_all_reduce_max(OpRecord& op, const float* src, float* dst, int64_t count) {
  WEFT_RETURN_IF_ERROR(open(op, {.src = src}));
  std::array<const float*, kMaxRanks> sources;
  for (int peer = 0; peer < size(); ++peer) sources[peer] = call_of(peer, op).src;
  max_of({sources.data(), static_cast<size_t>(size())}, count, dst);
  counters_.moved_bytes += (size() - 1) * count * static_cast<int64_t>(sizeof(float));
  return close(op);
}

// All copy from the root. What is counted is the chain that processes use: the same bytes in sum.
Status ThreadComm::do_broadcast(OpRecord& op, const Blocks& data, int root) {
  WEFT_RETURN_IF_ERROR(open(op, {.dst = data.base}));
  if (rank() != root && data.total_bytes() != 0) {
    std::memcpy(data.base, call_of(root, op).dst, data.total_bytes());
    counters_.moved_bytes += data.total_bytes();
  }
  return close(op);
}

Status ThreadComm::do_barrier(OpRecord& op) {
  WEFT_RETURN_IF_ERROR(open(op, {}));
  seat_.reading.store(false, std::memory_order_release);  // there is nothing to read, so no second meeting
  board_.end_op(me_);
  return {};
}

Result<Communicator::Request> ThreadComm::do_start(OpRecord& op, int peer, const Blocks& data) {
  if (board_.failed()) return leave(board_.failure());
  complete(op);
  Pending pending{.op = op, .peer = peer, .data = data, .number = 0, .sent = nullptr};
  if (op.comm_kind() == CommKind::kSend) {
    auto message = std::make_shared<Message>();
    message->op = op;
    message->data = data;
    message->from = rank();
    message->number = messages_to_[peer]++;
    pending.sent = message;
    Inbox& inbox = group_->inboxes[peer];
    std::lock_guard lock(inbox.mutex);
    inbox.messages.push_back(std::move(message));
    inbox.posted.fetch_add(1, std::memory_order_release);
  } else {
    pending.number = messages_from_[peer]++;
  }
  const Request request{next_request_++};
  pending_.emplace(request.id, std::move(pending));
  return request;
}

// Nothing is under way: what a peer has is read when it is waited for.
Result<Communicator::Request> ThreadComm::do_start_exchange(OpRecord& op, std::span<const Blocks> send,
                                                            std::span<const Blocks> recv) {
  if (board_.failed()) return leave(board_.failure());
  Pending pending;
  pending.op = op;
  pending.exchange_send.assign(send.begin(), send.end());
  pending.exchange_recv.assign(recv.begin(), recv.end());
  const Request request{next_request_++};
  pending_.emplace(request.id, std::move(pending));
  return request;
}

Status ThreadComm::do_wait(Request request) {
  const auto found = pending_.find(request.id);
  WEFT_CHECK(found != pending_.end(), "wait for request {}, which is none", request.id);
  Pending pending = std::move(found->second);
  pending_.erase(found);
  if (!pending.exchange_send.empty()) return do_exchange(pending.op, pending.exchange_send, pending.exchange_recv);
  board_.begin_op(me_, pending.op);
  WEFT_RETURN_IF_ERROR(pending.sent != nullptr ? wait_for_send(pending) : receive(pending));
  board_.end_op(me_);
  return {};
}

Status ThreadComm::wait_for_send(Pending& pending) {
  RankSet missing;
  missing.add(group_->members[pending.peer]);
  Wait wait(board_, me_, pending.op);
  while (pending.sent->state.load(std::memory_order_acquire) != Message::kConsumed) {
    if (!wait.pause()) continue;
    if (Status status = wait.poll(missing); !status.ok()) {
      withdraw(*pending.sent);
      return leave(std::move(status));
    }
  }
  return {};
}

std::shared_ptr<Message> ThreadComm::take_message(int from, int64_t number) {
  Inbox& inbox = group_->inboxes[rank()];
  std::lock_guard lock(inbox.mutex);
  const auto found = std::find_if(inbox.messages.begin(), inbox.messages.end(), [&](const auto& message) {
    return message->from == from && message->number == number;
  });
  if (found == inbox.messages.end()) return nullptr;
  std::shared_ptr<Message> message = std::move(*found);
  inbox.messages.erase(found);
  return message;
}

Status ThreadComm::receive(const Pending& pending) {
  RankSet missing;
  missing.add(group_->members[pending.peer]);
  Inbox& inbox = group_->inboxes[rank()];
  Wait wait(board_, me_, pending.op);
  std::shared_ptr<Message> message;
  uint64_t seen = 0;
  while (message == nullptr) {
    if (const uint64_t posted = inbox.posted.load(std::memory_order_acquire); posted != seen) {
      seen = posted;
      message = take_message(pending.peer, pending.number);
    } else if (wait.pause()) {
      if (Status status = wait.poll(missing); !status.ok()) return leave(std::move(status));
    }
  }
  int expected = Message::kPosted;
  if (!message->state.compare_exchange_strong(expected, Message::kClaimed)) {
    return leave(board_.fail(
        StatusCode::kMachineFailed,
        fmt::format("{}: rank {} withdrew this message", board_.where(me_), group_->members[pending.peer])));
  }
  const bool fits = message->op.call_hash == pending.op.call_hash;
  if (fits) {
    copy_blocks(message->data, pending.data);
    counters_.moved_bytes += pending.data.total_bytes();
  }
  // The sender is free only now: a mismatch must be on the board before it goes on.
  Status status = fits ? Status() : board_.mismatch(group_->members[pending.peer], message->op, me_, pending.op);
  message->state.store(Message::kConsumed, std::memory_order_release);
  return fits ? Status() : leave(std::move(status));
}

void ThreadComm::withdraw(Message& message) {
  int expected = Message::kPosted;
  if (message.state.compare_exchange_strong(expected, Message::kWithdrawn)) return;
  while (message.state.load(std::memory_order_acquire) == Message::kClaimed) std::this_thread::yield();
}

void ThreadComm::withdraw_all() {
  for (auto& [id, pending] : pending_) {
    if (pending.sent != nullptr) withdraw(*pending.sent);
  }
}

Result<std::unique_ptr<Communicator>> ThreadComm::subgroup(std::span<const int> ranks) {
  std::vector<int> members;
  int own = -1;
  for (const int r : ranks) {
    WEFT_CHECK(r >= 0 && r < size(), "rank {} of a group of {}", r, size());
    if (r == rank()) own = static_cast<int>(members.size());
    members.push_back(group_->members[r]);
  }
  WEFT_CHECK(own >= 0, "rank {} is not in its own subgroup", rank());
  if (board_.failed()) return leave(board_.failure());
  OpRecord op = make_op(CommKind::kSubgroup, fmt::format("ranks {}", fmt::join(members, ",")), 0, 0);
  complete(op);
  board_.begin_op(me_, op);
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(world_->mutex);
    const auto key = std::pair(group_->id, members);
    auto& [forming, joined] = world_->forming[key];
    if (forming == nullptr) forming = std::make_shared<Group>(++world_->next_group, members);
    group = forming;
    if (++joined == members.size()) world_->forming.erase(key);
  }
  group->seats[own].joined.store(true, std::memory_order_release);
  Wait wait(board_, me_, op);
  const auto missing = [&] {
    RankSet set;
    for (size_t i = 0; i < members.size(); ++i) {
      if (!group->seats[i].joined.load(std::memory_order_acquire)) set.add(members[i]);
    }
    return set;
  };
  for (RankSet set = missing(); !set.empty(); set = missing()) {
    if (!wait.pause()) continue;
    if (Status status = wait.poll(set); !status.ok()) return leave(std::move(status));
  }
  board_.end_op(me_);
  ++counters_.of(CommKind::kSubgroup).calls;
  return std::unique_ptr<Communicator>(std::make_unique<ThreadComm>(world_, group, own, Role::kSubgroup));
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int num_ranks, const CommOptions& options) {
  WEFT_CHECK(num_ranks >= 1 && num_ranks <= kMaxRanks, "{} ranks", num_ranks);
  auto world = std::make_shared<World>(num_ranks, options);
  std::vector<int> members(num_ranks);
  std::iota(members.begin(), members.end(), 0);
  auto group = std::make_shared<Group>(world->next_group, members);
  std::vector<std::unique_ptr<Communicator>> endpoints;
  for (int rank = 0; rank < num_ranks; ++rank) {
    endpoints.push_back(std::make_unique<ThreadComm>(world, group, rank, ThreadComm::Role::kWorld));
  }
  return endpoints;
}

}  // namespace weft
