// weft dump: values of the graph, to compare with another engine.
#include <algorithm>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/value_dump.h"

namespace weft {
namespace {

class DumpCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_dir(app, args_);
    auto* text = app.add_option("-p,--prompt", prompt_, "text to run");
    add_number_list(app, "--ids", ids_, 0, "token ids to run, as 1,2,3")->excludes(text);
    app.add_option("--tensor", patterns_, "names of values; * ? [abc] as in a shell; may be repeated")
        ->required()
        ->allow_extra_args(false);
    app.add_option("--out", out_, "safetensors file to write")->required();
    app.add_option("--step-tokens", step_tokens_, "tokens per step")->check(whole_number(1))->capture_default_str();
    app.add_flag("--draft", draft_, "run the draft (MTP) layer, too: its values are named draft.*");
    add_numeric_options(app, args_);
    add_machine_options(app, args_);
    add_rank_options(app, args_.ranks);
    app.get_option("--layout")
        ->description("of several ranks: the values of rank 0, of which some are its slices (docs/layouts.md)");
  }

  Status run(Console& console) override {
    if (!prompt_ && ids_.empty()) return invalid_argument("nothing to run: give -p TEXT or --ids 1,2,3");
    const std::filesystem::path folder = std::filesystem::absolute(out_).parent_path();
    if (!std::filesystem::is_directory(folder))
      return invalid_argument(fmt::format("--out: there is no folder {}", folder.string()));
    WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokens_of(console));
    const auto total = static_cast<int64_t>(tokens.size());
    EngineNeeds needs;
    needs.max_step_tokens = std::min(step_tokens_, total);
    needs.max_drafts = draft_ ? 1 : 0;
    needs.context = total;
    needs.context_from = "the prompt";
    WEFT_ASSIGN_OR_RETURN(const LoadedEngine loaded, open_engine(args_, needs, console));
    Engine& engine = *loaded.engine;

    ValueDump dump(patterns_);
    const auto observe = [&](const Value& value, const TensorView& view, std::span<const int32_t>) {
      dump.record(value, view);
    };
    const auto observe_draft = [&](const Value& value, const TensorView& view, std::span<const int32_t>) {
      dump.record(value, view, "draft.");
    };
    const ValueObserver observer(observe), draft_observer(observe_draft);
    WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine.open_sequence());
    for (int64_t at = 0; at < total;) {
      const int64_t count = std::min(needs.max_step_tokens, total - at);
      console.progress(fmt::format("token {} of {} ...", at, total));
      const Engine::Request request{
          slot, std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(count)), Engine::Logits::kAll};
      WEFT_RETURN_IF_ERROR(engine.step({&request, 1}, &observer));
      if (draft_) WEFT_RETURN_IF_ERROR(run_draft(engine, slot, tokens, at, count, draft_observer));
      if (at == 0) WEFT_RETURN_IF_ERROR(check(dump, engine.options().layout));  // before hours of work
      at += count;
    }
    WEFT_RETURN_IF_ERROR(dump.write(out_));
    report(console, dump, tokens.size());
    return {};
  }

 private:
  static Status check(const ValueDump& dump, const Layout& layout) {
    const Status status = dump.check();
    if (status.ok() || layout.mesh.pp == 1) return status;
    return Status(status.code(),
                  fmt::format("{}; rank 0 is in the first of {} pipeline stages and has no values of the later ones: "
                              "use a --layout without pp",
                              status.message(), layout.mesh.pp));
  }

  Result<std::vector<int32_t>> tokens_of(Console& console) const {
    if (!prompt_) {
      std::vector<int32_t> tokens;
      for (int64_t id : ids_) tokens.push_back(static_cast<int32_t>(id));  // kMaxCount fits
      return tokens;
    }
    WEFT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, load_tokenizer(args_, console));
    WEFT_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.encode(*prompt_));
    if (tokenizer.add_bos() && tokenizer.bos_id()) tokens.insert(tokens.begin(), *tokenizer.bos_id());
    if (tokens.empty()) return invalid_argument("the prompt has no tokens; at least one is needed");
    return tokens;
  }

  // The token after the last one is the model's best.
  static Status run_draft(Engine& engine, int32_t slot, const std::vector<int32_t>& tokens, int64_t at, int64_t count,
                          const ValueObserver& observer) {
    std::vector<int32_t> next(tokens.begin() + at + 1,
                              tokens.begin() + std::min(at + count + 1, static_cast<int64_t>(tokens.size())));
    if (static_cast<int64_t>(next.size()) < count) {
      const auto row = engine.logits(count - 1);
      next.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    const Engine::DraftRequest request{slot, 0, at, next, Engine::Logits::kAll};
    return engine.draft({&request, 1}, Engine::DraftFrom::kTrunk, &observer);
  }

  void report(Console& console, const ValueDump& dump, size_t num_tokens) const {
    if (console.json) {
      nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
      for (const auto& [name, tensor] : dump.tensors()) {
        const auto dims = tensor.type.shape.dims();
        tensors.push_back({{"name", name},
                           {"dtype", std::string(dtype_name(tensor.type.dtype))},
                           {"shape", std::vector<int64_t>(dims.begin(), dims.end())}});
      }
      console.print_json(nlohmann::ordered_json{{"out", out_}, {"tokens", num_tokens}, {"tensors", tensors}});
      return;
    }
    for (const auto& [name, tensor] : dump.tensors())
      console.print(fmt::format("{:<40} {}\n", name, to_string(tensor.type)));
    console.print(fmt::format("{}: {} tensors\n", out_, dump.tensors().size()));
  }

  ModelArgs args_;
  std::optional<std::string> prompt_;
  std::vector<int64_t> ids_;
  std::vector<std::string> patterns_;
  std::string out_;
  int64_t step_tokens_ = 512;
  bool draft_ = false;
};

}  // namespace

CommandEntry dump_command() {
  return make_command<DumpCommand>(
      "dump", "writes values of the graph to a file",
      "  weft dump MODEL_DIR -p 'It is a truth' --tensor 'layers.*.ffn_out' --out values.safetensors\n"
      "  weft dump MODEL_DIR --ids 0,17,42 --tensor logits --tensor '*.topk' --out F --dtype f32\n");
}

}  // namespace weft
