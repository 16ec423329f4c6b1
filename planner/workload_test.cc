// The steps that a workload is cut into.
#include "planner/workload.h"

#include <gtest/gtest.h>

#include "planner/test_support.h"

namespace weft {
namespace {

std::string words(const Workload& work) {
  std::string text;
  for (const WorkStep& step : work.prefill) {
    text += fmt::format("{} x {} rows to {} in {}; ", step.times, step.rows, step.context, step.micro_batches);
  }
  if (work.decode.rows > 0) text += fmt::format("decode {} rows at {}", work.decode.rows, work.decode.context);
  for (const WorkStep& step : work.drafts) text += fmt::format("; draft {}", step.rows);
  return text;
}

TEST(Workload, StepsOfAWorkload) {
  const struct {
    const char* what;
    const char* layout;
    int64_t prompt, gen, batch, cached, chunk, drafts;
    std::vector<double> acceptance;
    const char* expect;
  } cases[] = {
      {"prompts that fit together", "tp1", 100, 20, 4, 0, 400, 0, {}, "1 x 400 rows to 100 in 1; decode 4 rows at 111"},
      {"two at a time", "tp1", 100, 20, 4, 0, 250, 0, {}, "2 x 200 rows to 100 in 1; decode 4 rows at 111"},
      {"chunks, the last one shorter",
       "tp1",
       100,
       20,
       2,
       0,
       40,
       0,
       {},
       "2 x 40 rows to 40 in 1; 2 x 40 rows to 80 in 1; 2 x 20 rows to 100 in 1; decode 2 rows at 111"},
      {"many chunks: alike ones stand for others",
       "tp1",
       400,
       20,
       1,
       0,
       40,
       0,
       {},
       "2 x 40 rows to 60 in 1; 2 x 40 rows to 140 in 1; 2 x 40 rows to 220 in 1; 3 x 40 rows to 320 in 1; 1 x 40 rows "
       "to 400 in 1; decode 1 rows at 411"},
      {"a cached prefix", "tp1", 100, 20, 1, 90, 400, 0, {}, "1 x 10 rows to 100 in 1; decode 1 rows at 111"},
      {"data-parallel groups side by side",
       "dp2",
       100,
       20,
       4,
       0,
       200,
       0,
       {},
       "2 x 200 rows to 100 in 1; decode 4 rows at 111"},
      {"micro-batches of two stages",
       "pp2",
       100,
       20,
       4,
       0,
       400,
       0,
       {},
       "1 x 400 rows to 100 in 2; decode 4 rows at 111"},
      {"drafts: verified rows, then one after the other",
       "tp1",
       100,
       20,
       2,
       0,
       400,
       3,
       {1.0},
       "1 x 200 rows to 100 in 1; decode 8 rows at 114; draft 8; draft 2; draft 2"},
  };
  for (const auto& c : cases) {
    PlanRequest r = sample_request(c.layout);
    r.prompt = c.prompt;
    r.gen = c.gen;
    r.batch = c.batch;
    r.cached = c.cached;
    r.chunk = c.chunk;
    r.drafts = c.drafts;
    r.acceptance = c.acceptance;
    EXPECT_EQ(words(make_workload(r)), c.expect) << c.what;
  }
}

// The chunks stand for all rows of all prompts.
TEST(Workload, EveryRowIsComputedOnce) {
  for (const int64_t chunk : {1, 7, 64, 100, 333, 5000}) {
    for (const int64_t cached : {0, 13}) {
      PlanRequest r = sample_request("tp1");
      r.prompt = 333;
      r.gen = 5;
      r.batch = 3;
      r.cached = cached;
      r.chunk = chunk;
      int64_t rows = 0;
      for (const WorkStep& step : make_workload(r).prefill) {
        rows += step.rows * step.times;
        EXPECT_LE(step.rows, chunk);
        EXPECT_LE(step.context, r.prompt);
        EXPECT_GE(step.batch.positions.front(), cached);
      }
      EXPECT_GE(rows, 3 * (333 - cached)) << "chunk " << chunk;
      EXPECT_LE(rows, 3 * (333 - cached) + chunk) << "chunk " << chunk;
    }
  }
}

TEST(Workload, RequestsThatCannotBe) {
  const struct {
    const char* what;
    void (*change)(PlanRequest&);
    const char* expect;
  } cases[] = {
      {"no prompt", [](PlanRequest& r) { r.prompt = 0; }, "--prompt: expected 1 to 1073741824, found 0"},
      {"negative answer", [](PlanRequest& r) { r.gen = -1; }, "--gen: expected 1 to 1073741824, found -1"},
      {"no request", [](PlanRequest& r) { r.batch = 0; }, "--batch: expected 1 to 1048576, found 0"},
      {"all of the prompt cached", [](PlanRequest& r) { r.cached = r.prompt = 64; },
       "--cached: expected 0 to 63, found 64"},
      {"acceptance above 1", [](PlanRequest& r) { r.drafts = 1, r.acceptance = {1.5}; },
       "--acceptance: expected probabilities of 0 to 1, found 1.5"},
      {"acceptance of nothing", [](PlanRequest& r) { r.acceptance = {0.5}; },
       "--acceptance: there are no drafts to accept; add --mtp N"},
      {"too long",
       [](PlanRequest& r) {
         r.prompt = 1 << 22;
         r.gen = 1;
       },
       "--prompt 4194304 + --gen 1 = 4194305 tokens; this model takes at most "},
      {"fewer requests than groups",
       [](PlanRequest& r) {
         r.batch = 1;
         r.layout = *parse_layout("dp2");
         r.prompt = 8;
         r.gen = 8;
       },
       "--batch 1: 2 data-parallel groups of layout dp2 need at least one request each; use --batch 2 or a smaller dp"},
      {"ranks that share an accelerator",
       [](PlanRequest& r) {
         r.local_ranks = 2;
         r.prompt = 8;
         r.gen = 8;
       },
       "--local-ranks 2: test has one rank a device"},
      {"negative reserve", [](PlanRequest& r) { r.reserve_bytes = -1; },
       "--reserve: expected bytes of at least 0, found -1"},
  };
  for (const auto& c : cases) {
    PlanRequest r = sample_request("tp1");
    c.change(r);
    const Status status = check_request(r);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.what;
    EXPECT_TRUE(status.message().starts_with(c.expect)) << c.what << ": " << status.message();
  }
}

}  // namespace
}  // namespace weft
