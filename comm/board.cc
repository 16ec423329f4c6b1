#include "comm/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

namespace weft {
namespace {

// About 20 us: the usual skew of ranks that do equal work. Much longer would be lost whenever two ranks share a core.
constexpr int kSpins = 400;

uint64_t hash_word(uint64_t seed, uint64_t word) {
  seed = (seed ^ word) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  return seed ^ (seed >> 29);
}

// After an attempt to lock a rank's lock of life.
bool took_lock_of_dead(BoardSlot& slot, int error) {
  const bool died = error == EOWNERDEAD || error == ENOTRECOVERABLE;
  if (died) slot.state.store(BoardSlot::kDead, std::memory_order_release);
  // Unlocked without being made consistent: the lock stays unusable, and every later look sees that.
  if (error == 0 || error == EOWNERDEAD) pthread_mutex_unlock(&slot.life);
  return died;
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = hash_word(seed, size);
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = hash_word(hash, word);
  }
  uint64_t word = 0;
  std::memcpy(&word, bytes, size);
  return hash_word(hash, word);
}

OpRecord make_op(CommKind kind, std::string_view name, int64_t rows, int64_t row_bytes, DType dtype, int64_t root,
                 uint64_t counts_hash) {
  OpRecord op;
  op.kind = static_cast<int32_t>(kind);
  op.dtype = static_cast<int32_t>(dtype);
  op.rows = rows;
  op.row_bytes = row_bytes;
  op.root = root;
  op.counts_hash = counts_hash;
  const size_t length = std::min(name.size(), op.name.size() - 1);
  std::memcpy(op.name.data(), name.data(), length);
  // A send meets a recv, so their kind and peer stay out.
  const bool pair = kind == CommKind::kSend || kind == CommKind::kRecv;
  const int64_t facts[] = {pair ? -1 : op.kind, op.dtype, rows, row_bytes, pair ? -1 : root};
  op.call_hash = hash_bytes(facts, sizeof(facts), hash_bytes(name.data(), name.size(), counts_hash));
  return op;
}

std::string describe(const OpRecord& op) {
  std::string text = fmt::format("{} '{}'", comm_kind_name(op.comm_kind()), op.name.data());
  switch (op.comm_kind()) {
    case CommKind::kAllGather:
    case CommKind::kAllGatherV: return text + fmt::format(" ({} rows of {} bytes)", op.rows, op.row_bytes);
    case CommKind::kReduceScatter:
    case CommKind::kReduceScatterV:
    case CommKind::kAllReduce:
      return text + fmt::format(" ({} rows of {} bytes, to {})", op.rows, op.row_bytes,
                                dtype_name(static_cast<DType>(op.dtype)));
    case CommKind::kAllReduceMax: return text + fmt::format(" ({} floats)", op.rows);
    case CommKind::kAllToAll: return text + fmt::format(" ({} bytes for each rank)", op.row_bytes);
    case CommKind::kBroadcast:
      return text + fmt::format(" ({} bytes from rank {} of its group)", op.row_bytes, op.root);
    case CommKind::kSend: return text + fmt::format(" ({} bytes to rank {})", op.row_bytes, op.root);
    case CommKind::kRecv: return text + fmt::format(" ({} bytes from rank {})", op.row_bytes, op.root);
    case CommKind::kAllToAllV:
    case CommKind::kBarrier:
    case CommKind::kSubgroup: return text;
  }
  return text;
}

size_t Board::bytes(int num_ranks) { return sizeof(BoardHeader) + static_cast<size_t>(num_ranks) * sizeof(BoardSlot); }

Board::Board(void* memory, int num_ranks, Ranks ranks, const CommOptions& options)
    : num_ranks_(num_ranks),
      spin_limit_(num_ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0),
      ranks_(ranks),
      options_(options),
      header_(static_cast<BoardHeader*>(memory)),
      slots_(reinterpret_cast<BoardSlot*>(static_cast<std::byte*>(memory) + sizeof(BoardHeader))) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
}

void Board::enter_process(int rank) {
  BoardSlot& own = slot(rank);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&own.life, &attributes);
  pthread_mutexattr_destroy(&attributes);
  pthread_mutex_lock(&own.life);
  own.pid.store(getpid());
  clockid_t clock;
  if (clock_getcpuclockid(0, &clock) == 0) {
    // The clock of "this process" names no process; another one must be able to read it.
    if (clock_getcpuclockid(getpid(), &clock) == 0) own.cpu_clock.store(int64_t{clock} + 1);
  }
}

void Board::note_thread(int rank) {
  clockid_t clock;
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) {
    slot(rank).cpu_clock.store(int64_t{clock} + 1, std::memory_order_relaxed);
  }
}

void Board::leave(int rank) {
  slot(rank).state.store(BoardSlot::kLeft, std::memory_order_release);
  if (ranks_ == Ranks::kProcesses) pthread_mutex_unlock(&slot(rank).life);
}

void Board::begin_op(int rank, const OpRecord& op) {
  BoardSlot& own = slot(rank);
  if (ranks_ == Ranks::kThreads) note_thread(rank);
  std::array<uint64_t, BoardSlot::kRecordWords> words;
  std::memcpy(words.data(), &op, sizeof(op));
  const uint64_t version = own.version.load(std::memory_order_relaxed);
  own.version.store(version + 1, std::memory_order_relaxed);
  // Release stores, in order behind the odd version: a reader that sees one of them sees that version too.
  for (size_t i = 0; i < words.size(); ++i) own.record[i].store(words[i], std::memory_order_release);
  own.in_op.store(1, std::memory_order_relaxed);
  own.version.store(version + 2, std::memory_order_release);
}

Status Board::compare_calls(int rank, const OpRecord& op) {
  const uint64_t key =
      hash_word(op.group, static_cast<uint64_t>(op.sequence)) | 1;  // 0: an entry that is being written
  const size_t place = (op.group + static_cast<uint64_t>(op.sequence)) % kBoardCalls;
  BoardCall& own = slot(rank).calls[place];
  own.key.store(0, std::memory_order_relaxed);
  own.call.store(op.call_hash, std::memory_order_release);
  own.key.store(key);  // in one order with the loads below and those of the peers: one of two sees the other
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank || !op.members.has(peer)) continue;
    BoardCall& theirs = slot(peer).calls[place];
    if (theirs.key.load() != key) continue;
    const uint64_t call = theirs.call.load(std::memory_order_acquire);
    if (theirs.key.load(std::memory_order_acquire) != key || call == op.call_hash) continue;
    OpRecord other;
    if (read_op(peer, &other) && other.group == op.group && other.sequence == op.sequence) {
      return mismatch(rank, op, peer, other);
    }
    return fail(
        StatusCode::kMachineFailed,
        fmt::format("ranks issue different operations: rank {}/{}, step {}: {} as number {} of its group; another one "
                    "was issued there by {}",
                    rank, num_ranks_, op.step, describe(op), op.sequence, where(peer)));
  }
  return {};
}

void Board::end_op(int rank) {
  BoardSlot& own = slot(rank);
  own.in_op.store(0, std::memory_order_relaxed);
  own.ticks.store(own.ticks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Board::set_missing(int rank, const RankSet& missing) {
  BoardSlot& own = slot(rank);
  for (int i = 0; i < RankSet::kWords; ++i) own.missing[i].store(missing.words[i], std::memory_order_relaxed);
  own.waiting.store(missing.empty() ? 0 : 1, std::memory_order_release);
  own.beats.store(own.beats.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

Status Board::failure() {
  if (!failed()) return {};
  // The writer needs well under a microsecond between the two states. Should it die there, the message is lost.
  for (int i = 0; header_->failure.load(std::memory_order_acquire) == BoardHeader::kBeingWritten; ++i) {
    if (i == 100'000) return machine_failed("another rank failed and died before it could say why");
    std::this_thread::yield();
  }
  return {static_cast<StatusCode>(header_->code), header_->message.data()};
}

Status Board::fail(StatusCode code, const std::string& message) {
  uint32_t expected = BoardHeader::kNone;
  if (header_->failure.compare_exchange_strong(expected, BoardHeader::kBeingWritten)) {
    header_->code = static_cast<int32_t>(code);
    const size_t length = std::min(message.size(), header_->message.size() - 1);
    std::memcpy(header_->message.data(), message.data(), length);
    header_->message[length] = '\0';
    header_->failure.store(BoardHeader::kSet, std::memory_order_release);
  }
  return failure();
}

Status Board::abort(int rank, const Status& status) {
  if (failed()) return failure();  // most often `status` is that very failure
  return fail(status.code(), fmt::format("{}: {}", where(rank), status.message()));
}

int64_t Board::cpu_time_ns(int rank) {
  const int64_t clock = slot(rank).cpu_clock.load(std::memory_order_relaxed);
  timespec time{};
  if (clock == 0 || clock_gettime(static_cast<clockid_t>(clock - 1), &time) != 0) return -1;
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// The third field of /proc/PID/stat, behind the name in parentheses, which may hold any character: proc(5).
bool Board::is_stopped(int rank) {
  const int64_t pid = slot(rank).pid.load(std::memory_order_relaxed);
  if (pid == 0) return false;
  const int file = open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 256> text{};
  const ssize_t length = read(file, text.data(), text.size());
  close(file);
  const std::string_view stat(text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && stat.substr(name_end).starts_with(") T");
}

bool Board::is_dead(int rank) {
  BoardSlot& peer = slot(rank);
  const uint32_t state = peer.state.load(std::memory_order_acquire);
  if (state != BoardSlot::kRunning) return state == BoardSlot::kDead;
  if (ranks_ == Ranks::kThreads) {
    // The clock of a thread is gone when the thread is.
    const int64_t clock = peer.cpu_clock.load(std::memory_order_relaxed);
    if (clock == 0 || cpu_time_ns(rank) >= 0) return false;
    // Not if another thread went on with the endpoint meanwhile.
    return peer.cpu_clock.load(std::memory_order_relaxed) == clock &&
           peer.state.load(std::memory_order_acquire) == BoardSlot::kRunning;
  }
  return took_lock_of_dead(peer, pthread_mutex_trylock(&peer.life));
}

bool Board::await_death(int rank) { return took_lock_of_dead(slot(rank), pthread_mutex_lock(&slot(rank).life)); }

bool Board::claim_report() {
  if (uint32_t expected = 0; header_->reported.compare_exchange_strong(expected, 1)) return true;
  for (int ms = 0; ms < 1000 && header_->reported.load() != 2; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void Board::reported() { header_->reported.store(2); }

Status Board::report_death(int rank) {
  return fail(StatusCode::kMachineFailed, fmt::format("{}: the {} of this rank ended unexpectedly", where(rank),
                                                      ranks_ == Ranks::kThreads ? "thread" : "process"));
}

bool Board::read_op(int rank, OpRecord* op) {
  BoardSlot& peer = slot(rank);
  while (true) {
    const uint64_t version = peer.version.load(std::memory_order_acquire);
    if (version == 0) return false;
    std::array<uint64_t, BoardSlot::kRecordWords> words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = peer.record[i].load(std::memory_order_acquire);
    if (version % 2 == 0 && peer.version.load(std::memory_order_acquire) == version) {
      std::memcpy(static_cast<void*>(op), words.data(), sizeof(*op));
      return true;
    }
    if (peer.state.load() == BoardSlot::kDead) return false;  // it may have died while it wrote
    std::this_thread::yield();
  }
}

RankSet Board::read_missing(int rank) {
  RankSet set;
  if (slot(rank).waiting.load(std::memory_order_acquire) == 0) return set;
  for (int i = 0; i < RankSet::kWords; ++i) set.words[i] = slot(rank).missing[i].load(std::memory_order_relaxed);
  return set;
}

std::string Board::where(int rank) {
  OpRecord op;
  BoardSlot& peer = slot(rank);
  const std::string place = fmt::format("rank {}/{}, step {}", rank, num_ranks_, peer.step.load());
  if (!read_op(rank, &op)) return place + ", before its first operation";
  // Groups are made while a rank starts; what it does behind them has no operation.
  if (op.comm_kind() == CommKind::kSubgroup && peer.in_op.load() == 0 && peer.step.load() == 0) {
    return fmt::format("rank {}/{}, before its first step", rank, num_ranks_);
  }
  return fmt::format("{}, {} {}", place, peer.in_op.load() != 0 ? "in" : "after", describe(op));
}

Status Board::mismatch(int rank_a, const OpRecord& a, int rank_b, const OpRecord& b) {
  // The same sentence from whichever side.
  if (rank_a > rank_b) return mismatch(rank_b, b, rank_a, a);
  return fail(StatusCode::kMachineFailed,
              fmt::format("ranks issue different operations: rank {}/{}, step {}: {}; rank {}/{}, step {}: {}", rank_a,
                          num_ranks_, a.step, describe(a), rank_b, num_ranks_, b.step, describe(b)));
}

}  // namespace weft
