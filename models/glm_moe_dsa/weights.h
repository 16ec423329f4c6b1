// The weights of the DSA-MLA family as one table (models/weight_table.h).
//
// The key of a weight is its official name without "model." and ".weight": "embed_tokens", "layers.3.self_attn.q_a_proj",
// "layers.3.mlp.gate.e_score_correction_bias", "lm_head"; those of the MTP layer start with "mtp.0." instead of
// "layers.<num_hidden_layers>.". The experts of a layer are one stacked weight "layers.3.mlp.experts.gate_proj" [E, m, h].
//
// How a weight is stored, with its side tensors (glm_moe_dsa.md 5.1 to 5.3):
//   BF16, F32
//   F8_E4M3 [N,K]   scale F32 [ceil(N/128), ceil(K/128)]
//   I8 [N,K]        dynamic: scale F32 [N,1], offset F32 [N,1] (all zero)
//   I8 [N,K]        static: input_scale F32 [1], input_offset F32 [1], deq_scale F32 [N], quant_bias I32 [N]
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "models/glm_moe_dsa/config.h"
#include "models/weight_table.h"

namespace weft::glm_moe_dsa {

// What a release stores in which way.
struct Storage {
  enum class Format { kPlain, kFp8, kW8A8 };
  Format format = Format::kPlain;
  bool own_mtp_embedding = false;  // the MTP layer has its own embedding and head
  bool rotation = false;           // rot.weight turns the hidden states of the main model before the MTP layer

  bool operator==(const Storage&) const = default;
};

// The storage that config.json and quant_model_description.json announce, or that the names of a checkpoint show.
Storage storage_of(const Config& config, const Checkpoint& checkpoint);
// Without a checkpoint: plain, or FP8 where the config says so.
Storage storage_of(const Config& config);

// Every weight, in the order embedding, layers, final norm and head, MTP.
std::vector<Weight> weights(const Config& config, const Storage& storage);

// The table of a checkpoint: where there are tensors, each weight as it is stored there. `problems` (for bind_weights): those of
// its storage (check_storage.h).
std::vector<Weight> weights_of(const Config& config, const Checkpoint& checkpoint, std::string* problems);

// The format of one weight.
enum class WeightFormat { kPlain, kFp8, kInt8Static, kInt8Dynamic };
WeightFormat format_of(const Weight& weight);
QuantScheme scheme_of(const Weight& weight);  // as quant_model_description.json calls it

// A tensor of the weight, by which the format of all of it is told.
std::string first_tensor(const Weight& weight, const Checkpoint& checkpoint);

}  // namespace weft::glm_moe_dsa
