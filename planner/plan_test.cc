// Plans of shipped models on shipped devices: what adds up, what is counted once, what is marked.
#include "planner/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/report.h"
#include "planner/test_support.h"

namespace weft {
namespace {

std::shared_ptr<const Model> shipped_model(const std::string& name) {
  auto checkpoint =
      Checkpoint::open_config(std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs" / name / "config.json");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*checkpoint)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

PlanRequest request_of(const std::string& model, const std::string& layout, const std::string& device = "h200-sxm") {
  PlanRequest request = sample_request(layout);
  request.model = shipped_model(model);
  request.model_name = model;
  request.mode = request.model->mode(DType::kBF16, std::nullopt);
  request.device =
      std::make_shared<const DeviceProfile>(load_device_profile(device, {WEFT_SOURCE_DIR "/devices"}).value());
  return request;
}

Plan plan_of(const PlanRequest& request, const PlanOptions& options = {}) {
  Result<Plan> plan = make_plan(request, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? std::move(*plan) : Plan{};
}

int64_t sent(const StagePlan& stage, std::string_view op, MeshAxis axis) {
  int64_t bytes = 0;
  for (const TrafficLine& line : stage.traffic) bytes += line.op == op && line.axis == axis ? line.bytes_sent : 0;
  return bytes;
}

// A step is its stages one after the other, the other micro-batches at the pace of the slowest, and the logits once for
// all ranks. A hand-over takes the link between its two ranks.
TEST(Plan, StepsOfPipelines) {
  for (const char* layout : {"pp4tp4+ep4", "pp16", "pp8tp4+ep4", "pp8tp2+ep2", "dp2pp4tp4+ep8"}) {
    SCOPED_TRACE(layout);
    PlanRequest request = request_of("deepseek-v4-pro", layout);
    request.batch = 32;
    const Plan plan = plan_of(request);
    const CostModel cost = CostModel::create(*request.device).value();
    const MeshSizes& mesh = request.layout.mesh;
    for (const StepPlan* step : {plan.main_prefill(), &plan.decode}) {
      ASSERT_EQ(step->stages.size(), static_cast<size_t>(mesh.pp));
      double sum = 0, most = 0;
      for (size_t s = 0; s < step->stages.size(); ++s) {
        const StagePlan& stage = step->stages[s];
        sum += stage.seconds + stage.hand_over_s;
        most = std::max(most, stage.seconds + stage.hand_over_s);
        const auto bytes =
            static_cast<double>(sent(stage, "send", MeshAxis::kPp)) / static_cast<double>(step->micro_batches);
        const int next = stage.rank + static_cast<int>(mesh.pcp * mesh.tp);
        if (s + 1 < step->stages.size()) {
          EXPECT_NEAR(stage.hand_over_s, cost.transfer(stage.rank, next, bytes)->seconds, 1e-12)
              << step->name << " " << s;
        } else {
          EXPECT_EQ(stage.hand_over_s, 0);
        }
      }
      EXPECT_NEAR(step->seconds, sum + static_cast<double>(step->micro_batches - 1) * most + step->logits_s, 1e-9)
          << step->name;
      // The message that goes to all stages, and the gather over the groups.
      const GroupShape stages = group_shape(Mesh::create(mesh)->group(MeshAxis::kPp, 0), *request.device);
      const double logits =
          static_cast<double>(step->name == "decode" ? request.batch / mesh.dp : step->requests / mesh.dp) *
          static_cast<double>(request.model->vocab_size()) * 4;
      const double broadcast = collective_cost(*request.device, CollectiveKind::kBroadcast, stages, logits)->seconds;
      EXPECT_GE(step->logits_s, broadcast * 0.99) << step->name;
      EXPECT_LE(step->logits_s, broadcast * (mesh.dp == 1 ? 1.01 : 20)) << step->name;
    }
  }
}

// Engines that sample where the logits are send none.
TEST(Plan, LogitsOfOtherEngines) {
  PlanRequest request = request_of("deepseek-v4-pro", "dp2pp2tp4+ep8");
  EXPECT_GT(plan_of(request).decode.logits_s, 0);
  EngineProfile engine;
  engine.name = "other";
  engine.shares_logits = false;
  request.engine = std::make_shared<const EngineProfile>(engine);
  const Plan plan = plan_of(request);
  EXPECT_EQ(plan.decode.logits_s, 0);
  for (const StagePlan& stage : plan.decode.stages)
    EXPECT_EQ(sent(stage, "all_gather", MeshAxis::kDp) + sent(stage, "broadcast", MeshAxis::kPp), 0);
}

// The stages of a pipeline send in a whole step, all micro-batches, what one stage of all layers sends.
TEST(Plan, TrafficOfAPipelineIsThatOfTheWholeStep) {
  PlanRequest one = request_of("deepseek-v4-pro", "tp4+ep4"), four = request_of("deepseek-v4-pro", "pp4tp4+ep4");
  one.batch = four.batch = 32;
  const Plan a = plan_of(one), b = plan_of(four);
  ASSERT_EQ(a.main_prefill()->rows, b.main_prefill()->rows);
  EXPECT_EQ(b.main_prefill()->micro_batches, 4);
  for (const char* op : {"all_reduce", "reduce_scatter"}) {
    int64_t all = 0, calls = 0;
    for (const StagePlan& stage : b.main_prefill()->stages) {
      all += sent(stage, op, MeshAxis::kTp);
      for (const PlanOp& line : stage.ops) calls += line.op == op ? line.calls : 0;
    }
    EXPECT_EQ(all, sent(a.main_prefill()->stages[0], op, MeshAxis::kTp)) << op;
    int64_t once = 0;
    for (const PlanOp& line : a.main_prefill()->stages[0].ops) once += line.op == op ? line.calls : 0;
    EXPECT_EQ(calls, 4 * once) << op;
  }
}

// One more prompt costs one more prompt, also where it begins a step of its own.
TEST(Plan, TheLastWaveIsAsLongAsItIs) {
  PlanRequest request = request_of("deepseek-v4-flash", "tp8+ep8");
  request.prompt = 100;
  request.batch = 81;
  const ServiceResult full = plan_of(request).service;
  request.batch = 82;
  const ServiceResult more = plan_of(request).service;
  EXPECT_GT(more.ttft_last_s, full.ttft_last_s);
  EXPECT_LT(more.ttft_last_s, 1.25 * full.ttft_last_s);
  EXPECT_GT(more.prefill_tokens_per_s, 0.8 * full.prefill_tokens_per_s);
  EXPECT_EQ(more.ttft_alone_s, full.ttft_alone_s);
}

// What a prefill step of one prompt fetches does not depend on how many others wait.
TEST(Plan, FetchedEntriesAreThoseOfTheStep) {
  PlanRequest request = request_of("deepseek-v4-flash", "tp4dcp4+ep4");
  int64_t first = -1;
  for (const int64_t batch : {1, 16, 128}) {
    request.batch = batch;
    const Plan plan = plan_of(request);
    const StagePlan& stage = plan.main_prefill()->stages[0];
    double of_ops = 0;
    for (const PlanOp& op : stage.ops) of_ops += op.op == "fetch_entries" ? op.cost.bytes_sent : 0;
    int64_t bytes = 0;
    for (const TrafficLine& line : stage.traffic) bytes += line.op == "fetch_entries" ? line.bytes_sent : 0;
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(static_cast<double>(bytes), of_ops);
    EXPECT_EQ(first < 0 ? bytes : first, bytes) << batch;
    first = bytes;
  }
}

// As many requests as there is room for fit, and one more of each data-parallel group does not.
TEST(Plan, RoomIsExact) {
  const struct {
    const char *model, *layout, *device;
    int64_t prompt, batch;
  } cases[] = {
      {"deepseek-v4-flash", "tp4+ep4", "h200-sxm", 64, 1},   {"deepseek-v4-flash", "tp4+ep4", "h200-sxm", 64, 6000},
      {"deepseek-v4-flash", "dp8+ep8", "h200-sxm", 8192, 8}, {"deepseek-v4-pro", "pp2tp8+ep8", "b200-sxm", 8192, 16},
      {"deepseek-v4-pro", "tp2", "h100-sxm", 8192, 16},      {"deepseek-v4-flash", "tp8+ep8", "h100-sxm", 65536, 16},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.model) + " " + c.layout);
    PlanRequest request = request_of(c.model, c.layout, c.device);
    request.prompt = c.prompt;
    request.batch = c.batch;
    const PlanOptions memory{.times = false};
    const int64_t room = plan_of(request, memory).max_batch, unit = request.layout.mesh.dp;
    EXPECT_EQ(room % unit, 0);
    if (room > 0) {
      request.batch = room;
      const Plan full = plan_of(request, memory);
      EXPECT_TRUE(full.fits) << room;
      EXPECT_EQ(full.max_batch, room);
    }
    request.batch = room + unit;
    EXPECT_FALSE(plan_of(request, memory).fits) << room;
  }
}

// What rows of a step read again does not come from memory, whether or not the profile knows its cache; where it does
// not, a note says so.
TEST(Plan, DevicesWithoutACache) {
  PlanRequest request = request_of("glm-5.1-fp8", "tp8+ep8", "ascend-a5-112g");
  ASSERT_FALSE(request.device->cache_bytes);
  const Plan without = plan_of(request);
  DeviceProfile device = *request.device;
  device.cache_bytes = Figure{192e6, true, "test"};
  request.device = std::make_shared<const DeviceProfile>(device);
  const Plan with = plan_of(request);
  EXPECT_LT(without.service.ttft_s, 1.3 * with.service.ttft_s);
  EXPECT_TRUE(with.notes.empty());
  ASSERT_EQ(without.notes.size(), 1u);
  EXPECT_NE(without.notes[0].find("has no cache"), std::string::npos);
}

// A plan names the figures that it rests on and nobody verified, no others.
TEST(Plan, MarksWhatItRestsOn) {
  const PlanRequest all = request_of("deepseek-v4-flash", "tp8+ep8");
  const std::string text = [&] {
    DeviceProfile device = *all.device;
    std::string json = device_profile_json(device);
    for (size_t at; (at = json.find("\"verified\":false")) != json.npos;) json.replace(at, 16, "\"verified\":true");
    for (size_t at; (at = json.find("\"verified\": false")) != json.npos;) json.replace(at, 17, "\"verified\": true");
    return json;
  }();
  const struct {
    const char *figure, *from;  // the first "verified" behind `from` is turned
    bool memory, times;
  } cases[] = {
      {"memory.visible_bytes", "\"visible_bytes\"", true, false}, {"cache.bytes", "\"cache\"", false, true},
      {"memory.bytes_per_s", "\"bytes_per_s\"", false, true},     {"launch.graph.matrix_s", "\"graph\"", false, true},
      {"launch.eager.matrix_s", "\"eager\"", false, false},       {"links[1].bytes_per_s", "\"cluster\"", false, false},
      {"links[0].bytes_per_s", "\"links\"", false, true},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.figure);
    std::string json = text;
    const size_t from = json.find(c.from);
    ASSERT_NE(from, json.npos);
    const size_t at = json.find("true", json.find("\"verified\"", from));
    json.replace(at, 4, "false");
    PlanRequest request = all;
    const Result<DeviceProfile> device = parse_device_profile(json, "test");
    ASSERT_TRUE(device.ok()) << device.status().message();
    ASSERT_EQ(device->unverified, std::vector<std::string>{c.figure});
    request.device = std::make_shared<const DeviceProfile>(*device);
    const Plan plan = plan_of(request);
    EXPECT_EQ(plan.memory_unverified, c.memory);
    EXPECT_EQ(plan.times_unverified, c.times);
    EXPECT_EQ(plan.unverified.size(), c.memory || c.times ? 1u : 0u);
    EXPECT_EQ(plan_text(plan).find("fits *") != std::string::npos, c.memory);
    EXPECT_EQ(plan_text(plan).find("service *") != std::string::npos, c.times);
  }
}

// A group that has twice the work takes as long as all groups with twice the requests, but for the experts that they
// share.
TEST(Plan, UnequalGroups) {
  PlanRequest request = request_of("deepseek-v4-flash", "dp8+ep8");
  request.batch = 64;
  const Plan even = plan_of(request);
  request.dp_imbalance = 2;
  const Plan uneven = plan_of(request);
  EXPECT_EQ(uneven.needed_bytes(), even.needed_bytes());
  EXPECT_NEAR(uneven.service.ttft_last_s, 2 * even.service.ttft_last_s, 0.01 * uneven.service.ttft_last_s);
  EXPECT_GT(uneven.service.tpot_s, even.service.tpot_s);
  EXPECT_LT(uneven.service.output_tokens_per_s, even.service.output_tokens_per_s);
  request.dp_imbalance = 9;
  EXPECT_FALSE(make_plan(request).ok());
  request.dp_imbalance = NAN;
  EXPECT_FALSE(make_plan(request).ok());
}

// Two ways to cut the same prompts into steps send the same.
TEST(Plan, DiffComparesTheSameRequests) {
  PlanRequest request = request_of("deepseek-v4-flash", "tp8+ep8");
  request.chunk = 8192;
  const Plan a = plan_of(request);
  request.chunk = 65536;
  const Plan b = plan_of(request);
  ASSERT_NE(a.main_prefill()->rows, b.main_prefill()->rows);
  int compared = 0;
  const nlohmann::ordered_json diff = plan_diff_json(a, b);
  for (const auto& line : diff["lines"]) {
    if (line["section"] != "prefill of 16 prompts sends" || line["what"] == "all_gather over tp") continue;
    EXPECT_NEAR(line["a"].get<double>(), line["b"].get<double>(), 1e-3 * line["a"].get<double>()) << line.dump();
    ++compared;
  }
  EXPECT_GT(compared, 2);
}

}  // namespace
}  // namespace weft
