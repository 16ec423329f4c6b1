#include "runtime/layout_compare.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "base/int_math.h"
#include "runtime/value_trace.h"

namespace weft {
namespace {

std::string_view kind_name(StepCall::Kind kind) {
  switch (kind) {
    case StepCall::Kind::kStep: return "step";
    case StepCall::Kind::kDraft: return "draft";
    case StepCall::Kind::kNextDraft: return "draft behind a draft";
  }
  return "";
}

// "x" of "x.all_gather_tp" and "x.all_gather_tp.2": the value of one rank that was moved.
std::string_view moved_value(std::string_view name) {
  size_t dot = name.rfind('.');
  if (dot != name.npos && dot + 1 < name.size() && name.find_first_not_of("0123456789", dot + 1) == name.npos) {
    name = name.substr(0, dot);
    dot = name.rfind('.');
  }
  if (dot == name.npos) return {};
  const std::string_view last = name.substr(dot + 1);
  for (const std::string_view what : {"all_gather_", "slice_rows_", "all_reduce_", "reduce_scatter_"}) {
    if (last.starts_with(what)) return name.substr(0, dot);
  }
  return {};
}

using ByName = std::unordered_map<std::string_view, const TracedValue*>;

const TracedValue* counterpart(const ByName& want, const TracedValue& value) {
  for (const std::string_view name : {std::string_view(value.name), moved_value(value.name)}) {
    const auto at = want.find(name);
    if (at != want.end()) return at->second->row_bytes == value.row_bytes ? at->second : nullptr;
  }
  return nullptr;
}

// The row of `value` that differs first; -1: none.
int64_t differing_row(const TracedValue& value, const TracedValue& want) {
  for (size_t i = 0; i < value.rows.size(); ++i) {
    // One rank has all rows, in order.
    const auto row = static_cast<size_t>(value.rows[i]);
    if (row >= want.hashes.size() || want.hashes[row] != value.hashes[i]) return value.rows[i];
  }
  return -1;
}

std::string describe(const StepCall& call, size_t number) {
  return fmt::format("call {} ({} of {} rows)", number + 1, kind_name(call.kind), call.rows);
}

SentBytes full_bytes(const Graph& graph, int num_threads) {
  SentBytes bytes{};
  for (const Node& node : graph.nodes()) {
    const std::vector<ValueType> in = types_of(graph, node.in), out = types_of(graph, node.out);
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.axis; }) {
            bytes[static_cast<size_t>(op.axis)] += op.work(in, out, WorkEnv{num_threads}).bytes_sent;
          }
        },
        node.op);
  }
  return bytes;
}

}  // namespace

std::vector<uint64_t> hash_logits(const Engine& engine, const StepCall& call) {
  std::vector<uint64_t> hashes;
  const bool draft = call.kind != StepCall::Kind::kStep;
  const int64_t rows = draft ? engine.num_draft_logit_rows() : engine.num_logit_rows();
  for (int64_t row = 0; row < rows; ++row) {
    hashes.push_back(hash_bytes(std::as_bytes(draft ? engine.draft_logits(row) : engine.logits(row))));
  }
  return hashes;
}

std::vector<std::vector<float>> logit_values(const Engine& engine, const StepCall& call) {
  std::vector<std::vector<float>> values;
  const bool draft = call.kind != StepCall::Kind::kStep;
  const int64_t rows = draft ? engine.num_draft_logit_rows() : engine.num_logit_rows();
  for (int64_t row = 0; row < rows; ++row) {
    const auto logits = draft ? engine.draft_logits(row) : engine.logits(row);
    values.emplace_back(logits.begin(), logits.end());
  }
  return values;
}

std::optional<LogitsTolerance> tolerance_of(const Layout& layout, DType dtype) {
  if (layout.mesh.dcp == 1 || layout.dcp_mode == DcpMode::kRows) return std::nullopt;
  if (dtype == DType::kF32) return LogitsTolerance{1e-5, 1e-5};
  return LogitsTolerance{1.0 / 4, 1.0 / 8};
}

std::string LogitsError::add(const StepRecord& found, const StepRecord& want, size_t number) {
  if (found.values.size() != want.values.size()) {
    return fmt::format("{}: {} logit rows, expected {}", describe(found.call, number), found.values.size(),
                       want.values.size());
  }
  for (size_t row = 0; row < want.values.size(); ++row) {
    double squares = 0, differences = 0;
    for (size_t i = 0; i < want.values[row].size(); ++i) {
      const double x = want.values[row][i], d = found.values[row][i] - x;
      squares += x * x;
      differences += d * d;
    }
    squares_ += squares;
    differences_ += differences;
    if (differences != 0) rows_.push_back(std::sqrt(differences / squares));
  }
  return {};
}

std::string LogitsError::beyond(const LogitsTolerance& tolerance) const {
  if (rows_.empty()) return {};
  const double all = std::sqrt(differences_ / squares_);
  if (!(all <= tolerance.all))
    return fmt::format("logits differ by {:.3g} of their root mean square, tolerance {:.3g}", all, tolerance.all);
  std::vector<double> rows = rows_;
  const auto middle = rows.begin() + static_cast<ptrdiff_t>(rows.size() / 2);
  std::nth_element(rows.begin(), middle, rows.end());
  if (*middle <= tolerance.median) return {};
  return fmt::format(
      "half of the {} logit rows that differ do so by {:.3g} of their root mean square or more, tolerance {:.3g}",
      rows.size(), *middle, tolerance.median);
}

std::string first_difference(const StepRecord& found, const StepRecord& want, size_t number, int64_t& rows) {
  ByName by_name;
  for (const TracedValue& value : want.ranks[0]) by_name.emplace(value.name, &value);
  // The earliest value of the graph that differs on any rank.
  std::string text;
  size_t earliest = SIZE_MAX;
  for (size_t rank = 0; rank < found.ranks.size(); ++rank) {
    const StepTrace& trace = found.ranks[rank];
    for (size_t i = 0; i < trace.size(); ++i) {
      const TracedValue* expected = counterpart(by_name, trace[i]);
      if (expected == nullptr) continue;
      rows += static_cast<int64_t>(trace[i].rows.size());
      const int64_t row = i < earliest ? differing_row(trace[i], *expected) : -1;
      if (row < 0) continue;
      earliest = i;
      text = fmt::format("{}: {}, row {}, rank {}", describe(found.call, number), trace[i].name, row, rank);
    }
  }
  if (!text.empty()) return text;
  rows += static_cast<int64_t>(found.logits.size());
  if (found.logits == want.logits) return {};
  return fmt::format("{}: logits as rank 0 gives them", describe(found.call, number));
}

std::string cache_difference(const std::vector<CacheHashes>& found, const std::vector<CacheHashes>& want,
                             int64_t& rows) {
  for (const CacheHashes& have : found) {
    const auto expected =
        std::find_if(want.begin(), want.end(), [&](const CacheHashes& c) { return c.name == have.name; });
    if (expected == want.end()) return fmt::format("cache {} is unknown to one rank", have.name);
    // Every stride-th of them.
    const auto all = static_cast<int64_t>(expected->rows.size());
    const int64_t skipped = have.first - expected->first,
                  rows_here = all > skipped ? ceil_div(all - skipped, have.stride) : 0;
    const bool misplaced = skipped < 0 || skipped >= have.stride;
    if (misplaced || static_cast<int64_t>(have.rows.size()) != rows_here) {
      return fmt::format("cache {}: {} rows from {}, expected {} from {}", have.name, have.rows.size(), have.first,
                         misplaced ? all : rows_here, misplaced ? expected->first : have.first);
    }
    for (size_t i = 0; i < have.rows.size(); ++i) {
      const int64_t row = skipped + static_cast<int64_t>(i) * have.stride;
      if (have.rows[i] != expected->rows[static_cast<size_t>(row)]) {
        return fmt::format("cache {}, row {}", have.name, expected->first + row);
      }
    }
    rows += static_cast<int64_t>(have.rows.size());
  }
  return {};
}

bool holds_caches(const Layout& layout, int rank, int32_t slot) {
  if (layout.split != TokenSplit::kOwned) return true;
  // Of the slots of its data-parallel group (Engine::cache_hashes), by their number there.
  return rank % layout.mesh.tp == slot_owner(slot_on_owner(slot, layout.mesh.dp), layout.mesh.tp);
}

bool fills_graphs(const Layout& layout) {
  constexpr int64_t kFullRows = 8;  // of the smallest full step (layout_batches.cc)
  if (layout.mesh.dp > 1 || layout.mesh.pp > 1) return false;  // a rank has a part of the step
  // Logit rows of a split within a split have room for the case that all of them are on one rank.
  if (layout.mesh.pcp > 1 && layout.mesh.tp > 1 && layout.sequence_parallel) return false;
  // What crosses depends on where groups of tokens are cut.
  if (layout.compressor == CompressorChoice::kSplit) return false;
  return layout.split == TokenSplit::kFlat && kFullRows % layout.mesh.stage() == 0;
}

std::string sent_difference(const std::vector<RankReport>& before, const std::vector<RankReport>& after,
                            const Graph* full, int num_threads) {
  for (size_t rank = 0; rank < after.size(); ++rank) {
    for (size_t axis = 0; axis < after[rank].sent.size(); ++axis) {
      const int64_t sent = after[rank].sent[axis].bytes_sent() - before[rank].sent[axis].bytes_sent();
      const int64_t planned = after[rank].planned[axis] - before[rank].planned[axis];
      const auto difference = [&](std::string_view who, int64_t says) {
        return fmt::format("rank {} sent {} bytes along {}, {} says {}", rank, sent,
                           mesh_axis_name(static_cast<MeshAxis>(axis)), who, says);
      };
      if (sent != planned) return difference("the plan of these rows", planned);
      // What rows picked crosses along these axes: of it a rank may hold more than an equal share.
      if (full == nullptr || static_cast<MeshAxis>(axis) == MeshAxis::kEp ||
          static_cast<MeshAxis>(axis) == MeshAxis::kDcp)
        continue;
      const int64_t capacity = full_bytes(*full, num_threads)[axis];
      if (sent == capacity) continue;
      return difference(fmt::format("graph {}, which they fill,", full->name()), capacity);
    }
  }
  return {};
}

}  // namespace weft
