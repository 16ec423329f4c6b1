// Bytes that one rank sends in each collective of a group of P ranks. The planner calls these functions, the
// communicators count by them, and the conformance suite holds them against what the transport moved.
//
// `rows` are rows of the whole value, split flat: rank r holds rows [r*t, min((r+1)*t, rows)), t = ceil(rows / P).
// Where P does not divide rows, the last ranks hold fewer. Their missing rows are counted (every rank has the same
// figure) but neither sent nor written.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"

namespace weft {

inline int64_t rows_per_rank(int64_t group_size, int64_t rows) { return (rows + group_size - 1) / group_size; }

// First row of rank r under the flat split; r == group_size gives `rows`.
inline int64_t first_row_of_rank(int64_t group_size, int64_t rows, int64_t r) {
  const int64_t first = r * rows_per_rank(group_size, rows);
  return first < rows ? first : rows;
}

inline int64_t all_gather_bytes(int64_t group_size, int64_t rows, int64_t row_bytes) {
  return (group_size - 1) * rows_per_rank(group_size, rows) * row_bytes;
}

// A rank with `own_rows` rows of its own; not padded.
inline int64_t all_gather_v_bytes(int64_t group_size, int64_t own_rows, int64_t row_bytes) {
  return (group_size - 1) * own_rows * row_bytes;
}

inline constexpr int64_t kPartialBytes = 4;  // partial sums travel as fp32

inline int64_t reduce_scatter_bytes(int64_t group_size, int64_t rows, int64_t width) {
  return (group_size - 1) * rows_per_rank(group_size, rows) * width * kPartialBytes;
}

// A rank that owns `own_rows` of the sum of `counts`: it sends all rows that are not its own.
inline int64_t reduce_scatter_v_bytes(std::span<const int64_t> counts, int64_t own_rows, int64_t width) {
  int64_t rows = 0;
  for (const int64_t count : counts) rows += count;
  return (rows - own_rows) * width * kPartialBytes;
}

// A reduce_scatter of the fp32 partials and an all_gather of the rows, cast to dst_elem_bytes.
inline int64_t all_reduce_bytes(int64_t group_size, int64_t rows, int64_t width, int64_t dst_elem_bytes) {
  return reduce_scatter_bytes(group_size, rows, width) + all_gather_bytes(group_size, rows, width * dst_elem_bytes);
}

// Every rank sends its `count` floats to all others, which take the maximum themselves.
inline int64_t all_reduce_max_bytes(int64_t group_size, int64_t count) { return (group_size - 1) * count * 4; }

// bytes_per_peer: of the block for one peer; the block that a rank keeps is not counted.
inline int64_t all_to_all_bytes(int64_t group_size, int64_t bytes_per_peer) {
  return (group_size - 1) * bytes_per_peer;
}

inline int64_t all_to_all_v_bytes(std::span<const int64_t> bytes_to_peer, int64_t rank) {
  int64_t bytes = 0;
  for (int64_t peer = 0; peer < static_cast<int64_t>(bytes_to_peer.size()); ++peer) {
    if (peer != rank) bytes += bytes_to_peer[peer];
  }
  return bytes;
}

// A pipelined chain root, root + 1, ... (mod P): every rank forwards once, but for the last.
inline int64_t broadcast_bytes(int64_t group_size, int64_t rank, int64_t root, int64_t bytes) {
  const int64_t distance = (rank - root + group_size) % group_size;
  return distance < group_size - 1 ? bytes : 0;
}

// The buffer that an MPI endpoint holds for partials on their way (two chunks from every peer); thread endpoints add
// straight from their peers' memory and hold none.
inline constexpr int64_t kMpiReduceChunkBytes = 1 << 20;
inline int64_t mpi_reduce_buffer_bytes(int64_t group_size) { return 2 * (group_size - 1) * kMpiReduceChunkBytes; }

}  // namespace weft
