// Where the rows of a cache lie: addresses from (request slot, position), for the ops that read and write caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sharding/dcp.h"
#include "tensor/tensor.h"

namespace weft {

// A kRing cache [num_slots, ring_rows, width].
class RingRows {
 public:
  explicit RingRows(const TensorView& cache)
      : base_(cache.as<std::byte>()), ring_rows_(cache.shape()[1]),
        row_bytes_(TensorType{cache.dtype(), {cache.shape()[2]}}.bytes()) {}

  std::byte* row(int64_t slot, int64_t position) const {
    return base_ + (slot * ring_rows_ + position % ring_rows_) * row_bytes_;
  }
  int64_t ring_rows() const { return ring_rows_; }
  int64_t row_bytes() const { return row_bytes_; }

 private:
  std::byte* base_;
  int64_t ring_rows_, row_bytes_;
};

// A kAppend cache [num_pages, page_entries, width] through the block table of one request. A rank of a sharded cache has a part
// of the entries of every page: row(entry) is for those that it holds, page and page_entries count the rows that are here.
class PagedRows {
 public:
  PagedRows(const TensorView& cache, std::span<const int32_t> pages, const CacheShard& shard = {})
      : base_(cache.as<std::byte>()), page_entries_(cache.shape()[1]),
        row_bytes_(TensorType{cache.dtype(), {cache.shape()[2]}}.bytes()), pages_(pages), shard_(shard) {}

  bool holds(int64_t entry) const { return shard_.holds(entry); }
  std::byte* row(int64_t entry) const {
    const int64_t local = shard_.local_row(entry);
    return page(local / page_entries_) + (local % page_entries_) * row_bytes_;
  }
  std::byte* page(int64_t index) const { return base_ + pages_[index] * page_entries_ * row_bytes_; }
  int64_t page_entries() const { return page_entries_; }
  int64_t row_bytes() const { return row_bytes_; }

 private:
  std::byte* base_;
  int64_t page_entries_, row_bytes_;
  std::span<const int32_t> pages_;
  CacheShard shard_;
};

}  // namespace weft
