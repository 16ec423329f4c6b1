// The caches of one rank: one buffer per CacheSpec, request slots, pages and block tables.
//
// A slot holds one request: `length` tokens are in its caches. Pages of the kAppend caches are taken as the length
// grows and go back when the slot is closed. Memory is reserved for the whole capacity at once and touched as it fills.
//
// The entries of kAppend caches may be spread over ranks (decode context parallel): every rank has the same pages and
// block tables and of every page a part of the entries. Rings are whole on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "graph/cache_spec.h"
#include "sharding/dcp.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace weft {

// Entries that the ranks of a sharded cache saved, each its own, as one rank saves them.
std::vector<std::byte> join_entries(const CacheSpec& spec, int64_t length,
                                    std::span<const std::vector<std::byte>> by_rank);

// The state of one request, apart from any slot: what prefix caching, eviction and moving to another engine need.
struct SavedSequence {
  int64_t length = 0;
  std::vector<std::vector<std::byte>> rows;  // by cache: ring rows in slot order; append rows of the entries that exist
  bool operator==(const SavedSequence&) const = default;
};

// A sequence of `length` tokens that measures like a computed one: its entries are drawn from those of `saved`, its
// rings are the same. Errors where a cache has no entry to draw from.
Result<SavedSequence> stretch(std::span<const CacheSpec> specs, const SavedSequence& saved, int64_t length,
                              uint64_t seed);

class CacheStore {
 public:
  static Result<CacheStore> create(std::vector<CacheSpec> specs, const CacheCapacity& capacity,
                                   const CacheShard& shard = {});

  const CacheShard& shard() const { return shard_; }
  const CacheCapacity& capacity() const { return capacity_; }
  const std::vector<CacheSpec>& specs() const { return specs_; }
  int64_t reserved_bytes() const;  // of all buffers

  TensorView view(std::string_view name) const;  // the whole cache, as the graph of this rank has it
  const std::vector<std::vector<int32_t>>& block_tables() const { return pages_; }

  // Errors when all slots are taken.
  Result<int32_t> open();
  void open_at(int32_t slot);  // a free one
  void close(int32_t slot);
  int64_t length(int32_t slot) const { return length_[slot]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }

  // Makes room for `tokens` more (pages; the limit max_context). Nothing changes on an error.
  Status reserve(int32_t slot, int64_t tokens);
  // The step has written `tokens` more positions.
  void advance(int32_t slot, int64_t tokens) { length_[slot] += tokens; }
  // Forgets the last positions. At most draft_rows of them since the longest length, or everything.
  Status truncate(int32_t slot, int64_t length);

  // What a sequence of `length` tokens holds of positions >= `from`, and everything in rings: how a rank that owns a
  // request brings the others up to date. The same bytes back into a slot that has pages for them.
  std::vector<std::byte> rows_since(int32_t slot, int64_t from, int64_t length) const;
  void set_rows_since(int32_t slot, int64_t from, int64_t length, std::span<const std::byte> rows);

  // Of a sharded cache the entries of this rank (join_entries).
  SavedSequence save(int32_t slot) const;
  // What one rank saved, into an open slot of length 0.
  Status restore(int32_t slot, const SavedSequence& saved);

 private:
  // visit(row) for each of those rows, in one order.
  template <class F>
  void for_rows_since(int32_t slot, int64_t from, int64_t length, F&& visit) const;

  // Row i of a saved cache, if it is here; else null.
  std::byte* saved_row(const CacheSpec& spec, const TensorView& cache, int32_t slot, int64_t i) const;

  CacheCapacity capacity_;
  CacheShard shard_;
  std::vector<CacheSpec> specs_;
  std::vector<Buffer> buffers_;  // parallel to specs_
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<std::vector<int32_t>> pages_;  // by slot
  std::vector<int64_t> length_, longest_;    // by slot; longest since it was opened
  std::vector<int32_t> free_slots_, free_pages_;
};

}  // namespace weft
