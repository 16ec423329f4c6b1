// Decode context parallel: which rank of K holds which row of a sharded cache. Rows go round the ranks in runs of
// `interleave` rows; a cache that interleaves whole blocks has interleave = rows of a block. All maths in integers:
// float32 loses rows above 2^24.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

struct DcpShard {
  int64_t interleave = 1;
  int ranks = 1;

  int owner(int64_t row) const { return static_cast<int>(row / interleave % ranks); }
  int64_t local_row(int64_t row) const { return row / (interleave * ranks) * interleave + row % interleave; }
  int64_t global_row(int rank, int64_t local) const {
    return (local / interleave * ranks + rank) * interleave + local % interleave;
  }
  int64_t local_length(int64_t length, int rank) const;  // rows of a sequence of `length` rows that the rank holds

  // Rows of a prefix that every rank holds in whole blocks of block_rows local rows.
  int64_t whole_block_prefix(int64_t prefix, int64_t block_rows) const {
    return prefix / ranks / block_rows * block_rows;
  }
};

// What one rank holds of a sharded cache; everything where there is one rank.
struct CacheShard {
  DcpShard shard;
  int rank = 0;

  bool whole() const { return shard.ranks == 1; }
  bool holds(int64_t row) const { return whole() || shard.owner(row) == rank; }
  int64_t local_row(int64_t row) const { return whole() ? row : shard.local_row(row); }
  int64_t length(int64_t rows) const { return whole() ? rows : shard.local_length(rows, rank); }
};

// Local row of each slot that the rank owns, -1 for the others (and for -1).
std::vector<int64_t> localize_slots(const DcpShard& shard, int rank, std::span<const int64_t> slots);

// Selected rows, reduced to those that the rank owns: local rows, in the order of the selection, moved to the front, -1
// after them. They are causal as they are: no mask by length may be applied afterwards.
struct LocalSelection {
  std::vector<int32_t> rows;  // as many entries as selected
  int64_t valid = 0;
};
LocalSelection localize_selection(const DcpShard& shard, int rank, std::span<const int32_t> selected);

}  // namespace weft
