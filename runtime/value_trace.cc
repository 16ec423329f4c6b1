#include "runtime/value_trace.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/numeric.h"
#include "graph/cache_rows.h"

namespace weft {
namespace {

std::string element_text(DType dtype, const std::byte* data, int64_t i) {
  const auto number = [](float x) { return fmt::format("{:.9g}", x); };
  switch (dtype) {
    case DType::kF32: return number(reinterpret_cast<const float*>(data)[i]);
    case DType::kBF16: return number(to_float(reinterpret_cast<const bf16*>(data)[i]));
    case DType::kI32: return fmt::format("{}", reinterpret_cast<const int32_t*>(data)[i]);
    case DType::kI64: return fmt::format("{}", reinterpret_cast<const int64_t*>(data)[i]);
    default: return fmt::format("{:#04x}", static_cast<int>(data[i]));
  }
}

}  // namespace

// Words of 8 bytes, each mixed in by a multiplication; the last one is filled with zeros.
uint64_t hash_bytes(std::span<const std::byte> bytes) {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd
  constexpr size_t kWord = 8;
  constexpr int kShift = 29;
  uint64_t hash = bytes.size();
  for (size_t at = 0; at < bytes.size(); at += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(kWord, bytes.size() - at));
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> kShift;
  }
  return hash;
}

std::string element_difference(DType dtype, std::span<const std::byte> found, std::span<const std::byte> expected) {
  WEFT_CHECK(found.size() == expected.size(), "rows of {} and {} bytes", found.size(), expected.size());
  const auto size = static_cast<size_t>(std::max(dtype_bits(dtype) / 8, 1));
  const size_t count = found.size() / size;
  std::optional<size_t> first;
  size_t differ = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(found.data() + i * size, expected.data() + i * size, size) == 0) continue;
    if (!first) first = i;
    ++differ;
  }
  WEFT_CHECK(first.has_value(), "the rows are equal");
  const auto at = static_cast<int64_t>(*first);
  return fmt::format("element {} is {}, expected {} ({} of {} elements differ)", at,
                     element_text(dtype, found.data(), at), element_text(dtype, expected.data(), at), differ, count);
}

void ValueTrace::record(bool draft, const Value& value, const TensorView& view, int64_t row0, int64_t count,
                        int64_t first_position) {
  if (value.type.rows == Rows::kStatic) return;
  Series& series = draft ? draft_ : trunk_;
  const auto [entry, added] = series.by_value.try_emplace(value.name, series.rows.size());
  if (added) series.rows.push_back({value.name, {}});
  RowHashes& rows = series.rows[entry->second];
  const auto end = static_cast<size_t>(first_position + count);
  if (rows.hash.size() < end) rows.hash.resize(end);
  const int64_t row_bytes = view.type.bytes() / std::max<int64_t>(view.shape()[0], 1);
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const std::byte> row(view.as<std::byte>() + (row0 + i) * row_bytes, static_cast<size_t>(row_bytes));
    rows.hash[static_cast<size_t>(first_position + i)] = hash_bytes(row);
    if (keep_ && keep_->draft == draft && keep_->position == first_position + i && keep_->value == value.name) {
      content_ = Content{view.dtype(), {row.begin(), row.end()}};
    }
  }
}

std::vector<CacheRows> live_cache_rows(const CacheStore& caches, int32_t slot) {
  std::vector<CacheRows> all;
  const int64_t length = caches.length(slot);
  for (const CacheSpec& spec : caches.specs()) {
    CacheRows cache{spec.name, spec.dtype, 0, {}};
    const TensorView view = caches.view(spec.name);
    const auto bytes = static_cast<size_t>(spec.row_bytes());
    int64_t end = length / spec.ratio;
    if (spec.kind == CacheKind::kRing) {
      // Older rows than these are never read: they are left over from drafts or not written at all.
      cache.first = std::max<int64_t>(0, length - (spec.ring_rows - caches.capacity().draft_rows));
      end = length;
    } else if (!caches.shard().whole()) {
      cache.first = caches.shard().rank;
      cache.stride = caches.shard().shard.ranks;
    }
    for (int64_t i = cache.first; i < end; i += cache.stride) {
      const std::byte* row =
          spec.kind == CacheKind::kRing
              ? RingRows(view).row(slot, i)
              : PagedRows(view, caches.block_tables()[static_cast<size_t>(slot)], caches.shard()).row(i);
      cache.rows.emplace_back(row, row + bytes);
    }
    all.push_back(std::move(cache));
  }
  return all;
}

void ValueTrace::record_caches(const CacheStore& caches, int32_t slot) { caches_ = live_cache_rows(caches, slot); }

std::optional<ValueRow> ValueTrace::first_difference(const ValueTrace& expected, int64_t num_positions,
                                                     bool common_only) const {
  for (const bool draft : {false, true}) {
    const Series& found = draft ? draft_ : trunk_;
    for (const RowHashes& want : (draft ? expected.draft_ : expected.trunk_).rows) {
      const auto at = found.by_value.find(want.value);
      const RowHashes* have = at == found.by_value.end() ? nullptr : &found.rows[at->second];
      const size_t end = std::min(want.hash.size(), static_cast<size_t>(num_positions));
      for (size_t p = 0; p < end; ++p) {
        const auto hash = have != nullptr && p < have->hash.size() ? have->hash[p] : std::nullopt;
        if (common_only && (!hash || !want.hash[p])) continue;
        if (want.hash[p] != hash) return ValueRow{draft, want.value, static_cast<int64_t>(p)};
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> ValueTrace::cache_difference(const ValueTrace& expected) const {
  WEFT_CHECK(caches_.size() == expected.caches_.size(), "{} and {} caches", caches_.size(), expected.caches_.size());
  for (size_t c = 0; c < caches_.size(); ++c) {
    const CacheRows &have = caches_[c], &want = expected.caches_[c];
    if (have.first != want.first || have.rows.size() != want.rows.size()) {
      return fmt::format("{}: {} rows from {}, expected {} from {}", want.name, have.rows.size(), have.first,
                         want.rows.size(), want.first);
    }
    for (size_t i = 0; i < want.rows.size(); ++i) {
      if (have.rows[i] == want.rows[i]) continue;
      return fmt::format("cache {}, row {}: {}", want.name, want.first + static_cast<int64_t>(i),
                         element_difference(want.dtype, have.rows[i], want.rows[i]));
    }
  }
  return std::nullopt;
}

}  // namespace weft
