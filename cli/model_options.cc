#include "cli/model_options.h"

#include <array>

#include "base/shown_text.h"
#include "cli/command.h"
#include "cli/rank_job.h"

namespace weft {
namespace {

std::string isa_names() {
  std::string names;
  for (int level = 0; level <= static_cast<int>(max_isa()); ++level) {
    names += (level > 0 ? ", " : "") + std::string(isa_name(static_cast<Isa>(level)));
  }
  return names;
}

std::string check_isa(const std::string& text) {
  const std::optional<Isa> isa = parse_isa(text);
  if (!isa) return fmt::format("'{}' is not an instruction set level (this CPU has {})", shown(text), isa_names());
  if (*isa > max_isa()) return fmt::format("this CPU does not reach '{}' (it has {})", text, isa_names());
  return {};
}

}  // namespace

NumericMode ModelArgs::mode(const Model& model) const {
  std::optional<bool> quant;
  if (!act_quant.empty()) quant = act_quant == "on";
  NumericMode mode = model.mode(dtype == "f32" ? DType::kF32 : DType::kBF16, quant);
  mode.output_quant = output();
  return mode;
}

Isa ModelArgs::isa_level() const { return isa.empty() ? max_isa() : parse_isa(isa).value(); }

void add_model_dir(CLI::App& app, ModelArgs& args) {
  app.add_option("MODEL_DIR", args.model_dir, "folder with config.json, *.safetensors and tokenizer.json")->required();
  app.add_flag("--allow-unknown-config", args.allow_unknown_config, "config keys that weft does not know are no error");
}

void add_quant_options(CLI::App& app, ModelArgs& args) {
  app.add_option("--act-quant", args.act_quant,
                 "quantise activations; default: on with bf16 if the checkpoint's format has it")
      ->check(one_of({"on", "off"}));
  app.add_option("--output-quant", args.output_quant,
                 "activations in front of the output projection, a scale for each row and output group")
      ->check(one_of({"none", "int8"}))
      ->capture_default_str();
}

void add_dtype_option(CLI::App& app, ModelArgs& args) {
  app.add_option("--dtype", args.dtype, "activations and caches")
      ->check(one_of({"f32", "bf16"}))
      ->capture_default_str();
}

void add_numeric_options(CLI::App& app, ModelArgs& args) {
  add_dtype_option(app, args);
  add_quant_options(app, args);
}

void add_machine_options(CLI::App& app, ModelArgs& args) {
  app.add_option("--threads", args.threads,
                 "of one rank; default: the physical cores, shared by the ranks of this machine")
      ->check(whole_number(1, kMaxThreads));
  app.add_option("--isa", args.isa, fmt::format("instruction set level; default: {}", isa_name(max_isa())))
      ->check(CLI::Validator([](std::string& text) { return check_isa(text); }, isa_names()));
}

void add_model_options(CLI::App& app, ModelArgs& args) {
  add_model_dir(app, args);
  add_numeric_options(app, args);
  add_machine_options(app, args);
  add_rank_options(app, args.ranks);
  app.add_option("--ctx", args.context, "tokens of the longest sequence; default: what the model takes, at most 8192")
      ->check(whole_number(1));
}

Result<LoadedModel> load_model(const std::string& model_dir, bool allow_unknown_config) {
  WEFT_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(model_dir));
  LoadedModel loaded;
  loaded.checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  ModelOptions options;
  options.allow_unknown_config = allow_unknown_config;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, open_model(loaded.checkpoint, options));
  loaded.model = std::move(model);
  return loaded;
}

Result<LoadedModel> load_model(const ModelArgs& args, Console& console) {
  console.progress(fmt::format("opening {} ...", args.model_dir));
  WEFT_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(args.model_dir, args.allow_unknown_config));
  console.progress("");
  return loaded;
}

Result<std::unique_ptr<Engine>> make_engine(const std::string& model_dir, bool allow_unknown_config,
                                            const std::shared_ptr<const Model>& model, const EngineOptions& options,
                                            Console& console) {
  if (console.job == nullptr) return Engine::create(model, options);
  // As absolute as the other processes need it: mpirun gives them their folder.
  return console.job->create_engine(model_dir, allow_unknown_config, model, options);
}

Result<LoadedEngine> open_engine(const ModelArgs& args, const EngineNeeds& needs, Console& console) {
  WEFT_ASSIGN_OR_RETURN(const Layout layout, args.ranks.resolve(console.job));
  WEFT_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(args, console));
  EngineOptions options;
  options.mode = args.mode(*loaded.model);
  options.layout = layout;
  options.num_threads = args.threads;
  options.isa = args.isa_level();
  options.max_sequences = needs.max_sequences;
  options.max_step_tokens = needs.max_step_tokens;
  options.max_drafts = needs.max_drafts;
  options.max_context = args.context != 0 ? args.context : needs.context.value_or(0);
  if (options.max_context != 0) {
    WEFT_RETURN_IF_ERROR(
        check_context(args.context != 0 ? "--ctx" : needs.context_from, options.max_context, *loaded.model));
  }
  console.progress("reserving caches ...");
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        make_engine(args.model_dir, args.allow_unknown_config, loaded.model, options, console));
  console.progress("");
  return LoadedEngine{std::move(loaded.checkpoint), std::move(loaded.model), std::move(engine)};
}

Status check_context(std::string_view option, int64_t tokens, const Model& model) {
  const int64_t limit = model.max_position_embeddings();
  if (tokens <= limit) return {};
  return invalid_argument(
      fmt::format("{}: expected 1 to {} tokens (what this model takes), found {}", option, limit, tokens));
}

Result<Tokenizer> load_tokenizer(const ModelArgs& args, Console& console) {
  console.progress("reading the tokenizer ...");
  Result<Tokenizer> tokenizer = Tokenizer::load_directory(args.model_dir);
  console.progress("");
  return tokenizer;
}

nlohmann::ordered_json describe(const ModelArgs& args, const Engine& engine) {
  const EngineOptions& options = engine.options();
  return {{"model", args.model_dir},
          {"family", std::string(engine.model().family())},
          {"dtype", options.mode.dtype == DType::kF32 ? "f32" : "bf16"},
          {"act_quant", options.mode.act_quant},
          {"output_quant", options.mode.output_quant == OutputQuant::kInt8 ? "int8" : "none"},
          {"layout", to_string(options.layout)},
          {"ranks", options.layout.mesh.world()},
          {"threads", options.num_threads},
          {"isa", std::string(isa_name(options.isa))},
          {"context", options.max_context}};
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr double kStep = 1024;
  size_t unit = 0;
  for (; bytes >= kStep && unit + 1 < kUnits.size(); ++unit) bytes /= kStep;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace weft
