#include "cli/verify_layouts.h"

#include <algorithm>
#include <set>

#include "base/shown_text.h"
#include "cli/rank_job.h"

namespace weft {
namespace {

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> items;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

// What was asked for, line by line: a layout of so many ranks, or why it is skipped.
struct WantedLayout {
  std::string text;
  int64_t ranks = 1;
  Layout layout = {};  // where there is no reason
  std::string reason;
};

// Every text on every number of ranks. A text that is no layout at all is an error.
Result<std::vector<WantedLayout>> listed_layouts(const LayoutMatrixArgs& args) {
  std::vector<WantedLayout> wanted;
  std::set<std::string> seen;
  const auto add = [&](const Layout& layout) {
    const std::string text = to_string(layout);
    if (seen.insert(text).second) wanted.push_back({text, layout.mesh.world(), layout, ""});
  };
  if (args.layouts->empty())
    return invalid_argument("--layouts: expected all, or a list of layouts such as tp2,tp2+sp; found nothing");
  for (const std::string& text : split_commas(*args.layouts)) {
    const Result<Layout> alone = parse_layout(text);
    bool any = alone.ok();  // with --ranks, ep may be that of groups which the text does not name
    if (args.ranks.empty() && any) add(*alone);
    for (const int64_t ranks : args.ranks) {
      const Result<Layout> layout = parse_layout(text, ranks);
      any = any || layout.ok();
      if (layout.ok()) {
        add(*layout);
      } else {
        wanted.push_back({text, ranks, {}, layout.status().message()});
      }
    }
    if (!any) return Status(alone.status().code(), fmt::format("--layouts: {}", alone.status().message()));
  }
  return wanted;
}

nlohmann::ordered_json line_json(const LayoutLine& line) {
  return {{"dtype", line.dtype == DType::kF32 ? "f32" : "bf16"},
          {"layout", line.layout},
          {"ranks", line.ranks},
          {"transport", line.transport},
          {"outcome", line.outcome == VerifyLine::Outcome::kFail ? "fail" : std::string(outcome_name(line.outcome))},
          {"batches", line.batches},
          {"batches_passed", line.batches_passed},
          {"rows_compared", line.rows},
          {"byte_steps", line.byte_steps},
          {"full_steps", line.full_steps},
          {"detail", line.detail},
          {"seconds", line.seconds}};
}

}  // namespace

std::string_view outcome_name(VerifyLine::Outcome outcome) {
  switch (outcome) {
    case VerifyLine::Outcome::kPass: return "pass";
    case VerifyLine::Outcome::kFail: return "FAIL";
    case VerifyLine::Outcome::kSkipped: return "skipped";
  }
  return "";
}

Status run_layout_matrix(const ModelArgs& model_args, const LayoutMatrixArgs& args, LayoutMatrixOptions options,
                         Console& console) {
  RankJob* const job = console.job;
  std::vector<std::string> transports = args.transports;
  if (transports.empty()) transports = {job != nullptr ? "mpi" : "threads"};
  // Beside mpi, threads are of rank 0; alone they would leave the other processes of a job without work.
  const bool mpi_too = std::find(transports.begin(), transports.end(), "mpi") != transports.end();
  for (const std::string& transport : transports) {
    RankArgs one;
    one.transport = transport;
    if (transport == "mpi" || !mpi_too) WEFT_RETURN_IF_ERROR(one.over_mpi(job).status());
  }
  const bool all = args.layouts == "all";
  std::vector<WantedLayout> listed;
  if (!all) {
    WEFT_ASSIGN_OR_RETURN(listed, listed_layouts(args));
  }
  WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(model_args, console));

  const auto wanted_over = [&](bool mpi) {
    const auto refusal = [&](int64_t ranks) {
      return mpi && ranks != job->size() ? fmt::format("{} ranks, but mpirun started {} processes", ranks, job->size())
                                         : "";
    };
    if (!all) {
      std::vector<WantedLayout> wanted = listed;
      for (WantedLayout& one : wanted) {
        if (one.reason.empty()) one.reason = refusal(one.ranks);
      }
      return wanted;
    }
    std::vector<int64_t> counts = args.ranks;
    if (counts.empty()) counts = mpi ? std::vector<int64_t>{job->size()} : std::vector<int64_t>{2, 4};
    std::vector<WantedLayout> wanted;
    for (const int64_t ranks : counts) {
      if (const std::string reason = refusal(ranks); !reason.empty()) {
        wanted.push_back({"all", ranks, {}, reason});
        continue;
      }
      const std::vector<Layout> layouts = runnable_layouts(*loaded.model, static_cast<int>(ranks));
      for (const Layout& layout : layouts) wanted.push_back({to_string(layout), ranks, layout, ""});
      if (layouts.empty())
        wanted.push_back({"all", ranks, {}, fmt::format("this model takes no layout of {} ranks", ranks)});
    }
    return wanted;
  };
  LayoutEvents events;
  events.on_start = [&](const std::string& name) { console.progress(name + " ..."); };
  size_t width = 6;
  bool head = true;
  events.on_line = [&](const LayoutLine& line) {
    if (console.json) return;
    if (std::exchange(head, false)) {
      console.print(fmt::format("{:<8}{:<5}{:<{}}{:>6}  {:<10}{:<6}{:>11}{:>9}  first difference\n", "", "", "layout",
                                width + 2, "ranks", "", "batches", "rows", "time"));
    }
    console.print(fmt::format("{:<8}{:<5}{:<{}}{:>6}  {:<8}{:>3}/{:<4}{:>11}{:>7.2f} s{}{}\n",
                              outcome_name(line.outcome), line.dtype == DType::kF32 ? "f32" : "bf16", line.layout,
                              width + 2, line.ranks, line.transport, line.batches_passed, line.batches, line.rows,
                              line.seconds, line.detail.empty() ? "" : "  ", line.detail));
  };
  LayoutReport report;
  for (const std::string& transport : transports) {
    const bool mpi = transport == "mpi";
    const std::vector<WantedLayout> wanted = wanted_over(mpi);
    options.layouts.clear();
    options.transport = transport;
    for (const WantedLayout& one : wanted) {
      width = std::max(width, one.text.size());
      if (one.reason.empty()) options.layouts.push_back(one.layout);
    }
    for (const DType dtype : options.dtypes) {
      for (const WantedLayout& one : wanted) {
        if (one.reason.empty()) continue;
        LayoutLine line;
        line.dtype = dtype;
        line.layout = shown(one.text);
        line.transport = transport;
        line.ranks = one.ranks;
        line.outcome = VerifyLine::Outcome::kSkipped;
        line.detail = one.reason;
        events.on_line(line);
        report.lines.push_back(std::move(line));
      }
    }
    if (options.layouts.empty()) continue;
    if (mpi) {
      options.make_engine = [&](const EngineOptions& engine_options) {
        return make_engine(model_args.model_dir, model_args.allow_unknown_config, loaded.model, engine_options,
                           console);
      };
    } else {
      options.make_engine = {};
    }
    WEFT_ASSIGN_OR_RETURN(LayoutReport part, verify_layouts(loaded.model, options, events));
    report.tokens = part.tokens;
    report.batches = part.batches;
    for (LayoutLine& line : part.lines) report.lines.push_back(std::move(line));
  }

  int64_t counts[3] = {}, byte_steps = 0, full_steps = 0;
  double seconds = 0;
  for (const LayoutLine& line : report.lines) {
    ++counts[static_cast<int>(line.outcome)];
    byte_steps += line.byte_steps;
    full_steps += line.full_steps;
    seconds += line.seconds;
  }
  const int64_t passed = counts[static_cast<int>(VerifyLine::Outcome::kPass)],
                failed = counts[static_cast<int>(VerifyLine::Outcome::kFail)],
                skipped = counts[static_cast<int>(VerifyLine::Outcome::kSkipped)];
  if (console.json) {
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const LayoutLine& line : report.lines) lines.push_back(line_json(line));
    console.print_json(nlohmann::ordered_json{{"model", model_args.model_dir},
                                              {"tokens", report.tokens},
                                              {"seed", options.seed},
                                              {"batches", report.batches},
                                              {"passed", passed},
                                              {"failed", failed},
                                              {"skipped", skipped},
                                              {"lines", lines}});
  } else {
    console.print(fmt::format(
        "{} passed, {} failed, {} skipped in {:.1f} s ({} batches, prompts of up to {} tokens, seed {}; "
        "bytes sent compared in {} steps, {} of them full)\n",
        passed, failed, skipped, seconds, report.batches.size(), report.tokens, options.seed, byte_steps, full_steps));
  }
  if (passed == 0 && failed == 0) {
    return check_failed(fmt::format("nothing was compared: all {} lines are skipped, the first one because: {}",
                                    report.lines.size(), report.lines.front().detail));
  }
  return failed == 0 ? Status()
                     : check_failed(fmt::format("{} of {} layouts differ from one rank", failed, report.lines.size()));
}

}  // namespace weft
