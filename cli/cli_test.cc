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
    {"run @S -p x --ctx 0", "--ctx: expected a whole number from 1 to 2147483647, found '0' (see weft run --help)"},
    {"run @S -p x --ctx 1048577", "--ctx: expected 1 to 1048576 tokens (what this model takes), found 1048577"},
    {"run @S -p x --max-tokens -1", "--max-tokens: expected a whole number from 1 to 2147483647, found '-1' (see"},
    {"run @S -p x --max-tokens 1.5", "--max-tokens: expected a whole number from 1 to 2147483647, found '1.5' (see"},
    {"run @S -p x --threads 0", "--threads: expected a whole number from 1 to 1024, found '0' (see weft run --help)"},
    {"run @S -p x --seed -3",
     "--seed: expected a whole number from 0 to 18446744073709551615, found '-3' (see weft run"},
    {"run @S -p x --dtype f16", "--dtype: expected one of f32, bf16; found 'f16' (see weft run --help)"},
    {"run @S -p x --act-quant maybe", "--act-quant: expected one of on, off; found 'maybe' (see weft run --help)"},
    {"run @S -p x --isa avx1024", "--isa: 'avx1024' is not an instruction set level (this CPU has ref"},
    {"calibrate --isa avx1024", "--isa: expected a level up to "},
    {"calibrate --profile x.json", "--profile: weft was not started by mpirun"},
    {"run @S -p x --temperature -1",
     "--temperature: expected a number from 0 to 100, found '-1' (see weft run --help)"},
    {"run @S -p x --top-p 0", "--top-p: expected a number above 0 and at most 1, found '0' (see weft run --help)"},
    {"run @S -p x --seed 18446744073709551616",
     "--seed: expected a whole number from 0 to 18446744073709551615, found '18446744073709551616' (see weft run"},
    {"run @S -p x --seed 0x10", "--seed: expected a whole number from 0 to 18446744073709551615, found '0x10'"},
    {"run @S -p x --seed ''", "--seed: expected a whole number from 0 to 18446744073709551615, found ''"},
    {"run @S -p x --threads 4294967297", "--threads: expected a whole number from 1 to 1024, found '4294967297'"},
    {"run @S -p x --ctx 9223372036854775808", "--ctx: expected a whole number from 1 to 2147483647, found '9223372036"},
    {"run @S -p x --logprobs 4294967296 --json", "--logprobs: expected a whole number from 0 to 2147483647, found '4"},
    {"run @S -p x --top-k -1", "--top-k: expected a whole number from 0 to 2147483647, found '-1'"},
    {"run @S -p x --temperature nan", "--temperature: expected a number from 0 to 100, found 'nan'"},
    {"run @S -p x --temperature warm", "--temperature: expected a number from 0 to 100, found 'warm'"},
    {"run @S -p x --min-p 1.01", "--min-p: expected a number from 0 to 1, found '1.01'"},
    {"run @S -p x --repetition-penalty 1e38", "--repetition-penalty: expected a number from 0.01 to 100, found '1e38'"},
    {"run @S -p x --presence-penalty inf", "--presence-penalty: expected a number from -100 to 100, found 'inf'"},
    {"run @S -p x --frequency-penalty -1e30", "--frequency-penalty: expected a number from -100 to 100, found '-1e30'"},
    {"run @S -p x --stop \"$(printf 'a\\377')\"", "stop: a stop string is not UTF-8: byte 1 is 0xff"},
    {"run @S --chat --system \"$(printf 'ab\\377')\"", "--system: the text is not UTF-8: byte 2 is 0xff"},
    {"run @S -f @S/model.safetensors", "/model.safetensors: the text is not UTF-8: byte "},
    {"run @S -p x --ctx", "--ctx: expected one value, found none (see weft run --help)"},
    {"run @S -p x --temperature", "--temperature: expected one value, found none (see weft run --help)"},
    {"run @S -p x --ctx 8 --ctx 9", "--ctx: expected one value, found 2 (see weft run --help)"},
    {"bench @S --prompt 1 --prompt 2,3", "--prompt: expected one value, found 2 (see weft bench --help)"},
    {"bench @S --prompt 1 2", "The following argument was not expected: 2 (see weft bench --help)"},
    {"run @S -p x --stop ''", "stop: a stop string is empty"},
    {"run @S -p x --logprobs 2", "--logprobs needs --json, and has no place in a chat"},
    {"run @S -p ''", "the prompt has no tokens; at least one is needed"},
    {"run @S -p \"$(printf 'a\\377')\"", "--prompt: the text is not UTF-8: byte 1 is 0xff"},
    {"run @S -f /nowhere/at/all", "/nowhere/at/all: cannot be read"},
    {"run @S -f /", "/: cannot be read: Is a directory"},
    {"run @S -p 'one two three four five' --ctx 3", "the prompt has "},
    {"run @N -p x --mtp 1", "this checkpoint has no draft (MTP) layer: run without --mtp"},
    {"run @N -p x", "tokenizer.json"},
    {"run @S --chat -p 'one two three four five' --ctx 6", "the prompt has "},
    {"eval @S", "FILE is required (see weft eval --help)"},
    {"eval @S /nowhere/at/all", "/nowhere/at/all: cannot be read"},
    {"eval @S /", "/: cannot be read: Is a directory"},
    {"eval @S @S/eval.txt --window 1",
     "--window: expected a whole number from 2 to 2147483647, found '1' (see weft eval"},
    {"eval @S @S/eval.txt --window 1048577",
     "--window: expected 1 to 1048576 tokens (what this model takes), found 10"},
    {"eval @S @S/eval.txt --window 16 --stride 17", "--stride: expected 1 to 16 tokens (--window), found 17"},
    {"eval @S @S/eval.txt --window 16 --ctx 15", "--ctx: expected at least 16 tokens (--window), found 15"},
    {"bench @S --prompt 0 --gen 0", "nothing to measure: --prompt and --gen are 0"},
    {"bench @S --prompt a", "--prompt: expected a whole number from 0 to 2147483647, found 'a' (see weft bench"},
    {"bench @S --gen 1,,2", "--gen: expected a whole number from 0 to 2147483647, found '' in '1,,2' (see weft bench"},
    {"bench @S --batch 1,", "--batch: expected a whole number from 1 to 2147483647, found '' in '1,' (see weft bench"},
    {"bench @S --depth ''", "--depth: expected a whole number from 0 to 2147483647, found '' (see weft bench"},
    {"bench @S --depth 1048576",
     "--depth with --prompt or --gen: expected 1 to 1048576 tokens (what this model takes)"},
    {"bench @S --no-limits --batch 2147483647", "2147483647 sequences; expected 1 to 1073741824"},
    {"bench @S --seed 99999999999999999999",
     "--seed: expected a whole number from 0 to 18446744073709551615, found '9"},
    {"bench @S -r 4294967297", "--repetitions: expected a whole number from 1 to 2147483647, found '4294967297'"},
    {"bench kernels --filter nosuch --seconds 0", "--filter: 'nosuch' is in the name of no kernel and shape"},
    {"bench kernels --seconds 1e400",
     "--seconds: expected a number from 0 to 3600, found '1e400' (see weft bench --help)"},
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

TEST_F(CliTest, WhatDoesNotFitIsRefusedBeforeItIsAllocated) {
  const Output output = weft("bench @S --no-limits --prompt 0 --mtp 7 --batch 100000000");
  EXPECT_EQ(output.code, 1);
  EXPECT_EQ(output.out, "");
  EXPECT_NE(output.err.find("weft: out of memory: caches "), std::string::npos) << output.err;
  EXPECT_NE(output.err.find("lower --ctx, the number of sequences or the step size"), std::string::npos) << output.err;
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
      "How do you do?\n\n/save @T/chat.json\nAnd now?\n/reset\n/system Be brief.\n//x\n/exit\nNever read\n";
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

// A script learns that a line went wrong; what was said before it is not lost.
TEST_F(CliTest, ChatFromAFileEndsAtABadLine) {
  struct Case {
    const char *input, *message;
    size_t turns;
  };
  std::ofstream(folder_ / "there") << "precious";
  const std::string there = (folder_ / "there").string();
  const std::string save = "Good day.\n/save " + there + "\n";
  const std::string exists = fmt::format("stdin: line 2: {0} exists already; `/save! {0}` overwrites it", there);
  std::string long_line;
  for (int i = 0; i < 60; ++i) long_line += "word ";
  long_line += "\n";
  const Case cases[] = {
      {"/nonsense\nHello\n", "stdin: line 1: /nonsense is not known; /help lists what is", 0},
      {"Good day.\n\n/save\nHello\n", "stdin: line 3: /save needs a file name", 1},
      {"Good day.\nab\xff\nHello\n", "stdin: line 2: the message is not UTF-8: byte 2 is 0xff", 1},
      {"/system \xc3\nHello\n", "stdin: line 1: the message is not UTF-8: byte 0 is 0xc3", 0},
      {long_line.c_str(), "stdin: line 1: the prompt has ", 0},
      {save.c_str(), exists.c_str(), 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const Output output = weft("run @S --chat --temperature 0 --max-tokens 2 --ctx 40 --quiet --json", c.input);
    EXPECT_EQ(output.code, 2);
    EXPECT_TRUE(output.err.starts_with(std::string("weft: ") + c.message)) << output.err;
    const Result<Json> json = parse_json(output.out, "stdout");
    ASSERT_TRUE(json.ok()) << output.out;
    EXPECT_EQ((*json)["turns"].size(), c.turns);
    EXPECT_TRUE(json->value("error", "").starts_with(c.message)) << output.out;
  }
  EXPECT_EQ(read_file(there), "precious");
  EXPECT_EQ(weft("run @S --chat --temperature 0 --max-tokens 2", "Good day.\n/save! " + there + "\n").code, 0);
  EXPECT_EQ(parse_json(read_file(there), there).value()[0]["content"], "Good day.");
}

// `| head` has what it wants: no signal, no message, and long work ends.
TEST_F(CliTest, ClosedPipeIsNoFailure) {
  const auto piped = [&](const std::string& args, const std::string& reader) {
    const std::string script =
        fmt::format("'{}' {} 2>{}/err | {}; echo ${{PIPESTATUS[0]}}", WEFT_PROGRAM, args, folder_.string(), reader);
    std::ofstream(folder_ / "script") << script;
    EXPECT_EQ(std::system(fmt::format("bash {0}/script >{0}/out", folder_.string()).c_str()), 0);
    return read_file(folder_ / "out");
  };
  EXPECT_EQ(piped("graph '" + kSample + "' --tokens 512", "true"), "0\n");
  EXPECT_EQ(read_file(folder_ / "err"), "");
  // Half an hour of tokens, if nobody stopped.
  EXPECT_EQ(piped("run '" + kSample + "' -p Once --max-tokens 1000000 --ctx 1048576 --ignore-eos --quiet",
                  "head -c 1 >/dev/null"),
            "0\n");
  EXPECT_EQ(read_file(folder_ / "err"), "");
}

// A file that is opened later must not become stdout.
TEST_F(CliTest, StdoutThatIsNotOpen) {
  const std::string values = (folder_ / "values").string();
  const std::string command = fmt::format("'{}' dump '{}' --ids 1,2 --tensor logits --out '{}' >&- 2>'{}/err'",
                                          WEFT_PROGRAM, kSample, values, folder_.string());
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  EXPECT_EQ(read_file(folder_ / "err"), "weft: cannot write to stdout: Bad file descriptor\n");
}

TEST_F(CliTest, GenerationConfigIsChecked) {
  for (const auto& entry : std::filesystem::directory_iterator(kSample)) {
    std::filesystem::copy(entry.path(), folder_ / entry.path().filename());
  }
  struct Case {
    const char *config, *message;
  };
  const Case cases[] = {
      {R"({"temperature": -1})", "generation_config.json: temperature: -1 is outside 0 .. 100"},
      {R"({"temperature": "hot"})", "generation_config.json: temperature: expected a number, found a string"},
      {R"({"top_k": 1e30})", "generation_config.json: top_k: expected an integer, found a number"},
      {R"({"top_k": 2.5})", "generation_config.json: top_k: expected an integer, found a number"},
      {R"({"top_p": 0})", "generation_config.json: top_p: expected a number above 0 and at most 1, found 0"},
      {R"({"repetition_penalty": 1e38})", "generation_config.json: repetition_penalty: 1e+38 is outside 0.01 .. 100"},
      {R"({"do_sample": "no"})", "generation_config.json: do_sample: expected true or false, found a string"},
      {R"([])", "generation_config.json: expected an object, found "},
  };
  for (const Case& c : cases) {
    std::ofstream(folder_ / "generation_config.json") << c.config;
    const Output output = weft("run @T -p x --max-tokens 1");
    EXPECT_EQ(output.code, 2) << c.config;
    EXPECT_NE(output.err.find(c.message), std::string::npos) << output.err;
  }
  std::ofstream(folder_ / "generation_config.json") << R"({"temperature": null, "top_k": 40.0, "do_sample": false})";
  EXPECT_EQ(weft("run @T -p x --max-tokens 1").code, 0);
}

TEST_F(CliTest, BenchPrintsATable) {
  const std::string args = "bench @S --prompt 8 --gen 2 --batch 1,2 --depth 0,16 -r 2 --no-limits";
  const Output table = weft(args);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* test : {"| pp8 ", "| tg2 ", "| pp8 b2 @ d16 ", "| tg2 b2 @ d16 "}) {
    EXPECT_NE(table.out.find(test), std::string::npos) << table.out;
  }
  const Output sampled = weft("bench @S --prompt 8 --gen 2 --depth 300 --depth-computed 130 -r 1 --no-limits");
  EXPECT_EQ(sampled.code, 0) << sampled.err;
  EXPECT_NE(sampled.out.find("| tg2 @ d300 (130 computed) "), std::string::npos) << sampled.out;
  const Output none = weft("bench @S --prompt 8 --gen 2 --depth 300 --depth-computed 3 -r 1 --no-limits");
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_NE(none.err.find("a context of 3 tokens has no entry of cache"), std::string::npos) << none.err;
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
