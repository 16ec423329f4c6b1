// The board of a world: what every rank is doing, readable by all of them, and the one failure of the world. It lies in
// memory that the ranks share (the heap for threads, a shared-memory window for processes of one host).
//
// A rank writes its own slot only. Nothing here is touched while a call goes well except for the record at its begin;
// all detection is done by ranks that wait already, about once a millisecond (Wait, below).
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace weft {

struct RankSet {
  static constexpr int kWords = kMaxRanks / 64;
  std::array<uint64_t, kWords> words{};

  void add(int rank) { words[rank / 64] |= uint64_t{1} << (rank % 64); }
  bool has(int rank) const { return (words[rank / 64] >> (rank % 64) & 1) != 0; }
  bool empty() const { return words == std::array<uint64_t, kWords>{}; }
  bool operator==(const RankSet&) const = default;
};

// One call as its rank sees it: no pointers, it is read by other processes.
struct OpRecord {
  static constexpr int kNameBytes = 56;

  uint64_t group = 0;     // id of the group
  int64_t sequence = -1;  // number of the collective in its group; -1: point to point, not comparable by number
  int64_t step = 0;
  int64_t rows = 0, row_bytes = 0;
  int64_t root = -1;  // broadcast: root; send, recv: the peer's world rank
  uint64_t counts_hash = 0;
  uint64_t call_hash = 0;  // of everything that must agree between ranks
  int32_t kind = 0, dtype = 0;
  RankSet members;                      // world ranks
  std::array<char, kNameBytes> name{};  // cut; call_hash has all of it

  CommKind comm_kind() const { return static_cast<CommKind>(kind); }
};
static_assert(sizeof(OpRecord) % sizeof(uint64_t) == 0);

OpRecord make_op(CommKind kind, std::string_view name, int64_t rows, int64_t row_bytes, DType dtype = DType::kU8,
                 int64_t root = -1, uint64_t counts_hash = 0);
uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);
std::string describe(const OpRecord& op);  // "all_gather 'attn_in' (32 rows of 8192 bytes)"

// One collective that a rank has issued: of group and sequence `key`, `call` = its call_hash.
struct BoardCall {
  std::atomic<uint64_t> key, call;
};
inline constexpr int kBoardCalls = 64;

// Lives in shared memory; all zero is its initial state.
struct BoardSlot {
  enum State : uint32_t { kRunning = 0, kLeft = 1, kDead = 2 };
  static constexpr size_t kRecordWords = sizeof(OpRecord) / sizeof(uint64_t);

  alignas(64) std::atomic<uint32_t> state;
  std::atomic<uint32_t> idle;
  std::atomic<uint32_t> in_op;
  std::atomic<uint32_t> waiting;  // `missing` is valid
  std::atomic<uint64_t> ticks;    // progress
  std::atomic<uint64_t> beats;    // polls of a rank that waits
  std::atomic<int64_t> step;
  std::atomic<int64_t> pair_bytes;  // of messages that are started and not yet waited for (processes)
  std::atomic<int64_t> cpu_clock;   // clockid_t + 1 of the rank's thread or process; 0: not known
  std::atomic<int64_t> pid;         // of the rank's process; 0: not known (threads, ranks of other hosts)
  std::atomic<uint64_t> version;    // of record; odd while it is written
  std::array<std::atomic<uint64_t>, kRecordWords> record;
  std::array<std::atomic<uint64_t>, RankSet::kWords> missing;
  // The last collectives of this rank (processes only; threads compare their calls where they meet).
  std::array<BoardCall, kBoardCalls> calls;
  pthread_mutex_t life;  // processes only: held by the rank, released by the system when it dies
};

struct BoardHeader {
  enum FailureState : uint32_t { kNone = 0, kBeingWritten = 1, kSet = 2 };
  static constexpr int kMessageBytes = 2000;

  alignas(64) std::atomic<uint32_t> failure;
  std::atomic<uint32_t> reported;  // 1: somebody prints the failure, 2: it is printed
  int32_t code;
  std::array<char, kMessageBytes> message;
};

class Board {
 public:
  enum class Ranks { kThreads, kProcesses };

  static size_t bytes(int num_ranks);
  // `memory`: bytes(num_ranks), zeroed before any rank uses it, aligned to 64.
  Board(void* memory, int num_ranks, Ranks ranks, const CommOptions& options);

  int num_ranks() const { return num_ranks_; }
  // Waits spin this often before they yield; 0 where ranks outnumber processors: spinning would only delay the others.
  int spin_limit() const { return spin_limit_; }
  Ranks ranks() const { return ranks_; }
  const CommOptions& options() const { return options_; }
  BoardSlot& slot(int rank) { return slots_[rank]; }

  // --- by the rank itself
  void enter_process(int rank);  // processes: takes the lock of life, notes the clock
  void note_thread(int rank);    // threads: this thread is the rank now
  void leave(int rank);          // in order
  void begin_op(int rank, const OpRecord& op);
  // Notes the collective of begin_op and compares it with what the peers issued in its place, as far as they got there;
  // who comes later sees the difference. A call that sends only (a broadcast's root) would otherwise end without
  // noticing.
  Status compare_calls(int rank, const OpRecord& op);
  void end_op(int rank);
  void set_missing(int rank, const RankSet& missing);

  // --- by anyone
  bool failed() const { return header_->failure.load(std::memory_order_acquire) != BoardHeader::kNone; }
  Status failure();                                          // ok if there is none
  Status fail(StatusCode code, const std::string& message);  // the first one stays; returns the one that stays
  Status abort(int rank, const Status& status);
  // True for one caller, who then prints the failure and says so; the others wait for that, one second at most.
  bool claim_report();
  void reported();
  bool is_dead(int rank);
  // Blocks until `rank` leaves (false) or dies (true). Processes only.
  bool await_death(int rank);
  Status report_death(int rank);

  // A consistent copy of the record; false if the rank has issued no call yet.
  bool read_op(int rank, OpRecord* op);
  RankSet read_missing(int rank);
  int64_t cpu_time_ns(int rank);  // -1: not known, or the thread is gone
  bool is_stopped(int rank);      // by a signal (SIGSTOP, Ctrl-Z); false where that cannot be seen
  std::string where(int rank);    // "rank 1/4, step 7, after all_gather 'attn_in' (...)"
  // Both calls differ in what must agree.
  Status mismatch(int rank_a, const OpRecord& a, int rank_b, const OpRecord& b);

 private:
  int num_ranks_;
  int spin_limit_;
  Ranks ranks_;
  CommOptions options_;
  BoardHeader* header_;
  BoardSlot* slots_;
};

// One waiting loop of one rank:
//   Wait wait(board, rank, op);
//   while (!ready()) {
//     if (wait.pause()) WEFT_RETURN_IF_ERROR(wait.poll(ranks that are missing));
//   }
class Wait {
 public:
  Wait(Board& board, int rank, const OpRecord& op);
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Spins, then yields, then sleeps briefly; true when it is time to poll.
  bool pause();
  Status poll(const RankSet& missing);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    uint64_t progress = 0, ticks = 0;
    int64_t cpu_ns = -1;
    Clock::time_point moved, ticked;
    Clock::time_point state_read, stopped;  // of a process that is idle
  };
  struct CycleRank {
    int rank;
    uint64_t version, beats;
    bool pair;  // it waits in a send or recv
    int64_t pair_bytes;
  };

  Status check_peer(int peer, Clock::time_point now);
  Status check_idle_peer(int peer, Peer& seen, Clock::time_point now);
  Status check_cycle(const RankSet& missing, Clock::time_point now);
  bool find_cycle(int from, const OpRecord& op, const RankSet& missing, RankSet& seen, std::vector<CycleRank>& path);

  Board& board_;
  int rank_;
  const OpRecord& op_;
  int spins_ = 0;
  bool polled_ = false;
  Clock::time_point start_, next_poll_, last_poll_;
  std::vector<Peer> peers_;       // by world rank, from the first poll on
  std::vector<CycleRank> cycle_;  // suspected
  Clock::time_point cycle_since_;
};

}  // namespace weft
