// What `weft calibrate` measures of the ops: shapes from those of the smallest models to those of the largest.
#pragma once

#include <string>
#include <vector>

#include "planner/op_bench.h"

namespace weft {

// A table of one op: cases for every point of its grid, last axis fastest. The values of the axes are those that Op::work gives.
struct CalibrationTable {
  std::string op;
  std::vector<std::string> axes;
  std::vector<size_t> extents;  // of the axes
  std::vector<OpCase> cases;
  bool cached = false;  // stored inputs stay in the cache
};

std::vector<CalibrationTable> calibration_tables();

}  // namespace weft
