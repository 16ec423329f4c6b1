// weft run: text from a model, once or as a conversation.
#include <iostream>
#include <iterator>

#include "cli/chat_loop.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory_report.h"
#include "cli/run_args.h"
#include "cli/run_report.h"
#include "cli/text_stream.h"
#include "cli/unused_options.h"
#include "io/text_file.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

constexpr int64_t kDefaultMaxTokens = 256;  // of a raw prompt: many models never end a text by themselves

constexpr char kExamples[] =
    "  weft run MODEL_DIR -p \"It is a truth universally acknowledged, that\" --max-tokens 80 --temperature 0.75\n"
    "  weft run MODEL_DIR -f notes.txt --temperature 0 --mtp 1 --json\n"
    "  cat notes.txt | weft run MODEL_DIR -f - --stop \"\\n\\n\"\n"
    "  weft run MODEL_DIR --chat --system \"Answer briefly.\"\n"
    "  weft run MODEL_DIR --layout tp2+sp -p \"Once\" --max-tokens 20\n"
    "  mpirun -n 4 weft run MODEL_DIR --layout tp4 -p \"Once\" --max-tokens 20\n"
    "  weft run MODEL_DIR --chat -p \"What is a fugue?\" --dtype f32\n";

Result<std::string> read_prompt_file(const std::string& name) {
  if (name == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return read_text_file(name);
}

class RunCommand : public Command {
 public:
  void declare(CLI::App& app) override;
  Status run(Console& console) override;

 private:
  Status complete(const std::string& text, LoadedEngine& loaded, const Tokenizer& tokenizer,
                  const SamplingParams& sampling, Console& console);
  Result<std::vector<int32_t>> encode(const std::string& text, const Tokenizer& tokenizer) const;

  const CLI::App* app_ = nullptr;
  RunArgs args_;
};

void RunCommand::declare(CLI::App& app) {
  app_ = &app;
  add_model_options(app, args_.model);
  CLI::Option* prompt =
      app.add_option("-p,--prompt", args_.prompt, "the text to continue (with --chat: the message to answer)");
  app.add_option("-f,--file", args_.file, "the same, from a file; '-': stdin")->excludes(prompt);
  app.add_option("--max-tokens", args_.max_tokens,
                 fmt::format("of the answer; default: {}, with --chat no limit", kDefaultMaxTokens))
      ->check(whole_number(1));
  app.add_option("--mtp", args_.drafts,
                 "tokens that the model's draft layer proposes per step; the text stays the same")
      ->check(whole_number(0, kMaxDrafts))
      ->capture_default_str();
  app.add_option("--stop", args_.stops, "end the answer before this string; may be repeated")->allow_extra_args(false);
  app.add_flag("--ignore-eos", args_.ignore_eos, "do not end at the model's end tokens");
  app.add_flag("--special", args_.keep_special, "show special tokens of the answer");
  app.add_flag("--bos,!--no-bos", args_.bos, "begin a raw prompt with BOS; default: as tokenizer_config.json says");
  app.add_option("--logprobs", args_.logprobs,
                 "with --json: log-probabilities of each token and the N best at its place")
      ->check(whole_number(0));
  add_sampling_options(app, args_.sampling);
  const char* group = "Chat";
  app.add_flag("--chat", args_.chat, "a conversation in the model's chat format; /help lists what can be said")
      ->group(group);
  app.add_option("--system", args_.system, "system message")->group(group);
  app.add_option("--thinking", args_.thinking, "let the model think before it answers, and how hard")
      ->check(one_of({"off", "low", "high", "max"}))
      ->capture_default_str()
      ->group(group);
}

Status RunCommand::run(Console& console) {
  if (!args_.prompt && !args_.file && !args_.chat)
    return invalid_argument("nothing to do: give -p TEXT, -f FILE or --chat");
  if (args_.logprobs >= 0 && (!console.json || args_.chat))
    return invalid_argument("--logprobs needs --json, and has no place in a chat");
  if (args_.chat) {
    WEFT_RETURN_IF_ERROR(
        unused_options(*app_, {"--bos", "--special"}, "a chat's format says which special tokens there are"));
  } else {
    WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--system", "--thinking"}, "it needs --chat"));
  }
  WEFT_ASSIGN_OR_RETURN(SamplingParams sampling, args_.sampling.params(args_.model.model_dir));
  sampling.top_logprobs = args_.logprobs;
  WEFT_RETURN_IF_ERROR(StopStrings::create(args_.stops).status());
  std::optional<std::string> text = args_.prompt;
  std::string source = "--prompt";
  if (args_.file) {
    source = *args_.file == "-" ? "stdin" : *args_.file;
    WEFT_ASSIGN_OR_RETURN(text, read_prompt_file(*args_.file));
  }
  // Before anything is loaded, and by the name that the user knows.
  if (text) WEFT_RETURN_IF_ERROR(expect_utf8(*text, source + ": the text"));
  WEFT_RETURN_IF_ERROR(expect_utf8(args_.system, "--system: the text"));
  EngineNeeds needs;
  needs.max_drafts = args_.drafts;
  WEFT_ASSIGN_OR_RETURN(LoadedEngine loaded, open_engine(args_.model, needs, console));
  WEFT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, load_tokenizer(args_.model, console));
  sampling.num_ids = tokenizer.vocab_size();
  if (args_.chat) return run_chat(args_, text, sampling, loaded, tokenizer, console);
  return complete(*text, loaded, tokenizer, sampling, console);
}

Result<std::vector<int32_t>> RunCommand::encode(const std::string& text, const Tokenizer& tokenizer) const {
  Result<std::vector<int32_t>> encoded = tokenizer.encode(text);
  if (!encoded.ok()) {
    const std::string& status = encoded.status().message();
    return Status(encoded.status().code(), args_.file ? fmt::format("{}: {}", *args_.file, status) : status);
  }
  std::vector<int32_t> ids = std::move(encoded).value();
  if (args_.bos.value_or(tokenizer.add_bos())) {
    if (!tokenizer.bos_id()) return invalid_argument("--bos: the tokenizer files name no BOS token");
    ids.insert(ids.begin(), *tokenizer.bos_id());
  }
  return ids;
}

Status RunCommand::complete(const std::string& text, LoadedEngine& loaded, const Tokenizer& tokenizer,
                            const SamplingParams& sampling, Console& console) {
  GenerateRequest request;
  WEFT_ASSIGN_OR_RETURN(request.prompt, encode(text, tokenizer));
  request.sampling = sampling;
  request.max_tokens = args_.max_tokens.value_or(kDefaultMaxTokens);
  request.drafts = args_.drafts;
  request.stop_ids = args_.stop_ids(tokenizer, *loaded.model);
  WEFT_ASSIGN_OR_RETURN(StopStrings stops, StopStrings::create(args_.stops));
  TextStream stream(tokenizer, std::move(stops), args_.keep_special ? SpecialTokens::kKeep : SpecialTokens::kSkip,
                    [&](std::string_view piece) {
                      if (!console.json) console.print(piece);
                    });
  request.on_token = [&](const SampledToken& token) { return stream.push(token.id); };

  InterruptGuard interrupt;
  Generator generator(*loaded.engine);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  WEFT_ASSIGN_OR_RETURN(const Generator::RequestId id, generator.submit(std::move(request)));
  console.progress(fmt::format("reading a prompt of {} tokens ...", prompt_tokens));
  while (!generator.idle()) {
    if (interrupt.pending() || console.reader_gone()) generator.cancel(id);
    WEFT_RETURN_IF_ERROR(generator.step());
  }
  stream.finish();
  const GenerateResult result = generator.take(id).value();

  if (console.json) {
    OrderedJson json = describe(args_.model, *loaded.engine);
    json["text"] = stream.text();
    json["tokens"] = OrderedJson::array();
    for (const SampledToken& token : result.tokens) json["tokens"].push_back(token.id);
    json.update(result_json(result));
    if (args_.logprobs >= 0) json["logprobs"] = logprobs_json(result, tokenizer);
    WEFT_ASSIGN_OR_RETURN(json["memory"], memory_json(*loaded.engine));
    console.print_json(json);
  } else {
    console.print("\n");
    note_result(result, console);
    WEFT_RETURN_IF_ERROR(note_memory(*loaded.engine, console));
  }
  if (result.reason == FinishReason::kCancelled && !console.reader_gone()) return cancelled("interrupted");
  return {};
}

}  // namespace

std::vector<int32_t> RunArgs::stop_ids(const Tokenizer& tokenizer, const Model& opened) const {
  if (ignore_eos) return {};
  std::vector<int32_t> ids(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  for (const int32_t id : opened.eos_token_ids()) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

CommandEntry run_command() { return make_command<RunCommand>("run", "continue a text, or chat", kExamples); }

}  // namespace weft
