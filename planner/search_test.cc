// A search against brute force on toy devices, its reasons, its monotony, what it refuses.
#include "planner/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <random>
#include <tuple>

#include "models/layout_test_support.h"
#include "planner/deployments.h"
#include "planner/plan_store.h"
#include "planner/report_units.h"
#include "planner/search_report.h"

namespace weft {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A made-up machine whose plans are closed forms: bytes and times grow with the batch, and depend on every part of the
// layout.
struct Toy {
  double weights_mib, cache_mib, capacity_mib, flops_s, bytes_s, latency_s, prompt_s;

  static Toy random(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto in = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
    return {in(50, 400), in(1, 20), in(60, 300), in(1e-4, 4e-3), in(1e-3, 3e-2), in(1e-5, 3e-3), in(0.01, 0.2)};
  }

  Result<Plan> plan(const PlanRequest& r, const PlanOptions&) const {
    const Layout& l = r.layout;
    const double pieces = l.mesh.tp * l.mesh.pp, group_batch = std::ceil(static_cast<double>(r.batch) / l.mesh.dp);
    const double ranks = static_cast<double>(l.mesh.world());
    // Some difference for every choice, so that no two layouts are equal.
    double taste = 1;
    for (const char c : to_string(l)) taste += 1e-4 * (c % 17);
    Plan plan;
    plan.request = r;
    plan.capacity_bytes = static_cast<int64_t>(capacity_mib * kMiB);
    RankLedger ledger;
    ledger.weight_bytes = static_cast<int64_t>(weights_mib * kMiB / pieces / l.mesh.ep *
                                               (l.o_proj == OProjChoice::kReplicated ? 1.3 : 1.0));
    ledger.cache_bytes = static_cast<int64_t>(cache_mib * kMiB * group_batch / l.mesh.pp);
    plan.ledger = {ledger};
    plan.fits = plan.needed_bytes() <= plan.capacity_bytes;
    const double sync = latency_s * (std::log2(ranks) + (l.sequence_parallel ? 0.5 : 1.0));
    const double step = taste * (bytes_s / pieces + flops_s * group_batch / pieces + sync);
    const double prefill = taste * prompt_s * static_cast<double>(r.batch) / ranks + sync;
    ServiceInput input;
    input.batch = r.batch;
    input.gen = r.gen;
    input.prompt = r.prompt;
    input.devices = static_cast<int64_t>(ranks);
    if (r.phase != PlanPhase::kDecode) input.prefill = {{1, r.batch, prefill / static_cast<double>(r.batch)}};
    input.decode_step_s = r.phase == PlanPhase::kPrefill ? 0 : step;
    plan.service = service(input);
    plan.has_times = true;
    return plan;
  }
};

SearchRequest base_request() {
  static const auto model = load_test_model("sample/austen-v4");
  SearchRequest request;
  request.plan.model = model;
  request.plan.model_name = "austen";
  auto device = std::make_shared<DeviceProfile>();
  device->name = "toy";
  request.plan.device = device;
  auto engine = std::make_shared<EngineProfile>();
  engine->name = "weft";
  request.plan.engine = engine;
  request.plan.prompt = 64;
  request.plan.gen = 16;
  request.devices = {4};
  request.max_batch = 32;
  return request;
}

SearchHooks hooks_of(const Toy& toy) {
  SearchHooks hooks;
  hooks.plan = [toy](const PlanRequest& request, const PlanOptions& options) { return toy.plan(request, options); };
  return hooks;
}

SearchResult found(const SearchRequest& request, const SearchHooks& hooks) {
  auto result = search(request, hooks);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(*result) : SearchResult();
}

// ---- Brute force: every layout at every batch, every pair of instances in all numbers.

using MakePlan = std::function<Result<Plan>(const PlanRequest&, const PlanOptions&)>;

std::vector<SearchPoint> every_point(const SearchRequest& request, const MakePlan& plan_of, PlanPhase phase,
                                     int64_t devices, bool one_instance, bool doubled_only) {
  std::vector<SearchPoint> points;
  LayoutSpaceOptions options;
  options.one_instance = one_instance;
  for (const Layout& layout : enumerate_layouts(*request.plan.model, devices, options).layouts) {
    std::vector<SearchPoint> of_layout;
    for (int64_t batch = layout.mesh.dp; batch <= request.max_batch; batch += layout.mesh.dp) {
      PlanRequest r = request.plan;
      r.phase = phase;
      r.layout = layout;
      r.batch = batch;
      const Plan plan = *plan_of(r, {});
      if (!plan.fits) continue;
      SearchPoint p;
      p.phase = phase;
      p.layout = layout;
      p.devices = devices;
      p.batch = batch;
      p.ttft_s = plan.service.ttft_s;
      p.tpot_s = phase == PlanPhase::kBoth     ? plan.service.tpot_loaded_s
                 : phase == PlanPhase::kDecode ? plan.service.tpot_s
                                               : 0;
      p.e2e_s = phase == PlanPhase::kBoth ? p.ttft_s + p.tpot_s * static_cast<double>(request.plan.gen - 1)
                                          : plan.service.e2e_s;
      p.requests_per_s = plan.service.requests_per_s;
      if (phase != PlanPhase::kDecode && request.ttft_s && p.ttft_s > *request.ttft_s) continue;
      if (phase != PlanPhase::kPrefill && request.tpot_s && p.tpot_s > *request.tpot_s) continue;
      of_layout.push_back(p);
    }
    for (size_t i = 0; i < of_layout.size(); ++i) {
      const int64_t units = of_layout[i].batch / layout.mesh.dp;
      const bool doubled = (units & (units - 1)) == 0 || of_layout[i].batch + layout.mesh.dp > request.max_batch;
      if (!doubled_only || doubled || i + 1 == of_layout.size()) points.push_back(of_layout[i]);
    }
  }
  return points;
}

std::vector<Deployment> brute_force(const SearchRequest& request, const MakePlan& plan_of, bool doubled_only) {
  std::vector<Deployment> all;
  const int64_t gen = request.plan.gen;
  for (const int64_t devices : request.devices) {
    if (request.together) {
      for (const SearchPoint& point : every_point(request, plan_of, PlanPhase::kBoth, devices, false, doubled_only))
        all.push_back(deploy_together(point, gen));
    }
    if (!request.apart) continue;
    for (int64_t p = 1; p < devices; ++p) {
      for (int64_t d = 1; d < devices; ++d) {
        if (devices % p != 0 || devices % d != 0) continue;
        const auto prefills = every_point(request, plan_of, PlanPhase::kPrefill, p, true, doubled_only);
        for (const SearchPoint& decode : every_point(request, plan_of, PlanPhase::kDecode, d, true, doubled_only)) {
          for (const SearchPoint& prefill : prefills) {
            for (int64_t np = 1; np * p < devices; ++np) {
              for (int64_t nd = 1; np * p + nd * d <= devices; ++nd) {
                Deployment one;
                one.devices = devices;
                one.prefill = prefill;
                one.decode = decode;
                one.prefill_instances = np;
                one.decode_instances = nd;
                one.ttft_s = prefill.ttft_s;
                one.tpot_s = decode.tpot_s;
                one.e2e_s = prefill.ttft_s + decode.e2e_s;
                one.requests_per_s = std::min(static_cast<double>(np) * prefill.requests_per_s,
                                              static_cast<double>(nd) * decode.requests_per_s);
                one.output_tokens_per_s = one.requests_per_s * static_cast<double>(gen);
                one.tokens_per_s_device = one.output_tokens_per_s / static_cast<double>(devices);
                one.tokens_per_s_user = 1 / one.tpot_s;
                all.push_back(std::move(one));
              }
            }
          }
        }
      }
    }
  }
  return all;
}

// The same front, and a winner that nothing beats.
void expect_like_brute_force(const SearchRequest& request, const SearchResult& result, const MakePlan& plan_of) {
  const std::vector<Deployment> every = brute_force(request, plan_of, false);
  ASSERT_EQ(result.winner.has_value(), !every.empty());
  if (!result.winner) return;
  double best = objective_value(every[0], request.objective);
  for (const Deployment& d : every) best = std::max(best, objective_value(d, request.objective));
  EXPECT_NEAR(objective_value(*result.winner, request.objective) / best, 1, 1e-12) << deployment_name(*result.winner);
  // The front is that of the batches that are looked at: doubled, and the largest.
  const std::vector<Deployment> doubled = brute_force(request, plan_of, true);
  std::vector<Merit> merits;
  for (const Deployment& d : doubled) merits.push_back({d.tokens_per_s_user, d.tokens_per_s_device});
  std::vector<std::pair<double, double>> want, have;
  for (const size_t i : pareto_front(merits)) want.emplace_back(merits[i].first, merits[i].second);
  for (const Deployment& d : result.front) have.emplace_back(d.tokens_per_s_user, d.tokens_per_s_device);
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(have[i].first / want[i].first, 1, 1e-12);
    EXPECT_NEAR(have[i].second / want[i].second, 1, 1e-12);
  }
}

TEST(Search, FindsTheWinnerAndTheFrontOfBruteForce) {
  int winners = 0, none = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Toy toy = Toy::random(seed);
    SearchRequest request = base_request();
    request.devices =
        seed % 3 == 0 ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{static_cast<int64_t>(2 + seed % 3)};
    request.max_batch = 6;
    request.objective = static_cast<Objective>(seed % 3);
    request.apart = seed % 4 == 0;
    std::mt19937_64 random(seed);
    if (seed % 4 != 0) request.ttft_s = std::uniform_real_distribution<double>(0.02, 0.5)(random);
    if (seed % 4 != 1) request.tpot_s = std::uniform_real_distribution<double>(0.005, 0.06)(random);
    const SearchHooks hooks = hooks_of(toy);
    const SearchResult result = found(request, hooks);
    expect_like_brute_force(request, result, hooks.plan);
    ++(result.winner ? winners : none);
  }
  EXPECT_GT(winners, 3);
  RecordProperty("without_winner", none);
}

// The same with plans of a published model: nothing that the search leaves out, or takes from what it knows, would have
// changed its result.
struct RealCase {
  int64_t devices, max_batch;
  Objective objective;
  bool apart;
};
void compare_real(std::initializer_list<RealCase> cases) {
  SearchRequest request = base_request();
  request.plan.model = published("deepseek-v4-flash");
  request.plan.model_name = "deepseek-v4-flash";
  request.plan.mode = request.plan.model->mode(DType::kBF16, std::nullopt);
  request.plan.device =
      std::make_shared<const DeviceProfile>(load_device_profile("h20-96g", {WEFT_SOURCE_DIR "/devices"}).value());
  request.plan.prompt = 32768;
  request.plan.gen = 64;
  request.tpot_s = 0.4;
  request.ttft_s = 30;
  PlanStore store(512);
  std::map<std::string, Plan> made;  // by brute force
  const MakePlan plan_of = [&](const PlanRequest& r, const PlanOptions&) -> Result<Plan> {
    const std::string name = fmt::format("{} {} {}", plan_phase_name(r.phase), to_string(r.layout), r.batch);
    if (const auto at = made.find(name); at != made.end()) return at->second;
    WEFT_ASSIGN_OR_RETURN(Plan plan, make_plan(r, {.ops = false, .max_batch = false, .store = &store}));
    return made.emplace(name, std::move(plan)).first->second;
  };
  for (const RealCase& c : cases) {
    SCOPED_TRACE(fmt::format("{} devices, {}", c.devices, objective_name(c.objective)));
    request.devices = {c.devices};
    request.max_batch = c.max_batch;
    request.objective = c.objective;
    request.apart = c.apart;
    const SearchResult result = found(request, {});
    ASSERT_TRUE(result.winner);
    expect_like_brute_force(request, result, plan_of);
  }
}

TEST(Search, IsLikeBruteForceOnARealModel) {
  compare_real({{2, 6, Objective::kThroughput, true}, {2, 6, Objective::kLatency, false}});
}
// Behind `make verify`.
TEST(Search, DISABLED_FullIsLikeBruteForceOnFourDevices) {
  compare_real({{4, 8, Objective::kCost, true}, {4, 8, Objective::kThroughput, false}});
}

TEST(Search, MoreRoomIsNeverWorse) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    Toy toy = Toy::random(seed);
    std::mt19937_64 random(seed);
    SearchRequest request = base_request();
    request.objective = static_cast<Objective>(seed % 3);
    request.ttft_s = std::uniform_real_distribution<double>(0.02, 0.4)(random);
    request.tpot_s = std::uniform_real_distribution<double>(0.005, 0.05)(random);
    const auto value = [&](const SearchRequest& r, const Toy& t) {
      const SearchResult result = found(r, hooks_of(t));
      return result.winner ? objective_value(*result.winner, r.objective) : -INFINITY;
    };
    const double before = value(request, toy);
    const auto not_worse = [&](const char* what, double after) {
      EXPECT_GE(after, before) << what << ", seed " << seed;
    };
    SearchRequest other = request;
    other.ttft_s = *request.ttft_s * 1.5;
    not_worse("longer TTFT", value(other, toy));
    other = request;
    other.tpot_s.reset();
    not_worse("no TPOT limit", value(other, toy));
    other = request;
    other.devices = {2, 4};
    not_worse("more numbers of devices", value(other, toy));
    other = request;
    other.max_batch *= 2;
    not_worse("larger batches", value(other, toy));
    other = request;
    other.apart = false;
    EXPECT_LE(value(other, toy), before) << "together only, seed " << seed;
    Toy larger = toy;
    larger.capacity_mib *= 1.3;
    not_worse("more memory", value(request, larger));
  }
}

TEST(Search, ThreadsDoNotMatter) {
  const Toy toy = Toy::random(7);
  SearchRequest request = base_request();
  request.devices = {2, 4};
  request.tpot_s = 0.05;
  const auto text = [&](int threads) {
    request.threads = threads;
    auto json = search_json(found(request, hooks_of(toy)));
    json.erase("seconds");
    return json.dump();
  };
  const std::string one = text(1);
  EXPECT_EQ(one, text(4));
  EXPECT_EQ(one, text(2));
}

TEST(Search, SaysWhyOthersLost) {
  Toy toy{200, 10, 150, 1e-3, 2e-2, 1e-4, 0.1};
  SearchRequest request = base_request();
  request.apart = false;
  request.devices = {1, 2};
  request.tpot_s = 0.02;
  const SearchResult result = found(request, hooks_of(toy));
  const auto why = [&](const char* layout) {
    for (const Loser& loser : result.losers) {
      if (to_string(loser.layout) == layout) return fmt::format("{}: {}", loss_reason_name(loser.reason), loser.why);
    }
    return std::string("no loser");
  };
  EXPECT_EQ(why("tp1"), fmt::format("memory: does not fit by {}: {} of {} a device at batch 1",
                                    bytes_words(60.0 * kMiB), bytes_words(210.0 * kMiB), bytes_words(150.0 * kMiB)));
  EXPECT_TRUE(why("dp2").starts_with("memory: ")) << why("dp2");
  int64_t lost = 0;
  for (const int64_t count : result.counts.by_reason) lost += count;
  EXPECT_EQ(lost + (result.winner ? 1 : 0), result.counts.layouts);
  request.tpot_s = 1e-4;
  const SearchResult tight = found(request, hooks_of(toy));
  EXPECT_FALSE(tight.winner.has_value());
  EXPECT_EQ(tight.counts.feasible, 0);
  EXPECT_GT(tight.counts.by_reason[static_cast<int>(LossReason::kTpot)], 0);
  EXPECT_NE(search_text(tight).find("no layout fits and keeps the limits"), std::string::npos);
  EXPECT_NE(search_text(tight).find("misses TPOT by "), std::string::npos);
  request.tpot_s.reset();
  request.ttft_s = 1e-4;
  const SearchResult late = found(request, hooks_of(toy));
  EXPECT_NE(search_text(late).find("misses TTFT by "), std::string::npos);
  request.ttft_s.reset();
  const SearchResult all = found(request, hooks_of(toy));
  ASSERT_TRUE(all.winner.has_value());
  bool beaten = false;
  for (const Loser& loser : all.losers)
    beaten = beaten || (loser.reason == LossReason::kBeaten && loser.why.ends_with("less than the winner"));
  EXPECT_TRUE(beaten);
  const std::string text = search_text(all);
  EXPECT_NE(text.find("weft plan austen --layout "), std::string::npos);
}

// Instances that do one phase lost by a share, too, the nearest first.
TEST(Search, LosersThatAreApartSayByHowMuch) {
  SearchRequest request = base_request();
  request.together = false;
  const SearchResult result = found(request, hooks_of(Toy::random(5)));
  ASSERT_TRUE(result.winner && result.winner->prefill);
  int beaten = 0;
  double last = 0;
  for (const Loser& loser : result.losers) {
    if (loser.reason != LossReason::kBeaten) continue;
    EXPECT_GE(loser.by, last);
    EXPECT_EQ(loser.by > 0, loser.why.find("% less than the best") != std::string::npos) << loser.why;
    last = loser.by;
    beaten += loser.by > 0 ? 1 : 0;
  }
  EXPECT_GT(beaten, 0);
}

// The command that is printed can run, or the text says why there is none.
TEST(Search, CommandsCanRun) {
  SearchRequest request = base_request();
  request.plan.mode = request.plan.model->mode(DType::kBF16, std::nullopt);
  auto cpu = std::make_shared<DeviceProfile>(*request.plan.device);
  cpu->name = "server";
  cpu->cores = 8;
  auto other = std::make_shared<EngineProfile>();
  other->name = "other";
  const std::shared_ptr<const DeviceProfile> accelerator = request.plan.device;
  const std::shared_ptr<const EngineProfile> weft = request.plan.engine;
  const struct {
    std::shared_ptr<const DeviceProfile> device;
    std::shared_ptr<const EngineProfile> engine;
    bool has_weights;
    PlanPhase phase;
    int64_t devices;
    std::string_view want;
  } uses[] = {
      {cpu, weft, true, PlanPhase::kBoth, 1, "weft run austen --layout tp2 --ctx 80 --threads 4"},
      {cpu, weft, false, PlanPhase::kBoth, 1, "weft run MODEL_DIR --layout tp2 --ctx 80 --threads 4"},
      {cpu, weft, true, PlanPhase::kBoth, 2, "mpirun -n 2 weft run austen --layout tp2 --ctx 80 --threads 4"},
      {cpu, weft, true, PlanPhase::kPrefill, 1,
       "weft has no server that hands caches from one instance to another: this is a plan alone"},
      {accelerator, weft, true, PlanPhase::kBoth, 1, "weft runs on CPUs, not on toy: this is a plan alone"},
      {cpu, other, true, PlanPhase::kBoth, 1, "weft plans the engine other, and does not start it"},
  };
  for (const auto& use : uses) {
    request.plan.device = use.device;
    request.plan.engine = use.engine;
    request.plan.has_weights = use.has_weights;
    request.plan.threads = 4;
    SearchPoint point;
    point.layout = *parse_layout("tp2");
    point.phase = use.phase;
    point.devices = use.devices;
    const std::string refused = why_not_run(request, point);
    EXPECT_EQ(refused.empty() ? run_command(request, point) : refused, use.want);
  }
}

// A figure that nobody verified is marked in every output; without one nothing is.
TEST(Search, MarksWhatNobodyVerified) {
  const Toy toy = Toy::random(3);
  SearchRequest request = base_request();
  SearchHooks hooks;
  hooks.plan = [&](const PlanRequest& r, const PlanOptions& options) {
    Result<Plan> plan = toy.plan(r, options);
    plan->unverified = {"toy: memory.bytes_per_s"};
    plan->times_unverified = true;
    return plan;
  };
  const SearchResult marked = found(request, hooks), plain = found(request, hooks_of(toy));
  EXPECT_EQ(marked.unverified, std::vector<std::string>{"toy: memory.bytes_per_s"});
  EXPECT_NE(search_text(marked).find("* rests on figures that nobody verified: toy: memory.bytes_per_s"),
            std::string::npos);
  EXPECT_EQ(search_text(plain).find('*'), std::string::npos);
  EXPECT_TRUE(search_json(marked)["winner"]["unverified"].get<bool>());
  EXPECT_FALSE(search_json(plain)["winner"]["unverified"].get<bool>());
}

TEST(Search, CanBeStopped) {
  SearchHooks hooks = hooks_of(Toy::random(1));
  int64_t last = 0;
  hooks.progress = [&](int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    last = done;
    return done < 5;
  };
  const auto result = search(base_request(), hooks);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(last, 5);
}

TEST(Search, AnErrorOfAllPlansIsTheSearchs) {
  SearchHooks hooks;
  hooks.plan = [](const PlanRequest&, const PlanOptions&) -> Result<Plan> {
    return invalid_argument("toy: matrix_flops_per_s is missing");
  };
  const auto result = search(base_request(), hooks);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "toy: matrix_flops_per_s is missing");
}

TEST(Search, BadRequests) {
  const struct {
    void (*edit)(SearchRequest&);
    const char* message;
  } cases[] = {
      {[](SearchRequest& r) { r.devices = {}; },
       "--devices: expected numbers of devices to look at, e.g. --devices 8,16,32"},
      {[](SearchRequest& r) {
         r.devices = {8, 0};
       },
       "--devices: expected 1 to 65536, found 0"},
      {[](SearchRequest& r) {
         r.devices = {8, 8};
       },
       "--devices: 8 is there twice"},
      {[](SearchRequest& r) { r.ttft_s = 0; }, "--ttft: expected a time above 0, found 0s"},
      {[](SearchRequest& r) { r.tpot_s = -0.05; }, "--tpot: expected a time above 0, found -0.05s"},
      {[](SearchRequest& r) { r.tpot_s = NAN; }, "--tpot: expected a time above 0, found nans"},
      {[](SearchRequest& r) { r.max_batch = 0; }, "--max-batch: expected at least 1, found 0"},
      {[](SearchRequest& r) {
         r.chunks = {512, 0};
       },
       "--chunks: expected at least 1 row, found 0"},
      {[](SearchRequest& r) { r.together = false, r.plan.gen = 1; },
       "--mode apart with --gen 1: the first token comes with the prefill, decode instances have nothing to do"},
      {[](SearchRequest& r) { r.plan.prompt = 0; }, "--prompt: expected 1 to 1073741824, found 0"},
  };
  for (const auto& c : cases) {
    SearchRequest request = base_request();
    c.edit(request);
    const auto result = search(request, hooks_of(Toy::random(1)));
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_EQ(result.status().message(), c.message);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ParetoFront, AgreesWithTheDefinition) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Merit> merits(random() % 30);
    for (Merit& m : merits) m = {static_cast<double>(random() % 8), static_cast<double>(random() % 8)};  // ties, too
    std::vector<bool> in(merits.size(), false);
    const std::vector<size_t> front = pareto_front(merits);
    for (const size_t i : front) in[i] = true;
    for (size_t i = 1; i < front.size(); ++i) EXPECT_LT(merits[front[i - 1]].first, merits[front[i]].first);
    for (size_t i = 0; i < merits.size(); ++i) {
      bool beaten = false, earlier_equal = false;
      for (size_t j = 0; j < merits.size(); ++j) {
        const bool as_good = merits[j].first >= merits[i].first && merits[j].second >= merits[i].second;
        const bool better = merits[j].first > merits[i].first || merits[j].second > merits[i].second;
        beaten = beaten || (as_good && better);
        earlier_equal = earlier_equal || (j < i && as_good && !better);
      }
      EXPECT_EQ(in[i], !beaten && !earlier_equal) << "seed " << seed << " point " << i;
    }
  }
}

}  // namespace
}  // namespace weft
