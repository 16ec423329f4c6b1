// The graph of the DSA-MLA family, glm_moe_dsa.md sections 2 and 4.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "graph/builder.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"

namespace weft::glm_moe_dsa {
namespace {

constexpr int64_t kQuantBlock = 128;  // FP8 round trip of latents, index queries and index keys (2.8, 2.14)

class Builder {
 public:
  Builder(std::string name, const Config& config, std::span<const Weight> weights, const GraphOptions& options)
      : c_(config), weights_(weights), options_(options), g_(std::move(name)) {
    for (const Weight& weight : weights) by_name_.emplace(weight.name, &weight);
    for (const CacheSpec& spec : cache_specs(config, options.mode)) caches_.emplace(spec.name, spec);
    const TensorType rows{DType::kI32, {options.shape.tokens}};
    tokens_ = g_.input(std::string(kTokensInput), {rows, Rows::kTokens});
    positions_ = g_.input(std::string(kPositionsInput), {rows, Rows::kTokens});
  }

  Result<Graph> trunk(bool with_drafts) {
    ValueId x = g_.add(Embedding{0, a()}, {tokens_, weight("embed_tokens")}, "embedding");
    if (options_.layers.empty()) {
      for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) x = block(x, fmt::format("layers.{}", layer), layer);
    }
    for (const int64_t layer : options_.layers) x = block(x, fmt::format("layers.{}", layer), layer);
    g_.set_region("");
    if (with_drafts) {  // of all rows, because drafts may start from any of them
      x = rms_norm(x, "norm", "head_norm");
      g_.result(by_name_.contains("rot") ? linear(x, "rot", "rotated") : x);
      x = g_.add(GatherRows{options_.shape.logits}, {x}, "logit_rows");
    } else {
      x = g_.add(GatherRows{options_.shape.logits}, {x}, "logit_rows");
      x = rms_norm(x, "norm", "head_norm");
    }
    head(x, "lm_head");
    return g_.finish();
  }

  Result<Graph> mtp() {
    const std::string mtp = "mtp.0";
    const ValueId hidden = g_.input(std::string(kHiddenInput), {{a(), {options_.shape.tokens, c_.hidden_size}}, Rows::kTokens});
    g_.set_region(mtp);
    const bool own = by_name_.contains(mtp + ".embed_tokens");
    const ValueId e = g_.add(Embedding{0, a()}, {tokens_, weight(own ? mtp + ".embed_tokens" : "embed_tokens")}, "embedding");
    const ValueId both = g_.add(Concat{}, {rms_norm(e, mtp + ".enorm", "embedding_norm"), rms_norm(hidden, mtp + ".hnorm", "hidden_norm")}, "concat");
    ValueId x = linear(both, mtp + ".eh_proj", "projection");
    const bool shares = c_.index_share_for_mtp_iteration;
    if (shares && options_.draft_from == DraftFrom::kDraft) {
      picks_ = g_.input(std::string(kSelectionInput), {{DType::kI32, {options_.shape.tokens, c_.index_topk}}, Rows::kTokens});
    }
    x = block(x, mtp, c_.num_hidden_layers);
    x = rms_norm(x, mtp + ".shared_head.norm", "head_norm");
    g_.result(x);
    if (shares) g_.result(picks_);
    g_.set_region("");
    x = g_.add(GatherRows{options_.shape.logits}, {x}, "logit_rows");
    head(x, own ? mtp + ".shared_head.head" : "lm_head");
    return g_.finish();
  }

 private:
  DType a() const { return options_.mode.dtype; }

  const Weight* spec(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at != by_name_.end()) return at->second;
    g_.fail(invalid_argument(fmt::format("the weights table has no '{}'", name)));
    return nullptr;
  }

  ValueId weight(const std::string& name) {
    const Weight* w = spec(name);
    return w == nullptr ? -1 : g_.weight(name, w->type);
  }

  ValueId side(const Weight& w, std::string_view name) {
    for (const SideTensor& s : w.sides) {
      if (s.name == name) return g_.weight(fmt::format("{}.{}", w.name, name), s.type);
    }
    WEFT_CHECK(false, "'{}' has no '{}'", w.name, name);
  }

  ValueId derived(const std::string& name) {
    const auto d = derived_weight(c_, weights_, options_.mode, name);
    if (d) return g_.derived(name, d->type);
    g_.fail(invalid_argument(fmt::format("the weights table has nothing to derive '{}' from", name)));
    return -1;
  }

  ValueId state(const std::string& name) {
    const auto at = caches_.find(name);
    WEFT_CHECK(at != caches_.end(), "cache '{}'", name);
    return g_.state(name, cache_type(at->second, options_.cache));
  }

  // Of FP8 or dynamic int8; the vendor of the latter keeps it in BF16 (P4).
  ValueId scale(const Weight& w) {
    const bool rounded = format_of(w) == WeightFormat::kInt8Dynamic && options_.mode.act_quant && a() == DType::kBF16;
    return rounded ? derived(w.name + ".scale_bf16") : side(w, "scale");
  }

  // What the stored format asks of the activations that it meets.
  ActQuant act_quant(const Weight& w) const {
    if (!options_.mode.act_quant) return ActQuant::kNone;
    switch (format_of(w)) {
      case WeightFormat::kPlain: return ActQuant::kNone;
      case WeightFormat::kFp8: return c_.scale_ue8m0 ? ActQuant::kFp8Block128 : ActQuant::kFp8Block128AnyScale;
      case WeightFormat::kInt8Dynamic: return ActQuant::kInt8PerRow;
      case WeightFormat::kInt8Static: return ActQuant::kInt8Static;
    }
    WEFT_CHECK(false, "format {}", static_cast<int>(format_of(w)));
  }
  bool quantises_fp8() const { return options_.mode.act_quant && c_.fp8; }

  // Weights that share one scale.
  static std::pair<int64_t, int64_t> scale_block(const Weight& w) {
    switch (format_of(w)) {
      case WeightFormat::kPlain: return {0, 0};
      case WeightFormat::kFp8: return {kFp8Block, kFp8Block};
      default: return {1, w.type.shape.back()};
    }
  }

  struct LinearOptions {
    std::optional<DType> dtype = std::nullopt;
    int64_t k_blocks = 1, heads = 0;
  };

  ValueId linear(ValueId x, const std::string& weight_name, const std::string& name) { return linear(x, weight_name, name, {}); }
  ValueId linear(ValueId x, const std::string& weight_name, const std::string& name, const LinearOptions& o) {
    const Weight* w = spec(weight_name);
    if (w == nullptr) return -1;
    Linear op;
    op.dtype = o.dtype.value_or(a());
    op.act_quant = act_quant(*w);
    op.k_blocks = o.k_blocks;
    op.heads = o.heads;
    std::tie(op.scale_rows, op.scale_cols) = scale_block(*w);
    std::vector<ValueId> in = {x, g_.weight(w->name, w->type)};
    switch (format_of(*w)) {
      case WeightFormat::kPlain: break;
      case WeightFormat::kFp8:
      case WeightFormat::kInt8Dynamic: in.push_back(scale(*w)); break;
      case WeightFormat::kInt8Static:
        if (op.act_quant == ActQuant::kNone) {
          in.push_back(derived(weight_name + ".weight_scale"));
        } else {
          in.push_back(derived(weight_name + ".output_scale"));
          in.push_back(side(*w, "quant_bias"));
          in.push_back(derived(weight_name + (a() == DType::kBF16 ? ".input_quant_bf16" : ".input_quant")));
        }
    }
    return g_.add(op, in, name);
  }

  // Every head through its own matrix, as derived from kv_b.
  ValueId per_head(ValueId x, const std::string& weight_name, int64_t rest, const std::string& name) {
    Linear op;
    op.dtype = a();
    op.groups = op.heads = c_.num_attention_heads;
    op.rest = rest;
    return g_.add(op, {x, derived(weight_name)}, name);
  }

  ValueId rms_norm(ValueId x, const std::string& weight_name, const std::string& name) {
    return g_.add(RmsNorm{c_.rms_norm_eps}, {x, weight(weight_name)}, name);
  }

  ValueId rope_table() {
    if (table_ < 0) {
      RopeParameters rope{c_.rope_theta, c_.qk_rope_head_dim, {}};
      if (c_.rope_scaling) {
        const auto& s = *c_.rope_scaling;
        rope.scaling = {s.factor, s.beta_fast, s.beta_slow, s.original_max_position_embeddings};
      }
      g_.set_region("");
      table_ = g_.add(RopeTable{rope}, {positions_}, "rope_table");
    }
    return table_;
  }

  ValueId quantise(ValueId x, int64_t end, bool hadamard, const std::string& name) {
    const QuantFormat format = c_.scale_ue8m0 ? QuantFormat::kFp8 : QuantFormat::kFp8AnyScale;
    return quantises_fp8() ? g_.add(Quantise{format, 0, end, kQuantBlock, hadamard}, {x}, name) : x;
  }

  // One decoder layer: attention and feed-forward, each added to the stream.
  ValueId block(ValueId x, const std::string& layer, int64_t index) {
    const ValueId table = rope_table();
    g_.set_region(layer);
    const ValueId h = rms_norm(x, layer + ".input_layernorm", "attn_in");
    x = g_.add(Add{}, {x, attention(h, layer, index, table)}, "attn_out");
    const ValueId f = rms_norm(x, layer + ".post_attention_layernorm", "ffn_in");
    return g_.add(Add{}, {x, c_.is_dense(index) ? mlp(f, layer + ".mlp", "ffn", c_.intermediate_size) : moe(f, layer + ".mlp")}, "ffn_out");
  }

  ValueId attention(ValueId h, const std::string& layer, int64_t index, ValueId table) {
    const std::string attn = layer + ".self_attn";
    const ValueId qr = rms_norm(linear(h, attn + ".q_a_proj", "q_a"), attn + ".q_a_layernorm", "q_norm");
    ValueId kv = rms_norm(linear(h, attn + ".kv_a_proj_with_mqa", "kv_a"), attn + ".kv_a_layernorm", "kv_norm");
    kv = g_.add(Rope{}, {kv, table}, "kv_rope");
    kv = quantise(kv, c_.kv_lora_rank, false, "kv_quantise");

    const ValueId latents = state(layer + ".latent");
    const bool given = index >= c_.num_hidden_layers && picks_ >= 0;  // a draft that uses the selection of the first
    if (c_.has_indexer(index) && !given) {
      // One row for both caches, so that ranks exchange them together.
      const ValueId rows = g_.add(Concat{}, {kv, index_key(h, attn + ".indexer", table)}, "cache_rows");
      const ValueId keys = state(layer + ".index_keys");
      g_.add(AppendRows{0}, {rows, latents}, "latent_write");
      g_.add(AppendRows{c_.key_width()}, {rows, keys}, "index_key_write");
      picks_ = select(h, qr, attn + ".indexer", keys, table);
    } else {
      g_.add(AppendRows{0}, {kv, latents}, "latent_write");
      if (picks_ < 0) g_.fail(invalid_argument(fmt::format("{} reuses the selection of a layer before it, and there is none", layer)));
    }

    ValueId q = linear(qr, attn + ".q_b_proj", "q_b", {.heads = c_.num_attention_heads});
    q = per_head(g_.add(Rope{}, {q, table}, "q_rope"), attn + ".w_uk", c_.qk_rope_head_dim, "q_latent");
    SparseAttention core;
    core.ratio = 1;
    core.scale = c_.softmax_scale();
    core.max_context = options_.cache.max_context;
    core.has_sink = false;
    core.value_width = c_.kv_lora_rank;
    const ValueId z = g_.add(core, {q, latents, picks_}, "attention");
    const ValueId o = per_head(z, attn + ".w_uv", 0, "values");
    return linear(o, attn + ".o_proj", "o", {.k_blocks = canonical_blocks(c_.num_attention_heads * c_.v_head_dim)});
  }

  Rope index_rope() const {
    return {RopeDirection::kForward, c_.indexer_rope_interleave ? RopePairs::kInterleaved : RopePairs::kHalfSplit, RopePlace::kFirst};
  }

  ValueId index_key(ValueId h, const std::string& indexer, ValueId table) {
    ValueId k = linear(h, indexer + ".wk", "indexer.wk");
    k = g_.add(LayerNorm{kIndexNormEps}, {k, weight(indexer + ".k_norm"), weight(indexer + ".k_norm.bias")}, "indexer.k_norm");
    return quantise(g_.add(index_rope(), {k, table}, "indexer.k_rope"), c_.index_head_dim, true, "indexer.k_quantise");
  }

  // The lightning indexer: which tokens each token attends (2.7).
  ValueId select(ValueId h, ValueId qr, const std::string& indexer, ValueId keys, ValueId table) {
    ValueId q = linear(qr, indexer + ".wq_b", "indexer.wq_b", {.heads = c_.index_n_heads});
    q = quantise(g_.add(index_rope(), {q, table}, "indexer.q_rope"), c_.index_head_dim, true, "indexer.q_quantise");
    const ValueId w = linear(h, indexer + ".weights_proj", "indexer.weights_proj", {.dtype = DType::kF32});
    IndexTopK op;
    op.ratio = 1;
    op.top_k = c_.index_topk;
    op.weight_scale = 1 / std::sqrt(static_cast<double>(c_.index_head_dim)) / std::sqrt(static_cast<double>(c_.index_n_heads));
    op.max_context = options_.cache.max_context;
    if (quantises_fp8()) op.rounded_to = DType::kF8E4M3;
    return g_.add(op, {q, w, keys}, "topk");
  }

  ValueId mlp(ValueId h, const std::string& weights, const std::string& name, int64_t inner) {
    const ValueId gate = linear(h, weights + ".gate_proj", name + ".gate_proj");
    const ValueId up = linear(h, weights + ".up_proj", name + ".up_proj");
    const ValueId act = g_.add(Swiglu{}, {gate, up}, name + ".swiglu");
    return linear(act, weights + ".down_proj", name + ".down_proj", {.k_blocks = canonical_blocks(inner)});
  }

  ValueId moe(ValueId h, const std::string& weights) {
    const ValueId logits = linear(h, weights + ".gate", "gate", {.dtype = DType::kF32});
    MoeRoute route;
    route.top_k = c_.num_experts_per_tok;
    route.scoring_func = ScoringFunc::kSigmoid;
    route.n_group = c_.n_group;
    route.topk_group = c_.topk_group;
    route.scaling = c_.routed_scaling_factor;
    const auto routed = g_.add_all(route, {logits, weight(weights + ".gate.e_score_correction_bias")}, "route");
    if (!g_.ok()) return -1;

    const Weight* parts[3];
    for (size_t i = 0; i < 3; ++i) {
      parts[i] = spec(fmt::format("{}.experts.{}", weights, std::array{"gate_proj", "up_proj", "down_proj"}[i]));
      if (parts[i] == nullptr) return -1;
    }
    const ValueId sum = experts(h, routed, parts);
    const ValueId shared = mlp(h, weights + ".shared_experts", "shared", c_.moe_intermediate_size * c_.n_shared_experts);
    return g_.add(Add{}, {sum, shared}, "moe_out");
  }

  // As one op, unless an exception of the checkpoint stores what the two halves of it need in two formats.
  ValueId experts(ValueId h, const std::vector<ValueId>& routed, std::span<const Weight* const, 3> parts) {
    const std::span<const Weight* const> all = parts, up = all.first(2), down = all.last(1);
    const Weight &gate = *parts[0], &last = *parts[2];
    if (gate.type.dtype == last.type.dtype && format_of(gate) == format_of(last)) {
      return g_.add(expert_options(all), expert_inputs(h, routed, all), "experts");
    }
    const ValueId a = g_.add(ExpertsUp{expert_options(up)}, expert_inputs(h, routed, up), "experts.up");
    return g_.add(ExpertsDown{expert_options(down)}, expert_inputs(a, routed, down), "experts");
  }

  Experts expert_options(std::span<const Weight* const> parts) const {
    Experts experts;
    experts.weight_before_w2 = false;
    for (const Weight* w : parts) {
      const auto [scale_rows, scale_cols] = scale_block(*w);
      experts.act_quant = act_quant(*w);
      experts.scale_rows = scale_rows;
      experts.scale_cols = std::max(experts.scale_cols, scale_cols);  // of int8, a whole row of either width
    }
    return experts;
  }

  std::vector<ValueId> expert_inputs(ValueId x, const std::vector<ValueId>& routed, std::span<const Weight* const> parts) {
    std::vector<ValueId> in = {x, routed[0], routed[1]};
    for (const Weight* w : parts) in.push_back(g_.weight(w->name, w->type));
    for (const Weight* w : parts) {
      if (format_of(*w) != WeightFormat::kPlain) in.push_back(scale(*w));
    }
    return in;
  }

  void head(ValueId x, const std::string& weight_name) { g_.result(linear(x, weight_name, std::string(kLogitsResult), {.dtype = DType::kF32})); }

  const Config& c_;
  std::span<const Weight> weights_;
  const GraphOptions& options_;
  GraphBuilder g_;
  std::unordered_map<std::string_view, const Weight*> by_name_;
  std::unordered_map<std::string, CacheSpec> caches_;
  ValueId tokens_ = -1, positions_ = -1, table_ = -1;
  ValueId picks_ = -1;  // of the newest layer with an indexer; layers without one use them (2.10)
};

}  // namespace

std::vector<CacheSpec> cache_specs(const Config& c, const NumericMode& mode) {
  std::vector<CacheSpec> specs;
  for (int64_t index = 0; index < c.num_hidden_layers + (c.num_nextn_predict_layers > 0 ? 1 : 0); ++index) {
    const std::string layer = index < c.num_hidden_layers ? fmt::format("layers.{}", index) : "mtp.0";
    specs.push_back({layer + ".latent", CacheKind::kAppend, 1, 0, mode.dtype, c.key_width()});
    if (c.has_indexer(index)) specs.push_back({layer + ".index_keys", CacheKind::kAppend, 1, 0, mode.dtype, c.index_head_dim});
  }
  return specs;
}

std::string hidden_value(int64_t layer) { return fmt::format("layers.{}.ffn_out", layer); }
std::string selection_value(const Config& config, int64_t layer) {
  return layer < config.num_hidden_layers ? fmt::format("layers.{}.topk", layer) : kDraftSelectionValue;
}

// The trunk's state after the final norm, turned out of the rotated basis; of a draft the normed output. Where drafts share a selection
// (index_share_for_mtp_iteration), it is that of the first.
std::vector<Model::DraftLink> draft_links(const Config& config, std::span<const Weight> weights, DraftFrom from) {
  if (from == DraftFrom::kTrunk) return {{find_weight(weights, "rot") != nullptr ? "rotated" : "head_norm", std::string(kHiddenInput)}};
  std::vector<Model::DraftLink> links = {{"mtp.0.head_norm", std::string(kHiddenInput)}};
  if (config.index_share_for_mtp_iteration) links.push_back({kDraftSelectionValue, std::string(kSelectionInput)});
  return links;
}

Result<Graph> build_trunk(const Config& config, std::span<const Weight> weights, const GraphOptions& options, bool with_drafts) {
  return Builder("glm_moe_dsa", config, weights, options).trunk(with_drafts);
}

Result<Graph> build_mtp(const Config& config, std::span<const Weight> weights, const GraphOptions& options) {
  return Builder("glm_moe_dsa_mtp", config, weights, options).mtp();
}

}  // namespace weft::glm_moe_dsa
