#include "runtime/cache_store.h"

#include <algorithm>
#include <cstring>

#include "base/int_math.h"
#include "graph/cache_rows.h"
#include "runtime/counter_rng.h"

namespace weft {
namespace {

// What a saved sequence holds of a cache: all rows of its ring, or the entries of its length.
int64_t saved_rows(const CacheSpec& spec, int64_t length) {
  return spec.kind == CacheKind::kRing ? spec.ring_rows : length / spec.ratio;
}

}  // namespace

std::vector<std::byte> join_entries(const CacheSpec& spec, int64_t length,
                                    std::span<const std::vector<std::byte>> by_rank) {
  const DcpShard shard{1, static_cast<int>(by_rank.size())};
  std::vector<std::byte> rows(static_cast<size_t>(saved_rows(spec, length) * spec.row_bytes()));
  for (int64_t i = 0; i < saved_rows(spec, length); ++i) {
    const std::vector<std::byte>& of_owner = by_rank[static_cast<size_t>(shard.owner(i))];
    WEFT_CHECK((shard.local_row(i) + 1) * spec.row_bytes() <= static_cast<int64_t>(of_owner.size()), "'{}': entry {}",
               spec.name, i);
    std::memcpy(rows.data() + i * spec.row_bytes(), of_owner.data() + shard.local_row(i) * spec.row_bytes(),
                static_cast<size_t>(spec.row_bytes()));
  }
  return rows;
}

Result<SavedSequence> stretch(std::span<const CacheSpec> specs, const SavedSequence& saved, int64_t length,
                              uint64_t seed) {
  WEFT_CHECK(saved.rows.size() == specs.size() && saved.length <= length, "{} caches of {} tokens", saved.rows.size(),
             saved.length);
  SavedSequence longer{length, saved.rows};
  for (size_t c = 0; c < specs.size(); ++c) {
    const CacheSpec& spec = specs[c];
    if (spec.kind == CacheKind::kRing) continue;
    const int64_t have = saved_rows(spec, saved.length), want = saved_rows(spec, length);
    if (want > have && have == 0) {
      return invalid_argument(fmt::format(
          "a context of {} tokens has no entry of cache '{}' to draw others from; expected at least {} tokens",
          saved.length, spec.name, spec.ratio));
    }
    const auto bytes = static_cast<size_t>(spec.row_bytes());
    longer.rows[c].resize(static_cast<size_t>(want) * bytes);
    for (int64_t i = have; i < want; ++i) {
      // Entries of one position are drawn together, as the caches of a token belong together.
      const auto from =
          static_cast<size_t>(uniform({seed, 0, i * spec.ratio}, DrawPurpose::kToken) * static_cast<double>(have));
      std::memcpy(longer.rows[c].data() + static_cast<size_t>(i) * bytes, saved.rows[c].data() + from * bytes, bytes);
    }
  }
  return longer;
}

std::byte* CacheStore::saved_row(const CacheSpec& spec, const TensorView& cache, int32_t slot, int64_t i) const {
  if (spec.kind == CacheKind::kRing) return RingRows(cache).row(slot, i);
  return shard_.holds(i) ? PagedRows(cache, pages_[slot], shard_).row(i) : nullptr;
}

Result<CacheStore> CacheStore::create(std::vector<CacheSpec> specs, const CacheCapacity& capacity,
                                      const CacheShard& shard) {
  CacheStore store;
  store.capacity_ = capacity;
  store.shard_ = shard;
  store.specs_ = std::move(specs);
  for (size_t i = 0; i < store.specs_.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(Buffer buffer,
                          Buffer::allocate(cache_type(store.specs_[i], capacity, shard.shard.ranks).bytes()));
    store.buffers_.push_back(std::move(buffer));
    store.by_name_.emplace(store.specs_[i].name, i);
  }
  store.pages_.resize(capacity.num_slots);
  store.length_.assign(capacity.num_slots, 0);
  store.longest_.assign(capacity.num_slots, 0);
  for (int64_t slot = capacity.num_slots; slot-- > 0;) store.free_slots_.push_back(static_cast<int32_t>(slot));
  for (int64_t page = capacity.num_pages; page-- > 0;) store.free_pages_.push_back(static_cast<int32_t>(page));
  return store;
}

int64_t CacheStore::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.size();
  return bytes;
}

TensorView CacheStore::view(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  WEFT_CHECK(at != by_name_.end(), "cache '{}'", name);
  return {cache_type(specs_[at->second], capacity_, shard_.shard.ranks), buffers_[at->second].data(), {}};
}

Result<int32_t> CacheStore::open() {
  if (free_slots_.empty()) {
    return invalid_argument(
        fmt::format("all {} sequence slots are in use; raise the number of sequences", capacity_.num_slots));
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void CacheStore::open_at(int32_t slot) {
  const auto at = std::find(free_slots_.begin(), free_slots_.end(), slot);
  WEFT_CHECK(at != free_slots_.end(), "slot {} is in use", slot);
  free_slots_.erase(at);
}

void CacheStore::close(int32_t slot) {
  free_pages_.insert(free_pages_.end(), pages_[slot].rbegin(), pages_[slot].rend());
  pages_[slot].clear();
  length_[slot] = longest_[slot] = 0;
  free_slots_.push_back(slot);
}

Status CacheStore::reserve(int32_t slot, int64_t tokens) {
  const int64_t length = length_[slot] + tokens;
  if (length > capacity_.max_context) {
    return invalid_argument(fmt::format("a sequence of {} tokens is longer than the context of {}; raise --ctx", length,
                                        capacity_.max_context));
  }
  const int64_t needed = ceil_div(length, capacity_.page_tokens) - static_cast<int64_t>(pages_[slot].size());
  if (needed > free_pages()) {
    return invalid_argument(
        fmt::format("{} more cache pages of {} tokens are needed, {} are free; raise --ctx or run fewer sequences",
                    needed, capacity_.page_tokens, free_pages()));
  }
  for (int64_t i = 0; i < needed; ++i) {
    pages_[slot].push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  longest_[slot] = std::max(longest_[slot], length);
  return {};
}

Status CacheStore::truncate(int32_t slot, int64_t length) {
  if (length == length_[slot]) return {};
  if (length < 0 || length > length_[slot]) {
    return invalid_argument(fmt::format("cannot cut a sequence of {} tokens to {}", length_[slot], length));
  }
  if (length != 0 && longest_[slot] - length > capacity_.draft_rows) {
    return invalid_argument(fmt::format("cannot go back from {} to {} tokens: the rings keep room for {} drafts",
                                        longest_[slot], length, capacity_.draft_rows));
  }
  if (length == 0) longest_[slot] = 0;
  length_[slot] = length;
  const auto kept = static_cast<size_t>(ceil_div(length, capacity_.page_tokens));
  while (pages_[slot].size() > kept) {
    free_pages_.push_back(pages_[slot].back());
    pages_[slot].pop_back();
  }
  return {};
}

SavedSequence CacheStore::save(int32_t slot) const {
  SavedSequence saved;
  saved.length = length_[slot];
  for (const CacheSpec& spec : specs_) {
    std::vector<std::byte>& rows = saved.rows.emplace_back();
    const TensorView cache = view(spec.name);
    rows.reserve(static_cast<size_t>(saved_rows(spec, saved.length) * spec.row_bytes()));
    for (int64_t i = 0; i < saved_rows(spec, saved.length); ++i) {
      const std::byte* row = saved_row(spec, cache, slot, i);
      if (row != nullptr) rows.insert(rows.end(), row, row + spec.row_bytes());
    }
  }
  return saved;
}

template <class F>
void CacheStore::for_rows_since(int32_t slot, int64_t from, int64_t length, F&& visit) const {
  for (const CacheSpec& spec : specs_) {
    const TensorView cache = view(spec.name);
    const int64_t first = spec.kind == CacheKind::kRing ? 0 : from / spec.ratio;
    for (int64_t i = first; i < saved_rows(spec, length); ++i) {
      std::byte* row = saved_row(spec, cache, slot, i);
      if (row != nullptr) visit(std::span(row, static_cast<size_t>(spec.row_bytes())));
    }
  }
}

std::vector<std::byte> CacheStore::rows_since(int32_t slot, int64_t from, int64_t length) const {
  std::vector<std::byte> rows;
  for_rows_since(slot, from, length,
                 [&](std::span<std::byte> row) { rows.insert(rows.end(), row.begin(), row.end()); });
  return rows;
}

void CacheStore::set_rows_since(int32_t slot, int64_t from, int64_t length, std::span<const std::byte> rows) {
  size_t at = 0;
  for_rows_since(slot, from, length, [&](std::span<std::byte> row) {
    std::memcpy(row.data(), rows.data() + at, row.size());
    at += row.size();
  });
  WEFT_CHECK(at == rows.size(), "{} bytes of cache rows, expected {}", rows.size(), at);
}

Status CacheStore::restore(int32_t slot, const SavedSequence& saved) {
  WEFT_CHECK(length_[slot] == 0, "slot {} holds {} tokens", slot, length_[slot]);
  if (saved.rows.size() != specs_.size()) {
    return invalid_argument(
        fmt::format("the saved sequence has {} caches, this engine {}", saved.rows.size(), specs_.size()));
  }
  for (size_t c = 0; c < specs_.size(); ++c) {
    const CacheSpec& spec = specs_[c];
    const int64_t bytes = saved_rows(spec, saved.length) * spec.row_bytes();
    if (static_cast<int64_t>(saved.rows[c].size()) != bytes) {
      return invalid_argument(fmt::format("the saved sequence has {} bytes of cache '{}', expected {}",
                                          saved.rows[c].size(), spec.name, bytes));
    }
  }
  WEFT_RETURN_IF_ERROR(reserve(slot, saved.length));
  for (size_t c = 0; c < specs_.size(); ++c) {
    const CacheSpec& spec = specs_[c];
    const TensorView cache = view(spec.name);
    for (int64_t i = 0; i < saved_rows(spec, saved.length); ++i) {
      std::byte* row = saved_row(spec, cache, slot, i);
      if (row != nullptr) std::memcpy(row, saved.rows[c].data() + i * spec.row_bytes(), spec.row_bytes());
    }
  }
  advance(slot, saved.length);
  return {};
}

}  // namespace weft
