// The bitwise matrix on small models with every kind of layer.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>

#include "runtime/verify.h"

namespace weft {
namespace {

class VerifyModels : public ::testing::TestWithParam<const char*> {};

TEST_P(VerifyModels, BitsDoNotDependOnHowTheWorkIsDone) {
  auto opened = Checkpoint::open(std::filesystem::path(WEFT_SOURCE_DIR) / "testdata" / GetParam());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*opened)), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto report = verify_model(std::move(*model), {.seed = 5});
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const VerifyLine& line : report->lines) {
    EXPECT_NE(line.outcome, VerifyLine::Outcome::kFail) << line.name << ": " << line.detail;
  }
  EXPECT_TRUE(report->ok());
  EXPECT_GE(report->lines.size(), 2u * 16u);
}

INSTANTIATE_TEST_SUITE_P(All, VerifyModels,
                         ::testing::Values("golden/deepseek_v4/f32_small", "golden/deepseek_v4/f32_pro_like",
                                           "golden/deepseek_v4/f32_fp8_fp4", "golden/deepseek_v4/mtp_f32",
                                           "golden/deepseek_v4/official_r", "golden/glm_moe_dsa/deepseek_v32_f32",
                                           "golden/glm_moe_dsa/glm51_w8a8", "golden/glm_moe_dsa/glm52_mtp_f32",
                                           "golden/glm_moe_dsa/glm5_fp8", "sample/austen-v4"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace weft
