// Communicator: one rank's endpoint of a group of ranks. Threads of one process (comm/thread_comm.h) or MPI processes
// (comm/mpi_comm.h); both give the same bits, count the same bytes and end in the same errors.
//
// Calls are collective: all ranks of the group issue the same calls in the same order, a rank with no rows too. `name`
// says which value is moved (the node's name in the graph); it must be the same on all ranks, and errors quote it.
// One thread at a time uses the endpoints of a rank (all of them: its world endpoint and those of subgroups).
//
// Buffers have a capacity, the rows of a call are an argument. Only valid rows are read and written, rows behind them
// keep their bytes. src must not overlap dst unless said otherwise. src may be overwritten when the call returns.
//
// Sums: `src` holds this rank's fp32 partial of all rows. The owner of a row adds the partials of ranks 0 .. P-1 by the
// upper levels of the canonical tree: neighbours in pairs, level by level; where a level has an odd number of summands
// the last one goes up as it is (P = 3: (0+1)+2; P = 6: ((0+1)+(2+3))+(4+5)). One rounding to dst_dtype after the sum.
//
// Errors, the same Status on every rank, within a bounded time, naming rank, step and operation:
//   * a rank called abort(), or its endpoint, thread or process ended while others wait for it;
//   * ranks issue different calls (kind, name, rows, dtype ...) in one group, or wait for each other in different
//     groups;
//   * a rank stands still for timeout_s: see CommOptions.
// After an error every further call on any endpoint of the world returns that same error.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "comm/blocks.h"
#include "tensor/dtype.h"

namespace weft {

// The largest world: rank sets are bit masks of fixed size in memory that processes share.
inline constexpr int kMaxRanks = 256;

enum class CommKind {
  kAllGather,
  kAllGatherV,
  kReduceScatter,
  kReduceScatterV,
  kAllReduce,
  kAllReduceMax,
  kAllToAll,
  kAllToAllV,
  kBroadcast,
  kBarrier,
  kSend,
  kRecv,
  kSubgroup,
};
inline constexpr int kNumCommKinds = 13;
std::string_view comm_kind_name(CommKind kind);  // "all_gather", ...

// When a peer that others wait for counts as lost. Waiting itself is not bounded: a slow rank is not a dead one.
//   * It stood still for timeout_s: it neither waits in a call of its own, nor called tick(), nor did its thread (over
//     MPI: its process) use processor time. A sleeping, blocked or stopped rank ends here. The default keeps all under
//     5 s.
//   * It computes, but for stuck_timeout_s it neither issued a call nor called tick(): an endless loop, which cannot be
//     told from slow work in any other way.
// A rank inside begin_idle() .. end_idle() (a server without requests) is never lost for these reasons; over MPI it is
// when its process was stopped by a signal (SIGSTOP, Ctrl-Z of it alone) for timeout_s. Time in which the rank that
// looks was stopped, too, does not count: a job that is paused as a whole goes on when it is continued.
struct CommOptions {
  double timeout_s = 4;
  double stuck_timeout_s = 600;
};

struct CommCounters {
  struct Kind {
    int64_t calls = 0;
    int64_t bytes_sent = 0;  // by comm/bytes.h
    bool operator==(const Kind&) const = default;
  };
  std::array<Kind, kNumCommKinds> kinds;
  // What really crossed, counted where it is moved: bytes that this endpoint handed to MPI for its peers, or (threads)
  // read from its peers' memory. Summed over the ranks it equals the sum of bytes_sent wherever nothing was padded.
  int64_t moved_bytes = 0;

  const Kind& of(CommKind kind) const { return kinds[static_cast<size_t>(kind)]; }
  Kind& of(CommKind kind) { return kinds[static_cast<size_t>(kind)]; }
  int64_t bytes_sent() const;  // of all kinds
};

struct GatherArgs {
  const void* src = nullptr;  // the rank's own rows; may be their place inside dst
  void* dst = nullptr;        // all rows, rank after rank, without gaps
  int64_t rows = 0;           // of dst
  int64_t row_bytes = 0;
};

struct ReduceArgs {
  const float* src = nullptr;     // [rows, width], this rank's partial
  void* dst = nullptr;            // own rows (reduce_scatter) or all rows (all_reduce)
  DType dst_dtype = DType::kF32;  // kF32 or kBF16
  int64_t rows = 0;               // of src
  int64_t width = 0;
};

struct OpRecord;  // comm/board.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  std::span<const int> members() const { return members_; }  // world ranks

  // dst[first_row_of_rank(s) + j] = src_s[j]: rows split flat (comm/bytes.h), fewer on the last ranks where P does not
  // divide rows.
  Status all_gather(std::string_view name, const GatherArgs& args);
  // counts[s]: rows of rank s, known to all; args.rows is their sum.
  Status all_gather_v(std::string_view name, const GatherArgs& args, std::span<const int64_t> counts);

  // dst[j] = cast(sum_s src_s[first_row_of_rank(r) + j]), this rank's rows under the flat split.
  Status reduce_scatter(std::string_view name, const ReduceArgs& args);
  Status reduce_scatter_v(std::string_view name, const ReduceArgs& args, std::span<const int64_t> counts);
  // A reduce_scatter and an all_gather of the cast rows: the bits of those.
  Status all_reduce(std::string_view name, const ReduceArgs& args);

  // dst[i] = max_s src_s[i]; NaN if any is NaN; of equal values the lowest rank's.
  Status all_reduce_max(std::string_view name, const float* src, float* dst, int64_t count);

  // Block p of `send` goes to rank p, block s of `recv` comes from rank s; the rank's own block is copied. All blocks
  // have the same number of bytes. comm/blocks.h has the exchanges of the layouts.
  Status all_to_all(std::string_view name, const Exchange& exchange);
  // Blocks of any size, also empty: send[p] of rank s and recv[s] of rank p have the same number of bytes (checked).
  Status all_to_all_v(std::string_view name, std::span<const Blocks> send, std::span<const Blocks> recv);

  Status broadcast(std::string_view name, void* data, int64_t bytes, int root);
  Status barrier(std::string_view name);

  // Point to point. The buffer stays untouched until wait() returns. Between two ranks messages arrive in the order of
  // their start; sizes and names must match. Waits may come in any order; every request is waited for once.
  struct Request {
    int64_t id = -1;
  };
  Result<Request> start_send(std::string_view name, int to, const Blocks& data);
  Result<Request> start_recv(std::string_view name, int from, const Blocks& data);
  Status wait(Request request);

  // Collectives that go on while the rank does other things: of the same bytes, names and counts as those above. src
  // and dst stay untouched until wait() returns. The ranks of a group start them, and wait for them, at the same places
  // among their calls. Over MPI the transfers are under way from the start and move inside of calls of this rank,
  // progress() among them; ranks that are threads read their peers' memory in wait(): the copy is work of this rank,
  // whenever it is done.
  Result<Request> start_all_gather(std::string_view name, const GatherArgs& args);
  Result<Request> start_all_to_all(std::string_view name, const Exchange& exchange);
  // Lets what was started go on, without waiting.
  virtual void progress() {}

  Status send(std::string_view name, int to, const Blocks& data);
  Status recv(std::string_view name, int from, const Blocks& data);

  // Collective over `ranks` alone, which are ranks of this group in the order of their new ranks, this one among them,
  // and the same list on each. The subgroup may outlive this endpoint, not the world.
  virtual Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks) = 0;

  // The step number that errors name; per world rank.
  virtual void set_step(int64_t step) = 0;
  // "This rank makes progress": a store, cheap enough for every graph node.
  virtual void tick() = 0;
  // Peers may wait for this rank without bound in between.
  virtual void begin_idle() = 0;
  virtual void end_idle() = 0;
  // Fails all ranks of the world: "rank 2/4, step 12, after all_gather 'attn_in': <message>". The first failure wins;
  // returns it.
  virtual Status abort(const Status& status) = 0;
  // The failure of the world, ok if there is none.
  virtual Status failure() = 0;

  const CommCounters& counters() const { return counters_; }
  void reset_counters() { counters_ = {}; }

 protected:
  Communicator(int rank, std::vector<int> members) : rank_(rank), members_(std::move(members)) {}

  // The transports. Arguments are checked, `op` is complete but for what only the transport knows.
  struct Reduction {
    const float* src;
    void* dst;
    DType dst_dtype;
    int64_t width;
    std::span<const int64_t> first_rows;  // size() + 1 entries
  };
  virtual Status do_exchange(OpRecord& op, std::span<const Blocks> send, std::span<const Blocks> recv) = 0;
  virtual Status do_reduce_scatter(OpRecord& op, const Reduction& reduction) = 0;
  virtual Status do_all_reduce(OpRecord& op, const Reduction& reduction) = 0;
  virtual Status do_all_reduce_max(OpRecord& op, const float* src, float* dst, int64_t count) = 0;
  virtual Status do_broadcast(OpRecord& op, const Blocks& data, int root) = 0;
  virtual Status do_barrier(OpRecord& op) = 0;
  virtual Result<Request> do_start(OpRecord& op, int peer, const Blocks& data) = 0;
  virtual Result<Request> do_start_exchange(OpRecord& op, std::span<const Blocks> send,
                                            std::span<const Blocks> recv) = 0;
  virtual Status do_wait(Request request) = 0;

  CommCounters counters_;

 private:
  void count(CommKind kind, int64_t bytes_sent);
  void gather_blocks(const GatherArgs& args);
  void exchange_blocks(const Exchange& exchange);
  Reduction reduction(const ReduceArgs& args);
  void split_flat(int64_t rows);
  void split_counts(std::span<const int64_t> counts);

  int rank_;
  std::vector<int> members_;
  std::vector<int64_t> first_rows_;  // of the call in progress
  std::vector<Blocks> send_, recv_;
};

// Marks a rank that waits for work from outside.
class CommIdle {
 public:
  explicit CommIdle(Communicator& comm) : comm_(comm) { comm_.begin_idle(); }
  ~CommIdle() { comm_.end_idle(); }
  CommIdle(const CommIdle&) = delete;
  CommIdle& operator=(const CommIdle&) = delete;

 private:
  Communicator& comm_;
};

}  // namespace weft
