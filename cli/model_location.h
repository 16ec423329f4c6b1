// Models that are looked at without being run: a folder (with weights, with an index alone, or with config.json
// alone), a config file, or the name of a config that is shipped with weft.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/model_options.h"

namespace weft {

// The folders of shipped configs: beside the installed program (PREFIX/share/weft/model_configs), then the source tree.
std::vector<std::filesystem::path> config_folders();
std::vector<std::string> shipped_configs();  // the names of those that weft can open, ascending

// MODEL, --allow-unknown-config.
void add_model_location(CLI::App& app, ModelArgs& args);

// What is there, without weights if there are none. `where`: folder, file or name.
Result<std::shared_ptr<const Checkpoint>> open_location(const std::string& where);
Result<LoadedModel> load_location(const ModelArgs& args, Console& console);

}  // namespace weft
