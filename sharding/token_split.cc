#include "sharding/token_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/int_math.h"

namespace weft {
namespace {

using Segments = std::vector<Segment>;

// Rows [begin, end) of the request whose first row is row0.
void add(Segments& to, const BatchRequest& request, int64_t row0, RowRange rows) {
  if (rows.begin >= rows.end) return;
  to.push_back({.request = request.slot,
                .row0 = row0 + rows.begin,
                .len = rows.end - rows.begin,
                .kv_end = request.padding() ? 0 : request.start_pos() + rows.end});
}

std::vector<Segments> split_flat(const GlobalBatch& batch, int ranks) {
  std::vector<Segments> by_rank(ranks);
  const int64_t t = ceil_div(batch.num_rows, ranks);
  int64_t row0 = 0;
  for (const BatchRequest& request : batch.requests) {
    const int64_t q = request.new_tokens;
    if (q > 0) {
      for (int64_t r = row0 / t; r * t < row0 + q; ++r) {
        add(by_rank[r], request, row0, {std::max<int64_t>(r * t - row0, 0), std::min((r + 1) * t - row0, q)});
      }
    }
    row0 += q;
  }
  return by_rank;
}

std::vector<Segments> split_per_request(const GlobalBatch& batch, int ranks) {
  std::vector<Segments> by_rank(ranks);
  int64_t row0 = 0;
  for (const BatchRequest& request : batch.requests) {
    for (int r = 0; r < ranks; ++r) add(by_rank[r], request, row0, per_request_rows(request.new_tokens, ranks, r));
    row0 += request.new_tokens;
  }
  return by_rank;
}

std::vector<Segments> split_zigzag(const GlobalBatch& batch, int ranks) {
  std::vector<Segments> by_rank(ranks);
  int64_t row0 = 0;
  for (const BatchRequest& request : batch.requests) {
    const int64_t q = request.new_tokens, chunk = ceil_div(q, 2 * int64_t{ranks});
    for (int r = 0; r < ranks; ++r) {
      if (request.decode) {
        add(by_rank[r], request, row0, {0, q});
        continue;
      }
      for (const int64_t k : {int64_t{r}, 2 * int64_t{ranks} - 1 - r}) {
        add(by_rank[r], request, row0, {std::min(k * chunk, q), std::min((k + 1) * chunk, q)});
      }
    }
    row0 += q;
  }
  return by_rank;
}

std::vector<Segments> split_owned(const GlobalBatch& batch, int ranks) {
  std::vector<Segments> by_rank(ranks);
  int64_t row0 = 0;
  for (const BatchRequest& request : batch.requests) {
    add(by_rank[slot_owner(request.slot, ranks)], request, row0, {0, request.new_tokens});
    row0 += request.new_tokens;
  }
  return by_rank;
}

// One rank: the requests as they are.
std::vector<Segments> split_over_one(const GlobalBatch& batch) {
  std::vector<Segments> by_rank(1);
  int64_t row0 = 0;
  for (const BatchRequest& request : batch.requests) {
    add(by_rank[0], request, row0, {0, request.new_tokens});
    row0 += request.new_tokens;
  }
  return by_rank;
}

}  // namespace

std::string_view token_split_name(TokenSplit split) {
  constexpr std::string_view kNames[] = {"flat", "per_request", "zigzag", "owned"};
  return kNames[static_cast<int>(split)];
}

int64_t GlobalBatch::num_tokens() const {
  int64_t n = 0;
  for (const BatchRequest& request : requests) n += request.new_tokens;
  return n;
}

Status check_batch(const GlobalBatch& batch) {
  std::unordered_set<int32_t> slots;
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const BatchRequest& r = batch.requests[i];
    if (r.new_tokens < 0 || r.length < 0 || (!r.padding() && r.length < r.new_tokens)) {
      return invalid_argument(
          fmt::format("request {} of the batch: {} new tokens of a length of {}", i, r.new_tokens, r.length));
    }
    if (r.padding()) continue;
    if (r.slot < 0) return invalid_argument(fmt::format("request {} of the batch: cache slot {}", i, r.slot));
    if (!slots.insert(r.slot).second) {
      return invalid_argument(
          fmt::format("request {} of the batch: cache slot {} is used by another request", i, r.slot));
    }
  }
  if (batch.num_rows < batch.num_tokens()) {
    return invalid_argument(
        fmt::format("the batch has {} rows, its requests need {}", batch.num_rows, batch.num_tokens()));
  }
  return {};
}

Result<std::vector<std::vector<Segment>>> split_tokens(const GlobalBatch& batch, TokenSplit split, int ranks) {
  WEFT_RETURN_IF_ERROR(check_batch(batch));
  if (ranks < 1) return invalid_argument(fmt::format("a token split over {} ranks", ranks));
  if (split == TokenSplit::kOwned && std::ranges::any_of(batch.requests, &BatchRequest::padding)) {
    return invalid_argument("split=owned: padding requests belong to no rank; leave them out of the batch");
  }
  if (ranks == 1) return split_over_one(batch);
  switch (split) {
    case TokenSplit::kFlat: return split_flat(batch, ranks);
    case TokenSplit::kPerRequest: return split_per_request(batch, ranks);
    case TokenSplit::kZigzag: return split_zigzag(batch, ranks);
    case TokenSplit::kOwned: return split_owned(batch, ranks);
  }
  WEFT_CHECK(false, "split {}", static_cast<int>(split));
}

RowRange per_request_rows(int64_t q, int ranks, int rank) {
  const int64_t run = ceil_div(q, ranks), begin = std::min(rank * run, q);
  return {begin, std::min(begin + run, q)};
}

int64_t local_row_capacity(TokenSplit split, const StepCapacity& capacity, int ranks) {
  const int64_t tokens = capacity.tokens, requests = capacity.requests;
  if (ranks == 1) return tokens;
  switch (split) {
    case TokenSplit::kFlat: return ceil_div(tokens, ranks);
    // The sum of ceil(q / P), each at most (q + P - 1) / P.
    case TokenSplit::kPerRequest: return std::min(tokens, (tokens + requests * (ranks - 1)) / ranks);
    // Decode rows whole; of the others two chunks of ceil(q / 2P), each less than q / 2P + 1.
    case TokenSplit::kZigzag:
      return std::min(tokens, ceil_div(tokens, ranks) + requests * std::max<int64_t>(capacity.decode_rows, 2));
    case TokenSplit::kOwned: return std::min(tokens, ceil_div(requests, ranks) * capacity.decode_rows);
  }
  WEFT_CHECK(false, "split {}", static_cast<int>(split));
}

int64_t zigzag_row_reserve(int64_t budget, int ranks, int64_t num_requests, int64_t decode_rows) {
  // An eighth of slack on the equal share is part of the published formula.
  const int64_t share = ceil_div(budget, ranks) * 9 / 8;
  const int64_t per_request = num_requests * std::max<int64_t>(decode_rows, 2);
  return std::min(budget, std::max<int64_t>(1, share + std::min(budget, per_request)));
}

}  // namespace weft
