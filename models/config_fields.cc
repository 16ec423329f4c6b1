#include "models/config_fields.h"

#include <fmt/format.h>

namespace weft {

void read_informational_fields(JsonFields& fields) {
  fields.informational({"transformers_version", "initializer_range", "use_cache", "attention_dropout", "pad_token_id", "_name_or_path",
                        "router_aux_loss_coef", "output_router_logits", "output_attentions", "output_hidden_states", "return_dict",
                        "is_encoder_decoder", "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "auto_map"});
}

std::vector<int64_t> read_eos_token_ids(JsonFields& fields, const Json& json, int64_t vocab_size) {
  if (json.contains("eos_token_id") && json["eos_token_id"].is_array()) return fields.integers("eos_token_id", 0, vocab_size - 1);
  return {fields.integer("eos_token_id", 0, vocab_size - 1)};
}

void read_alias(JsonFields& fields, std::string_view alias, std::string_view name, int64_t value) {
  if (fields.has(alias) && fields.integer(alias) != value) fields.fail(alias, fmt::format(" differs from {} {}", name, value));
}

}  // namespace weft
