// Sizes that follow from the fields of a config: what kernels take, and that products of fields are numbers that can be counted with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "io/json_fields.h"

namespace weft {

inline constexpr int64_t kMaxWidth = int64_t{1} << 22;     // of one dimension of a tensor; the largest release has 2^18 (vocabulary)
inline constexpr int64_t kMaxElements = int64_t{1} << 50;  // of all weights; the largest release has 2^41
inline constexpr int64_t kSumUnit = 4;                     // linear layers sum over so many inputs at a time (kernels/linear)

// One dimension of a tensor: a field, or a product of fields.
struct Width {
  std::string_view what;  // "num_attention_heads x v_head_dim"
  std::vector<int64_t> factors;
  bool summed = false;    // over it a linear layer sums
};

// At most kMaxWidth; what is summed over comes in whole units. The first that is not fails.
void check_widths(JsonFields& fields, std::span<const Width> widths);

// Of all weights, and of the caches of one sequence of the longest context (of widths that have been checked). `where` starts the
// message.
Status check_totals(const std::string& where, double elements, double cache_bytes);

// Elements of all weights of a table.
template <class Weights>
double total_elements(const Weights& table) {
  double total = 0;
  for (const auto& weight : table) {
    double elements = 1;
    for (const int64_t dim : weight.type.shape.dims()) elements *= static_cast<double>(dim);
    total += elements;
  }
  return total;
}

// Caches (CacheSpec) of a sequence.
template <class Specs>
double cache_bytes(const Specs& specs, int64_t tokens) {
  double bytes = 0;
  for (const auto& spec : specs) bytes += static_cast<double>(spec.row_bytes()) * static_cast<double>(tokens) / static_cast<double>(spec.ratio);
  return bytes;
}

}  // namespace weft
