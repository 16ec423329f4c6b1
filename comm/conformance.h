// What every communicator must do, as programs that all ranks run with their own endpoint: one suite for threads
// (comm_test) and for MPI (mpi_conformance, started by mpirun). A new backend is right when it passes both lists.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace weft {

struct ConformanceReport {
  int64_t checks = 0;
  std::vector<std::string> failures;  // of this rank
};

// Every collective x element types x sizes x groups: results to the bit, tails untouched, counters equal comm/bytes.h,
// bytes moved equal bytes counted. A communication error ends it and is a failure.
ConformanceReport run_conformance(Communicator& world, uint64_t seed);

// A program in which something goes wrong, or, with an empty `expect`, must not.
struct FaultCase {
  const char* name;
  int num_ranks;
  CommOptions options;
  // What the one message of all ranks must contain, in this order.
  std::vector<std::string> expect;
  Status (*body)(Communicator& world);
  // A rank that kills its process is no case for threads; a thread that goes away is none for processes.
  enum class Where { kBoth, kThreads, kProcesses };
  Where where = Where::kBoth;
};

const std::vector<FaultCase>& fault_cases();

// The first text of `expect` that `message` does not have at or behind the place of the one before; "" if all are
// there.
std::string missing_text(const std::string& message, const std::vector<std::string>& expect);

}  // namespace weft
