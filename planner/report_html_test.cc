// The HTML report carries the figures of the JSON, loads nothing, and shows text as text.
#include "planner/report_html.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/test_support.h"
#include "planner/report.h"
#include "planner/search_report.h"

namespace weft {
namespace {

constexpr std::string_view kHostile = "</script><script>alert(1)</script><!-- & \"quoted\" @data@";

Plan made_plan() {
  Plan plan;
  plan.request.model = load_test_model("sample/austen-v4");
  plan.request.model_name = kHostile;
  auto device = std::make_shared<DeviceProfile>();
  device->name = "toy";
  device->memory_bytes_per_s = Figure{4e12, true, "made up"};
  device->matrix_flops_per_s[DType::kBF16] = Figure{1.5e14, true, "made up"};
  plan.request.device = device;
  auto engine = std::make_shared<EngineProfile>();
  engine->name = "weft";
  plan.request.engine = engine;
  plan.fits = true;
  plan.capacity_bytes = 64'000'000'000;
  RankLedger ledger;
  LedgerLine line;
  line.what = std::string(kHostile);
  line.storage = "BF16";
  line.bytes = ledger.weight_bytes = 31'234'567'891;
  line.tensors = 77;
  ledger.lines = {line};
  plan.ledger = {ledger};
  StagePlan stage;
  PlanOp op;
  op.name = "attn.wq_b";
  op.op = "linear";
  op.calls = 61;
  op.cost.seconds = 0.0123456789;
  op.cost.flops = 1e12;
  op.cost.bytes = 2e9;
  stage.ops = {op};
  stage.seconds = 0.0123456789;
  TimelineEvent event;
  event.name = "layers.0.attn.wq_b";
  event.seconds = 0.001;
  stage.timeline.events = {event};
  StepPlan step;
  step.name = "decode";
  step.rows = 16;
  step.seconds = stage.seconds;
  step.stages = {stage};
  plan.decode = step;
  plan.has_times = true;
  plan.service.tpot_s = 0.0123456789;
  plan.unverified = {"toy: memory.bytes"};
  return plan;
}

SearchResult made_search() {
  SearchResult result;
  result.request.plan = made_plan().request;
  result.request.devices = {8};
  Deployment deployment;
  deployment.devices = deployment.decode.devices = 8;
  deployment.decode.batch = 48;
  deployment.tpot_s = 0.0321987654;
  deployment.tokens_per_s_user = 31.0570987;
  deployment.tokens_per_s_device = 186.3425;
  result.winner = deployment;
  result.front = result.ranking = result.points = {deployment};
  Loser loser;
  loser.why = std::string(kHostile);
  result.losers = {loser};
  return result;
}

// What is between the first `begin` and the `end` behind it.
std::string between(const std::string& text, std::string_view begin, std::string_view end) {
  const size_t from = text.find(begin);
  EXPECT_NE(from, text.npos) << begin;
  const size_t start = from + begin.size();
  return text.substr(start, text.find(end, start) - start);
}

std::string page_of(const Plan* plan, const SearchResult* found) {
  return report_html({std::string(kHostile), plan, found});
}

TEST(ReportHtml, CarriesTheFiguresOfTheJson) {
  const Plan plan = made_plan();
  const SearchResult found = made_search();
  const auto data = parse_json(
      between(page_of(&plan, &found), "<script type=\"application/json\" id=\"data\">", "</script>"), "page");
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ((*data)["plan"], Json::parse(plan_json(plan).dump()));
  EXPECT_EQ((*data)["search"], Json::parse(search_json(found).dump()));
  EXPECT_EQ((*data)["title"], kHostile);
  EXPECT_EQ((*data)["view"]["timelines"][0][0][0]["name"], "layers.0.attn.wq_b");
  EXPECT_EQ((*data)["view"]["roof"]["memory_bytes_per_s"], 4e12);
  EXPECT_EQ((*data)["view"]["roof"]["matrix_flops_per_s"]["BF16"], 1.5e14);
}

TEST(ReportHtml, EachPartMayBeMissing) {
  const Plan plan = made_plan();
  const SearchResult found = made_search();
  for (const auto& [has_plan, has_search] : {std::pair(true, false), std::pair(false, true), std::pair(false, false)}) {
    const std::string page = page_of(has_plan ? &plan : nullptr, has_search ? &found : nullptr);
    const auto data = parse_json(between(page, "id=\"data\">", "</script>"), "page");
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(data->contains("plan"), has_plan);
    EXPECT_EQ(data->contains("search"), has_search);
  }
}

TEST(ReportHtml, LoadsNothingFromElsewhere) {
  const Plan plan = made_plan();
  const SearchResult found = made_search();
  std::string page = page_of(&plan, &found);
  // The name of a language of drawings is no address that is loaded.
  const std::string svg = "http://www.w3.org/2000/svg";
  const size_t at = page.find(svg);
  ASSERT_NE(at, page.npos);
  page.erase(at, svg.size());
  for (const char* external : {"http:", "https:", "//cdn", "src=", "<link", "@import", "url(", "fetch(",
                               "XMLHttpRequest", "import(", "WebSocket"}) {
    EXPECT_EQ(page.find(external), page.npos) << external;
  }
  EXPECT_NE(page.find("default-src 'none'"), page.npos);
}

TEST(ReportHtml, TextIsText) {
  const Plan plan = made_plan();
  const SearchResult found = made_search();
  const std::string page = page_of(&plan, &found);
  EXPECT_EQ(page.find("<script>alert"), page.npos);
  EXPECT_EQ(page.find("<!-- &"), page.npos);
  EXPECT_NE(page.find("&lt;/script&gt;&lt;script&gt;alert(1)"), page.npos);              // title
  EXPECT_NE(page.find("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"), page.npos);  // data
  // Nothing is set as markup by the script, either.
  for (const char* markup : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("})
    EXPECT_EQ(page.find(markup), page.npos) << markup;
}

TEST(ReportHtml, IsWrittenAtOnceOrNotAtAll) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("weft_report_html_{}", ::getpid());
  fs::create_directories(folder);
  const Plan plan = made_plan();
  const HtmlReport report{"a plan", &plan, nullptr};
  const fs::path file = folder / "plan.html";
  ASSERT_TRUE(write_report_html(file, report).ok());
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), report_html(report));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1)
      << "something else was left behind";
  const Status missing = write_report_html(folder / "no" / "plan.html", report);
  EXPECT_EQ(missing.code(), StatusCode::kMachineFailed);
  EXPECT_NE(missing.message().find("plan.html"), std::string::npos) << missing.message();
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weft
