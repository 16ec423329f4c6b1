// Two plans side by side.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "planner/report.h"
#include "planner/report_units.h"

namespace weft {
namespace {

// One line of a comparison; bytes or seconds.
struct DiffLine {
  std::string section, what;
  double a = 0, b = 0;
  bool seconds = false;
  std::string why;
};

using Key = std::tuple<int, std::string, std::string>;  // category, what, tensor

// What one side says of a line: dtypes, and why it is as large as it is.
struct SideWords {
  std::vector<std::string> storage, reasons;

  static void note(std::vector<std::string>& words, std::string word) {
    if (!word.empty() && std::find(words.begin(), words.end(), word) == words.end()) words.push_back(std::move(word));
  }
};

// "a -> b", or what both are.
std::string change(const std::vector<std::string>& a, const std::vector<std::string>& b, std::string_view nothing) {
  const auto joined = [](const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); };
  if (a == b) return joined(a);
  return fmt::format("{} -> {}", a.empty() ? nothing : joined(a), b.empty() ? nothing : joined(b));
}

void memory_lines(const Plan& a, const Plan& b, std::vector<DiffLine>& out) {
  std::map<Key, DiffLine> lines;
  std::map<Key, std::array<SideWords, 2>> words;
  const Plan* plans[2] = {&a, &b};
  for (size_t side = 0; side < 2; ++side) {
    for (const LedgerLine& line : plans[side]->ledger[static_cast<size_t>(plans[side]->worst_stage)].lines) {
      const Key key{static_cast<int>(line.category), line.what, line.tensor};
      DiffLine& d = lines[key];
      d.section = ledger_category_name(line.category);
      d.what = line.what + (line.tensor.empty() ? "" : " " + line.tensor);
      (side == 0 ? d.a : d.b) += static_cast<double>(line.bytes);
      SideWords& mine = words[key][side];
      SideWords::note(mine.storage, line.storage);
      SideWords::note(mine.reasons, line.copies > 1 ? fmt::format("x {}: {}", line.copies, line.reason) : line.reason);
    }
  }
  for (auto& [key, line] : lines) {
    const auto& [before, after] = words[key];
    if (line.a > 0 && line.b > 0) {
      const std::string storage = change(before.storage, after.storage, "");
      if (!storage.empty()) line.what += " " + storage;
      if (before.reasons != after.reasons) line.why = change(before.reasons, after.reasons, "split");
    } else {
      const SideWords& there = line.a > 0 ? before : after;
      if (!there.storage.empty()) line.what += fmt::format(" {}", fmt::join(there.storage, ", "));
      line.why = fmt::format("{} alone{}{}", line.a > 0 ? "A" : "B", there.reasons.empty() ? "" : ": ",
                             fmt::join(there.reasons, ", "));
    }
    out.push_back(std::move(line));
  }
  const auto sum = [&](std::string what, auto bytes) {
    const auto of = [&](const Plan& p) {
      return static_cast<double>(bytes(p.ledger[static_cast<size_t>(p.worst_stage)]));
    };
    out.push_back({"memory", std::move(what), of(a), of(b), false, ""});
  };
  sum("static: weights, copies, reserves", [](const RankLedger& l) { return l.static_bytes(); });
  sum("caches", [](const RankLedger& l) { return l.cache_bytes; });
  sum("steps", [](const RankLedger& l) { return l.arena_bytes; });
  sum("total of a rank", [](const RankLedger& l) { return l.total(); });
}

void service_lines(const Plan& a, const Plan& b, std::vector<DiffLine>& out) {
  if (!a.has_times || !b.has_times) return;
  out.push_back({"service", "TTFT", a.service.ttft_s, b.service.ttft_s, true, ""});
  out.push_back({"service", "TPOT", a.service.tpot_s, b.service.tpot_s, true, ""});
  out.push_back({"service", "decode step", a.decode_step_s, b.decode_step_s, true, ""});
}

// Steps of one kind, each as often as the whole batch needs it: on the stage that takes longest, by op and by collective. Both sides
// serve the same requests, however they cut them.
void step_lines(std::span<const StepPlan> a, std::span<const StepPlan> b, const std::string& section,
                std::vector<DiffLine>& out) {
  if (a.empty() || b.empty() || a[0].stages.empty() || b[0].stages.empty()) return;
  const std::span<const StepPlan> sides[2] = {a, b};
  std::map<std::string, DiffLine> ops, sent;
  std::map<std::string, std::string> bound[2];
  for (int side = 0; side < 2; ++side) {
    std::vector<double> seconds(sides[side][0].stages.size(), 0);
    for (const StepPlan& step : sides[side]) {
      for (size_t stage = 0; stage < seconds.size(); ++stage)
        seconds[stage] += step.stages[stage].seconds * static_cast<double>(step.times * step.micro_batches);
    }
    const auto slowest = static_cast<size_t>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
    for (const StepPlan& step : sides[side]) {
      const auto times = static_cast<double>(step.times);
      for (const PlanOp& op : step.stages[slowest].ops) {
        DiffLine& d = ops[op.name];
        d.section = section;
        d.what = op.name;
        d.seconds = true;
        (side == 0 ? d.a : d.b) += op.cost.seconds * times;
        bound[side][op.name] = bound_name(op.cost.bound);
      }
      for (const TrafficLine& line : step.stages[slowest].traffic) {
        const std::string name = fmt::format("{} over {}", line.op, mesh_axis_name(line.axis));
        DiffLine& d = sent[name];
        d.section = section + " sends";
        d.what = name;
        (side == 0 ? d.a : d.b) += static_cast<double>(line.bytes_sent) * times;
      }
    }
  }
  for (auto& [name, line] : ops) {
    if (bound[0][name] != bound[1][name])
      line.why = fmt::format("{} -> {}", bound[0][name].empty() ? "none" : bound[0][name],
                             bound[1][name].empty() ? "none" : bound[1][name]);
    out.push_back(std::move(line));
  }
  for (auto& [name, line] : sent) out.push_back(std::move(line));
}

std::vector<DiffLine> diff(const Plan& a, const Plan& b) {
  std::vector<DiffLine> lines;
  memory_lines(a, b, lines);
  service_lines(a, b, lines);
  if (a.has_times && b.has_times) {
    step_lines(a.prefill, b.prefill, fmt::format("prefill of {} prompts", a.request.batch), lines);
    if (a.decode.rows > 0 && b.decode.rows > 0)
      step_lines({&a.decode, 1}, {&b.decode, 1}, fmt::format("decode step of {} requests", a.request.batch), lines);
  }
  return lines;
}

std::vector<std::string> unverified_of(const Plan& a, const Plan& b) {
  std::vector<std::string> all = a.unverified;
  for (const std::string& figure : b.unverified) {
    if (std::find(all.begin(), all.end(), figure) == all.end()) all.push_back(figure);
  }
  return all;
}

std::string title(const Plan& p) {
  return fmt::format("{}{}", to_string(p.request.layout),
                     p.request.engine->name == "weft" ? "" : "@" + p.request.engine->name);
}

}  // namespace

std::string plan_diff_text(const Plan& a, const Plan& b) {
  constexpr double kSmall = 0.001;  // of the largest change of its section; less is left out
  const std::vector<DiffLine> lines = diff(a, b);
  std::map<std::string, double> largest;
  for (const DiffLine& line : lines)
    largest[line.section] = std::max(largest[line.section], std::fabs(line.b - line.a));
  const auto side = [](const Plan& p) {
    const StepPlan* prefill = p.main_prefill();
    return fmt::format(
        "{} ({}{}{})", title(p), p.fits ? "fits" : "does not fit", p.memory_unverified ? " *" : "",
        p.has_times && prefill != nullptr ? fmt::format(", prefill in steps of {} rows", prefill->rows) : "");
  };
  std::string out =
      fmt::format("{} on {}\nA = {}\nB = {}\n\n", a.request.model_name, a.request.device->name, side(a), side(b));
  TextTable table("llrrrl");
  table.row({"", "", "A", "B", "B - A", "why"});
  std::string section;
  for (const DiffLine& line : lines) {
    const double change = line.b - line.a;
    const bool sum = line.section == "memory" || line.section == "service";
    if (!sum && std::fabs(change) <= kSmall * largest[line.section]) continue;
    const auto words = [&](double v) {
      if (!line.seconds) return bytes_words(v);
      return fmt::format("{}{}", v < 0 ? "-" : "", seconds_words(std::fabs(v)));
    };
    table.row({line.section == section ? "" : line.section, line.what, words(line.a), words(line.b),
               fmt::format("{}{}", change > 0 ? "+" : "", words(change)), line.why});
    section = line.section;
  }
  out += table.text();
  for (const Plan* plan : {&a, &b}) {
    for (const std::string& note : plan->notes) out += fmt::format("note on {}: {}\n", plan == &a ? "A" : "B", note);
  }
  const std::vector<std::string> unverified = unverified_of(a, b);
  if (!unverified.empty())
    out += fmt::format("figures that nobody verified, of those that this rests on: {}\n", unverified.size());
  for (const std::string& figure : unverified) out += fmt::format("  * {}\n", figure);
  return out;
}

nlohmann::ordered_json plan_diff_json(const Plan& a, const Plan& b) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const DiffLine& line : diff(a, b)) {
    lines.push_back({{"section", line.section},
                     {"what", line.what},
                     {"unit", line.seconds ? "s" : "B"},
                     {"a", line.a},
                     {"b", line.b},
                     {"change", line.b - line.a},
                     {"why", line.why}});
  }
  return {{"schema", "weft.plan.diff"},
          {"version", kPlanSchemaVersion},
          {"a", title(a)},
          {"b", title(b)},
          {"lines", lines},
          {"unverified", unverified_of(a, b)}};
}

}  // namespace weft
