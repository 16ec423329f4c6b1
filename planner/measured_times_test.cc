#include "planner/measured_times.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace weft {
namespace {

TEST(MeasuredTimes, BadFilesHaveOneMessage) {
  const auto file = [](std::string_view models, std::string_view times, int version = 1) {
    return fmt::format(R"({{"schema": "weft.measured_times", "version": {}, "machine": "m", "source": "s",)"
                       R"("profile": "p.json", "models": {}, "times": {}}})",
                       version, models, times);
  };
  const std::string models = R"([{"name": "a", "config": "a"}])";
  const auto time = [](std::string_view more) {
    return fmt::format(R"([{{"model": "a", "layout": "tp1", "phase": "prefill", "tokens": 512, "depth": 0,)"
                       R"("read_bytes_per_s": 3e10, "runs": 3, {}}}])",
                       more);
  };
  EXPECT_EQ(parse_measured_times(file(models, time(R"("seconds": 0.5)")), "f").value().times.size(), 1u);
  EXPECT_EQ(parse_measured_times(file(models, time(R"("seconds": 1, "not_modelled": "w")")), "f")
                .value()
                .times[0]
                .not_modelled,
            "w");
  const struct {
    std::string text, message;
  } cases[] = {
      {file(models, time(R"("seconds": 0.5)"), 2), "f: version"},
      {file(models, "{}"), "f: times: expected a list"},
      {file("3", "[]"), "f: models: expected a list"},
      {file(models, time(R"("seconds": -1)")), "f: times[0].seconds"},
      {file(models, time(R"("second": 1)")), "f: times[0].seconds is missing"},
      {file(models, time(R"("seconds": 1, "more": 1)")), "more"},
      {file(R"([{"name": "b", "config": "b"}])", time(R"("seconds": 1)")),
       "f: times[0].model: 'a' is none of the models"},
  };
  for (const auto& c : cases) {
    const auto parsed = parse_measured_times(c.text, "f");
    ASSERT_FALSE(parsed.ok()) << c.text;
    EXPECT_NE(parsed.status().message().find(c.message), std::string::npos) << c.text << "\n"
                                                                            << parsed.status().message();
  }
}

TEST(Validation, FiguresThatAreOffNeedAReason) {
  ValidationLine line;
  line.published = 1;
  line.planned = 1.3;
  line.tolerance = 0.15;
  EXPECT_FALSE(line.ok());
  EXPECT_FALSE(line.passes());
  EXPECT_NE(validation_text({line}).find("OFF"), std::string::npos);
  line.not_modelled = "waiting";
  EXPECT_FALSE(line.ok());
  EXPECT_TRUE(line.passes());
  EXPECT_NE(validation_text({line}).find("not modelled: waiting"), std::string::npos);
  EXPECT_EQ(validation_json({line})["lines"][0]["not_modelled"], "waiting");
}

TEST(Validation, ErrorsOfGroups) {
  std::vector<ValidationLine> lines;
  const auto add = [&](FigureKind kind, bool fitted, double error) {
    ValidationLine line;
    line.kind = kind;
    line.fitted = fitted;
    line.published = 1;
    line.planned = 1 + error;
    lines.push_back(line);
  };
  for (int i = 1; i <= 10; ++i) add(FigureKind::kMeasured, false, (i % 2 == 0 ? 1 : -1) * 0.01 * i);
  add(FigureKind::kPublished, true, 0.5);
  const std::vector<ErrorSummary> all = summarise(lines);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].group, "published, fitted");
  EXPECT_EQ(all[0].figures, 1);
  EXPECT_NEAR(all[0].median, 0.5, 1e-12);
  EXPECT_EQ(all[1].group, "measured, held out");
  EXPECT_NEAR(all[1].median, 0.05, 1e-12);
  EXPECT_NEAR(all[1].p90, 0.09, 1e-12);
  EXPECT_NEAR(all[1].max, 0.10, 1e-12);
}

}  // namespace
}  // namespace weft
