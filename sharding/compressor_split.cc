#include "sharding/compressor_split.h"

#include <algorithm>

namespace weft {
namespace {

// Compressed row `row` of request i is computed by rank `owner`: extends the rank's last run or starts a new one.
void append(std::vector<CompressedRows>& runs, int64_t request, int64_t row, int64_t ratio, int overlap) {
  if (!runs.empty() && runs.back().request == request && runs.back().first_row + runs.back().num_rows == row) {
    ++runs.back().num_rows;
    runs.back().input_end += ratio;
    return;
  }
  runs.push_back({.request = request,
                  .first_row = row,
                  .num_rows = 1,
                  .input_begin = std::max<int64_t>(ratio * (row - overlap), 0),
                  .input_end = ratio * (row + 1)});
}

}  // namespace

CompressorSplit split_compressor(const ShardPlan& plan, int64_t ratio, int overlap) {
  WEFT_CHECK(ratio > 0 && overlap >= 0, "ratio {}, overlap {}", ratio, overlap);
  const GlobalView& global = plan.global();
  CompressorSplit split;
  split.owned.resize(plan.ranks());
  split.num_rows.assign(plan.ranks(), 0);
  split.tail_owner.assign(global.seq_lens.size(), -1);

  struct Place {
    int32_t rank;
    int64_t index;  // among the rank's rows
  };
  std::vector<Place> places;  // of the completed rows
  for (int64_t i : global.writers) {
    const int64_t row0 = global.query_start_loc[i], start = global.start_pos[i], end = global.seq_lens[i];
    for (int64_t row = start / ratio; row < end / ratio; ++row) {
      const int64_t last_token = ratio * (row + 1) - 1;
      const int32_t owner = plan.row_owner()[row0 + last_token - start];
      append(split.owned[owner], i, row, ratio, overlap);
      places.push_back({owner, split.num_rows[owner]++});
    }
    split.tail_owner[i] = plan.row_owner()[global.query_start_loc[i + 1] - 1];
  }
  split.rows_per_rank = *std::ranges::max_element(split.num_rows);
  for (const Place& place : places) split.restore.push_back(place.rank * split.rows_per_rank + place.index);
  return split;
}

}  // namespace weft
