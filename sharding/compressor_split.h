// Who computes which compressed rows when every rank compresses only part of the tokens (compressor=split).
//
// Compressed row w of a request is made of the tokens at ratio * (w - overlap) .. ratio * (w + 1) - 1 (overlap 1: two
// blocks, the first of a sequence has no predecessor; overlap 0: one block). Its owner is the rank that computes the
// LAST of them, so it is complete in the step that has that token. What is left over, fewer than ratio tokens, is the
// tail state; its owner is the rank of the request's last token.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/shard_plan.h"

namespace weft {

// Compressed rows [first_row, first_row + num_rows) of a request, made of the positions [input_begin, input_end).
// Positions before the request's start_pos come from the compressor state, later ones may belong to other ranks.
struct CompressedRows {
  int64_t request = 0;  // index in the batch
  int64_t first_row = 0, num_rows = 0;
  int64_t input_begin = 0, input_end = 0;
  bool operator==(const CompressedRows&) const = default;
};

struct CompressorSplit {
  std::vector<std::vector<CompressedRows>> owned;  // by rank, ascending
  std::vector<int64_t> num_rows;                   // by rank
  int64_t rows_per_rank = 0;                       // the largest of them: rows of a rank in a padded gather
  // Where each row completed in the step (requests in batch order, rows ascending) stands after that padded gather.
  std::vector<int64_t> restore;
  std::vector<int32_t> tail_owner;  // by request: rank of its last token; -1 if it has no row in this step

  bool operator==(const CompressorSplit&) const = default;
};

CompressorSplit split_compressor(const ShardPlan& plan, int64_t ratio, int overlap);

}  // namespace weft
