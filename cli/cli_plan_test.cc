// weft plan, run as a user does.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "cli/test_support.h"
#include "io/test_files.h"

namespace weft {
namespace {

struct Output {
  int code = -1;
  std::string out, err;
};

class PlanCommands : public ::testing::Test {
 protected:
  // `args` as for a shell; @D is a device file that is all there, @T a folder for files.
  Output weft(std::string args) const {
    const std::pair<std::string, std::string> names[] = {{"@T", dir_.path().string()},
                                                         {"@S", WEFT_SOURCE_DIR "/testdata/sample/austen-v4"}};
    for (const auto& [name, value] : names) {
      for (size_t at; (at = args.find(name)) != std::string::npos;) args.replace(at, name.size(), value);
    }
    const std::string command =
        fmt::format("'{0}' {1} </dev/null >{2}/stdout 2>{2}/stderr", WEFT_PROGRAM, args, dir_.path().string());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("stdout"), read("stderr")};
  }
  std::string read(const std::string& name) const {
    std::ifstream in(dir_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempDir dir_;
};

TEST_F(PlanCommands, BadInputHasOneMessageAndCode2) {
  const struct {
    const char *args, *message;
  } uses[] = {
      {"plan", "MODEL is missing: a model folder, a config file, or a shipped config (deepseek-v"},
      {"plan deepseek-v4-pro", "--device is missing: a profile file, or one of "},
      {"plan nope --device h200-sxm", "'nope' is not a model folder, not a config file and not a shipped config"},
      {"plan deepseek-v4-pro --device h20", "h20-"},  // the nearest names are offered
      {"plan deepseek-v4-pro --device h200-sxm --engine wft", "weft"},
      {"plan deepseek-v4-pro --device h200-sxm --layout tp6", "num_attention_heads 128 is not divisible by tp 6"},
      {"plan deepseek-v4-pro --device h200-sxm --layout tp", "--layout: "},
      {"plan deepseek-v4-pro --device h200-sxm --layout tp8 --devices 4", "--layout with --devices: "},
      {"plan deepseek-v4-pro --device h200-sxm --batch 0",
       "--batch: expected a whole number from 1 to 2147483647, found '0'"},
      {"plan deepseek-v4-pro --device h200-sxm --prompt -5", "--prompt: expected "},
      {"plan deepseek-v4-pro --device h200-sxm --cached 8192", "--cached: expected 0 to 8191, found 8192"},
      {"plan deepseek-v4-pro --device h200-sxm --gen 2000000", "this model takes at most 1048576"},
      {"plan deepseek-v4-pro --device h200-sxm --acceptance 0.5",
       "--acceptance: there are no drafts to accept; add --mtp N"},
      {"plan deepseek-v4-pro --device h200-sxm --mtp 1 --acceptance 2",
       "--acceptance: expected a number from 0 to 1, found '2'"},
      {"plan deepseek-v4-pro --device h200-sxm --routing even",
       "--routing: expected uniform, worst, zipf or zipf:EXPONENT (0 to 8), found 'even'"},
      {"plan deepseek-v4-pro --device h200-sxm --phase both,", "--phase: expected one of both, prefill, decode"},
      {"plan diff deepseek-v4-pro tp8 --device h200-sxm", "B is required"},
      {"plan deepseek-v4-pro --device h200-sxm --mtp 1 --acceptance 0.5,nan",
       "--acceptance: expected a number from 0 to 1, found 'nan' in '0.5,nan'"},
      {"plan deepseek-v4-pro --device h200-sxm --mtp 1 --acceptance ''",
       "--acceptance: expected a number from 0 to 1, found ''"},
      {"plan deepseek-v4-pro --device h200-sxm --reserve nan",
       "--reserve: expected a number from 0 to 1000000, found 'nan'"},
      {"plan deepseek-v4-pro --device h200-sxm --reserve -nan",
       "--reserve: expected a number from 0 to 1000000, found '-nan'"},
      {"plan deepseek-v4-pro --device h200-sxm --routing zipf:nan", "--routing: expected uniform"},
      {"plan search deepseek-v4-pro --device h200-sxm --devices 8 --reserve inf", "--reserve: expected a number"},
      {"plan search deepseek-v4-pro --device h200-sxm --devices 8 --ttft infs", "--ttft: expected a time above 0"},
      {"plan search deepseek-v4-pro --device h200-sxm --devices 8 --tpot nanms", "--tpot: expected a time above 0"},
      {"plan search deepseek-v4-pro --device h200-sxm --devices 8 --tpot ''", "--tpot: expected a time above 0"},
      {"plan search deepseek-v4-pro --device h200-sxm --devices 8 --chunk 8 --chunks 8,16", "excludes"},
      {"plan deepseek-v4-pro --device h200-sxm --threads 4", "--threads has no effect: h200-sxm is no CPU"},
      {"plan deepseek-v4-flash --device epyc-9654 --layout tp1 --local-ranks 64",
       "--local-ranks 64: layout tp1 has 1 rank in all"},
      {"plan diff deepseek-v4-pro tp8 tp4 --device h200-sxm --html @T/page.html", "--html"},
      {"plan diff deepseek-v4-pro tp8 tp4 --device h200-sxm --devices 16", "--devices"},
      {"plan diff deepseek-v4-pro tp8 tp4 --device h200-sxm --layout tp4", "--layout"},
      {"plan trace deepseek-v4-pro --layout tp8 --device h200-sxm --html @T/page.html", "--html"},
      {"plan trace deepseek-v4-pro --layout tp8 --device h200-sxm --memory", "--memory"},
      {"plan --html @T/page.html diff deepseek-v4-pro tp8 tp4 --device h200-sxm",
       "--html has no effect in front of 'diff'"},
      {"plan --validate nosuch", "MODEL has no effect: weft plan --validate takes "},
      {"plan --validate --device nosuch", "--device has no effect: weft plan --validate takes "},
      {"plan --validate --html @T/page.html", "--html has no effect: weft plan --validate takes "},
      {"plan deepseek-v4-pro --device h200-sxm --html ''", "--html: expected some text"},
      {"plan deepseek-v4-pro --device h200-sxm --html @T", "exists and is not a regular file"},
      {"plan trace deepseek-v4-flash --layout tp8 --device h200-sxm --out @T/no/such", "cannot create"},
  };
  for (const auto& use : uses) {
    const Output output = weft(use.args);
    EXPECT_EQ(output.code, std::string(use.message) == "cannot create" ? 3 : 2) << use.args << "\n" << output.err;
    EXPECT_TRUE(output.out.empty()) << use.args << "\n" << output.out;
    EXPECT_NE(output.err.find(use.message), std::string::npos) << use.args << "\n" << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << use.args << "\n" << output.err;
  }
}

// Threads of a CPU: its cores, unless something else is asked for.
TEST_F(PlanCommands, ThreadsAreTheCores) {
  const std::string args = "plan deepseek-v4-flash --layout tp8+ep8 --device epyc-9654";
  const Json plan = run_json(args), same = run_json(args + " --threads 96");
  EXPECT_EQ(plan["request"]["threads"], 96);
  EXPECT_EQ(plan["service"], same["service"]);
  EXPECT_EQ(run_json(args + " --local-ranks 8")["request"]["threads"], 12);
}

// What takes long is not begun for an output that cannot be written, and leaves no file behind.
TEST_F(PlanCommands, OutputsAreCheckedBeforeTheWork) {
  for (const char* args : {"plan search deepseek-v4-pro --device nosuch --devices 8 --html @T/no/page.html",
                           "calibrate --out @T/no/x.json", "calibrate --out @T", "calibrate --out /dev/full",
                           "plan nosuch --device nosuch --html /dev/full"}) {
    const Output output = weft(args);
    EXPECT_EQ(output.code, std::string(args).find("/no/") != std::string::npos ? 3 : 2) << args << "\n" << output.err;
    EXPECT_EQ(output.err.find("nosuch"), std::string::npos) << args << "\n" << output.err;
  }
}

TEST_F(PlanCommands, FitsOrNot) {
  const Output fits = weft("plan deepseek-v4-flash --layout tp8+ep8 --device h200-sxm");
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_NE(fits.out.find("fits: "), std::string::npos) << fits.out;
  for (const char* part : {"routed experts", "TTFT", "TPOT", "sent by a rank in a decode step", "fullest at "}) {
    EXPECT_NE(fits.out.find(part), std::string::npos) << part << "\n" << fits.out;
  }
  const Output does_not = weft("plan deepseek-v4-pro --layout tp2 --device h100-sxm");
  EXPECT_EQ(does_not.code, 1);
  EXPECT_NE(does_not.out.find("DOES NOT FIT"), std::string::npos) << does_not.out;
  EXPECT_NE(does_not.err.find("layout tp2 needs"), std::string::npos) << does_not.err;
}

// The batch that is said to fit does, and not many more.
TEST_F(PlanCommands, RoomForRequests) {
  const std::string args = "plan deepseek-v4-flash --layout tp8+ep8 --device h100-sxm --prompt 65536 --memory";
  const Json plan = run_json(args);
  const int64_t most = plan["max_batch"];
  ASSERT_GT(most, 16);
  EXPECT_TRUE(run_json(fmt::format("{} --batch {}", args, most * 9 / 10))["fits"]);
  EXPECT_FALSE(run_json(fmt::format("{} --batch {}", args, most * 11 / 10))["fits"]);
}

TEST_F(PlanCommands, JsonSaysWhatTheTableSays) {
  const Json plan = run_json("plan deepseek-v4-pro --layout pp2tp8+ep8 --device b200-sxm --mtp 1 --acceptance 0.8");
  EXPECT_EQ(plan["schema"], "weft.plan");
  EXPECT_EQ(plan["version"], 2);
  EXPECT_EQ(plan["ranks"], 16);
  ASSERT_EQ(plan["memory"].size(), 2u);
  for (const Json& stage : plan["memory"]) {
    int64_t lines = 0;
    for (const Json& line : stage["lines"]) lines += line["bytes"].get<int64_t>();
    EXPECT_EQ(lines, stage["total_bytes"].get<int64_t>());
  }
  EXPECT_DOUBLE_EQ(plan["service"]["tokens_per_step"].get<double>(), 1.8);
  EXPECT_GT(plan["service"]["ttft_s"].get<double>(), 0);
  EXPECT_GT(plan["decode"]["seconds"].get<double>(), 0);
  EXPECT_EQ(plan["decode"]["stages"].size(), 2u);
}

TEST_F(PlanCommands, DiffTraceValidate) {
  const Output diff = weft("plan diff deepseek-v4-flash tp8+ep8 dp8+ep8 --device h200-sxm");
  EXPECT_EQ(diff.code, 0) << diff.err;
  EXPECT_NE(diff.out.find("attention attn.wq_b F8_E4M3"), std::string::npos) << diff.out;  // sliced here, whole there
  const Output trace = weft("plan trace deepseek-v4-flash --layout tp8+ep8 --device h200-sxm --ranks 2");
  EXPECT_EQ(trace.code, 0) << trace.err;
  const auto events = parse_json(trace.out, "trace");
  ASSERT_TRUE(events.ok()) << events.status().message();
  EXPECT_GT((*events)["traceEvents"].size(), 100u);
  const Output validate = weft("plan --validate");
  EXPECT_EQ(validate.code, 0) << validate.out << validate.err;
}

// A trace covers its steps: on every track one event after the other, all layers, all micro-batches, messages and what
// waits for them.
TEST_F(PlanCommands, TracesCoverTheStep) {
  const struct {
    const char* args;
    int64_t stages, micro_batches;
  } cases[] = {{"--layout tp8+ep8 --ranks 2", 1, 1}, {"--layout pp4tp2+ep2 --batch 32 --ranks 8", 4, 4}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.args);
    const std::string args = fmt::format("deepseek-v4-flash --device h200-sxm {}", c.args);
    const Json trace = run_json("plan trace " + args);
    std::string plan_args = args;
    plan_args.resize(plan_args.find(" --ranks"));
    const Json plan = run_json("plan " + plan_args);
    std::map<std::pair<int, int>, double> ends;  // by rank and track
    std::map<int, double> computed;              // by rank, in prefill steps
    std::map<int, int> bars;                     // by rank
    std::map<int, std::pair<int, int>> flows;    // by id
    double step_end = 0;
    for (const Json& event : trace["traceEvents"]) {
      const std::string kind = event["ph"];
      if (kind == "s" || kind == "f") ++(kind == "s" ? flows[event["id"]].first : flows[event["id"]].second);
      if (kind != "X") continue;
      const int rank = event["pid"], track = event["tid"];
      const double start = event["ts"], end = start + event["dur"].get<double>();
      EXPECT_GE(start, (ends[{rank, track}]) - 1e-6) << event;
      EXPECT_GT(event["dur"].get<double>(), 0);
      ends[{rank, track}] = end;
      if (track == 3 && event["name"].get<std::string>().starts_with("prefill"))
        ++bars[rank], step_end = std::max(step_end, end);
      if (track == 0) computed[rank] = std::max(computed[rank], end);
    }
    for (const auto& [rank, count] : bars) EXPECT_EQ(count, c.micro_batches);
    const double prefill = plan["prefill"][0]["seconds"].get<double>() * 1e6,
                 decode = plan["decode"]["seconds"].get<double>() * 1e6;
    EXPECT_LE(step_end, prefill * 1.0001);
    EXPECT_GT(step_end, prefill * 0.9);
    for (const auto& [rank, end] : computed)
      EXPECT_GT(end, prefill + decode * 0.2) << rank;  // the last event is of the decode step
    EXPECT_EQ(flows.empty(), c.stages == 1);
    for (const auto& [id, both] : flows) EXPECT_EQ(both, std::pair(1, 1)) << id;
  }
}

// The outputs in a page of docs/ are those of its commands: blocks that begin with "$ weft ...".
TEST_F(PlanCommands, PagesShowWhatTheirCommandsPrint) {
  constexpr std::string_view kBegin = "```\n$ weft ", kEnd = "```\n";
  for (const char* page : {"glm_5_1_w8a8.md"}) {
    std::ifstream in(fmt::format("{}/docs/{}", WEFT_SOURCE_DIR, page), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    int blocks = 0;
    for (size_t at = 0; (at = text.find(kBegin, at)) != text.npos; ++blocks) {
      at += kBegin.size();
      const size_t line = text.find('\n', at), end = text.find(kEnd, line);
      ASSERT_TRUE(line != text.npos && end != text.npos) << page;
      const Output output = weft(text.substr(at, line - at));
      EXPECT_EQ(output.err, "");
      EXPECT_EQ(output.out, text.substr(line + 1, end - line - 1)) << page << ": $ weft " << text.substr(at, line - at);
      at = end;
    }
    EXPECT_GT(blocks, 0) << page;
  }
}

// A figure that rests on a device number that nobody verified is marked in every output; nothing is where all of them
// are verified.
TEST_F(PlanCommands, UnverifiedFiguresAreMarkedEverywhere) {
  std::ifstream in(WEFT_SOURCE_DIR "/devices/h20-96g.json");
  std::string profile{std::istreambuf_iterator<char>(in), {}};
  for (size_t at; (at = profile.find("\"verified\": false")) != std::string::npos;)
    profile.replace(at, 17, "\"verified\": true");
  std::ofstream(dir_.path() / "verified.json") << profile;
  const struct {
    const char *args, *mark;
  } outputs[] = {
      {"plan deepseek-v4-flash --layout tp8+ep8 --device @D", "unverified figures ("},
      {"plan deepseek-v4-flash --layout tp8+ep8 --device @D --json", "\"unverified\":[\"h20-96g: "},
      {"plan deepseek-v4-flash --layout tp8+ep8 --device @D --html @T/page.html && cat @T/page.html",
       "\"unverified\":[\"h20-96g: "},
      {"plan diff deepseek-v4-flash tp8+ep8 dp8+ep8 --device @D", "nobody verified"},
      {"plan diff deepseek-v4-flash tp8+ep8 dp8+ep8 --device @D --json", "\"unverified\":[\"h20-96g: "},
      {"plan trace deepseek-v4-flash --layout tp8+ep8 --device @D", "\"unverified\":[\"h20-96g: "},
      {"plan search @S --devices 2 --device @D --prompt 64 --gen 8 --max-batch 2", "nobody verified"},
      {"plan search @S --devices 2 --device @D --prompt 64 --gen 8 --max-batch 2 --json",
       "\"unverified\":[\"h20-96g: "},
  };
  for (const auto& output : outputs) {
    for (const bool verified : {false, true}) {
      std::string args = output.args;
      const std::string device = verified ? (dir_.path() / "verified.json").string() : "h20-96g";
      for (size_t at; (at = args.find("@D")) != std::string::npos;) args.replace(at, 2, device);
      const Output found = weft(args);
      EXPECT_EQ(found.code, 0) << args << "\n" << found.err;
      EXPECT_EQ(found.out.find(output.mark) != std::string::npos, !verified) << args << "\n"
                                                                             << found.out.substr(0, 4000);
    }
  }
}

// Picks that were measured on one rank say how long the ranks of any layout wait for each other.
TEST_F(PlanCommands, MeasuredPicks) {
  const Output bench =
      weft("bench @S --prompt 64 --gen 2 --depth 0,64 -r 2 --no-limits --bandwidth --expert-load @T/picks.json --json");
  ASSERT_EQ(bench.code, 0) << bench.err;
  const auto measured = parse_json(bench.out, "bench");
  ASSERT_TRUE(measured.ok());
  for (const Json& result : (*measured)["results"]) {
    ASSERT_EQ(result["read_bytes_per_s"].size(), 3u);
    for (const Json& bytes : result["read_bytes_per_s"]) EXPECT_GT(bytes, 1e8);
  }
  const auto picks = parse_json(read("picks.json"), "picks");
  ASSERT_TRUE(picks.ok());
  EXPECT_EQ((*picks)["schema"], "weft.expert_load");
  EXPECT_EQ((*picks)["tokens"],
            2 * 2 * (64 + 2));  // of the tests, not of the context before them, nor of the first run
  ASSERT_EQ((*picks)["layers"].size(), 4u);
  double busiest = 0;
  for (const Json& layer : (*picks)["layers"]) {
    ASSERT_EQ(layer["picks"].size(), 8u);
    int64_t first = 0, all = 0;
    for (size_t e = 0; e < 8; ++e)
      all += layer["picks"][e].get<int64_t>(), first += e < 4 ? layer["picks"][e].get<int64_t>() : 0;
    EXPECT_EQ(all, 2 * 264);
    busiest += static_cast<double>(std::max(first, all - first)) / static_cast<double>(all) / 4;
  }
  EXPECT_GT(busiest, 0.6);  // the trained sample is far from even
  const std::string plan =
      "plan @S --device epyc-9654 --local-ranks 2 --layout tp2+ep2 --prompt 512 --gen 8 --batch 1 --json";
  const auto experts_s = [&](const std::string& more) {
    const Output output = weft(plan + more);
    EXPECT_EQ(output.code, 0) << output.err;
    const auto json = parse_json(output.out, "plan");
    double seconds = 0;
    for (const Json& op : (*json)["prefill"][0]["stages"][0]["ops"])
      seconds += op["op"] == "expert_slots" ? op["seconds"].get<double>() : 0;
    return seconds;
  };
  EXPECT_GT(experts_s(" --expert-load @T/picks.json"), 1.15 * experts_s(""));
  const struct {
    const char *args, *message;
  } uses[] = {
      {"plan deepseek-v4-pro --device h200-sxm --layout tp8 --expert-load @T/picks.json",
       "measured on another model: 4 layers with experts, this one has 61"},
      {"plan glm-5 --device h200-sxm --layout tp8 --expert-load @T/picks.json",
       "measured on another model: family deepseek_v4, this one is glm_moe_dsa"},
      {"plan @S --device h200-sxm --expert-load @S/config.json", "config.json: schema"},
      {"plan @S --device h200-sxm --expert-load @T/none.json", "none.json"},
      {"plan @S --device h200-sxm --memory-bandwidth 0",
       "--memory-bandwidth: expected a number from 0.001 to 1000000, found '0'"},
      {"bench @S --layout tp2 --no-limits --prompt 8 --gen 0 -r 1 --expert-load @T/x.json",
       "--expert-load: picks are counted on one rank without drafts"},
      {"bench @S --mtp 1 --no-limits --prompt 8 --gen 2 -r 1 --expert-load @T/x.json",
       "--expert-load: picks are counted on one rank without drafts"},
  };
  for (const auto& use : uses) {
    const Output output = weft(use.args);
    EXPECT_EQ(output.code, 2) << use.args << "\n" << output.err;
    EXPECT_NE(output.err.find(use.message), std::string::npos) << use.args << "\n" << output.err;
  }
}

// The memory of the minute in place of the profile's: what is bound by it takes so much less time.
TEST_F(PlanCommands, MemoryBandwidth) {
  const std::string args = "plan deepseek-v4-flash --device h200-sxm --layout tp8+ep8 --batch 1";
  const Json plan = run_json(args), twice = run_json(args + " --memory-bandwidth 9600");
  const auto memory_s = [](const Json& p) { return p["decode"]["stages"][0]["memory_s"].get<double>(); };
  EXPECT_NEAR(memory_s(plan) / memory_s(twice), 2, 0.2);
}

// Ranks that nobody can run here take the same way.
TEST_F(PlanCommands, ThousandsOfRanks) {
  const Json plan = run_json("plan deepseek-v4-pro --layout dp128pp8tp4+ep128 --batch 4096 --device h200-sxm");
  EXPECT_EQ(plan["ranks"], 4096);
  EXPECT_TRUE(plan["fits"]);
}

}  // namespace
}  // namespace weft
