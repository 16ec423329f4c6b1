// The options that commands share, and opening a model with them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/console.h"
#include "cli/layout_options.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/tokenizer.h"
#include "models/model.h"
#include "runtime/engine.h"

namespace weft {

struct ModelArgs {
  std::string model_dir;
  std::string dtype = "bf16";
  std::string act_quant;  // "on", "off"; empty: as the checkpoint's profile says
  std::string output_quant = "none";  // "none", "int8"
  std::string isa;        // empty: max_isa()
  int threads = 0;        // of one rank; 0: the physical cores, shared by the ranks of this machine
  RankArgs ranks;
  int64_t context = 0;    // 0: the engine's default
  bool allow_unknown_config = false;

  NumericMode mode(const Model& model) const;
  OutputQuant output() const { return output_quant == "int8" ? OutputQuant::kInt8 : OutputQuant::kNone; }
  Isa isa_level() const;
};

// MODEL_DIR and all options. For commands that need only some of them there are the parts.
void add_model_options(CLI::App& app, ModelArgs& args);
void add_model_dir(CLI::App& app, ModelArgs& args);        // MODEL_DIR, --allow-unknown-config
void add_quant_options(CLI::App& app, ModelArgs& args);    // --act-quant, --output-quant
void add_dtype_option(CLI::App& app, ModelArgs& args);     // --dtype
void add_numeric_options(CLI::App& app, ModelArgs& args);  // all of these
void add_machine_options(CLI::App& app, ModelArgs& args);  // --threads, --isa

struct LoadedModel {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const Model> model;
};
Result<LoadedModel> load_model(const ModelArgs& args, Console& console);
Result<LoadedModel> load_model(const std::string& model_dir, bool allow_unknown_config);  // says nothing

// What a command wants of the engine beyond the shared options.
struct EngineNeeds {
  int64_t max_sequences = 1;
  int64_t max_step_tokens = 512;
  int64_t max_drafts = 0;
  std::optional<int64_t> context;  // instead of the default, when --ctx is not given
  const char* context_from = "";   // where `context` comes from, for messages: "--window"
};

struct LoadedEngine {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const Model> model;
  std::unique_ptr<Engine> engine;
};
Result<LoadedEngine> open_engine(const ModelArgs& args, const EngineNeeds& needs, Console& console);
// The one place where commands make engines: of threads, or of the processes of the job.
Result<std::unique_ptr<Engine>> make_engine(const std::string& model_dir, bool allow_unknown_config,
                                            const std::shared_ptr<const Model>& model, const EngineOptions& options,
                                            Console& console);

// "--ctx: expected 1 to 4096 tokens (what this model takes), found 5000".
Status check_context(std::string_view option, int64_t tokens, const Model& model);

// tokenizer.json of MODEL_DIR.
Result<Tokenizer> load_tokenizer(const ModelArgs& args, Console& console);

// {"model": ..., "dtype": ..., ...}: what a result was computed with.
nlohmann::ordered_json describe(const ModelArgs& args, const Engine& engine);
std::string bytes_text(double bytes);  // "10.3 MiB"

}  // namespace weft
