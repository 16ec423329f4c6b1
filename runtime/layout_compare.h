// What two plays of the same steps showed, compared: one rank, and the ranks of a layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace weft {

struct StepCall {
  enum class Kind { kStep, kDraft, kNextDraft };  // a draft behind a step, a draft behind that
  Kind kind = Kind::kStep;
  int64_t rows = 0;
  bool fills = false;  // the capacity of the graph
};

struct StepRecord {
  StepCall call;
  std::vector<StepTrace> ranks;
  std::vector<uint64_t> logits;  // of the rows that rank 0 gives to its caller
  std::vector<std::vector<float>> values = {};  // the same rows, where they are compared by tolerance
};

std::vector<uint64_t> hash_logits(const Engine& engine, const StepCall& call);
std::vector<std::vector<float>> logit_values(const Engine& engine, const StepCall& call);

// What the logits of all batches may differ by where a layout's bits are not those of one rank: root mean squares in
// parts of that of the logits. `all` over all rows; `median` of the rows that differ, each by itself. With bf16 a
// rounding can send a token to another expert or move a quantised activation by a step, so some rows are far off, but
// not most of them; f32 is the sharp test.
struct LogitsTolerance {
  double all = 0, median = 0;
};
std::optional<LogitsTolerance> tolerance_of(const Layout& layout, DType dtype);

class LogitsError {
 public:
  std::string add(const StepRecord& found, const StepRecord& want, size_t number);  // "" or what cannot be compared
  std::string beyond(const LogitsTolerance& tolerance) const;

 private:
  double squares_ = 0, differences_ = 0;
  std::vector<double> rows_;  // errors of those that differ
};

// Differences are said in words; "" is none. `rows` counts what was compared. `want` is of one rank.
std::string first_difference(const StepRecord& found, const StepRecord& want, size_t number, int64_t& rows);
std::string cache_difference(const std::vector<CacheHashes>& found, const std::vector<CacheHashes>& want,
                             int64_t& rows);

// Whether a rank has the caches of the request in this slot at the end: with split=owned, decode steps fill those of
// its owner.
bool holds_caches(const Layout& layout, int rank, int32_t slot);

// Whether the rows of a full step fill the graphs of all ranks: they are split evenly, without padding.
bool fills_graphs(const Layout& layout);
// Bytes sent between two reports, by rank and axis, against what was planned for the rows of this step (for the experts
// and entries that they picked), and against work() of the graph if they fill it (`full`; null otherwise): exchanges
// with experts left out, and along dcp at most that many, since contexts and picks decide.
std::string sent_difference(const std::vector<RankReport>& before, const std::vector<RankReport>& after,
                            const Graph* full, int num_threads);

}  // namespace weft
