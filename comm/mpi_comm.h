// Ranks as MPI processes (OpenMPI or MPICH; optional at build time).
//
// MPI moves bytes and nothing else: sums are made here, in the canonical order, never by MPI_Reduce. The library is
// initialised with MPI_THREAD_SERIALIZED: one thread at a time may use the endpoints of a process. All waiting is
// polling, so that a fault elsewhere is seen. Ranks on one host share a board (comm/board.h) in a shared-memory window:
// it holds what each rank is doing, its failure, and a lock that the operating system releases when the process dies.
//
// Choose the implementation when configuring: Debian's default is OpenMPI; for MPICH
//   cmake ... -DMPI_CXX_COMPILER=mpicxx.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.mpich
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace weft {

struct MpiOptions {
  CommOptions comm;
  // Every transfer is preceded by a message that says what it belongs to. On one host the board does the same for less,
  // so kAuto sends them only where ranks are on several hosts.
  enum class Headers { kAuto, kAlways };
  Headers headers = Headers::kAuto;
  // What ends the process when the job fails: `print` puts the message where users see it (one process per host calls
  // it), then the process ends with exit_code. With `print` set, a thread that sleeps until a neighbour dies does this
  // at once, also while this rank computes: otherwise mpirun would end it without a word of ours.
  std::function<void(const Status&)> print;
  int exit_code = 3;
};

// True if this build has MPI.
bool mpi_available();

// mpirun and mpiexec set one of these for the processes that they start.
inline constexpr const char* kMpiEnvironment[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};

class MpiWorld {
 public:
  // Initialises MPI. Without MPI in the build: an error that says so. At most one MpiWorld lives in a process, ever.
  static Result<std::unique_ptr<MpiWorld>> start(const MpiOptions& options);
  virtual ~MpiWorld() = default;

  virtual Communicator& world() = 0;

  // Finalises MPI; collective. Subgroups must be gone, and nothing is used afterwards. After a failure: end_job
  // instead.
  virtual Status finish() = 0;

  // Ends the job after a failure, all processes of it: prints and exits as MpiOptions says.
  [[noreturn]] virtual void end_job(const Status& status) = 0;
};

}  // namespace weft
