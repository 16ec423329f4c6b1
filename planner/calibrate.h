// Measures this machine into a device profile: bandwidth by ranks and threads, peaks, how much of its roofline every op reaches,
// and what collectives between ranks of one machine take.
#pragma once

#include <functional>
#include <string_view>

#include "base/cpu.h"
#include "planner/device_profile.h"

namespace weft {

struct CalibrationOptions {
  Isa isa = Isa::kScalar;
  double seconds_per_point = 0.008;  // at least, of each measured shape in each of two passes
  int max_ranks = 2;                 // of one machine: 1, 2, 4, ... up to this many and to the cores
};

// Before each part, what it is: "linear F8_E4M3, 1 rank of 2 threads".
using CalibrationProgress = std::function<void(std::string_view what)>;

Result<DeviceProfile> calibrate(const CalibrationOptions& options, const CalibrationProgress& progress);

}  // namespace weft
