// Ranks on the command line: --layout, --ranks, --transport, as threads.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "io/json.h"

namespace weft {
namespace {

const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";
const std::string kGolden = WEFT_SOURCE_DIR "/testdata/golden/deepseek_v4/f32_small";

struct Output {
  int code = -1;
  std::string text;
};

// stderr comes along where `both` is set.
Output weft(std::string args, bool both) {
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"@S", kSample}, {"@G", kGolden}}) {
    for (size_t at; (at = args.find(name)) != std::string::npos;) args.replace(at, name.size(), "'" + value + "'");
  }
  // Not part of a job, even if the tests are.
  const std::string command = fmt::format("env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u PMIX_RANK '{}' {} </dev/null {}",
                                          WEFT_PROGRAM, args, both ? "2>&1" : "2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  Output output;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

Json json(const std::string& args) {
  const Output output = weft(args + " --json", false);
  EXPECT_EQ(output.code, 0) << args << output.text;
  Result<Json> parsed = parse_json(output.text, "stdout");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? *parsed : Json::object();
}

TEST(CliLayout, RunGivesTheTextOfOneRankAndSaysWhatEachRankNeeds) {
  const std::string args = "run @S -p 'It is a truth' --max-tokens 12 --temperature 0 --mtp 1";
  const Json want = json(args);
  for (const char* layout : {"--layout tp2", "--layout tp2+sp --ranks 2", "--layout pcp2+ep2 --transport threads"}) {
    const Json got = json(args + " " + layout);
    EXPECT_EQ(got["text"], want["text"]) << layout;
    EXPECT_EQ(got["ranks"], 2);
    ASSERT_EQ(got["memory"]["ranks"].size(), 2u);
    for (const Json& rank : got["memory"]["ranks"]) {
      EXPECT_GT(rank["weights_bytes"], 0);
      EXPECT_LE(rank["weights_bytes"], want["memory"]["weights_bytes"]);
      EXPECT_GT(rank["cache_bytes"], 0);
      EXPECT_GT(rank["sent_bytes"], 0);
      int64_t sum = 0;
      for (const auto& [kind, bytes] : rank["sent"].items()) sum += bytes.get<int64_t>();
      EXPECT_EQ(rank["sent_bytes"], sum);
      // Offsets are rounded up.
      EXPECT_LE(rank["activation_bytes"].get<int64_t>() + rank["communication_bytes"].get<int64_t>() +
                    rank["scratch_bytes"].get<int64_t>(),
                rank["step_bytes"].get<int64_t>());
    }
  }
  EXPECT_EQ(want["memory"]["sent_bytes"], 0);
}

TEST(CliLayout, OtherCommandsTakeLayouts) {
  const std::string eval = "eval @S @S/eval.txt --window 64 --max-tokens 200";
  EXPECT_EQ(json(eval)["nll"], json(eval + " --layout tp2+dsa_cp+sp")["nll"]);
  const Json bench = json("bench @S --prompt 16 --gen 2 -r 1 --no-limits --layout tp2+ep2");
  EXPECT_EQ(bench["layout"], "tp2+ep2");
  EXPECT_EQ(bench["memory"]["ranks"].size(), 2u);
  const Output table = weft("bench @S --prompt 16 --gen 0 -r 1 --no-limits --memory --layout tp2", true);
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.text.find("| rank | weights (mapped)"), std::string::npos) << table.text;
  const Output ops = weft("bench @S --prompt 16 --gen 2 -r 1 --no-limits --ops --layout tp2+moe=tp", false);
  EXPECT_NE(ops.text.find("rank 1, s"), std::string::npos) << ops.text;
  for (const char* op : {"| sparse_attention ", "| experts_down ", "| all_gather "}) {
    EXPECT_NE(ops.text.find(op), std::string::npos) << op << "\n" << ops.text;
  }
  const Json timed = json("bench @S --prompt 16 --gen 0 -r 1 --no-limits --ops --layout tp2");
  for (const Json& op : timed["results"][0]["ops"]) EXPECT_GE(op["seconds"], 0) << op;
  EXPECT_GT(timed["results"][0]["ops"].size(), 20u);
  EXPECT_EQ(weft("check @G --layout pcp2", true).code, 0);
  for (const char* layout : {"tp2", "pp2"}) {
    const Json verify = json(fmt::format("verify @S --tokens 12 --dtype bf16 --layout {}", layout));
    EXPECT_EQ(verify["layout"], layout);
    EXPECT_EQ(verify["failed"], 0);
  }
}

TEST(CliLayout, MatrixAsTableAndJson) {
  const Json got = json("verify @S --layouts tp2,pcp2,tp4 --dtype bf16 --tokens 20");
  ASSERT_EQ(got["lines"].size(), 3u);
  EXPECT_EQ(got["passed"], 2);
  EXPECT_EQ(got["skipped"], 1);
  EXPECT_EQ(got["lines"][0]["transport"], "threads");
  EXPECT_EQ(got["lines"][0]["batches"], got["batches"].size());
  const Output table = weft("verify @S --layouts tp2 --dtype bf16 --tokens 20", true);
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.text.find("pass    bf16 tp2 "), std::string::npos) << table.text;
}

TEST(CliLayout, BadUseIsOneMessageAndExitCodeTwo) {
  struct Case {
    const char* args;
    const char* message;
  };
  const Case cases[] = {
      {"run @S -p x --layout tp3", "layout tp3: num_attention_heads 4 is not divisible by tp 3; usable sizes: 1 2 4"},
      {"run @S -p x --layout tp2+x", "--layout: layout 'tp2+x': position 5: "},
      {"run @S -p x --layout tp2 --ranks 3", "--layout with --ranks: "},
      {"run @S -p x --layout tp2+dsa_cp+pcp2", "--layout: "},
      {"run @S -p x --ranks 0", "--ranks: expected a whole number from 1 to 256, found '0'"},
      {"run @S -p x --transport carrier", "--transport: expected one of threads, mpi; found 'carrier'"},
      {"eval @S @S/eval.txt --layout tp2 --transport mpi", "mpi"},
      {"run @S -p x --layout dp512", "layout dp512 has 512 ranks; weft runs on 256 at most"},
      {"verify @S --layouts tp2 --layout tp2", "excludes"},
      {"verify @S --layouts ''", "--layouts: expected all, or a list of layouts"},
      {"verify @S --layouts nope", "--layouts: layout 'nope': "},
      {"run @S -p x --layout tp1+moe=tp",
       "--layout: layout tp1+moe=tp: moe=tp splits every expert over tp: it needs tp > 1; else leave it out"},
      {"run @S -p x --layout pcp2+sp",
       "sp splits the rows between the sublayers over tp: it needs tp > 1; else leave it out"},
      {"run @S -p x --layout \"$(printf 'tp2\\nWEFT: fine\\033[2J')\"", "found '\\nWEFT: fine\\x1b[2J'; allowed: "},
      {"run @S -p x --layout tp2+$(head -c 100000 /dev/zero | tr '\\0' a)", "[...]"},
      {"dump @S --ids 1,2 --layout pp2 --tensor logits --out never.safetensors",
       "rank 0 is in the first of 2 pipeline stages and has no values of the later ones: use a --layout without pp"},
      {"bench kernels --layout tp2",
       "--layout has no effect: weft bench kernels takes MODEL_DIR, --filter, --seconds, --threads, --isa, --json, "
       "--quiet"},
      {"bench kernels --dtype f32 --filter x", "--dtype has no effect: weft bench kernels takes"},
      {"bench kernels -r 3", "--repetitions has no effect: weft bench kernels takes"},
      {"bench @S --filter linear", "--filter has no effect: it is of `weft bench kernels`"},
      {"bench @S --depth-computed 10", "--depth-computed has no effect: it needs a --depth above 0"},
      {"bench @S --gen 0 --mtp 1", "--mtp has no effect: drafts are of generated tokens; it needs a --gen above 0"},
      {"bench @S --prompt 0 --step-tokens 8", "--step-tokens has no effect: it needs a --prompt or a --depth above 0"},
      {"run @S -p x --system y", "--system has no effect: it needs --chat"},
      {"run @S -p x --thinking high", "--thinking has no effect: it needs --chat"},
      {"run @S --chat --no-bos", "--bos has no effect: a chat's format says which special tokens there are"},
      {"inspect @S --output-quant int8", "--output-quant"},
      {"verify @S --layouts all --ranks 2 --transport mpi", "mpi"},
      {"verify @S --ranks 2,4", "several --ranks or --transport need --layouts"},
      {"verify @S --layouts tp2 --tokens 99999999", "--tokens 99999999: with --layouts this model takes 2 to "},
      {"verify @S --layouts tp2 --transport threads,pigeon", "found 'pigeon'"},
  };
  for (const Case& c : cases) {
    const Output output = weft(c.args, true);
    EXPECT_EQ(output.code, 2) << c.args << "\n" << output.text;
    EXPECT_NE(output.text.find(c.message), std::string::npos) << c.args << "\n" << output.text;
    EXPECT_EQ(output.text.find("weft: "), output.text.rfind("weft: ")) << c.args << "\n" << output.text;
  }
}

// What was asked for and cannot be compared is a line with the reason.
TEST(CliLayout, NothingIsLeftOutSilently) {
  const Json some = json("verify @S --layouts tp2,tp2+ep4 --ranks 4,3 --dtype bf16 --tokens 20");
  ASSERT_EQ(some["lines"].size(), 4u) << some;
  EXPECT_EQ(some["skipped"], 2);
  EXPECT_EQ(some["lines"][0]["layout"], "tp2");
  EXPECT_EQ(some["lines"][0]["ranks"], 3);
  EXPECT_EQ(some["lines"][0]["detail"], "layout 'tp2': 3 ranks are not a multiple of pp 1 x pcp 1 x tp 2 = 2");
  EXPECT_EQ(some["lines"][2]["layout"], "dp2tp2");
  EXPECT_EQ(some["lines"][3]["layout"], "dp2tp2+ep4");
  const Output none = weft("verify @S --layouts tp2 --ranks 3 --dtype bf16", true);
  EXPECT_EQ(none.code, 1) << none.text;
  EXPECT_NE(
      none.text.find("nothing was compared: all 1 lines are skipped, the first one because: layout 'tp2': 3 ranks"),
      std::string::npos)
      << none.text;
}

// Merged softmaxes have bits of their own in every step: one rank, by tolerance, is all that they can be compared with.
TEST(CliLayout, VerifyOfALayoutWithoutBitsComparesByTolerance) {
  const Json got = json("verify @S --layout tp2dcp2+dcp_mode=merge --dtype f32 --tokens 20");
  ASSERT_EQ(got["lines"].size(), 1u) << got;
  EXPECT_EQ(got["lines"][0]["layout"], "tp2dcp2+dcp_mode=merge");
  EXPECT_EQ(got["passed"], 1);
}

TEST(CliLayout, RefusedMemoryIsOneMessageWithoutAnOperation) {
  const Output got = weft("bench @S --layout tp2 --batch 100000 --depth 1000000 --prompt 0 --gen 1 --no-limits", true);
  EXPECT_EQ(got.code, 1) << got.text;
  EXPECT_NE(got.text.find(", before its first step: out of memory: caches "), std::string::npos) << got.text;
  EXPECT_EQ(got.text.find("subgroup"), std::string::npos) << got.text;
}

TEST(CliLayout, NothingComparedIsNoSuccess) {
  const Output none = weft(
      "verify '" WEFT_SOURCE_DIR "/testdata/golden/deepseek_v4/f32_small' --layouts tp4 --dtype f32 --tokens 24", true);
  EXPECT_EQ(none.code, 1) << none.text;
  EXPECT_NE(none.text.find("nothing was compared"), std::string::npos) << none.text;
}

// Whatever it is that there is no memory for: one message and its exit code, whichever rank it meets.
TEST(CliLayout, OutOfMemoryAtTheStartOfManyRanks) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own address space is beyond any limit";
#endif
  for (const char* limit : {"300000", "500000"}) {
    for (int i = 0; i < 3; ++i) {
      const std::string command =
          fmt::format("ulimit -v {}; '{}' run '{}' -p a --layout dp16 --max-tokens 2 --quiet 2>&1 </dev/null", limit,
                      WEFT_PROGRAM, kSample);
      std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
      std::string text;
      for (int c; (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
      const int status = pclose(pipe.release());
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << limit << ": " << status << " " << text;
      EXPECT_TRUE(text.starts_with("weft: ")) << text;
    }
  }
}

}  // namespace
}  // namespace weft
