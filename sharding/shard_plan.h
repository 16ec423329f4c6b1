// The plan of one step's token split: everything that its consumers need, computed once per step on every rank from the
// same global inputs, without communication. Immutable; consumers read it and recompute nothing, least of all one view
// from the other:
//
//   global view  what writers of caches use: lengths, first positions and positions of all requests. Cache slots, block
//                tables and input ids stay global too, in the step's batch.
//   local view   what the queries of this rank use: its rows, and key lengths that end at the last local query
//
// Draft steps own plans of their own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sharding/mesh.h"
#include "sharding/token_split.h"

namespace weft {

// Which rows the layer boundary holds: all of them, or those of this rank.
enum class Boundary { kFull, kLocal };

struct ShardPlanOptions {
  TokenSplit split = TokenSplit::kFlat;
  MeshAxis axis = MeshAxis::kTp;  // whose group splits the tokens
  int ranks = 1;                  // P: size of that group
  int rank = 0;                   // r: index within it
  Boundary boundary = Boundary::kFull;

  bool operator==(const ShardPlanOptions&) const = default;
};

// Untouched by the split. B requests; arrays of B + 1 entries are prefix sums from 0.
struct GlobalView {
  std::vector<int64_t> query_start_loc;  // [B + 1] first row of each request
  std::vector<int64_t> seq_lens;         // [B]     tokens after the step; 0 = padding request
  std::vector<int64_t> start_pos;        // [B]     tokens before the step; 0 for padding requests
  std::vector<int64_t> positions;        // [num_rows] of each row; -1 where the row is padding
  std::vector<int64_t> writers;          // requests that write caches: neither padding nor empty, ascending

  bool operator==(const GlobalView&) const = default;
};

// E entries: one per request, empty ones included (flat, per_request, owned); under zigzag one per segment.
struct LocalView {
  std::vector<Segment> segments;         // of real requests; row0 counted in the LOCAL rows; request = cache slot
  std::vector<int64_t> entry_request;    // [E]     index of the entry's request in the batch
  std::vector<int64_t> query_start_loc;  // [E + 1] first local row of each entry
  std::vector<int64_t> seq_lens;         // [E]     keys that its last local query sees: its position + 1. To be
                                         //         ignored where an entry has no rows (flat, owned: 0; per_request:
                                         //         where its rows ran out)
  std::vector<int64_t> kv_row_start;     // [E]     ADDRESS: first row of the entry's request in a packed buffer of all
                                         //         keys of all requests
  std::vector<int64_t> kv_extent;        // [E + 1] EXTENT: prefix sum of seq_lens; an address only in a buffer that
                                         //         holds just those keys
  std::vector<int64_t> rows;             // [t]     row in the batch of each local row; -1 beyond the valid rows, never
                                         //         to be scattered
  std::vector<int64_t> positions;        // [t]     position of each local row; -1 where the row is padding

  bool operator==(const LocalView&) const = default;
};

class ShardPlan {
 public:
  // Errors: those of split_tokens; rank outside 0..ranks-1.
  static Result<ShardPlan> create(const GlobalBatch& batch, const ShardPlanOptions& options);

  // The same from segments made elsewhere, by rank, as split_tokens gives them; options.split says how entries
  // are formed. Every row must be covered; where several ranks have a copy, that of the lowest rank counts.
  static ShardPlan from_segments(const GlobalBatch& batch, const ShardPlanOptions& options,
                                 std::vector<std::vector<Segment>> by_rank);

  const ShardPlanOptions& options() const { return options_; }
  TokenSplit split() const { return options_.split; }
  int ranks() const { return options_.ranks; }
  int rank() const { return options_.rank; }
  Boundary boundary() const { return options_.boundary; }

  int64_t num_tokens() const { return num_tokens_; }            // N: rows of the requests
  int64_t num_rows() const { return num_rows_; }                // N_in: rows of the input tensor
  int64_t padded_rows() const { return tokens_per_rank_ * ranks(); }  // N_pad
  // t: rows of every rank, padding included. flat: ceil(N_in / P); otherwise the largest valid count.
  int64_t tokens_per_rank() const { return tokens_per_rank_; }
  const std::vector<int64_t>& valid() const { return valid_; }  // [P] rows of each rank that are not padding
  int64_t local_tokens() const { return valid_[options_.rank]; }

  const GlobalView& global() const { return global_; }
  const LocalView& local() const { return local_; }
  // Of every rank, row0 counted in the batch, those of padding requests included.
  const std::vector<std::vector<Segment>>& segments() const { return by_rank_; }

  // [N] where each row of the batch stands after the ranks' rows were gathered: tightly (valid rows only), or t rows
  // per rank. Both are empty where that is the identity (flat, one rank).
  const std::vector<int64_t>& restore() const { return restore_; }
  const std::vector<int64_t>& padded_restore() const { return padded_restore_; }

  // [N] the rank whose copy of the row counts: the only one that computes it, or the lowest.
  const std::vector<int32_t>& row_owner() const { return row_owner_; }
  // Local row j is no padding, and the copy that counts: what an exchange of unique rows (expert dispatch) may send.
  bool primary(int64_t j) const { return local_.positions[j] >= 0 && row_owner_[local_.rows[j]] == rank(); }

  // Errors when the ranks hold different numbers of valid rows, for collectives without counts.
  Status check_equal_rows(std::string_view what) const;

  bool operator==(const ShardPlan&) const = default;

 private:
  ShardPlan() = default;

  ShardPlanOptions options_;
  int64_t num_tokens_ = 0, num_rows_ = 0, tokens_per_rank_ = 0;
  std::vector<int64_t> valid_;
  std::vector<std::vector<Segment>> by_rank_;
  GlobalView global_;
  LocalView local_;
  std::vector<int64_t> restore_, padded_restore_;
  std::vector<int32_t> row_owner_;
};

}  // namespace weft
