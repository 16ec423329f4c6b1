#include "comm/mpi_comm.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/mpi_endpoint.h"

namespace weft {
namespace {

class MpiJob final : public MpiWorld {
 public:
  ~MpiJob() override {
    if (!finished_ && job_.board != nullptr && !job_.board->failed()) (void)finish();
    if (watcher_.joinable()) watcher_.detach();  // after a failure; the process is about to end
  }

  Status open(const MpiOptions& options);
  Communicator& world() override { return *world_; }
  Status finish() override;
  [[noreturn]] void end_job(const Status& status) override;

 private:
  MpiJobState job_;
  MpiOptions options_;
  std::unique_ptr<MpiComm> world_;
  std::thread watcher_;
  bool finished_ = false;
};

enum class Reporter { kThis, kOther };

// Prints the failure, or waits until another process of the host has.
Reporter report(Board& board, const MpiOptions& options) {
  if (!board.claim_report()) return Reporter::kOther;
  if (options.print) options.print(board.failure());
  // mpiexec may drop what it has not read yet when it hears of the end.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  board.reported();
  return Reporter::kThis;
}

// Each rank of a host watches the next one, so a death has one watcher. No MPI here: the main thread may be inside it.
void watch(const std::shared_ptr<Board>& board, int neighbour, const MpiOptions& options) {
  if (!board->await_death(neighbour)) return;
  (void)board->report_death(neighbour);
  report(*board, options);
  std::_Exit(options.exit_code);
}

Status MpiJob::open(const MpiOptions& options) {
  options_ = options;
  int provided = 0;
  if (const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided); error != MPI_SUCCESS) {
    return mpi_error("MPI_Init_thread", error);
  }
  int rank = 0, size = 0, host_rank = 0, host_size = 0;
  MPI_Comm comm, host;
  // MPICH takes the world's handler for errors that it finds while it waits for several transfers.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (size > kMaxRanks)
    return invalid_argument(fmt::format("{} MPI processes; weft runs on {} at most", size, kMaxRanks));
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &host_rank);
  MPI_Comm_size(host, &host_size);
  const MPI_Aint bytes = host_rank == 0 ? static_cast<MPI_Aint>(Board::bytes(size) + alignof(BoardHeader)) : 0;
  void* memory = nullptr;
  if (const int error = MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, host, &memory, &job_.window);
      error != MPI_SUCCESS) {
    return mpi_error("MPI_Win_allocate_shared", error);
  }
  MPI_Aint shared_bytes = 0;
  int unit = 0;
  MPI_Win_shared_query(job_.window, 0, &shared_bytes, &unit, &memory);
  // Mapped at addresses that differ by whole pages, so all processes find the same first aligned byte.
  size_t space = Board::bytes(size) + alignof(BoardHeader);
  std::align(alignof(BoardHeader), Board::bytes(size), memory, space);
  if (host_rank == 0) std::memset(memory, 0, Board::bytes(size));
  MPI_Barrier(host);
  job_.board = std::make_shared<Board>(memory, size, Board::Ranks::kProcesses, options.comm);
  job_.headers = options.headers == MpiOptions::Headers::kAlways || host_size != size;
  job_.board->enter_process(rank);
  std::vector<int> members(size);
  std::iota(members.begin(), members.end(), 0);
  world_ = std::make_unique<MpiComm>(job_, comm, 1, rank, std::move(members));
  MPI_Barrier(comm);  // every lock of life is held before anybody looks at it
  std::vector<int> host_ranks(host_size);
  MPI_Allgather(&rank, 1, MPI_INT, host_ranks.data(), 1, MPI_INT, host);
  MPI_Comm_free(&host);
  if (options_.print && host_size > 1) {
    watcher_ = std::thread(watch, job_.board, host_ranks[(host_rank + 1) % host_size], options_);
  }
  return {};
}

Status MpiJob::finish() {
  finished_ = true;
  WEFT_RETURN_IF_ERROR(world_->barrier("end of the job"));
  job_.board->leave(world_->rank());
  if (watcher_.joinable()) watcher_.join();  // the neighbour leaves, too: it passed the barrier
  world_.reset();
  MPI_Win_free(&job_.window);
  MPI_Finalize();
  return {};
}

void MpiJob::end_job(const Status& status) {
  (void)job_.board->abort(world_->rank(), status);
  // One abort is enough: several at a time have kept mpirun busy for seconds.
  if (report(*job_.board, options_) == Reporter::kThis) MPI_Abort(MPI_COMM_WORLD, options_.exit_code);
  std::_Exit(options_.exit_code);
}

}  // namespace

bool mpi_available() { return true; }

Result<std::unique_ptr<MpiWorld>> MpiWorld::start(const MpiOptions& options) {
  auto job = std::make_unique<MpiJob>();
  WEFT_RETURN_IF_ERROR(job->open(options));
  return std::unique_ptr<MpiWorld>(std::move(job));
}

}  // namespace weft
