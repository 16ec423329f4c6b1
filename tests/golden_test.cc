// Every golden case of testdata/golden, under several engine settings.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/golden_case.h"

namespace weft {
namespace {

struct Setting {
  const char* what;
  GoldenOptions options;
};

std::vector<Setting> settings() {
  return {
      {"best variant, whole prompts", {.num_threads = 2}},
      {"scalar reference, one thread", {.num_threads = 1, .isa = Isa::kScalar}},
      {"steps of 7 tokens", {.num_threads = 2, .max_step_tokens = 7}},
  };
}

TEST(Golden, AllCasesUnderAllSettings) {
  int cases = 0;
  for (const auto& family : std::filesystem::directory_iterator(WEFT_SOURCE_DIR "/testdata/golden")) {
    if (!family.is_directory()) continue;
    for (const auto& dir : std::filesystem::directory_iterator(family.path())) {
      ++cases;
      for (const Setting& setting : settings()) {
        const auto report = check_golden_case(dir.path(), setting.options);
        ASSERT_TRUE(report.ok()) << dir.path() << ": " << report.status().message();
        for (const GoldenQuantity& q : report->quantities) {
          EXPECT_TRUE(q.ok) << report->name << ", " << setting.what << ": " << q.name << " is " << q.found
                            << ", tolerance " << q.tolerance << " (" << q.detail << ")";
        }
      }
    }
  }
  EXPECT_GE(cases, 5);
}

// A case that is wrong is found: the comparison can fail.
TEST(Golden, WrongExpectationIsReported) {
  namespace fs = std::filesystem;
  const fs::path good = fs::path(WEFT_SOURCE_DIR) / "testdata/golden/deepseek_v4/f32_small";
  const fs::path bad = fs::temp_directory_path() / "weft_golden_test_case";
  fs::remove_all(bad);
  fs::copy(good, bad, fs::copy_options::recursive);
  // The expected outputs of another model with the same shapes.
  fs::remove(bad / "config.json");
  std::string config;
  {
    std::FILE* file = std::fopen((good / "config.json").c_str(), "r");
    ASSERT_NE(file, nullptr);
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) config.append(buffer, n);
    std::fclose(file);
  }
  const std::string field = "\"routed_scaling_factor\": 1.5";
  ASSERT_NE(config.find(field), std::string::npos);
  config.replace(config.find(field), field.size(), "\"routed_scaling_factor\": 1.6");
  {
    std::FILE* file = std::fopen((bad / "config.json").c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fwrite(config.data(), 1, config.size(), file);
    std::fclose(file);
  }
  const auto report = check_golden_case(bad, {.num_threads = 1});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->ok());
  fs::remove_all(bad);
}

// A case without a tolerance for its logits would always pass: it is refused.
TEST(Golden, MissingToleranceIsAnError) {
  namespace fs = std::filesystem;
  const fs::path good = fs::path(WEFT_SOURCE_DIR) / "testdata/golden/deepseek_v4/f32_small";
  const fs::path bad = fs::temp_directory_path() / "weft_golden_test_no_tolerance";
  fs::remove_all(bad);
  fs::copy(good, bad, fs::copy_options::recursive);
  fs::remove(bad / "case.json");
  std::FILE* file = std::fopen((bad / "case.json").c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs(R"({"dtype": "f32", "prompts": [[1]], "greedy": [[]], "tolerance": {}})", file);
  std::fclose(file);
  const auto report = check_golden_case(bad, {.num_threads = 1});
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("case.json: tolerance.logits_max_abs is missing"), std::string::npos);
  fs::remove_all(bad);
}

}  // namespace
}  // namespace weft
