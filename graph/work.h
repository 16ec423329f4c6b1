// What a node costs. Read by the cost model; bytes and flops counted by an instrumented run must equal it.
#pragma once

#include <cstdint>

namespace weft {

struct Work {
  double flops = 0;                              // 2 per multiply-add
  int64_t bytes_read = 0, bytes_written = 0;     // memory traffic: every input and output once
  int64_t bytes_sent = 0;                        // per rank; collectives only
  int64_t scratch_bytes = 0;                     // live only while the op runs

  bool operator==(const Work&) const = default;
};

// What work() may depend on besides the types: it decides the scratch of one rank.
struct WorkEnv {
  int num_threads = 1;
};

}  // namespace weft
