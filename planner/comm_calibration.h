// Collectives between ranks that are threads of one process: latency and bandwidth of the link, and what part of the closed form
// each collective reaches, by bytes.
#pragma once

#include "comm/communicator.h"
#include "planner/device_profile.h"

namespace weft {

// Adds the link (once) and one table per collective to a profile that has bandwidths and peaks.
Status calibrate_thread_collectives(int ranks, int threads, DeviceProfile& profile);

}  // namespace weft
