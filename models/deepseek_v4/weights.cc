#include "models/deepseek_v4/weights.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace weft::deepseek_v4 {
namespace {

// What the dims of a row depend on.
struct Part {
  const Config& c;
  int64_t ratio = 0;  // of the layer
  int64_t compressed_width(int64_t dim) const { return ratio == kCsaRatio ? 2 * dim : dim; }  // CSA pools two series
};

enum class When {
  kAlways,
  kCompressed,   // layers with a compressor
  kIndexed,      // CSA
  kHash,         // routed by token id
  kBiased,       // routed by score
  kNextN,        // MTP layers of the preview releases
  kDSparkFirst,  // first draft stage
  kDSparkLast,
  kDraftHead,    // where drafts leave: every NextN layer, the last DSpark stage
};

using Dim = int64_t (*)(const Part&);

struct Row {
  const char* name;  // inside its block, without ".weight"
  const char* hf;    // inside its block; null for the MTP part, which Transformers leaves out
  WeightKind kind;
  Component component;
  When when;
  std::array<Dim, 2> dims;
  const char* hf_older = nullptr;
  WeightSplit split = WeightSplit::kWhole;
};

constexpr Dim kD = [](const Part& p) { return p.c.hidden_size; };
constexpr Dim kVocab = [](const Part& p) { return p.c.vocab_size; };
constexpr Dim kHeads = [](const Part& p) { return p.c.num_attention_heads; };
constexpr Dim kHeadDim = [](const Part& p) { return p.c.head_dim; };
constexpr Dim kQLora = [](const Part& p) { return p.c.q_lora_rank; };
constexpr Dim kQDim = [](const Part& p) { return p.c.num_attention_heads * p.c.head_dim; };
constexpr Dim kGroupDim = [](const Part& p) { return p.c.num_attention_heads / p.c.o_groups * p.c.head_dim; };
constexpr Dim kOLora = [](const Part& p) { return p.c.o_groups * p.c.o_lora_rank; };
constexpr Dim kRatio = [](const Part& p) { return p.ratio; };
constexpr Dim kCompressed = [](const Part& p) { return p.compressed_width(p.c.head_dim); };
constexpr Dim kIndexHeads = [](const Part& p) { return p.c.index_n_heads; };
constexpr Dim kIndexDim = [](const Part& p) { return p.c.index_head_dim; };
constexpr Dim kIndexQDim = [](const Part& p) { return p.c.index_n_heads * p.c.index_head_dim; };
constexpr Dim kIndexCompressed = [](const Part& p) { return p.compressed_width(p.c.index_head_dim); };
constexpr Dim kExperts = [](const Part& p) { return p.c.n_routed_experts; };
constexpr Dim kPicked = [](const Part& p) { return p.c.num_experts_per_tok; };
constexpr Dim kInner = [](const Part& p) { return p.c.moe_intermediate_size; };
constexpr Dim kSharedInner = [](const Part& p) { return p.c.moe_intermediate_size * p.c.n_shared_experts; };
constexpr Dim kStreams = [](const Part& p) { return p.c.hc_mult; };
constexpr Dim kStreamsD = [](const Part& p) { return p.c.hc_mult * p.c.hidden_size; };
constexpr Dim kHcRows = [](const Part& p) { return p.c.hc_rows(); };
constexpr Dim kOne = [](const Part&) { return int64_t{1}; };
constexpr Dim kThree = [](const Part&) { return int64_t{3}; };  // scales of pre, post and the mixing matrix
constexpr Dim kTaps = [](const Part& p) { return p.c.num_mtp_layers() * p.c.hidden_size; };
constexpr Dim kMarkovRank = [](const Part& p) { return p.c.dspark->markov_rank; };
constexpr Dim kConfidence = [](const Part& p) { return p.c.hidden_size + p.c.dspark->markov_rank; };

using enum WeightKind;
using C = Component;
using W = When;

constexpr Row kBeforeLayers[] = {
    {"embed", "embed_tokens", kBf16, C::kEmbedding, W::kAlways, {kVocab, kD}},
};

constexpr Row kAfterLayers[] = {
    {"hc_head_fn", "hc_head.hc_fn", kF32, C::kMhc, W::kAlways, {kStreams, kStreamsD}},
    {"hc_head_base", "hc_head.hc_base", kF32, C::kMhc, W::kAlways, {kStreams}},
    {"hc_head_scale", "hc_head.hc_scale", kF32, C::kMhc, W::kAlways, {kOne}},
    {"norm", "norm", kBf16, C::kNorm, W::kAlways, {kD}},
    {"head", nullptr, kBf16, C::kHead, W::kAlways, {kVocab, kD}, nullptr, WeightSplit::kVocabulary},
};

// Inside "layers.N." and "mtp.N.".
constexpr Row kBlock[] = {
    {"attn_norm", "input_layernorm", kBf16, C::kNorm, W::kAlways, {kD}},
    {"ffn_norm", "post_attention_layernorm", kBf16, C::kNorm, W::kAlways, {kD}},
    {"hc_attn_fn", "attn_hc.fn", kF32, C::kMhc, W::kAlways, {kHcRows, kStreamsD}},
    {"hc_attn_base", "attn_hc.base", kF32, C::kMhc, W::kAlways, {kHcRows}},
    {"hc_attn_scale", "attn_hc.scale", kF32, C::kMhc, W::kAlways, {kThree}},
    {"hc_ffn_fn", "ffn_hc.fn", kF32, C::kMhc, W::kAlways, {kHcRows, kStreamsD}},
    {"hc_ffn_base", "ffn_hc.base", kF32, C::kMhc, W::kAlways, {kHcRows}},
    {"hc_ffn_scale", "ffn_hc.scale", kF32, C::kMhc, W::kAlways, {kThree}},

    {"attn.attn_sink", "self_attn.sinks", kF32, C::kAttention, W::kAlways, {kHeads}, nullptr, WeightSplit::kHeads},
    {"attn.wq_a", "self_attn.q_a_proj", kLinear, C::kAttention, W::kAlways, {kQLora, kD}},
    {"attn.q_norm", "self_attn.q_a_norm", kBf16, C::kNorm, W::kAlways, {kQLora}},
    {"attn.wq_b", "self_attn.q_b_proj", kLinear, C::kAttention, W::kAlways, {kQDim, kQLora}, nullptr, WeightSplit::kHeads},
    {"attn.wkv", "self_attn.kv_proj", kLinear, C::kAttention, W::kAlways, {kHeadDim, kD}},
    {"attn.kv_norm", "self_attn.kv_norm", kBf16, C::kNorm, W::kAlways, {kHeadDim}},
    {"attn.wo_a", "self_attn.o_a_proj", kLinear, C::kAttention, W::kAlways, {kOLora, kGroupDim}, nullptr, WeightSplit::kOutputGroups},
    {"attn.wo_b", "self_attn.o_b_proj", kLinear, C::kAttention, W::kAlways, {kD, kOLora}, nullptr, WeightSplit::kOutputInputs},

    {"attn.compressor.wkv", "self_attn.compressor.kv_proj", kBf16, C::kCompressor, W::kCompressed, {kCompressed, kD}},
    {"attn.compressor.wgate", "self_attn.compressor.gate_proj", kBf16, C::kCompressor, W::kCompressed,
     {kCompressed, kD}},
    {"attn.compressor.ape", "self_attn.compressor.position_bias", kF32, C::kCompressor, W::kCompressed,
     {kRatio, kCompressed}},
    {"attn.compressor.norm", "self_attn.compressor.kv_norm", kBf16, C::kCompressor, W::kCompressed, {kHeadDim}},

    {"attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj", kLinear, C::kIndexer, W::kIndexed,
     {kIndexQDim, kQLora}},
    {"attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj", kBf16, C::kIndexer, W::kIndexed,
     {kIndexHeads, kD}, "self_attn.compressor.indexer.weights_proj"},
    {"attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj", kBf16, C::kIndexer, W::kIndexed,
     {kIndexCompressed, kD}},
    {"attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj", kBf16, C::kIndexer, W::kIndexed,
     {kIndexCompressed, kD}},
    {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias", kF32, C::kIndexer, W::kIndexed,
     {kRatio, kIndexCompressed}},
    {"attn.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm", kBf16, C::kIndexer, W::kIndexed,
     {kIndexDim}},

    {"ffn.gate", "mlp.gate", kBf16, C::kRouter, W::kAlways, {kExperts, kD}},
    {"ffn.gate.bias", "mlp.gate.e_score_correction_bias", kF32, C::kRouter, W::kBiased, {kExperts}},
    {"ffn.gate.tid2eid", "mlp.gate.tid2eid", kTable, C::kRouter, W::kHash, {kVocab, kPicked}},
    {"ffn.experts.w1", "mlp.experts.gate_up_proj", kExpert, C::kRoutedExperts, W::kAlways, {kInner, kD}, nullptr, WeightSplit::kExperts},
    {"ffn.experts.w2", "mlp.experts.down_proj", kExpert, C::kRoutedExperts, W::kAlways, {kD, kInner}, nullptr, WeightSplit::kExperts},
    {"ffn.experts.w3", "mlp.experts.gate_up_proj", kExpert, C::kRoutedExperts, W::kAlways, {kInner, kD}, nullptr, WeightSplit::kExperts},
    {"ffn.shared_experts.w1", "mlp.shared_experts.gate_proj", kLinear, C::kSharedExpert, W::kAlways,
     {kSharedInner, kD}, nullptr, WeightSplit::kSharedInner},
    {"ffn.shared_experts.w2", "mlp.shared_experts.down_proj", kLinear, C::kSharedExpert, W::kAlways,
     {kD, kSharedInner}, nullptr, WeightSplit::kSharedInputs},
    {"ffn.shared_experts.w3", "mlp.shared_experts.up_proj", kLinear, C::kSharedExpert, W::kAlways, {kSharedInner, kD}, nullptr, WeightSplit::kSharedInner},
};

// Inside "mtp.N." beside a block.
constexpr Row kMtp[] = {
    {"e_proj", nullptr, kLinear, C::kMtp, W::kNextN, {kD, kD}},
    {"h_proj", nullptr, kLinear, C::kMtp, W::kNextN, {kD, kD}},
    {"enorm", nullptr, kBf16, C::kNorm, W::kNextN, {kD}},
    {"hnorm", nullptr, kBf16, C::kNorm, W::kNextN, {kD}},
    {"main_proj", nullptr, kLinear, C::kMtp, W::kDSparkFirst, {kD, kTaps}},
    {"main_norm", nullptr, kBf16, C::kNorm, W::kDSparkFirst, {kD}},
    {"hc_head_fn", nullptr, kF32, C::kMhc, W::kDraftHead, {kStreams, kStreamsD}},
    {"hc_head_base", nullptr, kF32, C::kMhc, W::kDraftHead, {kStreams}},
    {"hc_head_scale", nullptr, kF32, C::kMhc, W::kDraftHead, {kOne}},
    {"norm", nullptr, kBf16, C::kNorm, W::kDraftHead, {kD}},
    {"markov_head.markov_w1", nullptr, kBf16, C::kMtp, W::kDSparkLast, {kVocab, kMarkovRank}},
    {"markov_head.markov_w2", nullptr, kBf16, C::kMtp, W::kDSparkLast, {kVocab, kMarkovRank}},
    {"confidence_head.proj", nullptr, kBf16, C::kMtp, W::kDSparkLast, {kOne, kConfidence}},
};

// One block (or the model around the blocks) that rows are instantiated for.
struct Block {
  const Config& c;
  std::string prefix, hf_prefix;
  int64_t layer = -1;  // -1: outside the layers
  bool mtp = false;
};

bool applies(When when, const Block& b) {
  const Config& c = b.c;
  const auto ratio = [&] { return c.compress_ratios[b.layer + (b.mtp ? c.num_hidden_layers : 0)]; };
  const bool hash = !b.mtp && c.is_hash_layer(b.layer);
  const bool last = b.layer == c.num_mtp_layers() - 1;
  switch (when) {
    case W::kAlways: return true;
    case W::kCompressed: return ratio() != 0;
    case W::kIndexed: return ratio() == kCsaRatio;
    case W::kHash: return hash;
    case W::kBiased: return !hash;
    case W::kNextN: return !c.dspark;
    case W::kDSparkFirst: return c.dspark && b.layer == 0;
    case W::kDSparkLast: return c.dspark && last;
    case W::kDraftHead: return !c.dspark || last;
  }
  WEFT_CHECK(false, "row condition {}", static_cast<int>(when));
}

// "model.layers.3.mlp.experts.gate_up_proj" is a parameter itself, linears and norms are modules with a weight.
bool is_module(WeightKind kind) { return kind == kLinear || kind == kBf16; }

void set_dtype(Weight& w, DType dtype) {
  w.type.dtype = dtype;
  w.scale.reset();
  if (dtype != DType::kF8E4M3 && dtype != DType::kF4E2M1) return;
  Shape shape = w.type.shape;
  const int rank = shape.rank();
  if (dtype == DType::kF8E4M3) shape[rank - 2] = (shape[rank - 2] + kFp8Block - 1) / kFp8Block;
  const int64_t block = dtype == DType::kF8E4M3 ? kFp8Block : kFp4Block;
  shape[rank - 1] = (shape[rank - 1] + block - 1) / block;
  w.scale = TensorType{DType::kF8E8M0, shape};
}

DType announced_dtype(WeightKind kind, const Storage& storage) {
  switch (kind) {
    case kLinear: return storage.linear;
    case kExpert: return storage.expert;
    case kBf16: return DType::kBF16;
    case kF32: return DType::kF32;
    case kTable: return DType::kI64;
  }
  WEFT_CHECK(false, "weight kind {}", static_cast<int>(kind));
}

Weight make_weight(const Row& row, const Block& b, const Storage& storage) {
  const int64_t ratio = b.layer < 0 ? 0 : b.c.compress_ratios[b.layer + (b.mtp ? b.c.num_hidden_layers : 0)];
  const Part part{b.c, ratio};
  Weight w;
  w.name = b.prefix + row.name;
  w.kind = row.kind;
  w.component = row.component;
  w.layer = b.layer;
  w.mtp = b.mtp;
  w.split = row.split;

  std::vector<int64_t> dims;
  std::string stem = w.name;
  if (row.kind == kExpert) {
    w.num_experts = b.c.n_routed_experts;
    dims.push_back(w.num_experts);
    stem.insert(stem.rfind('.'), ".{}");
  }
  for (Dim dim : row.dims) {
    if (dim != nullptr) dims.push_back(dim(part));
  }
  w.type.shape = Shape(dims);
  w.tensor_name = stem + (is_module(row.kind) || row.kind == kExpert ? ".weight" : "");
  const bool quantisable = row.kind == kLinear || row.kind == kExpert;
  if (quantisable) w.scale_name = stem + ".scale";

  if (row.component == C::kHead) {
    w.hf_name = "lm_head.weight";  // outside the "model." of the others
  } else if (row.hf != nullptr && !b.mtp) {
    const std::string hf = b.hf_prefix + row.hf;
    const char* suffix = is_module(row.kind) ? ".weight" : "";
    w.hf_name = hf + suffix;
    if (row.hf_older != nullptr) w.hf_older_name = b.hf_prefix + row.hf_older + suffix;
    if (quantisable) w.hf_scale_name = hf + (row.kind == kExpert ? "_scale_inv" : ".weight_scale_inv");
  }
  set_dtype(w, announced_dtype(row.kind, storage));
  return w;
}

void add_rows(std::vector<Weight>& out, std::span<const Row> rows, const Block& block, const Storage& storage) {
  for (const Row& row : rows) {
    if (applies(row.when, block)) out.push_back(make_weight(row, block, storage));
  }
}

}  // namespace

std::string_view component_name(Component component) {
  switch (component) {
    case Component::kEmbedding: return "embedding";
    case Component::kAttention: return "attention";
    case Component::kIndexer: return "indexer";
    case Component::kCompressor: return "compressor";
    case Component::kMhc: return "hyper-connections";
    case Component::kNorm: return "norms";
    case Component::kRouter: return "router";
    case Component::kRoutedExperts: return "routed experts";
    case Component::kSharedExpert: return "shared expert";
    case Component::kHead: return "head";
    case Component::kMtp: return "mtp";
  }
  WEFT_CHECK(false, "component {}", static_cast<int>(component));
}

Storage storage_of(const Config& config) {
  if (!config.fp8) return {};
  Storage storage{.linear = DType::kF8E4M3, .expert = DType::kF4E2M1, .expert_assumed = !config.expert_dtype};
  if (config.expert_dtype == "fp8") storage.expert = DType::kF8E4M3;
  return storage;
}

std::vector<Weight> weights(const Config& config, const Storage& storage) {
  std::vector<Weight> out;
  const Block model{config, "", "model."};
  add_rows(out, kBeforeLayers, model, storage);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    add_rows(out, kBlock, {config, fmt::format("layers.{}.", l), fmt::format("model.layers.{}.", l), l}, storage);
  }
  add_rows(out, kAfterLayers, model, storage);
  for (int64_t l = 0; l < config.num_mtp_layers(); ++l) {
    const Block block{config, fmt::format("mtp.{}.", l), "", l, true};
    add_rows(out, kMtp, block, storage);
    add_rows(out, kBlock, block, storage);
  }
  return out;
}

const Weight* find_weight(std::span<const Weight> weights, std::string_view key) {
  const auto at = std::find_if(weights.begin(), weights.end(), [&](const Weight& w) { return w.name == key; });
  return at == weights.end() ? nullptr : &*at;
}

Weight with_dtype(const Weight& weight, DType dtype) {
  Weight w = weight;
  set_dtype(w, dtype);
  return w;
}

TensorType stored_type(const TensorType& type) {
  if (type.dtype != DType::kF4E2M1) return type;
  TensorType stored{DType::kI8, type.shape};
  stored.shape[stored.shape.rank() - 1] /= 2;
  return stored;
}

std::vector<FileTensor> file_tensors(std::span<const Weight> weights) {
  std::vector<FileTensor> out;
  for (const Weight& w : weights) {
    if (w.num_experts == 0) {
      out.push_back({w.tensor_name, stored_type(w.type), &w, false});
      if (w.scale) out.push_back({w.scale_name, *w.scale, &w, true});
      continue;
    }
    for (int64_t e = 0; e < w.num_experts; ++e) {
      out.push_back({expert_name(w.tensor_name, e), stored_type(expert_type(w.type)), &w, false});
      if (w.scale) out.push_back({expert_name(w.scale_name, e), expert_type(*w.scale), &w, true});
    }
  }
  return out;
}

int64_t bytes_per_decoded_token(const Config& config, const Weight& w) {
  if (w.mtp) return 0;
  if (w.component == Component::kEmbedding || w.kind == WeightKind::kTable) return w.bytes() / config.vocab_size;
  if (w.num_experts > 0) return w.bytes() / w.num_experts * config.num_experts_per_tok;
  return w.bytes();
}

Totals totals(const Config& config, std::span<const Weight> weights) {
  Totals t;
  for (const Weight& w : weights) {
    (w.mtp ? t.parameters_mtp : t.parameters_main) += w.parameters();
    (w.mtp ? t.bytes_mtp : t.bytes_main) += w.bytes();
    if (!w.mtp && w.component != Component::kEmbedding) {
      t.parameters_active +=
          w.num_experts > 0 ? w.parameters() / w.num_experts * config.num_experts_per_tok : w.parameters();
    }
    t.tensors += w.num_tensors();
    t.bytes_per_decoded_token += bytes_per_decoded_token(config, w);
    t.bytes_by_component[w.mtp ? Component::kMtp : w.component] += w.bytes();
    const int64_t parts = w.num_experts > 0 ? w.num_experts : 1;
    t.bytes_by_dtype[w.type.dtype] += w.type.bytes();
    t.tensors_by_dtype[w.type.dtype] += parts;
    if (w.scale) {
      t.bytes_by_dtype[w.scale->dtype] += w.scale->bytes();
      t.tensors_by_dtype[w.scale->dtype] += parts;
    }
  }
  return t;
}

}  // namespace weft::deepseek_v4
