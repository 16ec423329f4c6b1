#include "models/glm_moe_dsa/weights.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/int_math.h"
#include "models/glm_moe_dsa/check_storage.h"

namespace weft::glm_moe_dsa {
namespace {

using Dim = int64_t (*)(const Config&);

constexpr std::string_view kWeightSuffix = ".weight";

// What a weight is decides how a release stores it.
enum class Kind {
  kAttention,  // FP8; W8A8: static
  kKeyValue,   // FP8; W8A8: BF16, because it is taken apart when it is loaded
  kMlp,        // FP8; W8A8: dynamic
  kBf16,       // always BF16
  kNorm,       // BF16; W8A8: F32
  kHead,       // BF16; W8A8: F32 (it is rotated)
  kBias,       // always F32, no ".weight"
};

enum class When { kAlways, kIndexed, kDense, kMoe, kOwnEmbedding, kRotation };

struct Row {
  const char* name;  // inside its block, without ".weight"
  Kind kind;
  const char* component;
  When when;
  std::array<Dim, 2> dims;
  WeightSplit split = WeightSplit::kWhole;
  WeightRead read = WeightRead::kAll;
};

constexpr Dim kD = [](const Config& c) { return c.hidden_size; };
constexpr Dim kTwoD = [](const Config& c) { return 2 * c.hidden_size; };
constexpr Dim kVocab = [](const Config& c) { return c.vocab_size; };
constexpr Dim kQLora = [](const Config& c) { return c.q_lora_rank; };
constexpr Dim kKvLora = [](const Config& c) { return c.kv_lora_rank; };
constexpr Dim kKey = [](const Config& c) { return c.key_width(); };
constexpr Dim kQDim = [](const Config& c) { return c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim); };
constexpr Dim kKvDim = [](const Config& c) { return c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim); };
constexpr Dim kODim = [](const Config& c) { return c.num_attention_heads * c.v_head_dim; };
constexpr Dim kIndexQ = [](const Config& c) { return c.index_n_heads * c.index_head_dim; };
constexpr Dim kIndexDim = [](const Config& c) { return c.index_head_dim; };
constexpr Dim kIndexHeads = [](const Config& c) { return c.index_n_heads; };
constexpr Dim kDense = [](const Config& c) { return c.intermediate_size; };
constexpr Dim kInner = [](const Config& c) { return c.moe_intermediate_size; };
constexpr Dim kSharedInner = [](const Config& c) { return c.moe_intermediate_size * c.n_shared_experts; };
constexpr Dim kExperts = [](const Config& c) { return c.n_routed_experts; };

using W = When;
using S = WeightSplit;
using R = WeightRead;

constexpr Row kBeforeLayers[] = {{"embed_tokens", Kind::kBf16, "embedding", W::kAlways, {kVocab, kD}, S::kWhole, R::kOneRow}};

constexpr Row kAfterLayers[] = {{"norm", Kind::kNorm, "norms", W::kAlways, {kD}}};

constexpr Row kHead[] = {{"lm_head", Kind::kHead, "head", W::kAlways, {kVocab, kD}, S::kVocabulary}};

// Inside "layers.N.".
constexpr Row kBlock[] = {
    {"input_layernorm", Kind::kNorm, "norms", W::kAlways, {kD}},
    {"post_attention_layernorm", Kind::kNorm, "norms", W::kAlways, {kD}},

    {"self_attn.q_a_proj", Kind::kAttention, "attention", W::kAlways, {kQLora, kD}},
    {"self_attn.q_a_layernorm", Kind::kNorm, "norms", W::kAlways, {kQLora}},
    {"self_attn.q_b_proj", Kind::kAttention, "attention", W::kAlways, {kQDim, kQLora}, S::kHeads},
    {"self_attn.kv_a_proj_with_mqa", Kind::kAttention, "attention", W::kAlways, {kKey, kD}},
    {"self_attn.kv_a_layernorm", Kind::kNorm, "norms", W::kAlways, {kKvLora}},
    {"self_attn.kv_b_proj", Kind::kKeyValue, "attention", W::kAlways, {kKvDim, kKvLora}, S::kHeads},
    {"self_attn.o_proj", Kind::kAttention, "attention", W::kAlways, {kD, kODim}, S::kOutputInputs},

    {"self_attn.indexer.wq_b", Kind::kAttention, "indexer", W::kIndexed, {kIndexQ, kQLora}},
    {"self_attn.indexer.wk", Kind::kKeyValue, "indexer", W::kIndexed, {kIndexDim, kD}},
    {"self_attn.indexer.k_norm", Kind::kNorm, "indexer", W::kIndexed, {kIndexDim}},
    {"self_attn.indexer.k_norm.bias", Kind::kNorm, "indexer", W::kIndexed, {kIndexDim}},
    {"self_attn.indexer.weights_proj", Kind::kBf16, "indexer", W::kIndexed, {kIndexHeads, kD}},

    {"mlp.gate_proj", Kind::kMlp, "dense layers", W::kDense, {kDense, kD}, S::kDenseInner},
    {"mlp.up_proj", Kind::kMlp, "dense layers", W::kDense, {kDense, kD}, S::kDenseInner},
    {"mlp.down_proj", Kind::kMlp, "dense layers", W::kDense, {kD, kDense}, S::kDenseInputs},

    {"mlp.gate", Kind::kBf16, "router", W::kMoe, {kExperts, kD}},
    {"mlp.gate.e_score_correction_bias", Kind::kBias, "router", W::kMoe, {kExperts}},
    {"mlp.experts.gate_proj", Kind::kMlp, "routed experts", W::kMoe, {kInner, kD}, S::kExperts, R::kPicked},
    {"mlp.experts.up_proj", Kind::kMlp, "routed experts", W::kMoe, {kInner, kD}, S::kExperts, R::kPicked},
    {"mlp.experts.down_proj", Kind::kMlp, "routed experts", W::kMoe, {kD, kInner}, S::kExperts, R::kPicked},
    {"mlp.shared_experts.gate_proj", Kind::kMlp, "shared expert", W::kMoe, {kSharedInner, kD}, S::kSharedInner},
    {"mlp.shared_experts.up_proj", Kind::kMlp, "shared expert", W::kMoe, {kSharedInner, kD}, S::kSharedInner},
    {"mlp.shared_experts.down_proj", Kind::kMlp, "shared expert", W::kMoe, {kD, kSharedInner}, S::kSharedInputs},
};

// Beside a block in the MTP layer.
constexpr Row kMtp[] = {
    {"enorm", Kind::kBf16, "norms", W::kAlways, {kD}},
    {"hnorm", Kind::kBf16, "norms", W::kAlways, {kD}},
    {"eh_proj", Kind::kBf16, "projection", W::kAlways, {kD, kTwoD}},
    {"shared_head.norm", Kind::kBf16, "norms", W::kAlways, {kD}},
    {"embed_tokens", Kind::kBf16, "embedding", W::kOwnEmbedding, {kVocab, kD}, S::kWhole, R::kOneRow},
    {"shared_head.head", Kind::kBf16, "head", W::kOwnEmbedding, {kVocab, kD}, S::kVocabulary},
};

constexpr Row kAfterMtp[] = {{"rot", Kind::kBf16, "projection", W::kRotation, {kD, kD}}};

struct Block {
  std::string prefix, tensor_prefix;
  int64_t layer = -1;  // counted through: the MTP layers follow the others
  bool mtp = false;
};

bool applies(When when, const Config& c, const Block& b, const Storage& storage) {
  switch (when) {
    case W::kAlways: return true;
    case W::kIndexed: return c.has_indexer(b.layer);
    case W::kDense: return c.is_dense(b.layer);
    case W::kMoe: return !c.is_dense(b.layer);
    case W::kOwnEmbedding: return storage.own_mtp_embedding;
    case W::kRotation: return storage.rotation;
  }
  WEFT_CHECK(false, "row condition {}", static_cast<int>(when));
}

// The last two dims of a weight, with the experts in front if it is stacked.
TensorType side_type(const Weight& w, DType dtype, std::vector<int64_t> dims) {
  if (w.num_experts > 0) dims.insert(dims.begin(), w.num_experts);
  return {dtype, Shape(dims)};
}

void store(Weight& w, WeightFormat format, DType plain) {
  w.sides.clear();
  w.type.dtype = plain;
  if (format == WeightFormat::kPlain) return;
  const Shape& shape = w.type.shape;
  const int64_t rows = shape[shape.rank() - 2], cols = shape.back();
  if (format == WeightFormat::kFp8) {
    w.type.dtype = DType::kF8E4M3;
    w.sides = {{"scale", ".weight_scale_inv", "_scale_inv",
                side_type(w, DType::kF32, {ceil_div(rows, kFp8Block), ceil_div(cols, kFp8Block)})}};
  } else if (format == WeightFormat::kInt8Dynamic) {
    w.type.dtype = DType::kI8;
    w.sides = {{"scale", ".weight_scale", "_scale", side_type(w, DType::kF32, {rows, 1})},
               {"offset", ".weight_offset", "_offset", side_type(w, DType::kF32, {rows, 1})}};
  } else {
    w.type.dtype = DType::kI8;
    w.sides = {{"input_scale", ".input_scale", "", side_type(w, DType::kF32, {1})},
               {"input_offset", ".input_offset", "", side_type(w, DType::kF32, {1})},
               {"deq_scale", ".deq_scale", "", side_type(w, DType::kF32, {rows})},
               {"quant_bias", ".quant_bias", "", side_type(w, DType::kI32, {rows})}};
  }
}

void store_as_announced(Weight& w, Kind kind, const Storage& storage) {
  const bool fp8 = storage.format == Storage::Format::kFp8, int8 = storage.format == Storage::Format::kW8A8;
  switch (kind) {
    case Kind::kAttention:
      return store(w, fp8 ? WeightFormat::kFp8 : int8 ? WeightFormat::kInt8Static : WeightFormat::kPlain, DType::kBF16);
    case Kind::kKeyValue: return store(w, fp8 ? WeightFormat::kFp8 : WeightFormat::kPlain, DType::kBF16);
    case Kind::kMlp:
      return store(w, fp8 ? WeightFormat::kFp8 : int8 ? WeightFormat::kInt8Dynamic : WeightFormat::kPlain, DType::kBF16);
    case Kind::kBf16: return store(w, WeightFormat::kPlain, DType::kBF16);
    case Kind::kNorm:
    case Kind::kHead: return store(w, WeightFormat::kPlain, int8 ? DType::kF32 : DType::kBF16);
    case Kind::kBias: return store(w, WeightFormat::kPlain, DType::kF32);
  }
  WEFT_CHECK(false, "weight kind {}", static_cast<int>(kind));
}

Weight make_weight(const Row& row, const Config& c, const Block& b, const Storage& storage) {
  Weight w;
  w.name = b.prefix + row.name;
  w.component = row.component;
  w.layer = b.layer;
  w.mtp = b.mtp;
  w.split = row.split;
  w.read = row.read;

  std::string stem = b.tensor_prefix + row.name;
  std::vector<int64_t> dims;
  if (row.read == R::kPicked) {
    w.num_experts = c.n_routed_experts;
    dims.push_back(w.num_experts);
    const size_t dot = stem.rfind('.');
    const bool down = stem.ends_with("down_proj");
    w.stacked_name = stem.substr(0, dot + 1) + (down ? "down_proj" : "gate_up_proj");
    w.stacked_part = stem.ends_with("up_proj") ? 1 : 0;
    w.stacked_parts = down ? 1 : 2;
    stem.insert(dot, ".{}");
  }
  for (Dim dim : row.dims) {
    if (dim != nullptr) dims.push_back(dim(c));
  }
  w.type.shape = Shape(dims);
  const bool is_bias = stem.ends_with("bias");
  w.tensor_name = stem + (is_bias ? "" : ".weight");
  store_as_announced(w, row.kind, storage);
  return w;
}

void add_rows(std::vector<Weight>& out, std::span<const Row> rows, const Config& config, const Block& block, const Storage& storage) {
  for (const Row& row : rows) {
    if (applies(row.when, config, block, storage)) out.push_back(make_weight(row, config, block, storage));
  }
}

bool may_be_quantised(const Weight& w) { return w.type.shape.rank() >= 2 && w.read != WeightRead::kOneRow; }

}  // namespace

WeightFormat format_of(const Weight& weight) {
  if (weight.sides.empty()) return WeightFormat::kPlain;
  if (weight.type.dtype == DType::kF8E4M3) return WeightFormat::kFp8;
  return weight.sides[0].name == "scale" ? WeightFormat::kInt8Dynamic : WeightFormat::kInt8Static;
}

QuantScheme scheme_of(const Weight& weight) {
  switch (format_of(weight)) {
    case WeightFormat::kInt8Static: return QuantScheme::kW8A8;
    case WeightFormat::kInt8Dynamic: return QuantScheme::kW8A8Dynamic;
    default: return QuantScheme::kFloat;
  }
}

std::string first_tensor(const Weight& w, const Checkpoint& checkpoint) {
  if (w.num_experts == 0) return w.tensor_name;
  return is_stacked(w, checkpoint) ? w.stacked_name : expert_name(w.tensor_name, 0);
}

Storage storage_of(const Config& config) {
  return {config.fp8 ? Storage::Format::kFp8 : Storage::Format::kPlain,
          config.release == Release::kDeepseekV32 && config.num_nextn_predict_layers > 0, false};
}

Storage storage_of(const Config& config, const Checkpoint& checkpoint) {
  Storage storage = storage_of(config);
  const bool mtp = config.num_nextn_predict_layers > 0;
  if (const auto& description = checkpoint.quant_description()) {
    storage = {Storage::Format::kW8A8, mtp, mtp && description->is_rot_used};
  }
  if (checkpoint.contents() == Checkpoint::Contents::kConfigOnly) return storage;
  storage.own_mtp_embedding = checkpoint.has_name(fmt::format("model.layers.{}.embed_tokens.weight", config.num_hidden_layers));
  storage.rotation = checkpoint.has_name("rot.weight");
  return storage;
}

std::vector<Weight> weights(const Config& config, const Storage& storage) {
  std::vector<Weight> out;
  const Block model{"", "model."}, outside{"", ""};
  add_rows(out, kBeforeLayers, config, model, storage);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    add_rows(out, kBlock, config, {fmt::format("layers.{}.", l), fmt::format("model.layers.{}.", l), l, false}, storage);
  }
  add_rows(out, kAfterLayers, config, model, storage);
  add_rows(out, kHead, config, outside, storage);
  for (int64_t l = 0; l < config.num_nextn_predict_layers; ++l) {
    const int64_t layer = config.num_hidden_layers + l;
    const Block block{fmt::format("mtp.{}.", l), fmt::format("model.layers.{}.", layer), layer, true};
    add_rows(out, kMtp, config, block, storage);
    add_rows(out, kBlock, config, block, storage);
  }
  add_rows(out, kAfterMtp, config, {"", "", -1, true}, storage);
  return out;
}

std::vector<Weight> weights_of(const Config& config, const Checkpoint& checkpoint, std::string* problems) {
  std::vector<Weight> table = weights(config, storage_of(config, checkpoint));
  if (checkpoint.contents() != Checkpoint::Contents::kTensors) return table;
  for (Weight& w : table) {
    const std::string name = first_tensor(w, checkpoint);
    const Checkpoint::Entry* entry = checkpoint.find(name);
    if (entry == nullptr) continue;  // reported by bind_weights
    const DType dtype = entry->type.dtype;
    if (!w.tensor_name.ends_with(kWeightSuffix)) {  // a bias: of the router F32, of a norm as its weight
      if (w.name.ends_with(".bias")) w.type.dtype = std::prev(&w)->type.dtype;
      continue;
    }
    WeightFormat format = WeightFormat::kPlain;
    if (may_be_quantised(w)) {
      if (dtype == DType::kF8E4M3) format = WeightFormat::kFp8;
      if (dtype == DType::kI8) {
        const bool is_static = !is_stacked(w, checkpoint) && checkpoint.has_name(side_name(name, ".deq_scale"));
        format = is_static ? WeightFormat::kInt8Static : WeightFormat::kInt8Dynamic;
      }
    }
    if (format != WeightFormat::kPlain || dtype == DType::kBF16 || dtype == DType::kF32) store(w, format, dtype);
  }
  *problems = storage_problems(config, table, checkpoint);
  return table;
}

}  // namespace weft::glm_moe_dsa
