// weft plan search and --html, run as a user does.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "io/json.h"
#include "io/test_files.h"

namespace weft {
namespace {

struct Output {
  int code = -1;
  std::string out, err;
};

class SearchCommand : public ::testing::Test {
 protected:
  Output shell(const std::string& command) const {
    const std::string line =
        fmt::format("{} </dev/null >{}/stdout 2>{}/stderr", command, dir_.path().string(), dir_.path().string());
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("stdout"), read("stderr")};
  }
  // @S: the sample model, @T: a folder for files.
  Output weft(std::string args) const {
    const std::pair<std::string, std::string> names[] = {{"@T", dir_.path().string()},
                                                         {"@S", WEFT_SOURCE_DIR "/testdata/sample/austen-v4"}};
    for (const auto& [name, value] : names) {
      for (size_t at; (at = args.find(name)) != std::string::npos;) args.replace(at, name.size(), value);
    }
    return shell(fmt::format("'{}' {}", WEFT_PROGRAM, args));
  }
  std::string read(const std::string& name) const {
    std::ifstream in(dir_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempDir dir_;
};

constexpr const char* kSmall = "plan search @S --device h20-96g --devices 1,2 --prompt 64 --gen 8 --max-batch 4";

TEST_F(SearchCommand, FindsAWinnerWhoseCommandIsAPlan) {
  const Output text = weft(kSmall);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  for (const char* part : {"winner: ", "weft plan ", "weft runs on CPUs, not on h20-96g: this is a plan alone",
                           "Pareto front", "why others lost", "tok/s/device"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  const Output json = weft(fmt::format("{} --json", kSmall));
  EXPECT_EQ(json.code, 0) << json.err;
  const auto found = parse_json(json.out, "stdout");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)["schema"], "weft.plan.search");
  EXPECT_EQ((*found)["version"], 1);
  // The command that it names gives its figures.
  const Json& winner = (*found)["winner"];
  const Json& instance = winner.contains("instance") ? winner["instance"] : winner["decode"];
  const std::string command = instance["plan_command"];
  ASSERT_TRUE(command.starts_with("weft plan "));
  const Output planned = weft(command.substr(5) + " --json");
  EXPECT_EQ(planned.code, 0) << command << ": " << planned.err;
  const auto plan = parse_json(planned.out, "stdout");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ((*plan)["needed_bytes"], instance["needed_bytes"]);
  EXPECT_EQ((*plan)["service"][instance["phase"] == "both" ? "tpot_loaded_s" : "tpot_s"], instance["tpot_s"])
      << command;
  EXPECT_EQ((*plan)["service"]["requests_per_s"], instance["requests_per_s"]) << command;
}

// What it says to run runs: the winner and those behind it, on as many ranks of one machine as were asked for.
TEST_F(SearchCommand, TheCommandsThatItNamesRun) {
  const std::string search =
      "plan search @S --device epyc-9654 --devices 1 --local-ranks 2 --threads 1 --prompt 64 --gen 8 --max-batch 4";
  const Output found = weft(search + " --json");
  ASSERT_EQ(found.code, 0) << found.err;
  const auto json = parse_json(found.out, "stdout");
  ASSERT_TRUE(json.ok()) << json.status().message();
  constexpr size_t kRun = 6;
  std::set<std::string> run;
  std::vector<Json> ranked = {(*json)["winner"]};
  for (const Json& deployment : (*json)["ranking"]) ranked.push_back(deployment);
  for (const Json& deployment : ranked) {
    for (const char* part : {"instance", "prefill", "decode"}) {
      if (!deployment.contains(part) || run.size() == kRun) continue;
      const Json& instance = deployment[part];
      ASSERT_TRUE(instance.contains("run_command")) << instance.dump();
      const std::string command = instance["run_command"];
      ASSERT_TRUE(command.starts_with("weft run ")) << command;
      if (!run.insert(command).second) continue;
      const Output ran = weft(command.substr(5) + " -p 'It is a truth' --max-tokens 4 --temperature 0");
      EXPECT_EQ(ran.code, 0) << command << "\n" << ran.err;
      EXPECT_NE(ran.out, "") << command;
      const Output bench = weft(fmt::format("bench @S --layout {} --prompt 16 --gen 2 -r 1 --no-limits",
                                            instance["layout"].get<std::string>()));
      EXPECT_EQ(bench.code, 0) << command << "\n" << bench.err;
    }
  }
  EXPECT_GT(run.size(), 1u);
  const Output text = weft(search);
  const std::string first = (*json)["winner"]["instance"]["run_command"];
  EXPECT_NE(text.out.find(first), std::string::npos) << first << "\n" << text.out;
}

TEST_F(SearchCommand, NothingThatKeepsTheLimitsIsCode1) {
  const Output out = weft(fmt::format("{} --tpot 1us", kSmall));
  EXPECT_EQ(out.code, 1);
  EXPECT_NE(out.err.find("no layout fits and keeps the limits"), std::string::npos) << out.err;
  EXPECT_NE(out.out.find("misses TPOT by "), std::string::npos) << out.out;
}

TEST_F(SearchCommand, BadInputHasOneMessageAndCode2) {
  const struct {
    const char *args, *message;
  } uses[] = {
      {"plan search --device h20-96g --devices 8", "MODEL"},
      {"plan search @S --devices 8", "--device is missing: a profile file, or one of "},
      {"plan search @S --device h20-96g", "--devices"},
      {"plan search @S --device h20 --devices 8", "h20-"},
      {"plan search @S --device h20-96g --devices 0", "--devices: expected a whole number from 1 to 65536, found '0'"},
      {"plan search @S --device h20-96g --devices 8,,16", "--devices: "},
      {"plan search @S --device h20-96g --devices 8,8", "--devices: 8 is there twice"},
      {"plan search @S --device h20-96g --devices 2 --ttft 2",
       "--ttft: expected a time above 0 with its unit (s, ms, us, min), e.g. 2s or 50ms; found '2'"},
      {"plan search @S --device h20-96g --devices 2 --tpot 0ms",
       "--tpot: expected a time above 0 with its unit (s, ms, us, min), e.g. 2s or 50ms; found '0ms'"},
      {"plan search @S --device h20-96g --devices 2 --tpot -5ms", "--tpot: expected a time above 0"},
      {"plan search @S --device h20-96g --devices 2 --tpot 1e999s", "--tpot: expected a time above 0"},
      {"plan search @S --device h20-96g --devices 2 --objective speed",
       "--objective: expected one of throughput, cost, latency; found 'speed'"},
      {"plan search @S --device h20-96g --devices 2 --batch 4", "--batch"},  // the search chooses it
      {"plan search @S --device h20-96g --devices 2 --layout tp2", "--layout"},
      {"plan search @S --device h20-96g --devices 2 --prompt 0", "--prompt: expected a whole number from 1"},
      {"plan search @S --device h20-96g --devices 2 --chunks 0", "--chunks: expected a whole number from 1"},
      {"plan search @S --device h20-96g --devices 2 --prompt 64 --gen 1 --mode apart", "--mode apart with --gen 1"},
      {"plan search @S --device hygon-bw1000 --devices 2 --prompt 64 --gen 8", "hygon-bw1000"},  // figures are missing
  };
  for (const auto& use : uses) {
    const Output out = weft(use.args);
    EXPECT_EQ(out.code, 2) << use.args << "\n" << out.err;
    EXPECT_NE(out.err.find(use.message), std::string::npos) << use.args << "\n" << out.err;
    EXPECT_EQ(out.out, "") << use.args;
  }
}

// Light and dark in a real browser; skipped where there is none.
TEST_F(SearchCommand, ReportsAreDrawn) {
  const Output searched = weft(fmt::format("{} --html @T/search.html", kSmall));
  ASSERT_EQ(searched.code, 0) << searched.err;
  const Output planned =
      weft("plan @S --layout tp2 --device h20-96g --prompt 64 --gen 8 --batch 2 --html @T/plan.html");
  ASSERT_EQ(planned.code, 0) << planned.err;
  for (const char* page : {"search.html", "plan.html"}) {
    EXPECT_GT(read(page).size(), 20'000u) << page;
    const Output seen = shell(
        fmt::format("HEIGHT=1500 '{}/tools/check_report.sh' '{}/{}'", WEFT_SOURCE_DIR, dir_.path().string(), page));
    if (seen.code == 77) GTEST_SKIP() << "no chromium";
    EXPECT_EQ(seen.code, 0) << page << "\n" << seen.out << seen.err;
  }
}

}  // namespace
}  // namespace weft
