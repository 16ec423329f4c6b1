// One rank's endpoint over MPI, for mpi_comm.cc. The only header that includes mpi.h.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/board.h"
#include "comm/communicator.h"

namespace weft {

Status mpi_error(const char* what, int code);

// What all endpoints of the process share.
struct MpiJobState {
  MPI_Win window = MPI_WIN_NULL;
  std::shared_ptr<Board> board;  // shared with the thread that watches a neighbour
  bool headers = false;
};

class MpiComm final : public Communicator {
 public:
  MpiComm(MpiJobState& job, MPI_Comm comm, uint64_t id, int rank, std::vector<int> members)
      : Communicator(rank, std::move(members)), job_(job), board_(*job.board), comm_(comm), id_(id) {
    for (const int member : this->members()) set_.add(member);
    me_ = this->members()[rank];
  }

  ~MpiComm() override {
    if (!board_.failed()) MPI_Comm_free(&comm_);
  }

  Result<std::unique_ptr<Communicator>> subgroup(std::span<const int> ranks) override;

  void set_step(int64_t step) override { board_.slot(me_).step.store(step, std::memory_order_relaxed); }
  void tick() override { board_.slot(me_).ticks.fetch_add(1, std::memory_order_relaxed); }
  void begin_idle() override { board_.slot(me_).idle.store(1, std::memory_order_relaxed); }
  void end_idle() override { board_.slot(me_).idle.store(0, std::memory_order_relaxed); }
  Status abort(const Status& status) override { return board_.abort(me_, status); }
  Status failure() override { return board_.failure(); }
  void progress() override;

 private:
  enum class Phase { kFirst, kSecond, kStarted };

  // Transfers under way, all of one call.
  struct Transfers {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;         // ranks in the group
    std::vector<int64_t> expected;  // bytes to receive; -1: a send
    void clear() { requests.clear(), peers.clear(), expected.clear(); }
  };

  struct Pending {
    OpRecord op;
    int peer = 0;
    OpRecord header;  // the peer's (a receive), or the one being sent
    Transfers transfers;
    bool collective = false;
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

  void complete(OpRecord& op);
  Status open(OpRecord& op);
  Status close();
  Status compare_headers(const OpRecord& op);
  static int tag(const OpRecord& op, Phase phase);

  void post_send(Transfers& transfers, int peer, const Blocks& data, int tag);
  void post_recv(Transfers& transfers, int peer, const Blocks& data, int tag);
  Status finish(const OpRecord& op, Transfers& transfers);
  Status transfer_fault(const OpRecord& op, const Transfers& transfers, std::span<const MPI_Status> statuses);
  void post_exchange(const OpRecord& op, Phase phase, std::span<const Blocks> send, std::span<const Blocks> recv,
                     Transfers& transfers);
  Status run_exchange(const OpRecord& op, Phase phase, std::span<const Blocks> send, std::span<const Blocks> recv);
  Status sum_own_rows(const OpRecord& op, const Reduction& reduction, std::byte* dst);

  MpiJobState& job_;
  Board& board_;
  MPI_Comm comm_;
  uint64_t id_;
  int me_;  // world rank
  RankSet set_;
  int64_t sequence_ = 0;
  std::map<std::vector<int>, int64_t> subgroups_;  // how many of these members were made
  std::unordered_map<int64_t, std::unique_ptr<Pending>> pending_;
  int64_t next_request_ = 0;
  std::vector<float> partials_;
  std::vector<Blocks> gather_send_, gather_recv_;
};

}  // namespace weft
