// Chrome trace events of a plan: https://ui.perfetto.dev reads them.
// Format: "Trace Event Format", complete events (ph X, microseconds) and metadata (ph M).
#include <algorithm>

#include <fmt/format.h>

#include "planner/report.h"

namespace weft {
namespace {

constexpr double kMicroseconds = 1e6;

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

class Trace {
 public:
  Trace(const Plan& plan, int64_t ranks) : plan_(plan), ranks_(std::min(ranks, plan.ranks)) {}

  std::string text() {
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const auto& mesh = plan_.request.layout.mesh;
      const int64_t stage = mesh.pp == 1 ? 0 : rank / (int64_t{mesh.pcp} * mesh.tp) % mesh.pp;
      name(rank, fmt::format("rank {}{}", rank, mesh.pp > 1 ? fmt::format(" (stage {})", stage) : ""));
      double at = 0;
      if (!plan_.prefill.empty()) at = step(rank, stage, plan_.prefill.back(), at);
      if (plan_.decode.rows > 0) at = step(rank, stage, plan_.decode, at);
      for (const StepPlan& draft : plan_.drafts) at = step(rank, stage, draft, at);
    }
    return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"unverified\":{}}},\"traceEvents\":[{}]}}\n",
                       nlohmann::json(plan_.unverified).dump(), events_);
  }

 private:
  void event(std::string text) { events_ += (events_.empty() ? "\n" : ",\n") + std::move(text); }

  void name(int64_t rank, const std::string& process) {
    event(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", rank, json_text(process)));
    constexpr std::string_view kStreams[] = {"compute", "comm", "prefetch", "steps"};
    for (size_t s = 0; s < std::size(kStreams); ++s) {
      event(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank, s, kStreams[s]));
    }
  }

  // Layers that stand for others are drawn once; the step's bar has the whole time.
  double step(int64_t rank, int64_t stage, const StepPlan& step, double at) {
    double before = 0;
    for (int64_t s = 0; s < stage; ++s) before += step.stages[static_cast<size_t>(s)].seconds + step.stages[static_cast<size_t>(s)].hand_over_s;
    const StagePlan& mine = step.stages[static_cast<size_t>(stage)];
    complete(rank, 3, step.name, at + before, mine.seconds, fmt::format(R"("rows":{},"context":{})", step.rows, step.context));
    for (const TimelineEvent& e : mine.timeline.events) {
      complete(rank, static_cast<int>(e.stream), e.name, at + before + e.start_s, e.seconds,
               fmt::format(R"("op":"{}","layers":{},"bound":"{}","flops":{:.0f},"bytes":{:.0f},"bytes_sent":{:.0f},"source":"{}","unverified":{})", e.op, e.repeat,
                           bound_name(e.cost.bound), e.cost.flops, e.cost.bytes, e.cost.bytes_sent, cost_source_name(e.cost.source),
                           e.cost.unverified));
    }
    return at + step.seconds;
  }

  void complete(int64_t rank, int track, std::string_view what, double start_s, double seconds, const std::string& args) {
    event(fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", json_text(what), rank, track,
                      start_s * kMicroseconds, seconds * kMicroseconds, args));
  }

  const Plan& plan_;
  const int64_t ranks_;
  std::string events_;
};

}  // namespace

std::string plan_trace(const Plan& plan, int64_t ranks) { return Trace(plan, ranks).text(); }

}  // namespace weft
