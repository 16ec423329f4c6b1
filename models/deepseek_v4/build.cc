// The graph of DeepSeek-V4, deepseek_v4.md sections 2 and 4.1.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "graph/builder.h"
#include "models/deepseek_v4/deepseek_v4.h"

namespace weft::deepseek_v4 {
namespace {

constexpr int64_t kKvQuantBlock = 64;     // FP8 round trip of the features that are not rotated (2.5.6)
constexpr int64_t kIndexQuantBlock = 32;  // FP4 round trip of index queries and keys (2.6)

// At least one row: a ring that nothing is read from (a window of 1) still exists.
int64_t ring_rows(int64_t needed, const CacheCapacity& capacity) { return std::max<int64_t>(needed + capacity.draft_rows, 1); }

class Builder {
 public:
  Builder(std::string name, const Config& config, std::span<const Weight> weights, const GraphOptions& options)
      : c_(config), options_(options), g_(std::move(name)) {
    for (const Weight& weight : weights) {
      if (weight.mtp || weight.layer < 0 || builds(weight.layer)) by_name_.emplace(weight.name, &weight);
    }
    for (CacheSpec& spec : cache_specs(config, options.mode, options.cache)) caches_.emplace(spec.name, std::move(spec));
    const TensorType rows{DType::kI32, {options.shape.tokens}};
    tokens_ = g_.input(std::string(kTokensInput), {rows, Rows::kTokens});
    positions_ = g_.input(std::string(kPositionsInput), {rows, Rows::kTokens});
    rope_main_ = {c_.rope_theta, c_.qk_rope_head_dim, {}};
    rope_compress_ = {c_.compress_rope_theta, c_.qk_rope_head_dim, {}};
    if (c_.rope_scaling) {
      const auto& scaling = *c_.rope_scaling;
      rope_compress_.scaling = {scaling.factor, scaling.beta_fast, scaling.beta_slow, scaling.original_max_position_embeddings};
    }
  }

  Result<Graph> trunk(bool with_hidden) {
    ValueId x = g_.add(Embedding{c_.hc_mult, a()}, {tokens_, weight("embed")}, "embedding");
    if (options_.layers.empty()) {
      for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) x = block(x, fmt::format("layers.{}", layer), layer);
    }
    for (const int64_t layer : options_.layers) x = block(x, fmt::format("layers.{}", layer), layer);
    g_.set_region("");
    if (with_hidden) g_.result(x);
    head(x, "hc_head", "norm");
    return g_.finish();
  }

  Result<Graph> nextn() {
    const std::string mtp = "mtp.0";
    const ValueId hidden = g_.input(std::string(kHiddenInput),
                                    {{a(), {options_.shape.tokens, c_.hc_mult, c_.hidden_size}}, Rows::kTokens});
    g_.set_region(mtp);
    ValueId e = g_.add(Embedding{0, a()}, {tokens_, weight("embed")}, "embedding");
    e = linear(rms_norm(e, mtp + ".enorm", "embedding_norm"), mtp + ".e_proj", "embedding_proj", act_quant());
    ValueId h = linear(rms_norm(hidden, mtp + ".hnorm", "hidden_norm"), mtp + ".h_proj", "hidden_proj", act_quant());
    ValueId x = g_.add(AddStreams{}, {e, h}, "add_streams");
    x = block(x, mtp, c_.num_hidden_layers);
    g_.set_region("");
    g_.result(x);
    head(x, mtp + ".hc_head", mtp + ".norm");
    return g_.finish();
  }

 private:
  bool builds(int64_t layer) const {
    return options_.layers.empty() || std::find(options_.layers.begin(), options_.layers.end(), layer) != options_.layers.end();
  }
  DType a() const { return options_.mode.dtype; }
  ActQuant act_quant() const { return options_.mode.act_quant ? ActQuant::kFp8Block128 : ActQuant::kNone; }

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

  ValueId state(const std::string& name) {
    const auto at = caches_.find(name);
    WEFT_CHECK(at != caches_.end(), "cache '{}'", name);
    return g_.state(name, cache_type(at->second, options_.cache));
  }

  // The weight and, for scaled formats, its scale.
  std::vector<ValueId> weight_and_scale(const std::string& name) {
    const Weight* w = spec(name);
    if (w == nullptr) return {-1};
    std::vector<ValueId> ids = {g_.weight(name, w->type)};
    if (w->scale) ids.push_back(g_.weight(scale_value_name(name), *w->scale));
    return ids;
  }

  // Weights that share one scale: blocks of 128 x 128 (FP8) or 1 x 32 (FP4).
  static std::pair<int64_t, int64_t> scale_block(const Weight& w) {
    if (!w.scale) return {0, 0};
    return w.type.dtype == DType::kF4E2M1 ? std::pair{int64_t{1}, kFp4Block} : std::pair{kFp8Block, kFp8Block};
  }

  struct LinearOptions {
    std::optional<DType> dtype = std::nullopt;
    int64_t groups = 1, k_blocks = 1, heads = 0;
  };

  ValueId linear(ValueId x, const std::string& weight_name, const std::string& name, ActQuant quant) {
    return linear(x, weight_name, name, quant, {});
  }
  ValueId linear(ValueId x, const std::string& weight_name, const std::string& name, ActQuant quant, const LinearOptions& o) {
    const Weight* w = spec(weight_name);
    if (w == nullptr) return -1;
    Linear op;
    op.dtype = o.dtype.value_or(a());
    op.act_quant = quant;
    op.groups = o.groups;
    op.k_blocks = o.k_blocks;
    op.heads = o.heads;
    std::tie(op.scale_rows, op.scale_cols) = scale_block(*w);
    std::vector<ValueId> in = {x};
    for (ValueId id : weight_and_scale(weight_name)) in.push_back(id);
    return g_.add(op, in, name);
  }

  ValueId rms_norm(ValueId x, const std::string& weight_name, const std::string& name) {
    return g_.add(RmsNorm{c_.rms_norm_eps}, {x, weight(weight_name)}, name);
  }

  ValueId rope_table(bool compressed) {
    ValueId& table = compressed ? table_compress_ : table_main_;
    if (table < 0) {
      g_.set_region("");
      table = g_.add(RopeTable{compressed ? rope_compress_ : rope_main_}, {positions_},
                     compressed ? "rope_table_compress" : "rope_table_main");
    }
    return table;
  }

  // One decoder layer: attention and feed-forward, each between hc_pre and hc_post.
  ValueId block(ValueId x, const std::string& layer, int64_t index) {
    const LayerKind kind = c_.layer_kind(index);
    const ValueId table = rope_table(kind != LayerKind::kSwa);
    g_.set_region(layer);
    x = sub_block(x, layer, "attn", [&](ValueId h) { return attention(h, layer, kind, table); });
    return sub_block(x, layer, "ffn", [&](ValueId h) { return feed_forward(h, layer, index); });
  }

  template <class F>
  ValueId sub_block(ValueId x, const std::string& layer, const std::string& part, F&& body) {
    const std::string hc = layer + ".hc_" + part;
    const auto pre = g_.add_all(HcPre{c_.hc_sinkhorn_iters, c_.rms_norm_eps, c_.hc_eps},
                                {x, weight(hc + "_fn"), weight(hc + "_base"), weight(hc + "_scale")}, part + "_hc_pre");
    if (!g_.ok()) return -1;
    const ValueId h = rms_norm(pre[0], fmt::format("{}.{}_norm", layer, part), part + "_in");
    return g_.add(HcPost{}, {body(h), x, pre[1]}, part + "_hc_post");
  }

  ValueId quantise(ValueId x, const Quantise& op, const std::string& name) {
    return options_.mode.act_quant ? g_.add(op, {x}, name) : x;
  }
  Quantise kv_quantise(int64_t head_dim) const {
    return {QuantFormat::kFp8, 0, head_dim - c_.qk_rope_head_dim, kKvQuantBlock, false};
  }
  Quantise index_quantise() const { return {QuantFormat::kFp4, 0, c_.index_head_dim, kIndexQuantBlock, true}; }

  ValueId attention(ValueId h, const std::string& layer, LayerKind kind, ValueId table) {
    const std::string attn = layer + ".attn";
    const ValueId qr = rms_norm(linear(h, attn + ".wq_a", "wq_a", act_quant()), attn + ".q_norm", "q_norm");
    ValueId q = linear(qr, attn + ".wq_b", "wq_b", act_quant(), {.heads = c_.num_attention_heads});
    q = g_.add(RmsNorm{c_.rms_norm_eps, a() == DType::kBF16 ? NormRounding::kEachStep : NormRounding::kOnce}, {q}, "q_head_norm");
    q = g_.add(Rope{}, {q, table}, "q_rope");
    ValueId kv = rms_norm(linear(h, attn + ".wkv", "wkv", act_quant()), attn + ".kv_norm", "kv_norm");
    kv = quantise(g_.add(Rope{}, {kv, table}, "kv_rope"), kv_quantise(c_.head_dim), "kv_quantise");

    const ValueId window = state(layer + ".window");
    SparseAttention core;
    core.window = c_.sliding_window;
    core.scale = 1 / std::sqrt(static_cast<double>(c_.head_dim));
    core.max_context = options_.cache.max_context;
    std::vector<ValueId> in = {q, kv, weight(attn + ".attn_sink"), window};
    if (kind != LayerKind::kSwa) {
      core.ratio = kind == LayerKind::kCsa ? kCsaRatio : kHcaRatio;
      compress(h, attn + ".compressor", core.ratio, c_.head_dim, kv_quantise(c_.head_dim), layer + ".state",
               layer + ".compressed", "compressor");
      in.push_back(state(layer + ".compressed"));
    }
    if (kind == LayerKind::kCsa) in.push_back(select(h, qr, layer, table));
    ValueId o = g_.add(core, in, "attention");
    g_.add(RingWrite{}, {kv, window}, "window_write");
    o = g_.add(Rope{RopeDirection::kInverse}, {o, table}, "o_rope");
    if (options_.mode.output_quant == OutputQuant::kInt8) {
      o = g_.add(QuantiseGroups{c_.num_attention_heads / c_.o_groups}, {o}, "o_quantise");
    }
    o = linear(o, attn + ".wo_a", "wo_a", ActQuant::kNone, {.groups = c_.o_groups});
    return linear(o, attn + ".wo_b", "wo_b", act_quant(), {.k_blocks = canonical_blocks(c_.o_groups * c_.o_lora_rank)});
  }

  // Pools groups of `ratio` tokens into entries of a cache (2.5.5).
  void compress(ValueId h, const std::string& weights, int64_t ratio, int64_t dim, const Quantise& quant,
                const std::string& state_name, const std::string& entries, const std::string& name) {
    const ValueId k = linear(h, weights + ".wkv", name + ".wkv", ActQuant::kNone, {.dtype = DType::kF32});
    ValueId s = linear(h, weights + ".wgate", name + ".wgate", ActQuant::kNone, {.dtype = DType::kF32});
    s = g_.add(AddPositionBias{}, {s, weight(weights + ".ape"), positions_}, name + ".ape");
    Compressor op;
    op.ratio = ratio;
    op.eps = c_.rms_norm_eps;
    op.rope = rope_compress_;
    op.quantised = options_.mode.act_quant;
    if (op.quantised) op.quantise = quant;
    g_.add(op, {k, s, weight(weights + ".norm"), state(state_name), state(entries)}, name);
  }

  // The lightning indexer: which compressed entries each token attends (2.6).
  ValueId select(ValueId h, ValueId qr, const std::string& layer, ValueId table) {
    const std::string indexer = layer + ".attn.indexer";
    compress(h, indexer + ".compressor", kCsaRatio, c_.index_head_dim, index_quantise(), layer + ".index_state",
             layer + ".index_keys", "indexer.compressor");
    ValueId iq = linear(qr, indexer + ".wq_b", "indexer.wq_b", act_quant(), {.heads = c_.index_n_heads});
    iq = quantise(g_.add(Rope{}, {iq, table}, "indexer.q_rope"), index_quantise(), "indexer.q_quantise");
    const ValueId w = linear(h, indexer + ".weights_proj", "indexer.weights_proj", ActQuant::kNone);
    IndexTopK op;
    op.ratio = kCsaRatio;
    op.top_k = c_.index_topk;
    op.weight_scale = 1 / std::sqrt(static_cast<double>(c_.index_head_dim)) / std::sqrt(static_cast<double>(c_.index_n_heads));
    op.max_context = options_.cache.max_context;
    if (options_.mode.act_quant) op.rounded_to = dtype_of(index_quantise().format);
    return g_.add(op, {iq, w, state(layer + ".index_keys")}, "topk");
  }

  ValueId feed_forward(ValueId h, const std::string& layer, int64_t index) {
    const std::string ffn = layer + ".ffn";
    const ValueId logits = linear(h, ffn + ".gate", "gate", ActQuant::kNone, {.dtype = DType::kF32});
    MoeRoute route;
    route.top_k = c_.num_experts_per_tok;
    route.scoring_func = ScoringFunc::kSqrtSoftplus;
    route.scaling = c_.routed_scaling_factor;
    std::vector<ValueId> route_in = {logits};
    if (c_.is_hash_layer(index)) {
      route.by = RouteBy::kToken;
      route_in.insert(route_in.end(), {weight(ffn + ".gate.tid2eid"), tokens_});
    } else {
      route_in.push_back(weight(ffn + ".gate.bias"));
    }
    const auto routed = g_.add_all(route, route_in, "route");
    if (!g_.ok()) return -1;

    Experts experts;
    experts.act_quant = act_quant();
    experts.swiglu_limit = c_.swiglu_limit;
    std::vector<ValueId> in = {h, routed[0], routed[1]}, scales;
    for (const char* part : {"w1", "w3", "w2"}) {
      const std::string name = fmt::format("{}.experts.{}", ffn, part);
      const auto ids = weight_and_scale(name);
      in.push_back(ids[0]);
      if (ids.size() == 2) scales.push_back(ids[1]);
      if (const Weight* w = spec(name)) std::tie(experts.scale_rows, experts.scale_cols) = scale_block(*w);
    }
    in.insert(in.end(), scales.begin(), scales.end());
    const ValueId routed_sum = g_.add(experts, in, "experts");

    const std::string shared = ffn + ".shared_experts";
    const ValueId gate = linear(h, shared + ".w1", "shared.w1", act_quant());
    const ValueId up = linear(h, shared + ".w3", "shared.w3", act_quant());
    const ValueId act = g_.add(Swiglu{c_.swiglu_limit}, {gate, up}, "shared.swiglu");
    const int64_t inner = c_.moe_intermediate_size * c_.n_shared_experts;
    const ValueId down = linear(act, shared + ".w2", "shared.w2", act_quant(), {.k_blocks = canonical_blocks(inner)});
    return g_.add(Add{}, {routed_sum, down}, "ffn_out");
  }

  void head(ValueId x, const std::string& hc, const std::string& norm) {
    x = g_.add(GatherRows{options_.shape.logits}, {x}, "logit_rows");
    ValueId h = g_.add(HcHead{c_.rms_norm_eps, c_.hc_eps}, {x, weight(hc + "_fn"), weight(hc + "_base"), weight(hc + "_scale")},
                       "head.hc");
    h = rms_norm(h, norm, "head.norm");
    g_.result(linear(h, "head", std::string(kLogitsResult), ActQuant::kNone, {.dtype = DType::kF32}));
  }

  const Config& c_;
  const GraphOptions& options_;
  GraphBuilder g_;
  std::unordered_map<std::string_view, const Weight*> by_name_;
  std::unordered_map<std::string, CacheSpec> caches_;
  ValueId tokens_ = -1, positions_ = -1, table_main_ = -1, table_compress_ = -1;
  RopeParameters rope_main_, rope_compress_;
};

}  // namespace

std::vector<CacheSpec> cache_specs(const Config& c, const NumericMode& mode, const CacheCapacity& capacity) {
  std::vector<CacheSpec> specs;
  const auto add_compressor = [&](const std::string& state, const std::string& entries, int64_t ratio, int64_t dim) {
    const bool overlap = ratio == kCsaRatio;
    const int64_t width = overlap ? 2 * dim : dim;
    specs.push_back({state, CacheKind::kRing, 1, ring_rows((overlap ? 2 : 1) * ratio - 1, capacity), DType::kF32, 2 * width});
    specs.push_back({entries, CacheKind::kAppend, ratio, 0, mode.dtype, dim});
  };
  const int64_t drafts = c.dspark ? 0 : c.num_mtp_layers();
  for (int64_t index = 0; index < c.num_hidden_layers + drafts; ++index) {
    const std::string layer = index < c.num_hidden_layers ? fmt::format("layers.{}", index)
                                                          : fmt::format("mtp.{}", index - c.num_hidden_layers);
    specs.push_back({layer + ".window", CacheKind::kRing, 1, ring_rows(c.sliding_window - 1, capacity), mode.dtype, c.head_dim});
    const LayerKind kind = c.layer_kind(index);
    if (kind == LayerKind::kSwa) continue;
    add_compressor(layer + ".state", layer + ".compressed", kind == LayerKind::kCsa ? kCsaRatio : kHcaRatio, c.head_dim);
    if (kind == LayerKind::kCsa) add_compressor(layer + ".index_state", layer + ".index_keys", kCsaRatio, c.index_head_dim);
  }
  return specs;
}

Result<Graph> build_trunk(const Config& config, std::span<const Weight> weights, const GraphOptions& options,
                          bool with_hidden) {
  return Builder("deepseek_v4", config, weights, options).trunk(with_hidden);
}

Result<Graph> build_nextn(const Config& config, std::span<const Weight> weights, const GraphOptions& options) {
  return Builder("deepseek_v4_nextn", config, weights, options).nextn();
}

}  // namespace weft::deepseek_v4
