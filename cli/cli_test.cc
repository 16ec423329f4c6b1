// Runs the built program as a user does.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/json.h"

namespace weft {
namespace {

const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";
const std::string kWithoutDrafts = WEFT_SOURCE_DIR "/testdata/golden/deepseek_v4/f32_small";

std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Output {
  int code = -1;
  std::string out, err;
};

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft_cli_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // `args` as for a shell; @S is the sample, @N a model without draft layer, @T a folder for files.
  Output weft(std::string args, const std::string& input = "") const {
    const std::pair<std::string, std::string> names[] = {
        {"@S", kSample}, {"@N", kWithoutDrafts}, {"@T", folder_.string()}};
    for (const auto& [name, value] : names) {
      for (size_t at; (at = args.find(name)) != std::string::npos;) args.replace(at, name.size(), "'" + value + "'");
    }
    std::ofstream(folder_ / "in", std::ios::binary) << input;
    const std::string command = fmt::format("'{}' {} <{}/in >{}/out 2>{}/err", WEFT_PROGRAM, args, folder_.string(),
                                            folder_.string(), folder_.string());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder_ / "out"), read_file(folder_ / "err")};
  }

  Json json(const std::string& args, const std::string& input = "") const {
    const Output output = weft(args + " --json", input);
    EXPECT_EQ(output.code, 0) << output.err;
    Result<Json> json = parse_json(output.out, "stdout");
    EXPECT_TRUE(json.ok()) << json.status().message() << "\n" << output.out;
    return json.ok() ? *json : Json::object();
  }

  std::filesystem::path folder_;
};

struct BadUse {
  const char* args;
  const char* message;  // after "weft: "
};
const BadUse kBadUses[] = {
    {"", "no command was given"},
    {"frobnicate", "'frobnicate' is not a command; the commands are: run "},
    {"--nope", "The following argument was not expected: --nope (see weft --help)"},
    {"run", "MODEL_DIR is required (see weft run --help)"},
    {"run @S", "nothing to do: give -p TEXT, -f FILE or --chat"},
    {"run /nowhere/at/all -p x", "/nowhere/at/all: not a folder"},
    {"run @S -p x --nope", "The following argument was not expected: --nope (see weft run --help)"},
    {"run @S -p x more", "The following argument was not expected: more (see weft run --help)"},
    {"run @S -p x -f y", "--prompt excludes --file (see weft run --help)"},
    {"run @S -p x --ctx 0", "--ctx: 0 is not >= 1 (see weft run --help)"},
    {"run @S -p x --ctx 1048577", "a context of 1048577 tokens; this model takes 1 to 1048576"},
    {"run @S -p x --max-tokens -1", "--max-tokens: -1 is not >= 1 (see weft run --help)"},
    {"run @S -p x --max-tokens 1.5", "--max-tokens: '1.5' is not a whole number (see weft run --help)"},
    {"run @S -p x --threads 0", "--threads: 0 is not >= 1 (see weft run --help)"},
    {"run @S -p x --seed -3", "--seed: -3 is not >= 0 (see weft run --help)"},
    {"run @S -p x --dtype f16", "--dtype: f16 not in {f32,bf16} (see weft run --help)"},
    {"run @S -p x --act-quant maybe", "--act-quant: maybe not in {on,off} (see weft run --help)"},
    {"run @S -p x --isa avx1024", "--isa: 'avx1024' is not an instruction set level (this CPU has ref"},
    {"run @S -p x --temperature -1", "temperature: -1 is not >= 0 (0: greedy)"},
    {"run @S -p x --top-p 0", "top_p: 0 is not in (0, 1]"},
    {"run @S -p x --stop ''", "stop: a stop string is empty"},
    {"run @S -p x --logprobs 2", "--logprobs needs --json, and has no place in a chat"},
    {"run @S -p ''", "the prompt has no tokens; at least one is needed"},
    {"run @S -p \"$(printf 'a\\377')\"", "text to encode is not UTF-8: byte 1 is 0xff"},
    {"run @S -f /nowhere/at/all", "/nowhere/at/all: cannot be read"},
    {"run @S -f /", "/: cannot be read: Is a directory"},
    {"run @S -p 'one two three four five' --ctx 3", "the prompt has "},
    {"run @N -p x --mtp 1", "this checkpoint has no draft (MTP) layer: run without --mtp"},
    {"run @N -p x", "tokenizer.json"},
    {"run @S --chat -p 'one two three four five' --ctx 6", "the prompt has "},
    {"eval @S", "FILE is required (see weft eval --help)"},
    {"eval @S /nowhere/at/all", "/nowhere/at/all: cannot be read"},
    {"eval @S /", "/: cannot be read: Is a directory"},
    {"eval @S @S/eval.txt --window 1", "--window: 1 is not >= 2 (see weft eval --help)"},
    {"eval @S @S/eval.txt --window 16 --stride 17", "a stride of 17 tokens; 1 to 16 (the window) are possible"},
    {"eval @S @S/eval.txt --window 16 --ctx 15", "--ctx 15 is less than the window of 16 tokens"},
    {"bench @S --prompt 0 --gen 0", "nothing to measure: --prompt and --gen are 0"},
    {"bench @S --prompt a", "--prompt: 'a' is not a whole number (see weft bench --help)"},
};

TEST_F(CliTest, BadUseHasOneMessageAndCode2) {
  for (const BadUse& bad : kBadUses) {
    const Output output = weft(bad.args);
    EXPECT_EQ(output.code, 2) << bad.args;
    EXPECT_EQ(output.out, "") << bad.args;
    EXPECT_TRUE(output.err.starts_with("weft: ")) << bad.args << "\n" << output.err;
    EXPECT_NE(output.err.find(bad.message), std::string::npos) << bad.args << "\n" << output.err;
  }
}

TEST_F(CliTest, HelpListsCommandsAndExamples) {
  const Output help = weft("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* name : {"run", "bench", "eval"}) {
    EXPECT_NE(help.out.find(fmt::format("\n  {} ", name)), std::string::npos) << help.out;
    const Output command = weft(fmt::format("{} --help", name));
    EXPECT_EQ(command.code, 0);
    EXPECT_NE(command.out.find(fmt::format("Examples:\n  weft {} MODEL_DIR", name)), std::string::npos) << command.out;
    EXPECT_NE(command.out.find("--json"), std::string::npos);
  }
  const Output version = weft("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(version.out.starts_with("weft ")) << version.out;
}

TEST_F(CliTest, WritingFailureIsReported) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const std::string command = fmt::format("'{}' --version >/dev/full 2>'{}/err'", WEFT_PROGRAM, folder_.string());
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_TRUE(read_file(folder_ / "err").starts_with("weft: cannot write to stdout: ")) << read_file(folder_ / "err");
}

TEST_F(CliTest, TextIsTheSameHoweverItIsGivenAndShown) {
  const std::string args = "run @S --dtype f32 --max-tokens 12 --temperature 0.8 --seed 5 --quiet";
  const std::string prompt = "It is a truth";
  const Output text = weft(args + " -p 'It is a truth'");
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.err, "");
  const Json json = this->json(args + " -f -", prompt);
  EXPECT_EQ(json["text"].get<std::string>() + "\n", text.out);
  EXPECT_EQ(json["tokens"].size(), 12u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_GT(json["memory"]["weights_bytes"], 0);
  EXPECT_GT(json["timings"]["prefill_tokens_per_s"], 0);
  std::ofstream(folder_ / "prompt.txt") << prompt;
  EXPECT_EQ(weft(args + " -f @T/prompt.txt --mtp 2").out, text.out);
  EXPECT_NE(weft(args + " -f @T/prompt.txt --seed 6").out, text.out);
}

TEST_F(CliTest, StopStringsAreNotShown) {
  const std::string args = "run @S --dtype f32 -p 'It is a truth' --temperature 0 --max-tokens 12";
  const std::string text = json(args)["text"];
  ASSERT_GT(text.size(), 8u);
  const std::string stop = text.substr(5, 3);
  const Json stopped = json(fmt::format("{} --stop 'not in there' --stop '{}' --mtp 1", args, stop));
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
}

TEST_F(CliTest, LogprobsAreListed) {
  const Json json = this->json("run @S -p 'It is' --temperature 0 --max-tokens 2 --logprobs 3");
  ASSERT_EQ(json["logprobs"].size(), 2u);
  for (const Json& token : json["logprobs"]) {
    EXPECT_EQ(token["top"].size(), 3u);
    EXPECT_EQ(token["top"][0]["id"], token["id"]);
    EXPECT_LT(token["logprob"], 0);
  }
}

TEST_F(CliTest, ChatReadsLines) {
  const std::string input =
      "How do you do?\n\n/nonsense\n/save @T/chat.json\nAnd now?\n/reset\n/system Be brief.\n//x\n/exit\nNever read\n";
  std::string with_folder = input;
  with_folder.replace(with_folder.find("@T"), 2, folder_.string());
  const Json json = this->json("run @S --chat --dtype f32 --temperature 0 --max-tokens 5 --mtp 1", with_folder);
  ASSERT_EQ(json["turns"].size(), 3u);
  EXPECT_EQ(json["turns"][0]["cached_tokens"], 0);
  EXPECT_GT(json["turns"][1]["cached_tokens"], json["turns"][0]["prompt_tokens"]);
  EXPECT_EQ(json["turns"][2]["cached_tokens"], 0);
  ASSERT_EQ(json["messages"].size(), 3u);
  EXPECT_EQ(json["messages"][0]["role"], "system");
  EXPECT_EQ(json["messages"][1]["content"], "/x");
  const Json saved = parse_json(read_file(folder_ / "chat.json"), "chat.json").value();
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved[0]["content"], "How do you do?");
  EXPECT_EQ(saved[1]["role"], "assistant");
}

TEST_F(CliTest, BenchPrintsATable) {
  const std::string args = "bench @S --prompt 8 --gen 2 --batch 1,2 --depth 0,16 -r 2 --no-limits";
  const Output table = weft(args);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* test : {"| pp8 ", "| tg2 ", "| pp8 b2 @ d16 ", "| tg2 b2 @ d16 "}) {
    EXPECT_NE(table.out.find(test), std::string::npos) << table.out;
  }
  const Json json = this->json(args + " --mtp 1");
  ASSERT_EQ(json["results"].size(), 8u);
  for (const Json& result : json["results"]) {
    EXPECT_EQ(result["seconds"].size(), 2u);
    EXPECT_GT(result["tokens_per_s"], 0);
    EXPECT_GT(result["bytes"], 0);
    EXPECT_GT(result["flops"], 0);
  }
}

TEST_F(CliTest, EvalTakesWindows) {
  const Json one = json("eval @S @S/eval.txt --dtype f32 --max-tokens 33 --window 16");
  EXPECT_EQ(one["tokens"], 33);
  EXPECT_EQ(one["predicted"], 30);  // windows of 16, 16 and 1 tokens
  const Json overlapping = json("eval @S @S/eval.txt --dtype f32 --max-tokens 33 --window 16 --stride 4");
  EXPECT_EQ(overlapping["predicted"], 32);
  EXPECT_GT(one["nll"], 0);
}

}  // namespace
}  // namespace weft
