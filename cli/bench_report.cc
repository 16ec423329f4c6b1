#include "cli/bench_report.h"

#include <algorithm>
#include <map>

#include "cli/model_options.h"

namespace weft {
namespace {

constexpr double kGiga = 1e9, kPercent = 100, kMicro = 1e6;

bool is_number(const std::string& text) { return !text.empty() && text.find_first_of("0123456789") == 0; }

}  // namespace

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  const size_t columns = rows.front().size();
  std::vector<size_t> width(columns, 1);
  std::vector<bool> right(columns, rows.size() > 1);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows[r][c].size());
      if (r > 0 && !rows[r][c].empty() && !is_number(rows[r][c])) right[c] = false;
    }
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      text +=
          right[c] ? fmt::format("| {:>{}} ", rows[r][c], width[c]) : fmt::format("| {:<{}} ", rows[r][c], width[c]);
    }
    text += "|\n";
    if (r > 0) continue;
    for (size_t c = 0; c < columns; ++c)
      text += fmt::format("| {}{} ", std::string(width[c] - 1, '-'), right[c] ? ":" : "-");
    text += "|\n";
  }
  return text;
}

double share_of_limit(const BenchResult& result, const MachineLimits& machine) {
  const double limit =
      result.test.kind == BenchKind::kPrefill ? machine.f32_flops_per_s : machine.best_read_bytes_per_s();
  if (limit <= 0) return 0;
  return (result.test.kind == BenchKind::kPrefill ? result.flops_per_s() : result.bytes_per_s()) / limit;
}

std::string spread_text(const std::vector<double>& bytes_per_s) {
  const auto [least, most] = std::minmax_element(bytes_per_s.begin(), bytes_per_s.end());
  return fmt::format("{:.1f} to {:.1f}", *least / kGiga, *most / kGiga);
}

OrderedJson machine_json(const MachineLimits& machine) {
  return {{"isa", std::string(isa_name(machine.isa))},
          {"threads", machine.threads},
          {"last_level_cache_bytes", machine.last_level_cache_bytes},
          {"read_bytes_per_s", machine.read_bytes_per_s},
          {"f32_flops_per_s", machine.f32_flops_per_s},
          {"f32_flops_per_s_one_thread", machine.f32_flops_per_s_one_thread},
          {"bf16_dot_flops_per_s", machine.bf16_dot_flops_per_s},
          {"int8_dot_ops_per_s", machine.int8_dot_ops_per_s}};
}

std::string machine_text(const MachineLimits& machine) {
  std::string text =
      fmt::format("machine: {} threads, {}, read bandwidth {:.1f} GB/s, f32 FMA peak {:.1f} GFLOP/s", machine.threads,
                  isa_name(machine.isa), machine.best_read_bytes_per_s() / kGiga, machine.f32_flops_per_s / kGiga);
  if (machine.bf16_dot_flops_per_s > 0)
    text += fmt::format(", bf16 dot {:.1f} GFLOP/s", machine.bf16_dot_flops_per_s / kGiga);
  if (machine.int8_dot_ops_per_s > 0)
    text += fmt::format(", int8 dot {:.1f} GOP/s", machine.int8_dot_ops_per_s / kGiga);
  return text;
}

OrderedJson bench_json(const BenchResult& result, const MachineLimits& machine) {
  const BenchTest& test = result.test;
  OrderedJson json = {{"test", test.name()},
                      {"kind", test.kind == BenchKind::kPrefill ? "prefill" : "decode"},
                      {"tokens", test.tokens},
                      {"batch", test.batch},
                      {"depth", test.depth},
                      {"depth_computed", test.computed_depth()},
                      {"drafts", test.drafts},
                      {"tokens_per_s", result.tokens_per_s()},
                      {"tokens_per_s_spread", result.tokens_per_s_spread()},
                      {"seconds", result.seconds},
                      {"flops", result.flops},
                      {"bytes", result.bytes},
                      {"limit", test.kind == BenchKind::kPrefill ? "f32 FMA peak" : "read bandwidth"},
                      {"share_of_limit", share_of_limit(result, machine)}};
  if (!result.read_bytes_per_s.empty()) json["read_bytes_per_s"] = result.read_bytes_per_s;
  for (size_t rank = 0; rank < result.op_times.size(); ++rank) {
    for (const OpTime& time : result.op_times[rank]) {
      json["ops"].push_back(
          {{"rank", rank}, {"op", time.op}, {"name", time.name}, {"calls", time.calls}, {"seconds", time.seconds}});
    }
  }
  if (test.drafts > 0) json["accepted"] = result.accepted, json["drafted"] = result.drafted;
  return json;
}

namespace {

struct RankTimes {
  int64_t calls = 0;
  std::vector<double> seconds;  // by rank
  double longest() const { return *std::max_element(seconds.begin(), seconds.end()); }
  void add(const OpTime& time, size_t rank, size_t ranks) {
    seconds.resize(ranks);
    seconds[rank] += time.seconds;
    if (rank == 0) calls += time.calls;
  }
};
using TimesByName = std::map<std::string, RankTimes>;

std::vector<std::pair<std::string, RankTimes>> longest_first(const TimesByName& times) {
  std::vector<std::pair<std::string, RankTimes>> sorted(times.begin(), times.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.longest() > b.second.longest(); });
  return sorted;
}

}  // namespace

std::string op_table(const BenchResult& result) {
  const size_t ranks = result.op_times.size();
  TimesByName kinds;
  std::map<std::string, TimesByName> names;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const OpTime& time : result.op_times[rank]) {
      kinds[time.op].add(time, rank, ranks);
      names[time.op][time.name].add(time, rank, ranks);
    }
  }
  std::vector<std::vector<std::string>> rows = {{"op", "name", "calls"}};
  for (size_t rank = 0; rank < ranks; ++rank) rows[0].push_back(fmt::format("rank {}, s", rank));
  const auto add = [&](const std::string& op, const std::string& name, const RankTimes& times) {
    std::vector<std::string>& row =
        rows.emplace_back(std::vector<std::string>{op, name, fmt::format("{}", times.calls)});
    for (const double seconds : times.seconds) row.push_back(fmt::format("{:.4f}", seconds));
  };
  for (const auto& [op, times] : longest_first(kinds)) {
    add(op, "", times);
    if (names[op].size() == 1) continue;
    for (const auto& [name, own] : longest_first(names[op])) add("", name, own);
  }
  return markdown_table(rows);
}

OrderedJson kernel_json(const KernelBenchResult& result) {
  OrderedJson json = {{"kernel", result.kernel},
                      {"shape", result.shape},
                      {"dtype", result.dtype},
                      {"isa", std::string(isa_name(result.isa))},
                      {"threads", result.threads}};
  if (!result.skipped.empty()) {
    json["skipped"] = result.skipped;
    return json;
  }
  json["repetitions"] = result.repetitions;
  json["seconds"] = result.seconds;
  json["seconds_min"] = result.seconds_min;
  json["seconds_max"] = result.seconds_max;
  json["bytes"] = result.bytes;
  json["flops"] = result.flops;
  json["limit"] = std::string(bench_limit_name(result.limit));
  json["ratio"] = result.ratio;
  json["bandwidth_ratio"] = result.bandwidth_ratio;
  json["flops_ratio"] = result.flops_ratio;
  json["compute_path"] = std::string(compute_path_name(result.path));
  json["compute_ratio"] = result.compute_ratio;
  json["bar"] = result.bar;
  json["meets_bar"] = result.meets_bar();
  return json;
}

std::string kernel_table(const std::vector<KernelBenchResult>& results) {
  std::vector<std::vector<std::string>> rows = {{"kernel", "shape", "dtype", "us", "spread", "GB/s", "of peak",
                                                 "GFLOP/s", "of peak", "path", "share", "of", "bar"}};
  const auto percent = [](double ratio) { return fmt::format("{:.1f} %", kPercent * ratio); };
  for (const KernelBenchResult& r : results) {
    if (!r.skipped.empty()) {
      rows.push_back({r.kernel, r.shape, r.dtype, "", "", "", "", "", "", "", "", "skipped: " + r.skipped, ""});
      continue;
    }
    const char* sign = r.limit == BenchLimit::kShareOfLayer ? "<=" : ">=";
    const std::string bar =
        r.bar > 0 ? fmt::format("{} {:.0f} %{}", sign, kPercent * r.bar, r.meets_bar() ? "" : " missed") : "";
    const auto if_timed = [&](const std::string& text) { return r.seconds > 0 ? text : std::string(); };
    rows.push_back({r.kernel, r.shape, r.dtype, fmt::format("{:.1f}", kMicro * r.seconds),
                    if_timed(percent((r.seconds_max - r.seconds_min) / r.seconds)),
                    if_timed(fmt::format("{:.1f}", r.bytes / r.seconds / kGiga)), if_timed(percent(r.bandwidth_ratio)),
                    if_timed(fmt::format("{:.1f}", r.flops / r.seconds / kGiga)), if_timed(percent(r.compute_ratio)),
                    if_timed(std::string(compute_path_name(r.path))), percent(r.ratio),
                    std::string(bench_limit_name(r.limit)), bar});
  }
  return markdown_table(rows);
}

}  // namespace weft
