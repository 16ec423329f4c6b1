// What a node costs. Read by the cost model; bytes and flops counted by an instrumented run must equal it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "graph/routing.h"
#include "sharding/placement.h"
#include "sharding/segment.h"
#include "tensor/dtype.h"

namespace weft {

// Which unit of a machine does the arithmetic.
enum class WorkUnit { kVector, kMatrix };

// How an op between ranks moves its bytes.
enum class CommPattern { kNone, kAllReduce, kReduceScatter, kAllGather, kAllToAll };

// By mesh axis: what a rank sends in its groups.
using SentBytes = std::array<int64_t, kNumMeshAxes>;

struct Work {
  double flops = 0;                              // 2 per multiply-add
  int64_t bytes_read = 0, bytes_written = 0;     // memory traffic: every input and output once, cache rows once per row that reads them
  int64_t bytes_sent = 0;                        // per rank; collectives only
  int64_t scratch_bytes = 0;                     // live only while the op runs

  int64_t bytes_repeated = 0;  // of bytes_read: cache rows that another row of the step reads, too
  int64_t bytes_stored = 0;    // of bytes_read: weights, tables and caches, which no node of this step has just made

  // Shape of the arithmetic, for efficiency curves: `count` products of [rows, depth] with [columns, depth] (on average where they
  // differ; depth: of one block, where a sum is made of blocks); for others rows of `columns` elements. All 0: as the first output has it.
  double rows = 0, columns = 0, depth = 0, count = 0;
  WorkUnit unit = WorkUnit::kVector;
  DType weight = DType::kF32, activation = DType::kF32;  // what the matrix unit multiplies, as quantised
  // Operations of the vector unit beside the products, not among `flops`: in the same loop (softmax, sums over heads), or before
  // the products can begin (quantising activations) or after (selection). planner.md 2.1, 2.2, 2.4.
  double vector_beside = 0, vector_apart = 0;

  CommPattern pattern = CommPattern::kNone;
  MeshAxis axis = MeshAxis::kTp;  // of the group
  int64_t group_size = 1;
  int64_t calls = 0;              // collectives that follow each other

  bool operator==(const Work&) const = default;
};

// What work() may depend on besides the types. Without segments every row is the last one of a request of the longest context;
// without a routing the rows pick as many distinct experts as they can.
struct WorkEnv {
  int num_threads = 1;               // decides the scratch of one rank
  std::span<const Segment> segments = {};  // of the rows of the first input; borrowed
  Routing routing = {};
};

}  // namespace weft
