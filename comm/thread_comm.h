// Ranks as threads of one process. A rank publishes where its data lie; its peers copy, or add, straight from there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace weft {

// num_ranks endpoints of one world, 1 <= num_ranks <= kMaxRanks; endpoint r belongs to the thread that uses it. When an
// endpoint is destroyed its rank has left: in order if nobody waits for it, else the waiters fail.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int num_ranks, const CommOptions& options = {});

struct RankRun {
  Status status;           // ok, or the one failure of the world
  bool abandoned = false;  // a thread did not return within the grace time after a failure and was left running
};

// Runs body(endpoint) on one thread per rank and waits for all. A status that is not ok, and an exception, abort the
// world. After a failure ranks get half a second to return; threads that still run then are left behind: the caller
// must end the process without destroying what `body` uses.
RankRun run_thread_ranks(int num_ranks, const CommOptions& options, std::function<Status(Communicator&)> body);

}  // namespace weft
