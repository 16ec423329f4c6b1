#include "cli/model_location.h"

#include <set>

#include <fmt/ranges.h>

#include "base/shown_text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";

// A name, not a path: what is shipped lies in one folder.
bool plain_name(const std::string& text) { return !text.empty() && text.find('/') == text.npos && text[0] != '.'; }

// Some configs are shipped although weft refuses them, so that it says why.
bool can_be_opened(const fs::path& config) {
  Result<Checkpoint> checkpoint = Checkpoint::open_config(config);
  return checkpoint.ok() && open_model(std::make_shared<const Checkpoint>(std::move(checkpoint).value()), {}).ok();
}

}  // namespace

std::vector<fs::path> config_folders() {
  std::vector<fs::path> folders;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / WEFT_CONFIG_FOLDER);
  folders.emplace_back(WEFT_SOURCE_CONFIG_FOLDER);
  return folders;
}

std::vector<std::string> shipped_configs() {
  std::set<std::string> names;
  for (const fs::path& folder : config_folders()) {
    std::error_code error;  // a folder that is not there has no names
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (can_be_opened(it->path() / kConfigName)) names.insert(it->path().filename().string());
    }
  }
  return {names.begin(), names.end()};
}

void add_model_location(CLI::App& app, ModelArgs& args) {
  app.add_option("MODEL", args.model_dir,
                 "model folder (config.json is enough), config file, or name of a shipped config")
      ->required();
  app.add_flag("--allow-unknown-config", args.allow_unknown_config, "config keys that weft does not know are no error");
}

Result<std::shared_ptr<const Checkpoint>> open_location(const std::string& where) {
  const auto shared = [](Result<Checkpoint> opened) -> Result<std::shared_ptr<const Checkpoint>> {
    if (!opened.ok()) return opened.status();
    return std::make_shared<const Checkpoint>(std::move(opened).value());
  };
  std::error_code error;
  if (fs::is_directory(where, error)) return shared(Checkpoint::open_headers_only(where));
  if (fs::exists(where, error)) return shared(Checkpoint::open_config(where));
  if (plain_name(where)) {
    for (const fs::path& folder : config_folders()) {
      const fs::path config = folder / where / kConfigName;
      if (fs::exists(config, error)) return shared(Checkpoint::open_config(config));
    }
  }
  return invalid_argument(
      fmt::format("'{}' is not a model folder, not a config file and not a shipped config (shipped: {})", shown(where),
                  fmt::join(shipped_configs(), ", ")));
}

Result<LoadedModel> load_location(const ModelArgs& args, Console& console) {
  console.progress(fmt::format("reading {} ...", args.model_dir));
  LoadedModel loaded;
  WEFT_ASSIGN_OR_RETURN(loaded.checkpoint, open_location(args.model_dir));
  ModelOptions options;
  options.allow_unknown_config = args.allow_unknown_config;
  WEFT_ASSIGN_OR_RETURN(loaded.model, open_model(loaded.checkpoint, options));
  console.progress("");
  return loaded;
}

}  // namespace weft
