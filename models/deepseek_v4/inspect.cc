#include "models/deepseek_v4/inspect.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace weft::deepseek_v4 {
namespace {

constexpr size_t kMaxListed = 10;

bool transformers_names(const Checkpoint& checkpoint) { return checkpoint.has_name("model.embed_tokens.weight"); }

bool has_mtp_names(const Checkpoint& checkpoint) {
  return std::any_of(checkpoint.names().begin(), checkpoint.names().end(),
                     [](std::string_view name) { return name.starts_with("mtp."); });
}

std::set<std::string> expected_names(std::span<const Weight> table, const Checkpoint& checkpoint) {
  std::set<std::string> names;
  if (!transformers_names(checkpoint)) {
    for (FileTensor& tensor : file_tensors(table)) names.insert(std::move(tensor.name));
    return names;
  }
  for (const Weight& w : table) {
    if (w.hf_name.empty()) {
      for (FileTensor& tensor : file_tensors({&w, 1})) names.insert(std::move(tensor.name));
      continue;
    }
    const bool older =
        !w.hf_older_name.empty() && !checkpoint.has_name(w.hf_name) && checkpoint.has_name(w.hf_older_name);
    names.insert(older ? w.hf_older_name : w.hf_name);
    if (w.scale) names.insert(w.hf_scale_name);
  }
  return names;
}

std::string list(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const std::span<const std::string> shown(names.data(), std::min(names.size(), kMaxListed));
  return fmt::format("; {} ({}): {}{}", what, names.size(), fmt::join(shown, ", "),
                     shown.size() < names.size() ? ", ..." : "");
}

// Weights whose element type is not the one that the config announces.
std::vector<std::string> storage_notes(const Config& config, std::span<const Weight> found) {
  std::map<std::pair<DType, DType>, std::vector<std::string>> others;
  const std::vector<Weight> announced = weights(config, storage_of(config));
  for (size_t a = 0, f = 0; a < announced.size() && f < found.size(); ++a) {
    if (announced[a].name != found[f].name) continue;  // an MTP part that is not there
    if (announced[a].type.dtype != found[f].type.dtype && announced[a].kind != WeightKind::kExpert) {
      others[{announced[a].type.dtype, found[f].type.dtype}].push_back(found[f].name);
    }
    ++f;
  }
  std::vector<std::string> notes;
  for (const auto& [types, names] : others) {
    notes.push_back(fmt::format("{} weights are stored as {}; the release has {} ({}{})", names.size(),
                                dtype_name(types.second), dtype_name(types.first), names[0],
                                names.size() > 1 ? ", ..." : ""));
  }
  return notes;
}

std::vector<std::string> notes_of(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> table,
                                  const Storage& storage, const BoundWeights* bound, int64_t bytes) {
  std::vector<std::string> notes = config.warnings;
  switch (checkpoint.contents()) {
    case Checkpoint::Contents::kTensors: break;
    case Checkpoint::Contents::kNames:
      notes.push_back("the shards of the index are not here: shapes and types are those that config.json announces");
      break;
    case Checkpoint::Contents::kConfigOnly:
      notes.push_back("there are no weights here: tensors, shapes and types are those that config.json announces");
      break;
  }
  if (bound != nullptr) {
    notes.insert(notes.end(), bound->notes().begin(), bound->notes().end());
    for (std::string& note : storage_notes(config, table)) notes.push_back(std::move(note));
  } else if (storage.expert_assumed) {
    notes.push_back(fmt::format("config.json has no expert_dtype: {} experts are assumed", dtype_name(storage.expert)));
  }
  if (transformers_names(checkpoint)) notes.push_back("the tensors have Transformers names");
  const std::optional<int64_t> total = checkpoint.index_total_size();
  if (total && *total != bytes) {
    notes.push_back(fmt::format("the index says {} bytes in all, the tensors have {}", *total, bytes));
  }
  if (config.dspark) {
    notes.push_back(
        fmt::format("the {} draft stages (DSpark) are counted but not run: no drafting", config.num_mtp_layers()));
  } else if (config.num_nextn_predict_layers > 1) {
    notes.push_back(fmt::format("{} draft layers: weft drafts with the first", config.num_nextn_predict_layers));
  } else if (config.num_nextn_predict_layers == 0) {
    notes.push_back("there is no draft (MTP) layer");
  } else if (bound == nullptr && std::none_of(table.begin(), table.end(), [](const Weight& w) { return w.mtp; })) {
    notes.push_back("the index has no mtp.* tensors (Transformers leaves them out): no drafting");
  }
  if (!config.fp8) notes.push_back("no quantization_config: the linear layers and experts are not quantised");
  return notes;
}

}  // namespace

ModelSummary summarise(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> table,
                       const Storage& storage, const BoundWeights* bound) {
  const Totals t = totals(config, table);
  ModelSummary s;
  s.title = "DeepSeek-V4";
  int64_t kinds[3] = {};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    ++kinds[static_cast<int>(config.layer_kind(layer))];
  s.layers = {{"SWA (window)", kinds[static_cast<int>(LayerKind::kSwa)]},
              {"CSA (an entry per 4 tokens, top-k)", kinds[static_cast<int>(LayerKind::kCsa)]},
              {"HCA (an entry per 128 tokens)", kinds[static_cast<int>(LayerKind::kHca)]},
              {config.dspark ? "draft stages (DSpark)" : "draft (MTP)", config.num_mtp_layers()}};
  s.dimensions = {{"hidden_size", config.hidden_size},
                  {"num_hidden_layers", config.num_hidden_layers},
                  {"vocab_size", config.vocab_size},
                  {"max_position_embeddings", config.max_position_embeddings},
                  {"num_attention_heads", config.num_attention_heads},
                  {"head_dim", config.head_dim},
                  {"qk_rope_head_dim", config.qk_rope_head_dim},
                  {"q_lora_rank", config.q_lora_rank},
                  {"o_groups", config.o_groups},
                  {"o_lora_rank", config.o_lora_rank},
                  {"sliding_window", config.sliding_window},
                  {"index_n_heads", config.index_n_heads},
                  {"index_head_dim", config.index_head_dim},
                  {"index_topk", config.index_topk},
                  {"hc_mult", config.hc_mult},
                  {"n_routed_experts", config.n_routed_experts},
                  {"num_experts_per_tok", config.num_experts_per_tok},
                  {"n_shared_experts", config.n_shared_experts},
                  {"moe_intermediate_size", config.moe_intermediate_size},
                  {"num_hash_layers", config.num_hash_layers}};
  s.parameters_main = t.parameters_main;
  s.parameters_mtp = t.parameters_mtp;
  s.parameters_active = t.parameters_active;
  s.tensors = t.tensors;
  s.bytes_main = t.bytes_main;
  s.bytes_mtp = t.bytes_mtp;
  s.bytes_per_decoded_token = t.bytes_per_decoded_token;
  std::map<Component, int64_t> tensors;
  for (const Weight& w : table) tensors[w.mtp ? Component::kMtp : w.component] += w.num_tensors();
  for (const auto& [component, bytes] : t.bytes_by_component) {
    s.by_component.push_back({std::string(component_name(component)), tensors[component], bytes});
  }
  for (const auto& [dtype, bytes] : t.bytes_by_dtype) {
    s.by_dtype.push_back({std::string(dtype_name(dtype)), t.tensors_by_dtype.at(dtype), bytes});
  }
  s.notes = notes_of(config, checkpoint, table, storage, bound, t.bytes());
  return s;
}

Result<std::vector<Weight>> match_names(const Config& config, const Checkpoint& checkpoint, const Storage& storage) {
  std::vector<Weight> table = weights(config, storage);
  if (transformers_names(checkpoint) && !has_mtp_names(checkpoint))
    std::erase_if(table, [](const Weight& w) { return w.mtp; });
  const std::set<std::string> expected = expected_names(table, checkpoint);
  std::vector<std::string> missing, extra;
  for (const std::string& name : expected) {
    if (!checkpoint.has_name(name)) missing.push_back(name);
  }
  for (std::string_view name : checkpoint.names()) {
    if (!expected.contains(std::string(name))) extra.emplace_back(name);
  }
  if (missing.empty() && extra.empty()) return table;
  return invalid_argument(fmt::format("{}: the names in the index do not fit config.json{}{}",
                                      checkpoint.dir().string(), list("missing", missing), list("unexpected", extra)));
}

Storage storage_of_index(const Config& config, const Checkpoint& checkpoint) {
  Storage storage = storage_of(config);
  const std::optional<int64_t> total = checkpoint.index_total_size();
  if (!storage.expert_assumed || !total) return storage;
  for (DType expert : {DType::kF4E2M1, DType::kF8E4M3}) {
    const Storage candidate{storage.linear, expert, false};
    if (totals(config, weights(config, candidate)).bytes() == *total) return candidate;
  }
  return storage;
}

}  // namespace weft::deepseek_v4
