// Token splits: which rank computes which rows of a batch. The result is always the same: segments per rank.
//
//   flat         the concatenated batch in P equal blocks of t = ceil(num_rows / P) rows; the last hold the padding
//   per_request  every request in P contiguous runs of ceil(q / P) rows, the last ones shorter or empty
//   zigzag       every request in 2P chunks of ceil(q / 2P) rows, clipped at q; rank r has chunks r and 2P-1-r (causal
//                balance). Decode requests are not split: all ranks compute them, and rank 0's copy counts
//   owned        whole requests; cache slot s belongs to rank s mod P while it is open (caches are rank-local):
//                the numbers of slots of two ranks differ by at most one
//
// Segments of a rank are ascending in (request, row). No split communicates.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sharding/segment.h"

namespace weft {

enum class TokenSplit { kFlat, kPerRequest, kZigzag, kOwned };
std::string_view token_split_name(TokenSplit split);  // "flat", "per_request", "zigzag", "owned"

// The rows of one request in a step, the same on all ranks.
struct BatchRequest {
  int32_t slot = 0;        // in the caches
  int64_t new_tokens = 0;  // q: rows of this step
  int64_t length = 0;      // kv: tokens after the step; 0 = a request that only pads the batch to its capacity
  bool decode = false;     // its rows are decode or draft rows, not part of a prompt

  bool padding() const { return length == 0; }
  int64_t start_pos() const { return padding() ? 0 : length - new_tokens; }  // tokens in the caches before the step
};

struct GlobalBatch {
  std::vector<BatchRequest> requests;  // their rows follow one another from row 0
  int64_t num_rows = 0;                // rows of the input tensor, at least those of the requests

  int64_t num_tokens() const;  // rows of the requests (padding requests too)
};

// Every request: new_tokens >= 0, length 0 or >= new_tokens, slot >= 0 and used once; num_rows >= num_tokens().
Status check_batch(const GlobalBatch& batch);

// By rank: the non-empty segments, row0 counted in the batch, ascending. Segments of padding requests have kv_end 0.
// Rows beyond num_tokens() are in no segment. One rank gets every request whole, whatever the split.
// Errors: check_batch, ranks < 1, owned with padding requests (no rank owns those).
Result<std::vector<std::vector<Segment>>> split_tokens(const GlobalBatch& batch, TokenSplit split, int ranks);

// Rows [begin, end) of a request of q rows that rank r of P computes under per_request.
struct RowRange {
  int64_t begin = 0, end = 0;
  bool operator==(const RowRange&) const = default;
};
RowRange per_request_rows(int64_t q, int ranks, int rank);

// owned: rank of a slot, and its number among the slots of that rank (rank-local caches).
inline int slot_owner(int32_t slot, int ranks) { return slot % ranks; }
inline int32_t slot_on_owner(int32_t slot, int ranks) { return slot / ranks; }

// What the steps of one shape may hold: the capacities that a graph is built for.
struct StepCapacity {
  int64_t tokens = 0;       // rows of the input tensor
  int64_t requests = 0;     // requests, and cache slots
  int64_t decode_rows = 1;  // rows of a decode request: 1 + drafts

  bool operator==(const StepCapacity&) const = default;
};

// Rows that one rank may have to hold in such a step, padding included: no plan within the capacity has a larger t.
// owned counts decode steps: requests of at most decode_rows rows each.
int64_t local_row_capacity(TokenSplit split, const StepCapacity& capacity, int ranks);

// What one published engine reserves per rank under zigzag instead of budget / ranks, for decode rows that are on every
// rank and chunks that are rounded up; `decode_rows` per request.
int64_t zigzag_row_reserve(int64_t budget, int ranks, int64_t num_requests, int64_t decode_rows);

}  // namespace weft
