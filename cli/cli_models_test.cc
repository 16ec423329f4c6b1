// The commands that look at models, run as a user does: inspect, graph, synth, dump, verify.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/json.h"
#include "io/safetensors.h"
#include "io/test_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const std::string kData = WEFT_SOURCE_DIR "/testdata";

struct Output {
  int code = -1;
  std::string out, err;
};

class ModelCommands : public ::testing::Test {
 protected:
  // `args` as for a shell; @S is the sample, @N a model without draft layer and tokenizer, @G golden cases of GLM-5, @T
  // a folder for files.
  Output weft(std::string args) const {
    const std::pair<std::string, std::string> names[] = {
        {"@S", kData + "/sample/austen-v4"}, {"@N", kData + "/golden/deepseek_v4/f32_small"},
        {"@G", kData + "/golden/glm_moe_dsa"}, {"@T", folder()}};
    for (const auto& [name, value] : names) {
      for (size_t at; (at = args.find(name)) != std::string::npos;) args.replace(at, name.size(), value);
    }
    const std::string command =
        fmt::format("'{0}' {1} </dev/null >{2}/stdout 2>{2}/stderr", WEFT_PROGRAM, args, folder());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("stdout"), read("stderr")};
  }
  Json json(const std::string& args) const {
    const Output output = weft(args + " --json");
    EXPECT_EQ(output.code, 0) << args << "\n" << output.err;
    auto json = parse_json(output.out, "stdout");
    EXPECT_TRUE(json.ok()) << output.out;
    return json.ok() ? *json : Json::object();
  }
  std::string folder() const { return dir_.path().string(); }
  std::string read(const std::string& name) const {
    std::ifstream in(dir_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  TempDir dir_;
};

TEST_F(ModelCommands, BadUseHasOneMessageAndCode2) {
  struct BadUse {
    const char *args, *message;
  };
  const BadUse uses[] = {
      {"inspect", "MODEL is required (see weft inspect --help)"},
      {"inspect nope",
       "'nope' is not a model folder, not a config file and not a shipped config (shipped: deepseek-v3.2, "
       "deepseek-v4-flash, "
       "deepseek-v4-flash-0731, deepseek-v4-flash-20260424, deepseek-v4-pro, deepseek-v4-pro-0813, glm-5, glm-5-fp8, "
       "glm-5.1, "
       "glm-5.1-fp8, glm-5.1-w8a8, glm-5.2, glm-5.2-fp8)"},
      {"inspect deepseek-v4.1-flash", "DeepSeek-V4.1 is another architecture and is not supported"},
      {"inspect @T", "config.json: cannot open: No such file or directory"},
      {"inspect @S/tokenizer_config.json", "'model_type' is missing; it names the model family"},
      {"graph @S --tokens 4 --logits 5", "--logits: expected 1 to 4 rows (--tokens), found 5"},
      {"graph @S --ctx 1048577", "--ctx: expected 1 to 1048576 tokens (what this model takes), found 1048577"},
      {"graph @N --draft", "this checkpoint has no NextN draft layer that weft can run"},
      {"graph @S --tokens 0", "--tokens: expected a whole number from 1 to 2147483647, found '0' (see weft graph"},
      {"synth glm-5 @T/x --layers 0 --hidden 7", "hidden_size 7 is not divisible by 4, the unit of the sums of linear layers"},
      {"synth deepseek-v4-flash", "OUT is required (see weft synth --help)"},
      {"synth deepseek-v4-flash @T", ": the folder is not empty; give a new one"},
      {"synth deepseek-v4-flash @T/x --layers 0,99", "--layers: there is no layer 99; this config has 0 to 42"},
      {"synth deepseek-v4-flash @T/x --layers 0,b",
       "--layers: expected a whole number from 0 to 2147483647, found 'b' in '0,b' (see weft"},
      {"synth deepseek-v4-flash @T/x --hidden 100", "hidden_size 100 is not divisible by the FP4 scale block 32"},
      {"synth glm-5.2 @T/x --layers 3,6",
       "--layers: layer 3 reuses the selection of a layer before it; begin with one that has an indexer"},
      {"synth glm-5 @T/x --layers 3,0", "--layers: layer 0 is dense and must come before 3"},
      {"synth @N @T/x --mtp", "--mtp: this config has no draft layer"},
      {"dump @S --tensor x --out @T/f", "nothing to run: give -p TEXT or --ids 1,2,3"},
      {"dump @S -p x --ids 1 --tensor x --out @T/f", "--prompt excludes --ids (see weft dump --help)"},
      {"dump @S -p x --out @T/f", "--tensor is required (see weft dump --help)"},
      {"dump @S --ids 1,x --tensor x --out @T/f",
       "--ids: expected a whole number from 0 to 2147483647, found 'x' in '1,x' (see weft"},
      {"dump @S --ids 1,,2 --tensor x --out @T/f",
       "--ids: expected a whole number from 0 to 2147483647, found '' in '1,,2' (see weft dump --help)"},
      {"dump @S --ids ,1 --tensor x --out @T/f",
       "--ids: expected a whole number from 0 to 2147483647, found '' in ',1'"},
      {"dump @S --ids 4294967297 --tensor x --out @T/f",
       "--ids: expected a whole number from 0 to 2147483647, found '4294967297' (see weft dump --help)"},
      {"synth deepseek-v4-flash @T/x --seed 18446744073709551616",
       "--seed: expected a whole number from 0 to 18446744073709551615, found '18446744073709551616'"},
      {"dump @S --ids 4096 --tensor x --out @T/f", "token id 4096 is outside the vocabulary of 4096"},
      {"dump @S --ids 1 --tensor x --out @T/no/f", "--out: there is no folder "},
      {"dump @S --ids 1 --tensor logits --tensor layers.0.ffn_uot --out @T/f",
       "--tensor 'layers.0.ffn_uot' matches none of the 152 values; close: layers.0.ffn_out, "},
      {"dump @N -p x --tensor x --out @T/f", "tokenizer.json"},
      {"dump @N --draft --ids 1 --tensor x --out @T/f", "this checkpoint has no draft (MTP) layer"},
      {"verify @S --tokens 1", "--tokens: expected a whole number from 2 to 2147483647, found '1' (see weft verify"},
      {"verify @S --tokens 1048576", "--tokens 1048576: this model takes 2 to 1048572"},
      {"verify @S --dtype f16", "--dtype: expected one of both, f32, bf16; found 'f16' (see weft verify --help)"},
      {"verify deepseek-v4-flash", "deepseek-v4-flash: not a folder with a model"},
  };
  for (const BadUse& bad : uses) {
    const Output output = weft(bad.args);
    EXPECT_EQ(output.code, 2) << bad.args;
    EXPECT_EQ(output.out, "") << bad.args;
    EXPECT_TRUE(output.err.starts_with("weft: ")) << bad.args << "\n" << output.err;
    EXPECT_NE(output.err.find(bad.message), std::string::npos) << bad.args << "\n" << output.err;
  }
  EXPECT_FALSE(fs::exists(dir_.path() / "x"));
  EXPECT_FALSE(fs::exists(dir_.path() / "f"));
}

TEST_F(ModelCommands, HelpHasExamples) {
  for (const char* name : {"inspect", "graph", "synth", "dump", "verify"}) {
    const Output help = weft(fmt::format("{} --help", name));
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find(fmt::format("Examples:\n  weft {} ", name)), std::string::npos) << help.out;
  }
}

TEST_F(ModelCommands, InspectEveryShippedConfig) {
  struct Case {
    const char* name;
    int64_t bytes, tensors, parameters;
  };
  const Case cases[] = {{"deepseek-v4-flash", 159609485896, 69187, 290942289362},
                        {"deepseek-v4-flash-20260424", 159609485896, 69187, 290942289362},
                        {"deepseek-v4-flash-0731", 166878536440, 72317, 304178091454},
                        {"deepseek-v4-pro", 864704792696, 145116, 1598837347742},
                        {"deepseek-v4-pro-0813", 892727580904, 149782, 0},
                        {"deepseek-v3.2", 689468986496, 92425, 685355329792},
                        {"glm-5", 1507728316928, 59870, 753864139008},
                        {"glm-5-fp8", 756162687872, 119028, 753864139008},
                        {"glm-5.1", 1507728316928, 59870, 753864139008},
                        {"glm-5.1-fp8", 756162687872, 119028, 753864139008},
                        {"glm-5.1-w8a8", 764607680088, 178663, 0},
                        {"glm-5.2", 1506659919872, 59585, 753329940480},
                        {"glm-5.2-fp8", 755617140416, 118629, 753329940480}};
  for (const Case& c : cases) {
    const Json j = json(std::string("inspect ") + c.name);
    EXPECT_EQ(j["bytes"]["total"], c.bytes) << c.name;
    EXPECT_EQ(j["tensors"], c.tensors) << c.name;
    EXPECT_TRUE(c.parameters == 0 || j["parameters"]["total"] == c.parameters) << c.name << ": " << j["parameters"];
    EXPECT_EQ(j["contents"], "config only");
    const bool million =
        j["dimensions"]["max_position_embeddings"].get<int64_t>() >= 1 << 20;  // the longest of the contexts
    EXPECT_EQ(j["caches"]["contexts"].size(), million ? 3u : 2u) << c.name;
  }
  // deepseek_v4.md 1.1: 21 CSA layers (an entry of 512 and a key of 128 per 4 tokens), 20 HCA layers (an entry per
  // 128), bf16.
  EXPECT_EQ(json("inspect deepseek-v4-flash")["caches"]["growth_bytes_per_token"],
            21 * (512 + 128) * 2 / 4.0 + 20 * 512 * 2 / 128.0);
  // glm_moe_dsa.md 3: 78 latents of 576 and 21 index keys of 128, and those of the draft layer.
  EXPECT_EQ(json("inspect glm-5.2")["caches"]["growth_bytes_per_token"], 95232);
  EXPECT_EQ(json("inspect glm-5.2")["caches"]["draft_growth_bytes_per_token"], 1408);
}

TEST_F(ModelCommands, InspectWeights) {
  const Json j = json("inspect @S");
  EXPECT_EQ(j["contents"], "config and weights");
  EXPECT_EQ(j["family"], "deepseek_v4");
  EXPECT_EQ(j["dimensions"]["hidden_size"], 256);
  const auto file = SafetensorsFile::open(kData + "/sample/austen-v4/model.safetensors");
  ASSERT_TRUE(file.ok());
  int64_t bytes = 0;
  for (const SafetensorsEntry& entry : (*file)->entries()) bytes += entry.type.bytes();
  EXPECT_EQ(j["bytes"]["total"], bytes);
  const Output text = weft("inspect @N");
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("there is no tokenizer.json"), std::string::npos);
}

TEST_F(ModelCommands, Graph) {
  const Output text = weft("graph deepseek-v4-flash --tokens 16");
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(text.out.starts_with("graph deepseek_v4\ninput tokens: I32[tokens 16]\n")) << text.out.substr(0, 100);
  const Output draft = weft("graph @S --draft --dtype f32 --summary");
  EXPECT_EQ(draft.code, 0);
  EXPECT_TRUE(draft.out.starts_with("graph deepseek_v4_nextn: ")) << draft.out.substr(0, 100);
  EXPECT_EQ(json("graph deepseek-v4-pro --tokens 4 --logits 2")["logits"], 2);
}

TEST_F(ModelCommands, SynthMakesAModelThatRuns) {
  const Json made = json("synth @S @T/out --layers 0,1,2 --mtp --experts 16 --seed 3");
  EXPECT_TRUE(fs::exists(dir_.path() / "out/tokenizer.json"));
  const Json seen = json("inspect @T/out");
  EXPECT_EQ(seen["bytes"]["total"], made["bytes"]);
  EXPECT_EQ(seen["dimensions"]["n_routed_experts"], 16);
  EXPECT_EQ(seen["dimensions"]["num_hidden_layers"], 3);
  // Logits are finite, not constant, and the experts are used about alike: at most 16 of 48 picks of a token fall on
  // each.
  const Json dumped = json(
      "dump @T/out --ids 5,17,300,4000,77,1024,9,2048,31,512,3,1999,640,90,8,4095 "
      "--tensor logits --tensor 'layers.2.route' --out @T/values --dtype f32");
  EXPECT_EQ(dumped["tensors"].size(), 2u);
  const auto file = SafetensorsFile::open(dir_.path() / "values");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorView logits = (*file)->view(*(*file)->find("logits")),
                   route = (*file)->view(*(*file)->find("layers.2.route"));
  ASSERT_EQ(to_string(logits.type), "F32[16,4096]");
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < logits.shape().num_elements(); ++i) {
    const double x = logits.as<float>()[i];
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(logits.shape().num_elements());
  EXPECT_GT(squares / n - sum / n * sum / n, 0.1);
  std::vector<int> used(16);
  for (int64_t i = 0; i < route.shape().num_elements(); ++i) ++used[static_cast<size_t>(route.as<int32_t>()[i])];
  EXPECT_LE(*std::max_element(used.begin(), used.end()), 10);
  EXPECT_GE(std::count_if(used.begin(), used.end(), [](int count) { return count > 0; }), 8);
}

// The other family through the same commands: a checkpoint from a published config runs, and its values can be looked
// at.
TEST_F(ModelCommands, SynthOfGlm) {
  const Json made = json("synth glm-5.2 @T/out --layers 0,2,3,6 --mtp --experts 8 --hidden 128 --vocab 512 --seed 3");
  const Json seen = json("inspect @T/out");
  EXPECT_EQ(seen["bytes"]["total"], made["bytes"]);
  EXPECT_EQ(seen["family"], "glm_moe_dsa");
  EXPECT_EQ(seen["dimensions"]["num_hidden_layers"], 4);
  const Json dumped = json(
      "dump @T/out --ids 5,17,300,400,77,102,9,204,31,511 --tensor logits --tensor 'layers.2.route' --tensor "
      "'layers.*.topk' "
      "--out @T/values --dtype f32");
  EXPECT_EQ(dumped["tensors"].size(), 5u);  // layer 2 of the checkpoint reuses a selection
  const auto file = SafetensorsFile::open(dir_.path() / "values");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->find("layers.2.topk"), nullptr);
  const TensorView logits = (*file)->view(*(*file)->find("logits")),
                   topk = (*file)->view(*(*file)->find("layers.3.topk"));
  ASSERT_EQ(to_string(logits.type), "F32[10,512]");
  ASSERT_EQ(to_string(topk.type), "I32[10,2048]");
  for (int64_t t = 0; t < 10; ++t) {
    for (int64_t j = 0; j < 12; ++j) EXPECT_EQ(topk.as<int32_t>()[t * 2048 + j], j <= t ? j : -1);
  }
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < logits.shape().num_elements(); ++i) {
    ASSERT_TRUE(std::isfinite(logits.as<float>()[i]));
    sum += logits.as<float>()[i];
    squares += static_cast<double>(logits.as<float>()[i]) * logits.as<float>()[i];
  }
  const auto n = static_cast<double>(logits.shape().num_elements());
  EXPECT_GT(squares / n - sum / n * sum / n, 0.1);
}

TEST_F(ModelCommands, SynthOfInt8) {
  const Json made = json("synth glm-5.1-w8a8 @T/out --layers 0,3 --mtp --experts 8 --hidden 128 --vocab 256");
  const Json seen = json("inspect @T/out");
  EXPECT_EQ(seen["bytes"]["total"], made["bytes"]);
  EXPECT_TRUE(fs::exists(dir_.path() / "out/quant_model_description.json"));
  EXPECT_EQ(weft("dump @T/out --ids 5,17,200 --tensor logits --out @T/values --dtype f32").code, 0);
}

TEST_F(ModelCommands, DumpIsTheSameForEveryStepSize) {
  for (const char* step : {"1", "3", "64"}) {
    const Output output =
        weft(fmt::format("dump @S -p 'It is a truth universally acknowledged' --tensor '*.ffn_out' --tensor '*logits' "
                         "--draft --step-tokens {0} --out @T/{0}",
                         step));
    ASSERT_EQ(output.code, 0) << output.err;
  }
  EXPECT_TRUE(read("1") == read("64"));
  EXPECT_TRUE(read("3") == read("64"));
  const auto file = SafetensorsFile::open(dir_.path() / "64");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_NE((*file)->find("draft.mtp.0.ffn_out"), nullptr);
}

// One bad folder does not take the results of the others away.
TEST_F(ModelCommands, CheckGoesOnAfterABadCase) {
  fs::copy(kData + "/golden/deepseek_v4/f32_small", dir_.path() / "typo", fs::copy_options::recursive);
  std::string text = read("typo/case.json");
  text.replace(text.find("\"hidden_max_rel\""), 16, "\"hidden_max_erl\"");
  dir_.put("typo/case.json", text);
  const Output output = weft("check @T/nowhere @N/ @T/typo --json");
  EXPECT_EQ(output.code, 2);
  EXPECT_TRUE(output.err.starts_with("weft: 2 of 3 cases cannot be checked, 0 are outside their tolerance; "))
      << output.err;
  EXPECT_NE(output.err.find("/nowhere/case.json: cannot open: No such file or directory"), std::string::npos)
      << output.err;
  const auto parsed = parse_json(output.out, "stdout");
  ASSERT_TRUE(parsed.ok()) << output.out;
  const Json& j = *parsed;
  EXPECT_EQ(j["passed"], 1);
  EXPECT_EQ(j["failed"], 0);
  EXPECT_EQ(j["unreadable"], 2);
  ASSERT_EQ(j["cases"].size(), 3u);
  EXPECT_EQ(j["cases"][0]["name"], "nowhere");
  EXPECT_EQ(j["cases"][0]["ok"], false);
  EXPECT_EQ(j["cases"][1]["name"], "f32_small");
  EXPECT_EQ(j["cases"][1]["ok"], true);
  EXPECT_FALSE(j["cases"][1]["quantities"].empty());
  EXPECT_NE(j["cases"][2]["error"].get<std::string>().find("case.json: unknown key 'tolerance.hidden_max_erl'"),
            std::string::npos)
      << output.out;
}

// What a case announces and does not have is not "ok".
TEST_F(ModelCommands, CheckNeedsWhatTheCaseAnnounces) {
  struct Case {
    const char *name, *file, *tensor, *instead, *message;  // without a tensor, the file is taken away
  };
  const Case cases[] = {
      {"glm51_w8a8", "expected_a8.safetensors", nullptr, nullptr, "expected_a8.safetensors: cannot open"},
      {"glm51_w8a8", "expected_a8.safetensors", "\"mtp.0\"", "\"mtq.0\"", "the case covers 'mtp', but there is no tensor 'mtp.0'"},
      {"mtp_f32", "expected.safetensors", "\"mtp.0\"", "\"mtq.0\"", "the case covers 'mtp', but there is no tensor 'mtp.0'"},
      {"mtp_f32", "expected.safetensors", "\"draft.0\"", "\"drafu.0\"", "the case covers 'draft_chain', but there is no tensor 'draft.0'"},
      {"mtp_f32", "expected.safetensors", "\"draft.1\"", "\"drafu.1\"", "'draft.1'"},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string copy = fmt::format("case{}", number++);
    fs::copy(kData + "/golden/glm_moe_dsa/" + c.name, dir_.path() / copy, fs::copy_options::recursive);
    const std::string file = copy + "/" + c.file;
    if (c.tensor == nullptr) {
      fs::remove(dir_.path() / file);
    } else {
      std::string bytes = read(file);
      const size_t at = bytes.find(c.tensor);
      ASSERT_NE(at, bytes.npos) << c.tensor;
      bytes.replace(at, std::string_view(c.instead).size(), c.instead);
      dir_.put(file, bytes);
    }
    const Output output = weft("check @T/" + copy);
    EXPECT_EQ(output.code, 2) << c.name << " " << c.file;
    EXPECT_NE(output.err.find(c.message), std::string::npos) << output.err;
  }
}

TEST_F(ModelCommands, ShardsWithoutAnIndexAreNotOverlooked) {
  fs::copy(kData + "/golden/glm_moe_dsa/glm5_fp8", dir_.path() / "m", fs::copy_options::recursive);
  fs::remove(dir_.path() / "m/model.safetensors.index.json");
  fs::remove(dir_.path() / "m/expected.safetensors");
  for (const char* command : {"inspect @T/m", "plan @T/m --device h200-sxm", "dump @T/m --ids 1 --tensor logits --out @T/f"}) {
    const Output output = weft(command);
    EXPECT_EQ(output.code, 2) << command;
    EXPECT_NE(output.err.find("2 .safetensors files (model-00001-of-00002.safetensors, ...), but neither model.safetensors nor "
                              "model.safetensors.index.json, which says what each holds"),
              std::string::npos)
        << output.err;
  }
}

// Logits that are no numbers: bad input, whatever is done with them.
TEST_F(ModelCommands, LogitsThatAreNotFinite) {
  fs::copy(kData + "/sample/austen-v4", dir_.path() / "m", fs::copy_options::recursive);
  std::string bytes = read("m/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const Json tensors = *parse_json(std::string_view(bytes).substr(8, header), "header");
  const Json& offsets = tensors["norm.weight"]["data_offsets"];
  for (size_t i = offsets[0].get<size_t>(); i < offsets[1].get<size_t>(); ++i) bytes[8 + header + i] = '\xff';
  dir_.put("m/model.safetensors", bytes);
  for (const char* command : {"run @T/m -p 'It is' --max-tokens 2", "eval @T/m @S/eval.txt --window 8 --max-tokens 16",
                              "bench @T/m --prompt 8 --gen 0 -r 1 --no-limits", "bench @T/m --prompt 0 --gen 2 -r 1 --no-limits",
                              "verify @T/m --tokens 4 --dtype f32"}) {
    const Output output = weft(command);
    EXPECT_EQ(output.code, 2) << command << output.err;
    EXPECT_NE(output.err.find("the logit of token 0 is "), std::string::npos) << command << output.err;
  }
}

TEST_F(ModelCommands, DerivedWeightsOfAConfig) {
  // W_UK and W_UV of 78 layers, 64 heads, 512 x (192 + 256), bf16; of int8 the scales besides (glm_moe_dsa.md 8.3: 2.133 GiB).
  EXPECT_EQ(json("inspect glm-5")["derived_bytes"]["main"], int64_t{78} * 64 * 512 * 448 * 2);
  EXPECT_EQ(json("inspect glm-5")["derived_bytes"]["mtp"], int64_t{64} * 512 * 448 * 2);
  EXPECT_GT(json("inspect glm-5.1-w8a8")["derived_bytes"]["main"], int64_t{78} * 64 * 512 * 448 * 2);
  EXPECT_EQ(json("inspect deepseek-v4-flash")["derived_bytes"]["main"], 0);
}

TEST_F(ModelCommands, CheckReadsAClosedSchema) {
  struct Case {
    const char *json, *message;
  };
  const Case cases[] = {
      {R"([])", "case.json: expected an object, found "},
      {R"({"dtype": "f32", "prompts": [[1]], "greedy": [[]], "tolerance": {"logits_max_abs": 1}, "promts": []})",
       "case.json: unknown key 'promts'"},
      {R"({"dtype": "f32", "prompts": [[1]], "greedy": [[]], "tolerance": {"logits_max_abs": "1"}})",
       "case.json: tolerance.logits_max_abs: expected a number, found a string"},
      {R"({"dtype": "f32", "prompts": [[1]], "greedy": [[]], "tolerance": {"logits_max_abs": -1}})",
       "case.json: tolerance.logits_max_abs: -1 is outside 0 .. "},
      {R"({"dtype": "f32", "description": 7, "prompts": [[1]], "greedy": [[]], "tolerance": {"logits_max_abs": 1}})",
       "case.json: description: expected a string, found "},
      {R"({"dtype": "f16", "prompts": [[1]], "greedy": [[]], "tolerance": {"logits_max_abs": 1}})",
       "case.json: dtype: 'f16' is not supported; supported: f32, bf16"},
      {R"({"dtype": "f32", "prompts": [[1]], "greedy": [[]]})", "case.json: tolerance is missing"},
      {R"({"dtype": "f32", "prompts": [[1.5]], "greedy": [[]], "tolerance": {"logits_max_abs": 1}})",
       "case.json: 'prompts' is not a list of lists of token ids"},
  };
  for (const Case& c : cases) {
    dir_.put("case.json", c.json);
    const Output output = weft("check @T");
    EXPECT_EQ(output.code, 2) << c.json;
    EXPECT_NE(output.err.find(c.message), std::string::npos) << output.err;
  }
}

TEST_F(ModelCommands, VerifyReportsEachLine) {
  const Json j = json("verify @N --dtype f32 --tokens 20");
  EXPECT_EQ(j["failed"], 0);
  EXPECT_GT(j["passed"], 10);
  EXPECT_EQ(j["lines"][0]["name"], "run = run again");
}

}  // namespace
}  // namespace weft
