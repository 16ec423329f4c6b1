#include "planner/service.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Service, TokensPerStep) {
  const struct {
    const char* what;
    int64_t drafts;
    std::vector<double> conditional;
    double expect;
  } cases[] = {
      {"no drafts", 0, {}, 1},
      {"one", 1, {0.8}, 1.8},
      {"the last one holds further on", 3, {0.5}, 1 + 0.5 + 0.25 + 0.125},
      {"by depth", 3, {0.9, 0.6, 0.4}, 1 + 0.9 + 0.54 + 0.216},
      {"never", 2, {0}, 1},
      {"always", 3, {1}, 4},
      {"default", 1, {}, 1.7},
  };
  for (const auto& c : cases) EXPECT_DOUBLE_EQ(tokens_per_step(c.drafts, c.conditional), c.expect) << c.what;
}

TEST(Service, ClosedLoop) {
  ServiceInput in;
  in.batch = 4;
  in.gen = 101;
  in.prompt = 1000;
  in.devices = 2;
  in.prefill = {{1, 4, 2}};
  in.decode_step_s = 0.1;
  const ServiceResult out = service(in);
  EXPECT_DOUBLE_EQ(out.ttft_s, 5);  // (2 + 4 + 6 + 8) / 4
  EXPECT_DOUBLE_EQ(out.ttft_alone_s, 2);
  EXPECT_DOUBLE_EQ(out.ttft_last_s, 8);
  EXPECT_DOUBLE_EQ(out.tpot_s, 0.1);
  EXPECT_DOUBLE_EQ(out.e2e_s, 21);
  EXPECT_DOUBLE_EQ(out.tpot_loaded_s, 0.16);  // 10 s of steps and 6 s of the prompts of three others
  EXPECT_DOUBLE_EQ(out.output_tokens_per_s, 404.0 / 18);
  EXPECT_DOUBLE_EQ(out.output_tokens_per_s_device, 202.0 / 18);
  EXPECT_DOUBLE_EQ(out.prefill_tokens_per_s, 500);
  EXPECT_DOUBLE_EQ(out.decode_tokens_per_s, 40);
  EXPECT_DOUBLE_EQ(out.requests_per_s, 4.0 / 18);
  in.tokens_per_step = 2;
  EXPECT_DOUBLE_EQ(service(in).tpot_s, 0.05);
  EXPECT_DOUBLE_EQ(service(in).itl_s, 0.1);
  in.transfer_s = 1;
  EXPECT_DOUBLE_EQ(service(in).ttft_s, 6);
}

// The last wave may be smaller, and shorter.
TEST(Service, UnequalWaves) {
  ServiceInput in;
  in.batch = 5;
  in.gen = 2;
  in.prefill = {{2, 2, 3}, {1, 1, 1}};
  in.decode_step_s = 1;
  const ServiceResult out = service(in);
  EXPECT_DOUBLE_EQ(out.ttft_s, (3 + 3 + 6 + 6 + 7) / 5.0);
  EXPECT_DOUBLE_EQ(out.ttft_alone_s, 3);
  EXPECT_DOUBLE_EQ(out.ttft_last_s, 7);
  EXPECT_DOUBLE_EQ(out.tpot_loaded_s, 1 + 7 * 0.8);
  EXPECT_DOUBLE_EQ(out.tokens_per_s_user, 1 / out.tpot_loaded_s);
}

TEST(Service, OneSideAlone) {
  ServiceInput prefill;
  prefill.batch = 2;
  prefill.prompt = 100;
  prefill.cached = 50;
  prefill.prefill = {{2, 1, 1}};
  EXPECT_DOUBLE_EQ(service(prefill).requests_per_s, 2);
  EXPECT_DOUBLE_EQ(service(prefill).prefill_tokens_per_s, 100);  // cached ones are not computed
  EXPECT_DOUBLE_EQ(service(prefill).output_tokens_per_s, 0);
  ServiceInput decode;
  decode.batch = 8;
  decode.gen = 11;
  decode.decode_step_s = 0.5;
  EXPECT_DOUBLE_EQ(service(decode).output_tokens_per_s, 16);
  EXPECT_DOUBLE_EQ(service(decode).tpot_loaded_s, 0.5);
}

TEST(Service, PipelineBubble) {
  EXPECT_DOUBLE_EQ(pipeline_bubble(1, 1), 0);
  EXPECT_DOUBLE_EQ(pipeline_bubble(4, 1), 0.75);
  EXPECT_DOUBLE_EQ(pipeline_bubble(4, 4), 3.0 / 7);
}

}  // namespace
}  // namespace weft
