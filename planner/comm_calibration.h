// Collectives between ranks of one machine, that are threads of a process or processes of an MPI job: latency and bandwidth of the
// link, and what part of the closed form each collective reaches, by bytes.
#pragma once

#include <array>
#include <string_view>

#include "comm/communicator.h"
#include "planner/device_profile.h"

namespace weft {

// Seconds of one call, median, by size.
struct CollectiveTimes {
  static constexpr size_t kSizes = 4;
  double barrier = 0;
  std::array<double, kSizes> all_reduce{}, reduce_scatter{}, all_gather{}, all_to_all{};
};

// Called by all ranks; each gets times of its own.
Result<CollectiveTimes> measure_collectives(Communicator& comm);

// Puts the times into a profile that has bandwidths and peaks: the link between ranks of one machine, if it has none, and one table per
// collective, in place of those of as many ranks. `source`: what the figures say of themselves.
Status add_collectives(const CollectiveTimes& times, int ranks, int threads, std::string_view source,
                       DeviceProfile& profile);

// Both, with ranks that are threads of this process.
Status calibrate_thread_collectives(int ranks, int threads, DeviceProfile& profile);

}  // namespace weft
