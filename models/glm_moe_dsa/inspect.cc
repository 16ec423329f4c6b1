#include "models/glm_moe_dsa/inspect.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft::glm_moe_dsa {
namespace {

std::vector<std::string> notes_of(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> table, int64_t bytes) {
  std::vector<std::string> notes = config.warnings;
  const auto& description = checkpoint.quant_description();
  switch (checkpoint.contents()) {
    case Checkpoint::Contents::kTensors: break;
    case Checkpoint::Contents::kNames:
      notes.push_back("the shards of the index are not here: shapes and types are those that are announced");
      break;
    case Checkpoint::Contents::kConfigOnly:
      notes.push_back("there are no weights here: tensors, shapes and types are those that are announced");
      break;
  }
  if (description && description->schemes.empty()) {
    const bool stored = checkpoint.contents() == Checkpoint::Contents::kTensors;
    notes.push_back(fmt::format("{} names no tensors: {}", QuantDescription::kFileName,
                                stored ? "the schemes are those that the tensors show" : "the placement of the published W8A8 release is assumed"));
  }
  const bool int8 = std::any_of(table.begin(), table.end(), [](const Weight& w) { return w.type.dtype == DType::kI8; });
  if (int8 && !description) {
    notes.push_back(fmt::format("there is no {}: the schemes of the int8 weights are those that the tensors show", QuantDescription::kFileName));
  }
  const std::optional<int64_t> total = checkpoint.index_total_size();
  if (total && *total != bytes) {
    notes.push_back(fmt::format("the index says {} bytes in all, the tensors have {}", *total, bytes));
  }
  const Weight* rotation = find_weight(table, "rot");
  if (rotation != nullptr) notes.push_back("the main model lives in a rotated basis: rot.weight turns its states for the draft layer");
  if (config.num_nextn_predict_layers > 1) {
    notes.push_back(fmt::format("{} draft layers: weft drafts with the first", config.num_nextn_predict_layers));
  } else if (config.num_nextn_predict_layers == 0) {
    notes.push_back("there is no draft (MTP) layer");
  } else if (find_weight(table, "mtp.0.embed_tokens") == nullptr) {
    notes.push_back("the draft layer uses the embedding and the head of the main model");
  }
  const bool quantised = std::any_of(table.begin(), table.end(), [](const Weight& w) { return !w.sides.empty(); });
  if (!quantised) notes.push_back("the linear layers and experts are not quantised");
  return notes;
}

}  // namespace

std::string_view model_title(const Config& config) {
  if (config.release == Release::kDeepseekV32) return "DeepSeek-V3.2";
  return config.shares_selections() ? "GLM-5.2" : "GLM-5";
}

ModelSummary summarise(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> table) {
  ModelSummary s;
  s.title = model_title(config);
  const int64_t full = std::count(config.full_indexer.begin(), config.full_indexer.end(), true);
  s.layers = {{"dense", config.first_k_dense_replace},
              {"mixture of experts", config.num_hidden_layers - config.first_k_dense_replace},
              {"with an indexer", full},
              {"that reuse its selection", config.num_hidden_layers - full},
              {"draft (MTP)", config.num_nextn_predict_layers}};
  s.dimensions = {{"hidden_size", config.hidden_size},
                  {"num_hidden_layers", config.num_hidden_layers},
                  {"vocab_size", config.vocab_size},
                  {"max_position_embeddings", config.max_position_embeddings},
                  {"num_attention_heads", config.num_attention_heads},
                  {"q_lora_rank", config.q_lora_rank},
                  {"kv_lora_rank", config.kv_lora_rank},
                  {"qk_nope_head_dim", config.qk_nope_head_dim},
                  {"qk_rope_head_dim", config.qk_rope_head_dim},
                  {"v_head_dim", config.v_head_dim},
                  {"index_n_heads", config.index_n_heads},
                  {"index_head_dim", config.index_head_dim},
                  {"index_topk", config.index_topk},
                  {"intermediate_size", config.intermediate_size},
                  {"n_routed_experts", config.n_routed_experts},
                  {"num_experts_per_tok", config.num_experts_per_tok},
                  {"n_group", config.n_group},
                  {"topk_group", config.topk_group},
                  {"n_shared_experts", config.n_shared_experts},
                  {"moe_intermediate_size", config.moe_intermediate_size}};
  add_totals(s, table, config.num_experts_per_tok, config.vocab_size);
  s.notes = notes_of(config, checkpoint, table, s.bytes());
  return s;
}

}  // namespace weft::glm_moe_dsa
