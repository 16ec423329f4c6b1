// weft eval: perplexity of a text.
#include <chrono>
#include <iterator>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory_report.h"
#include "cli/model_options.h"
#include "cli/perplexity.h"
#include "io/chat.h"
#include "io/text_file.h"

namespace weft {
namespace {

constexpr char kExamples[] =
    "  weft eval MODEL_DIR text.txt\n"
    "  weft eval MODEL_DIR text.txt --window 2048 --stride 1024 --max-tokens 100000\n"
    "  weft eval MODEL_DIR text.txt --dtype f32 --json\n";

class EvalCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_options(app, model_);
    app.add_option("FILE", file_, "UTF-8 text")->required();
    app.add_option("--window", options_.window, "tokens that are seen at once")
        ->check(whole_number(2))
        ->capture_default_str();
    app.add_option("--stride", stride_, "tokens from the begin of one window to the next; default: the window")
        ->check(whole_number(1));
    app.add_option("--max-tokens", max_tokens_, "only the beginning of the text")->check(whole_number(2));
  }
  Status run(Console& console) override;

 private:
  Result<std::vector<int32_t>> read_tokens(const Tokenizer& tokenizer) const;

  ModelArgs model_;
  std::string file_;
  PerplexityOptions options_;
  std::optional<int64_t> stride_, max_tokens_;
};

Result<std::vector<int32_t>> EvalCommand::read_tokens(const Tokenizer& tokenizer) const {
  WEFT_ASSIGN_OR_RETURN(const std::string text, read_text_file(file_));
  Result<std::vector<int32_t>> tokens = tokenizer.encode(text);
  if (!tokens.ok()) return Status(tokens.status().code(), fmt::format("{}: {}", file_, tokens.status().message()));
  if (max_tokens_ && *max_tokens_ < static_cast<int64_t>(tokens->size())) tokens->resize(*max_tokens_);
  return tokens;
}

Status EvalCommand::run(Console& console) {
  constexpr int64_t kStepTokens = 512;
  options_.stride = stride_.value_or(options_.window);
  if (options_.stride > options_.window) {
    return invalid_argument(
        fmt::format("--stride: expected 1 to {} tokens (--window), found {}", options_.window, options_.stride));
  }
  WEFT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, load_tokenizer(model_, console));
  WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, read_tokens(tokenizer));
  if (model_.context != 0 && model_.context < options_.window) {
    return invalid_argument(
        fmt::format("--ctx: expected at least {} tokens (--window), found {}", options_.window, model_.context));
  }
  EngineNeeds needs;
  needs.context = options_.window;
  needs.context_from = "--window";
  needs.max_step_tokens = std::min(options_.window, kStepTokens);
  WEFT_ASSIGN_OR_RETURN(LoadedEngine loaded, open_engine(model_, needs, console));

  InterruptGuard interrupt;
  const auto start = std::chrono::steady_clock::now();
  const auto on_window = [&](int64_t next, const Perplexity& so_far) {
    console.progress(fmt::format("{} of {} tokens, perplexity {:.4f} ...", next, tokens.size(), so_far.perplexity()));
    return !interrupt.pending();
  };
  WEFT_ASSIGN_OR_RETURN(const Perplexity result, measure_perplexity(*loaded.engine, tokens, options_, on_window));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (console.json) {
    OrderedJson json = describe(model_, *loaded.engine);
    json["file"] = file_;
    json["tokens"] = tokens.size();
    json["window"] = options_.window;
    json["stride"] = options_.stride;
    json["predicted"] = result.predicted;
    json["nll"] = result.nll;
    json["nll_standard_error"] = result.nll_standard_error;
    json["perplexity"] = result.perplexity();
    json["seconds"] = seconds;
    WEFT_ASSIGN_OR_RETURN(json["memory"], memory_json(*loaded.engine));
    console.print_json(json);
    return {};
  }
  console.print(
      fmt::format("perplexity {:.4f}\nnll        {:.6f} +- {:.6f} nats per token\ntokens     {} of {} scored\n",
                  result.perplexity(), result.nll, result.nll_standard_error, result.predicted, tokens.size()));
  console.note(
      fmt::format("time      {:.2f} s, {:.1f} tokens/s", seconds, static_cast<double>(tokens.size()) / seconds));
  WEFT_RETURN_IF_ERROR(note_memory(*loaded.engine, console));
  return {};
}

}  // namespace

CommandEntry eval_command() { return make_command<EvalCommand>("eval", "perplexity of a text", kExamples); }

}  // namespace weft
