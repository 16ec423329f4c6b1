// Per-request state that outlives a step. Every kind of layer declares what it keeps as rows addressed by token position, so
// that saving, restoring, chunked prefill and rolling back to a shorter length treat all kinds alike: a cache of length n is a
// function of positions 0..n-1, and forgetting positions >= n needs no copy.
//
//   kRing    one row per token, position p in row p mod ring_rows of the request's slot; only the last `needed_rows` positions
//            are ever read, the rest is room for drafts that may be rolled back
//   kAppend  one row per `ratio` tokens, entry g of positions g*ratio .. g*ratio+ratio-1, in pages of the request's block table
#pragma once

#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace weft {

enum class CacheKind { kRing, kAppend };

struct CacheSpec {
  std::string name;        // "layers.3.window", "layers.3.compressed", ...
  CacheKind kind = CacheKind::kRing;
  int64_t ratio = 1;       // kAppend: tokens per row
  int64_t ring_rows = 0;   // kRing
  DType dtype = DType::kF32;
  int64_t width = 0;

  int64_t row_bytes() const { return TensorType{dtype, {width}}.bytes(); }
  bool operator==(const CacheSpec&) const = default;
};

// How much room the caches of one rank have.
struct CacheCapacity {
  int64_t num_slots = 1;       // requests at a time
  int64_t num_pages = 0;       // pages of kAppend caches, shared by the requests
  int64_t page_tokens = 256;   // tokens of a page: a multiple of every ratio x ranks that share its entries
  int64_t max_context = 0;     // longest request in tokens
  int64_t draft_rows = 0;      // most positions that a step may compute and later forget

  bool operator==(const CacheCapacity&) const = default;
};

// [num_slots, ring_rows, width] or [num_pages, page_tokens / ratio, width]; of one of the `ranks` that hold the entries of each
// page in turn, [num_pages, page_tokens / ratio / ranks, width]. Rings are whole on every rank.
TensorType cache_type(const CacheSpec& spec, const CacheCapacity& capacity, int64_t ranks = 1);

}  // namespace weft
