#include "planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/thread_pool.h"
#include "planner/deployments.h"
#include "planner/plan_store.h"
#include "planner/report_units.h"

namespace weft {
namespace {

// A layout with a chunk size in a phase, whose batch is to be found.
struct Subject {
  PlanPhase phase = PlanPhase::kBoth;
  Layout layout;
  int64_t devices = 1, chunk = 0;
  int64_t unit() const { return layout.mesh.dp; }  // every data-parallel group has as many requests
};

// What is known of a subject.
struct Climb {
  std::vector<SearchPoint> points;  // fit and keep the limits, ascending batch
  int64_t too_large = 0;            // smallest batch that was seen to miss; 0: none
  // By how much, in parts of the limit that is nearest: of the last of `points`, at most 0; of too_large, above 0, if
  // known.
  double last_excess = 0;
  std::optional<double> excess;
  std::optional<Loser> miss;        // at the smallest batch
  Status error;
  int64_t plans = 0;
};

int64_t last_batch(const Climb& climb) { return climb.points.empty() ? 0 : climb.points.back().batch; }

class Search {
 public:
  Search(const SearchRequest& request, const SearchHooks& hooks)
      : request_(request), hooks_(hooks), pool_(std::max(request.threads, 1)) {
    result_.request = request;
  }

  Result<SearchResult> run() {
    const auto start = std::chrono::steady_clock::now();
    WEFT_RETURN_IF_ERROR(check_search(request_));
    if (!hooks_.plan && decodes_apart()) {
      WEFT_ASSIGN_OR_RETURN(CostModel links, CostModel::create(*request_.plan.device));
      links_ = std::move(links);
    }
    list_subjects();
    WEFT_RETURN_IF_ERROR(for_subjects([&](size_t i) { climb(i); }));
    WEFT_RETURN_IF_ERROR(first_error());
    rank();
    choose_refined();
    if (!refined_.empty()) {
      WEFT_RETURN_IF_ERROR(for_subjects([&](size_t i) { refine(i); }, &refined_));
      rank();
    }
    tell_losers();
    WEFT_RETURN_IF_ERROR(tell_unverified());
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  // ---- What is looked at

  std::vector<int64_t> chunks() const {
    return request_.chunks.empty() ? std::vector{request_.plan.chunk} : request_.chunks;
  }

  // The first token comes with the prefill: for a single one there is nothing to decode.
  bool decodes_apart() const { return request_.apart && request_.plan.gen > 1; }

  void list_subjects() {
    LayoutSpaceOptions options{request_.breadth, request_.plan.engine->executor_limits, false};
    std::map<std::string, RefusedLayouts> refused;
    const auto space = [&](int64_t devices) {
      LayoutSpace found = enumerate_layouts(*request_.plan.model, devices * request_.plan.local_ranks, options);
      for (RefusedLayouts& rule : found.refused) {
        const auto [at, fresh] = refused.emplace(rule.rule, rule);
        if (!fresh) at->second.count += rule.count;
      }
      return std::move(found.layouts);
    };
    std::set<int64_t> parts;  // sizes of instances
    for (const int64_t devices : request_.devices) {
      if (request_.together) {
        for (const Layout& layout : space(devices)) {
          for (const int64_t chunk : chunks()) subjects_.push_back({PlanPhase::kBoth, layout, devices, chunk});
        }
      }
      for (int64_t part = 1; decodes_apart() && part < devices; ++part) {
        if (devices % part == 0) parts.insert(part);
      }
    }
    options.one_instance = true;
    for (const int64_t part : parts) {
      for (const Layout& layout : space(part)) {
        for (const int64_t chunk : chunks()) subjects_.push_back({PlanPhase::kPrefill, layout, part, chunk});
        subjects_.push_back({PlanPhase::kDecode, layout, part, 0});
      }
    }
    for (auto& [text, rule] : refused) result_.refused.push_back(std::move(rule));
    std::stable_sort(result_.refused.begin(), result_.refused.end(),
                     [](const RefusedLayouts& a, const RefusedLayouts& b) { return a.count > b.count; });
    climbs_.resize(subjects_.size());
  }

  // body(i) for all subjects, or for those of a list.
  Status for_subjects(const std::function<void(size_t)>& body, const std::vector<size_t>* only = nullptr) {
    const auto count = static_cast<int64_t>(only == nullptr ? subjects_.size() : only->size());
    std::atomic<int64_t> done{0};
    std::atomic<bool> stop{false};
    pool_.parallel_for(count, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end && !stop; ++i) {
        body(only == nullptr ? static_cast<size_t>(i) : (*only)[static_cast<size_t>(i)]);
        const int64_t now = ++done;
        if (worker == 0 && hooks_.progress && !hooks_.progress(now, count)) stop = true;
      }
    });
    if (stop) return cancelled("the search was stopped");
    return {};
  }

  // A figure that is missing from the profile, an impossible size: every subject fails alike, and nothing was found.
  Status first_error() const {
    const Status* first = nullptr;
    for (const Climb& climb : climbs_) {
      if (!climb.points.empty() || climb.miss) return {};
      if (first == nullptr && !climb.error.ok()) first = &climb.error;
    }
    return first == nullptr ? Status() : *first;
  }

  // ---- One subject

  struct Verdict {
    SearchPoint point;
    std::optional<Loser> miss;
    double excess = -1;  // over the limit that is nearest, in parts of it
  };

  Loser loser(const Subject& subject, LossReason reason, double by, std::string why, bool unverified) const {
    return {subject.phase, subject.layout, subject.devices, reason, by, std::move(why), unverified};
  }

  Result<Plan> plan_of(PlanPhase phase, const Layout& layout, int64_t chunk, int64_t batch) const {
    PlanRequest request = request_.plan;
    request.phase = phase;
    request.layout = layout;
    request.chunk = chunk;
    request.batch = batch;
    request.dp_imbalance = std::min(request.dp_imbalance, static_cast<double>(layout.mesh.dp));
    const PlanOptions options{
        .times = true, .ops = false, .timeline = false, .max_batch = false, .fitting_only = true, .store = &store_};
    return hooks_.plan ? hooks_.plan(request, options) : make_plan(request, options);
  }

  // A rank sends its part of the caches of a prompt to the device that is farthest away.
  Result<double> transfer_seconds(const Plan& plan) const {
    double most = 0;
    for (const RankLedger& stage : plan.ledger) {
      most = std::max(most, static_cast<double>(stage.cache_bytes_per_request) +
                                stage.cache_bytes_per_token * static_cast<double>(plan.request.prompt));
    }
    const int64_t farthest =
        *std::max_element(request_.devices.begin(), request_.devices.end()) * request_.plan.local_ranks - 1;
    WEFT_ASSIGN_OR_RETURN(const CollectiveCost cost,
                          links_->transfer(0, static_cast<int>(farthest), most, request_.plan.local_ranks));
    return cost.seconds;
  }

  Result<Verdict> evaluate(const Subject& subject, int64_t batch) const {
    WEFT_ASSIGN_OR_RETURN(const Plan plan, plan_of(subject.phase, subject.layout, subject.chunk, batch));
    Verdict verdict;
    SearchPoint& point = verdict.point;
    point.phase = subject.phase;
    point.layout = subject.layout;
    point.devices = subject.devices;
    point.batch = batch;
    point.chunk = subject.chunk;
    point.needed_bytes = plan.needed_bytes();
    point.capacity_bytes = plan.capacity_bytes;
    point.memory_unverified = plan.memory_unverified;
    point.times_unverified = plan.times_unverified;
    const auto over = [&](double value, const std::optional<double>& limit) {
      if (limit) verdict.excess = std::max(verdict.excess, value / *limit - 1);
      return limit && value > *limit;
    };
    if (plan.capacity_bytes > 0)
      over(static_cast<double>(point.needed_bytes), static_cast<double>(plan.capacity_bytes));
    if (!plan.fits) {
      const double by = static_cast<double>(point.needed_bytes - point.capacity_bytes);
      verdict.miss = loser(subject, LossReason::kMemory, by,
                           fmt::format("does not fit by {}: {} of {} a device at batch {}", bytes_words(by),
                                       bytes_words(static_cast<double>(point.needed_bytes)),
                                       bytes_words(static_cast<double>(point.capacity_bytes)), batch),
                           point.memory_unverified);
      return verdict;
    }
    if (subject.phase == PlanPhase::kPrefill && links_) {
      WEFT_ASSIGN_OR_RETURN(point.transfer_s, transfer_seconds(plan));
    }
    const ServiceResult& service = plan.service;
    const bool decodes = subject.phase != PlanPhase::kPrefill, prefills = subject.phase != PlanPhase::kDecode;
    point.ttft_s = service.ttft_s + point.transfer_s;
    point.tpot_s = !decodes ? 0 : subject.phase == PlanPhase::kBoth ? service.tpot_loaded_s : service.tpot_s;
    point.e2e_s = service.e2e_s;
    point.requests_per_s = service.requests_per_s;
    const bool late = prefills && over(point.ttft_s, request_.ttft_s),
               slow = decodes && over(point.tpot_s, request_.tpot_s);
    if (late) {
      const double by = point.ttft_s - *request_.ttft_s;
      verdict.miss =
          loser(subject, LossReason::kTtft, by,
                fmt::format("misses TTFT by {}: {} at batch {}", seconds_words(by), seconds_words(point.ttft_s), batch),
                point.unverified());
    } else if (slow) {
      const double by = point.tpot_s - *request_.tpot_s;
      verdict.miss =
          loser(subject, LossReason::kTpot, by,
                fmt::format("misses TPOT by {}: {} at batch {}", seconds_words(by), seconds_words(point.tpot_s), batch),
                point.unverified());
    }
    return verdict;
  }

  // False: this batch misses, and with it all larger ones.
  bool look_at(const Subject& subject, Climb& climb, int64_t batch) const {
    ++climb.plans;
    const Result<Verdict> verdict = evaluate(subject, batch);
    if (!verdict.ok()) {
      climb.error = verdict.status();
      climb.too_large = batch;
      climb.excess.reset();
      return false;
    }
    if (verdict->miss) {
      if (climb.points.empty()) climb.miss = verdict->miss;
      climb.too_large = batch;
      climb.excess = verdict->excess;
      return false;
    }
    climb.points.push_back(verdict->point);
    climb.last_excess = verdict->excess;
    return true;
  }

  int64_t most_units(const Subject& subject) const { return std::max<int64_t>(request_.max_batch / subject.unit(), 1); }

  void climb(size_t i) {
    const Subject& subject = subjects_[i];
    const int64_t most = most_units(subject);
    for (int64_t units = 1; look_at(subject, climbs_[i], units * subject.unit()) && units < most;)
      units = std::min(units * 2, most);
  }

  // Of the batches between the last that was taken and the first that was not, the largest is added. Bytes and times
  // grow about evenly, so it is looked for where they would meet the limit, and every third time in the middle.
  void refine(size_t i) {
    const Subject& subject = subjects_[i];
    Climb& climb = climbs_[i];
    const size_t doubled = climb.points.size();
    int64_t good = last_batch(climb) / subject.unit(), bad = climb.too_large / subject.unit();
    for (int step = 1; bad - good > 1; ++step) {
      const bool halves = step % 3 == 0 || !climb.excess || *climb.excess <= climb.last_excess;
      const double share = halves ? 0.5 : -climb.last_excess / (*climb.excess - climb.last_excess);
      const int64_t middle =
          std::clamp(good + static_cast<int64_t>(share * static_cast<double>(bad - good)), good + 1, bad - 1);
      (look_at(subject, climb, middle * subject.unit()) ? good : bad) = middle;
    }
    if (climb.points.size() > doubled)
      climb.points.erase(climb.points.begin() + static_cast<std::ptrdiff_t>(doubled), climb.points.end() - 1);
  }

  // ---- Comparing

  std::vector<SearchPoint> points_of(PlanPhase phase, int64_t devices) const {
    std::vector<SearchPoint> points;
    for (size_t i = 0; i < subjects_.size(); ++i) {
      if (subjects_[i].phase != phase || subjects_[i].devices != devices) continue;
      points.insert(points.end(), climbs_[i].points.begin(), climbs_[i].points.end());
    }
    return points;
  }

  static Merit instance_merit(const SearchPoint& point) {
    return {-(point.phase == PlanPhase::kPrefill ? point.ttft_s : point.tpot_s), point.requests_per_s};
  }

  // Instances that no other one of as many devices beats: all that deployments are made of.
  std::vector<SearchPoint> best_instances(PlanPhase phase, int64_t devices) const {
    const std::vector<SearchPoint> points = points_of(phase, devices);
    std::vector<Merit> merits;
    for (const SearchPoint& point : points) merits.push_back(instance_merit(point));
    std::vector<SearchPoint> best;
    for (const size_t i : pareto_front(merits)) best.push_back(points[i]);
    return best;
  }

  static Merit merit(const Deployment& d) { return {d.tokens_per_s_user, d.tokens_per_s_device}; }

  void rank() {
    const int64_t gen = request_.plan.gen;
    std::vector<Deployment> all;
    for (const int64_t devices : request_.devices) {
      for (const SearchPoint& point : points_of(PlanPhase::kBoth, devices)) all.push_back(deploy_together(point, gen));
    }
    std::map<int64_t, std::vector<SearchPoint>> prefill, decode;
    for (const Subject& subject : subjects_) {
      if (subject.phase == PlanPhase::kPrefill) prefill.try_emplace(subject.devices);
    }
    for (auto& [part, points] : prefill) {
      points = best_instances(PlanPhase::kPrefill, part);
      decode[part] = best_instances(PlanPhase::kDecode, part);
    }
    for (const int64_t devices : request_.devices) {
      for (const auto& [p, prefills] : prefill) {
        for (const auto& [d, decoders] : decode) {
          if (devices % p != 0 || devices % d != 0 || p + d > devices) continue;
          const std::vector<Deployment> apart = deploy_apart(prefills, decoders, devices, gen);
          all.insert(all.end(), apart.begin(), apart.end());
        }
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [&](const Deployment& a, const Deployment& b) { return ranks_before(a, b, request_.objective); });
    result_.winner.reset();
    if (!all.empty()) result_.winner = all.front();
    std::vector<Merit> merits;
    for (const Deployment& d : all) merits.push_back(merit(d));
    result_.front.clear();
    for (const size_t i : pareto_front(merits)) result_.front.push_back(all[i]);
    // One line for each pair of layouts.
    result_.ranking.clear();
    std::set<std::pair<int64_t, std::string>> named;
    for (const Deployment& d : all) {
      if (result_.ranking.size() == SearchResult::kMaxRanking) break;
      const std::string layouts = (d.prefill ? to_string(d.prefill->layout) + " | " : "") + to_string(d.decode.layout);
      if (named.emplace(d.devices, layouts).second) result_.ranking.push_back(d);
    }
    result_.points.clear();
    const size_t step = all.size() / SearchResult::kMaxPoints + 1;
    for (size_t i = 0; i < all.size(); i += step) result_.points.push_back(all[i]);
  }

  // Between the last batch that was taken and the first that was not lie others. Time grows with the batch, so none of
  // them has a better tpot than the last one taken, nor more requests per second than in proportion. Where even that is
  // beaten, none is looked at.
  void choose_refined() {
    refined_.clear();
    std::map<std::pair<PlanPhase, int64_t>, std::vector<Merit>> instances;
    for (size_t i = 0; i < subjects_.size(); ++i) {
      const Climb& climb = climbs_[i];
      const Subject& subject = subjects_[i];
      if (climb.points.empty() || climb.too_large - last_batch(climb) <= subject.unit()) continue;
      SearchPoint best = climb.points.back();
      best.batch = climb.too_large - subject.unit();
      best.requests_per_s *= static_cast<double>(best.batch) / static_cast<double>(last_batch(climb));
      bool beaten;
      if (subject.phase == PlanPhase::kBoth) {
        const Deployment d = deploy_together(best, request_.plan.gen);
        beaten = result_.winner && ranks_before(*result_.winner, d, request_.objective) &&
                 beaten_by(merits_of_front(), merit(d));
      } else {
        auto& front = instances[{subject.phase, subject.devices}];
        if (front.empty()) {
          for (const SearchPoint& point : best_instances(subject.phase, subject.devices))
            front.push_back(instance_merit(point));
        }
        beaten = beaten_by(front, instance_merit(best));
      }
      if (!beaten) refined_.push_back(i);
    }
  }

  std::vector<Merit> merits_of_front() const {
    std::vector<Merit> merits;
    for (const Deployment& d : result_.front) merits.push_back(merit(d));
    return merits;
  }

  static bool beaten_by(const std::vector<Merit>& front, const Merit& merit) {
    return std::any_of(front.begin(), front.end(), [&](const Merit& m) {
      return m.first >= merit.first && m.second >= merit.second && (m.first > merit.first || m.second > merit.second);
    });
  }

  // ---- Why the others lost

  void tell_losers() {
    SearchCounts& counts = result_.counts;
    std::set<std::pair<int64_t, std::string>> winners;
    if (result_.winner) {
      const Deployment& w = *result_.winner;
      winners.emplace(w.decode.devices, std::string(plan_phase_name(w.decode.phase)) + to_string(w.decode.layout));
      if (w.prefill)
        winners.emplace(w.prefill->devices,
                        std::string(plan_phase_name(w.prefill->phase)) + to_string(w.prefill->layout));
    }
    for (size_t i = 0; i < subjects_.size(); ++i) {
      double& most = best_per_device_[subjects_[i].phase];
      most = std::max(most, requests_per_device(subjects_[i], climbs_[i]));
    }
    // Chunk sizes of one layout are one line: the one that came furthest.
    std::map<std::tuple<int64_t, PlanPhase, std::string>, Loser> losers;
    std::vector<std::tuple<int64_t, PlanPhase, std::string>> order;
    for (size_t i = 0; i < subjects_.size(); ++i) {
      const Subject& subject = subjects_[i];
      const Climb& climb = climbs_[i];
      counts.plans += climb.plans;
      const auto key = std::tuple(subject.devices, subject.phase, to_string(subject.layout));
      Loser line = !climb.points.empty() ? beaten_line(subject, climb)
                   : climb.miss          ? *climb.miss
                                         : loser(subject, LossReason::kError, 0, climb.error.message(), false);
      const auto [at, fresh] = losers.emplace(key, line);
      if (fresh) {
        order.push_back(key);
      } else if (rank_of(line) > rank_of(at->second) ||
                 (rank_of(line) == rank_of(at->second) && line.by < at->second.by)) {
        at->second = std::move(line);
      }
    }
    counts.layouts = static_cast<int64_t>(order.size());
    for (const auto& key : order) {
      Loser& line = losers.at(key);
      const bool won =
          line.reason == LossReason::kBeaten &&
          winners.contains({line.devices, std::string(plan_phase_name(line.phase)) + to_string(line.layout)});
      if (line.reason == LossReason::kBeaten) ++counts.feasible;
      if (won) continue;
      ++counts.by_reason[static_cast<int>(line.reason)];
      result_.losers.push_back(std::move(line));
    }
    std::stable_sort(result_.losers.begin(), result_.losers.end(), [](const Loser& a, const Loser& b) {
      return rank_of(a) != rank_of(b) ? rank_of(a) > rank_of(b) : a.by < b.by;
    });
    if (result_.losers.size() > SearchResult::kMaxLosers) result_.losers.resize(SearchResult::kMaxLosers);
  }

  Status tell_unverified() {
    if (!result_.winner) return {};
    std::set<std::string> figures;
    const auto add = [&](const SearchPoint& point) -> Status {
      WEFT_ASSIGN_OR_RETURN(const Plan plan, plan_of(point.phase, point.layout, point.chunk, point.batch));
      figures.insert(plan.unverified.begin(), plan.unverified.end());
      return {};
    };
    WEFT_RETURN_IF_ERROR(add(result_.winner->decode));
    if (result_.winner->prefill) WEFT_RETURN_IF_ERROR(add(*result_.winner->prefill));
    result_.unverified.assign(figures.begin(), figures.end());
    return {};
  }

  // How far it came.
  static int rank_of(const Loser& loser) {
    switch (loser.reason) {
      case LossReason::kError: return 0;
      case LossReason::kMemory: return 1;
      case LossReason::kTtft: return 2;
      case LossReason::kTpot: return 3;
      case LossReason::kBeaten: return 4;
    }
    return 0;
  }

  static double requests_per_device(const Subject& subject, const Climb& climb) {
    double most = 0;
    for (const SearchPoint& point : climb.points) most = std::max(most, point.requests_per_s);
    return most / static_cast<double>(subject.devices);
  }

  // The best that the layout reaches beside the winner's figure.
  Loser beaten_line(const Subject& subject, const Climb& climb) const {
    const int64_t gen = request_.plan.gen;
    const bool together = subject.phase == PlanPhase::kBoth;
    const bool unverified = climb.points.back().unverified();
    if (!together) {
      const double mine = requests_per_device(subject, climb), most = best_per_device_.at(subject.phase);
      const double by = most > 0 ? 1 - mine / most : 0;
      const std::string what = fmt::format("an instance serves up to {:.4g} requests/s, {:.4g} a device",
                                           mine * static_cast<double>(subject.devices), mine);
      return loser(subject, LossReason::kBeaten, by,
                   by > 0 ? fmt::format("{}, {:.1f} % less than the best {} instance", what, by * 100,
                                        plan_phase_name(subject.phase))
                          : fmt::format("{}, as the best; in pairs others serve more", what),
                   unverified);
    }
    Deployment best = deploy_together(climb.points.front(), gen);
    for (const SearchPoint& point : climb.points) {
      Deployment d = deploy_together(point, gen);
      if (ranks_before(d, best, request_.objective)) best = std::move(d);
    }
    const double mine = objective_value(best, request_.objective),
                 winners = result_.winner ? objective_value(*result_.winner, request_.objective) : mine;
    if (request_.objective == Objective::kLatency) {
      const double by = winners < 0 ? mine / winners - 1 : 0;
      return loser(subject, LossReason::kBeaten, by,
                   fmt::format("{:.4g} s to the last token, {:.1f} % longer than the winner", -mine, by * 100),
                   unverified);
    }
    const double by = winners > 0 ? 1 - mine / winners : 0;
    return loser(subject, LossReason::kBeaten, by,
                 fmt::format("{:.4g} tokens/s{} at batch {}, {:.1f} % less than the winner", mine,
                             request_.objective == Objective::kCost ? "/device" : "", best.decode.batch, by * 100),
                 unverified);
  }

  const SearchRequest& request_;
  const SearchHooks& hooks_;
  ThreadPool pool_;
  mutable PlanStore store_;
  std::optional<CostModel> links_;  // disaggregated
  std::vector<Subject> subjects_;
  std::vector<Climb> climbs_;  // by subject
  std::vector<size_t> refined_;
  std::map<PlanPhase, double> best_per_device_;  // requests/s
  SearchResult result_;
};

}  // namespace

Result<SearchResult> search(const SearchRequest& request, const SearchHooks& hooks) {
  return Search(request, hooks).run();
}

}  // namespace weft
