// Chrome trace events of a plan: https://ui.perfetto.dev reads them.
// Format: "Trace Event Format", complete events (ph X, microseconds), flows (ph s, f) and metadata (ph M).
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "planner/report.h"
#include "sharding/mesh.h"

namespace weft {
namespace {

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

enum Track { kCompute, kComm, kPrefetch, kSteps, kNumTracks };
static_assert(static_cast<int>(Stream::kPrefetch) == kPrefetch);
constexpr std::string_view kTracks[kNumTracks] = {"compute", "comm", "prefetch", "steps"};

// Whole nanoseconds, so that what ends when the next begins does so in the file, too.
int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

class Trace {
 public:
  Trace(const Plan& plan, int64_t ranks) : plan_(plan), mesh_(Mesh::create(plan.request.layout.mesh).value()) {
    // A rank of every stage, the one that was planned; then others.
    const StepPlan* any = plan.decode.rows > 0 ? &plan.decode : plan.main_prefill();
    const auto most = static_cast<size_t>(std::min(ranks, plan.ranks));
    for (const StagePlan& stage : any->stages) {
      if (ranks_.size() < most) ranks_.insert(stage.rank);
    }
    for (int rank = 0; ranks_.size() < most; ++rank) ranks_.insert(rank);
  }

  std::string text() {
    for (const int rank : ranks_) name(rank);
    double at = 0;
    const StepPlan* prefill = plan_.main_prefill();
    if (prefill != nullptr) at = step(*prefill, at);
    if (!plan_.prefill_drafts.empty())
      at = step(plan_.prefill_drafts[static_cast<size_t>(prefill - plan_.prefill.data())], at);
    if (plan_.decode.rows > 0) at = step(plan_.decode, at);
    for (const StepPlan& draft : plan_.drafts) {
      for (int64_t i = 0; i < draft.times; ++i) at = step(draft, at);
    }
    return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"unverified\":{}}},\"traceEvents\":[{}]}}\n",
                       nlohmann::json(plan_.unverified).dump(), events_);
  }

 private:
  void event(std::string text) { events_ += (events_.empty() ? "\n" : ",\n") + std::move(text); }

  int stage_of(int rank) const { return mesh_.coordinate(rank).pp; }

  void name(int rank) {
    const std::string process =
        fmt::format("rank {}{}", rank, mesh_.size(MeshAxis::kPp) > 1 ? fmt::format(" (stage {})", stage_of(rank)) : "");
    event(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", rank, json_text(process)));
    for (int track = 0; track < kNumTracks; ++track) {
      event(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank, track,
                        kTracks[track]));
    }
  }

  // All micro-batches through all stages; the end of the step.
  double step(const StepPlan& step, double at) {
    const auto stages = step.stages.size();
    std::vector<double> free(stages, at);  // when a stage is done with the micro-batches so far, its messages sent
    for (int64_t m = 0; m < step.micro_batches; ++m) {
      double ready = at;
      for (size_t s = 0; s < stages; ++s) {
        const StagePlan& stage = step.stages[s];
        const double start = std::max(ready, free[s]), sends = start + stage.seconds;
        ready = free[s] = sends + stage.hand_over_s;
        for (const int rank : ranks_) {
          if (stage_of(rank) != static_cast<int>(s)) continue;
          compute(rank, step, stage, m, start);
          if (s + 1 < stages && stage.hand_over_s > 0)
            send(rank, sends, stage.hand_over_s, std::max(ready, free[s + 1]));
        }
      }
    }
    const double end = at + step.seconds;
    if (step.logits_s > 0) {
      for (const int rank : ranks_)
        complete(rank, kComm, "logits", end - step.logits_s, step.logits_s, R"("op":"broadcast and all_gather")");
    }
    return end;
  }

  void compute(int rank, const StepPlan& step, const StagePlan& stage, int64_t micro_batch, double start) {
    const std::string what =
        step.micro_batches > 1 ? fmt::format("{} {} of {}", step.name, micro_batch + 1, step.micro_batches) : step.name;
    complete(rank, kSteps, what, start, stage.seconds,
             fmt::format(R"("rows":{},"context":{})", step.rows, step.context));
    struct Drawn {
      const TimelineEvent* event;
      int64_t layer;
      double start_s() const { return event->start_s + static_cast<double>(layer) * event->period_s; }
    };
    std::vector<Drawn> all;
    for (const TimelineEvent& e : stage.timeline.events) {
      for (int64_t layer = 0; layer < e.repeat; ++layer) all.push_back({&e, layer});
    }
    std::stable_sort(all.begin(), all.end(), [](const Drawn& a, const Drawn& b) { return a.start_s() < b.start_s(); });
    for (const Drawn& drawn : all) {
      const TimelineEvent& e = *drawn.event;
      complete(
          rank, static_cast<Track>(e.stream), e.name, start + drawn.start_s(), e.seconds,
          fmt::format(
              R"("op":"{}","layer":"{} of {} alike","bound":"{}","flops":{:.0f},"bytes":{:.0f},"bytes_sent":{:.0f},)"
              R"("source":"{}","unverified":{})",
              e.op, drawn.layer + 1, e.repeat, bound_name(e.cost.bound), e.cost.flops, e.cost.bytes, e.cost.bytes_sent,
              cost_source_name(e.cost.source), e.cost.unverified != 0));
    }
  }

  // A message to the next stage, and an arrow to what waits for it.
  void send(int rank, double start, double seconds, double starts_there) {
    complete(rank, kComm, "values for the next stage", start, seconds, R"("op":"send")");
    const std::vector<int> stages = mesh_.group(MeshAxis::kPp, rank);
    const int to = stages[static_cast<size_t>(stage_of(rank)) + 1];
    if (!ranks_.contains(to)) return;
    const int64_t id = ++flows_;
    event(fmt::format(R"({{"ph":"s","name":"values","cat":"send","id":{},"pid":{},"tid":{},"ts":{}}})", id, rank,
                      static_cast<int>(kComm), microseconds(nanoseconds(start))));
    event(fmt::format(R"({{"ph":"f","bp":"e","name":"values","cat":"send","id":{},"pid":{},"tid":{},"ts":{}}})", id, to,
                      static_cast<int>(kSteps), microseconds(nanoseconds(starts_there))));
  }

  void complete(int rank, Track track, std::string_view what, double start_s, double seconds, const std::string& args) {
    int64_t& free = free_[{rank, track}];
    const int64_t start = std::max(nanoseconds(start_s), free), end = std::max(nanoseconds(start_s + seconds), start);
    if (end == start) return;
    free = end;
    event(fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})", json_text(what),
                      rank, static_cast<int>(track), microseconds(start), microseconds(end - start), args));
  }

  const Plan& plan_;
  const Mesh mesh_;
  std::set<int> ranks_;
  std::map<std::pair<int, Track>, int64_t> free_;  // by rank and track: the end of its last event
  int64_t flows_ = 0;
  std::string events_;
};

}  // namespace

std::string plan_trace(const Plan& plan, int64_t ranks) { return Trace(plan, ranks).text(); }

}  // namespace weft
