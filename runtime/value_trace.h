// What one sequence went through, to the bit: a hash of every row of every graph value, by position, and the rows of
// its caches that later steps will read. Two traces of the same tokens tell where two runs part, however the tokens
// were cut into steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "runtime/cache_store.h"

namespace weft {

// A row of a value, of the trunk or of the draft layer.
struct ValueRow {
  bool draft = false;
  std::string value;
  int64_t position = 0;
  bool operator==(const ValueRow&) const = default;
};

// Not against malice.
uint64_t hash_bytes(std::span<const std::byte> bytes);

// Rows of one cache of a sequence that later steps will read.
struct CacheRows {
  std::string name;
  DType dtype = DType::kF32;
  int64_t first = 0;   // position (or entry) of the first row
  std::vector<std::vector<std::byte>> rows;
  int64_t stride = 1;  // from one to the next: more than 1 where ranks hold entries in turn
};
std::vector<CacheRows> live_cache_rows(const CacheStore& caches, int32_t slot);

class ValueTrace {
 public:
  ValueTrace() = default;
  // Besides, keeps the content of one row.
  explicit ValueTrace(ValueRow keep) : keep_(std::move(keep)) {}

  // From an observer: rows row0 .. row0 + count - 1 of `view` are positions first_position ... Values without rows
  // are left out.
  void record(bool draft, const Value& value, const TensorView& view, int64_t row0, int64_t count,
              int64_t first_position);
  // The caches of the sequence at its end.
  void record_caches(const CacheStore& caches, int32_t slot);

  const std::vector<CacheRows>& caches() const { return caches_; }

  // The content that was asked for; none if the row was not seen.
  struct Content {
    DType dtype = DType::kF32;
    std::vector<std::byte> bytes;
  };
  const std::optional<Content>& kept() const { return content_; }

  // The first row that differs in graph order, trunk before draft, among positions < num_positions of `expected`. A
  // row that is missing differs, unless only values and rows that both have are compared.
  std::optional<ValueRow> first_difference(const ValueTrace& expected, int64_t num_positions,
                                           bool common_only = false) const;
  // "layers.0.window, position 7: element 3 is 0.5, expected 0.25 (...)"; none: equal.
  std::optional<std::string> cache_difference(const ValueTrace& expected) const;

 private:
  struct RowHashes {
    std::string value;
    std::vector<std::optional<uint64_t>> hash;  // by position
  };
  struct Series {
    std::vector<RowHashes> rows;  // graph order
    std::unordered_map<std::string, size_t> by_value;
  };

  std::optional<ValueRow> keep_;
  std::optional<Content> content_;
  Series trunk_, draft_;
  std::vector<CacheRows> caches_;
};

// "element 3 is 0.5, expected 0.25 (2 of 64 elements differ)", for rows of the same type that are not equal.
std::string element_difference(DType dtype, std::span<const std::byte> found, std::span<const std::byte> expected);

}  // namespace weft
