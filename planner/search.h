// Which layout serves a workload best: every legal layout of some numbers of devices, prefill and decode together or on instances of
// their own, every batch size that fits and keeps the limits.
//
// A figure of a search is that of a plan (planner/plan.h): it ranks plans, and says of those that lost why. Memory comes first: what
// does not fit is never timed. Bytes and times grow with the batch, so the largest batch is found by doubling and bisection.
// The result depends neither on the number of threads nor on their order.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/layout_space.h"
#include "planner/plan.h"

namespace weft {

// throughput  most output tokens per second of all devices together
// cost        most output tokens per second and device
// latency     shortest time from request to last token
enum class Objective { kThroughput, kCost, kLatency };
std::string_view objective_name(Objective objective);

struct SearchRequest {
  PlanRequest plan;                      // layout, batch and phase are what is searched for
  std::string device_text, engine_text;  // as the user wrote them; empty: the names of the profiles
  std::vector<int64_t> devices;          // totals to look at; of CPUs each has plan.local_ranks ranks
  Objective objective = Objective::kThroughput;
  std::optional<double> ttft_s,
      tpot_s;  // limits: ServiceResult::ttft_s; tpot_loaded_s where prefill and decode share devices, else tpot_s
  bool together = true, apart = true;  // prefill and decode on the same devices; disaggregated
  SpaceBreadth breadth = SpaceBreadth::kUsual;
  std::vector<int64_t> chunks;  // rows of a prefill step to look at; empty: plan.chunk
  int64_t max_batch = 4096;     // requests at a time, of one instance
  int threads = 1;              // of the search
};

// Sizes in range; the message names the command-line option.
Status check_search(const SearchRequest& request);

// A layout at one batch and chunk.
struct SearchPoint {
  PlanPhase phase = PlanPhase::kBoth;
  Layout layout;
  int64_t devices = 1, batch = 1, chunk = 0;
  int64_t needed_bytes = 0, capacity_bytes = 0;  // of the fullest device
  double ttft_s = 0, tpot_s = 0;                 // as limited: see SearchRequest
  double transfer_s = 0;  // prefill instance: of the caches of a request to its decoder; part of ttft_s
  double e2e_s = 0, requests_per_s = 0;
  bool memory_unverified = false, times_unverified = false;  // rest on a figure that nobody verified
  bool unverified() const { return memory_unverified || times_unverified; }
};

// Devices with instances on them: what is ranked.
struct Deployment {
  int64_t devices = 1;                 // asked for; some may stay idle
  std::optional<SearchPoint> prefill;  // disaggregated: of one prefill instance
  SearchPoint decode;                  // of one decode instance; together: of the one instance
  int64_t prefill_instances = 0, decode_instances = 1;
  double ttft_s = 0, tpot_s = 0, e2e_s = 0;
  double requests_per_s = 0;
  double output_tokens_per_s = 0;  // of all instances
  double tokens_per_s_device = 0;  // of all `devices`
  double tokens_per_s_user = 0;    // 1 / tpot_s

  int64_t idle_devices() const;
  bool memory_unverified() const { return decode.memory_unverified || (prefill && prefill->memory_unverified); }
  bool times_unverified() const { return decode.times_unverified || (prefill && prefill->times_unverified); }
};
std::string deployment_name(const Deployment& deployment);  // "tp8+ep8", "2 x tp4 prefill + 1 x dp8+ep8 decode"

enum class LossReason { kMemory, kTtft, kTpot, kError, kBeaten };
std::string_view loss_reason_name(LossReason reason);  // "memory", "ttft", ...

// A layout that did not win (disaggregated: one of an instance that can serve nothing).
struct Loser {
  PlanPhase phase = PlanPhase::kBoth;
  Layout layout;
  int64_t devices = 1;
  LossReason reason = LossReason::kMemory;
  // kMemory: bytes over; kTtft, kTpot: seconds over, at the smallest batch; kBeaten: share of the winner's figure that
  // is missing.
  double by = 0;
  std::string why;  // in words, with units
  bool unverified = false;
};

struct SearchCounts {
  int64_t layouts = 0;        // legal, of all numbers of devices and phases
  int64_t by_reason[5] = {};  // layouts by LossReason
  int64_t feasible = 0;       // fit and keep the limits
  int64_t plans = 0;          // made
};

struct SearchResult {
  SearchRequest request;
  std::optional<Deployment> winner;
  std::vector<Deployment> front;    // none is beaten in tokens/s/user and tokens/s/device; ascending tokens/s/user
  std::vector<Deployment> ranking;  // best of each pair of layouts, the winner first; at most kMaxRanking
  std::vector<Deployment> points;   // of every feasible layout at every batch looked at, for plots; at most kMaxPoints
  std::vector<Loser> losers;        // nearest misses first; at most kMaxLosers
  std::vector<RefusedLayouts> refused;
  SearchCounts counts;
  std::vector<std::string> unverified;  // figures that the winner rests on
  double seconds = 0;

  static constexpr size_t kMaxRanking = 50, kMaxPoints = 2000, kMaxLosers = 500;
};

struct SearchHooks {
  // Called now and then on the caller's thread; false ends the search with a cancelled status.
  std::function<bool(int64_t done, int64_t total)> progress;
  // In place of make_plan (tests); thread-safe.
  std::function<Result<Plan>(const PlanRequest&, const PlanOptions&)> plan;
};

// Errors: the request; figures that the device profile lacks. That nothing fits or keeps the limits is no error: no winner.
Result<SearchResult> search(const SearchRequest& request, const SearchHooks& hooks = {});

// The command that shows the plan of an instance; the one that runs it, which is for instances without a reason not to ("" : none).
// MODEL_DIR in it stands for a folder with weights where the request has none.
std::string plan_command(const SearchRequest& request, const SearchPoint& point);
std::string run_command(const SearchRequest& request, const SearchPoint& point);
std::string why_not_run(const SearchRequest& request, const SearchPoint& point);

}  // namespace weft
