// Derived weights, glm_moe_dsa.md sections 2.6 and 5.3.
#include <algorithm>

#include <fmt/format.h>

#include "base/numeric.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"

namespace weft::glm_moe_dsa {
namespace {

using Kind = DerivedWeight::Kind;

constexpr std::string_view kSource = ".kv_b_proj";  // of w_uk and w_uv

struct Name {
  std::string_view suffix;
  Kind kind;
  WeightFormat format;  // of the source, for what int8 weights need
};
constexpr Name kNames[] = {
    {".w_uk", Kind::kKeyUp, WeightFormat::kPlain},
    {".w_uv", Kind::kValueUp, WeightFormat::kPlain},
    {".weight_scale", Kind::kWeightScale, WeightFormat::kInt8Static},
    {".output_scale", Kind::kOutputScale, WeightFormat::kInt8Static},
    {".input_quant", Kind::kInputQuant, WeightFormat::kInt8Static},
    {".input_quant_bf16", Kind::kInputQuantBf16, WeightFormat::kInt8Static},
    {".scale_bf16", Kind::kScaleBf16, WeightFormat::kInt8Dynamic},
};

bool is_half(Kind kind) { return kind == Kind::kKeyUp || kind == Kind::kValueUp; }

// A stored weight, element by element as the fp32 value that it stands for.
class Dequantised {
 public:
  static Result<Dequantised> open(const std::string& key, FunctionRef<Result<TensorView>(std::string_view)> stored) {
    Dequantised d;
    WEFT_ASSIGN_OR_RETURN(d.weight_, stored(key));
    if (d.weight_.dtype() != DType::kF8E4M3 && d.weight_.dtype() != DType::kI8) return d;
    WEFT_ASSIGN_OR_RETURN(d.scale_, stored(key + ".scale"));
    const bool fp8 = d.weight_.dtype() == DType::kF8E4M3;
    d.block_rows_ = fp8 ? kFp8Block : 1;
    d.block_cols_ = fp8 ? kFp8Block : d.weight_.shape().back();
    return d;
  }

  float at(int64_t row, int64_t col) const {
    const int64_t i = row * weight_.shape().back() + col;
    switch (weight_.dtype()) {
      case DType::kF32: return weight_.as<float>()[i];
      case DType::kBF16: return to_float(weight_.as<bf16>()[i]);
      case DType::kF8E4M3: return e4m3_to_float(weight_.as<uint8_t>()[i]) * scale(row, col);
      case DType::kI8: return static_cast<float>(weight_.as<int8_t>()[i]) * scale(row, col);
      default: break;
    }
    WEFT_CHECK(false, "a weight of {}", dtype_name(weight_.dtype()));
  }

 private:
  float scale(int64_t row, int64_t col) const {
    return scale_.as<float>()[row / block_rows_ * scale_.shape().back() + col / block_cols_];
  }

  TensorView weight_, scale_;
  int64_t block_rows_ = 1, block_cols_ = 1;
};

void put(const TensorView& out, int64_t i, float value) {
  if (out.dtype() == DType::kF32) {
    out.as<float>()[i] = value;
  } else {
    out.as<bf16>()[i] = to_bf16(value);
  }
}

// Row `first + r` of w_uk is (head, latent feature), of w_uv (head, value feature). kv_b has the rows (head, key feature or, below
// them, value feature).
Status take_apart(const Config& c, const DerivedWeight& derived, FunctionRef<Result<TensorView>(std::string_view)> stored, int64_t first,
                  const TensorView& rows) {
  WEFT_ASSIGN_OR_RETURN(const Dequantised kv_b, Dequantised::open(derived.source, stored));
  const int64_t head_rows = c.qk_nope_head_dim + c.v_head_dim, width = rows.shape()[1];
  const bool key = derived.kind == Kind::kKeyUp;
  const int64_t per_head = key ? c.kv_lora_rank : c.v_head_dim;
  for (int64_t r = 0; r < rows.shape()[0]; ++r) {
    const int64_t head = (first + r) / per_head, inner = (first + r) % per_head;
    const int64_t top = head * head_rows + (key ? 0 : c.qk_nope_head_dim + inner);
    for (int64_t k = 0; k < width; ++k) put(rows, r * width + k, key ? kv_b.at(top + k, inner) : kv_b.at(top, k));
  }
  return {};
}

// Scales of int8: slices of [N, 1], or of the stacked [E, N, 1].
Status round_scales(const TensorView& stored, int64_t first, const TensorView& rows) {
  const int64_t slice = rows.shape().num_elements() / rows.shape()[0];
  for (int64_t r = 0; r < rows.shape()[0]; ++r) {
    const bool stacked = !stored.parts.empty();
    const auto* from = stacked ? static_cast<const float*>(stored.parts[static_cast<size_t>(first + r)]) : stored.as<float>() + (first + r) * slice;
    for (int64_t i = 0; i < slice; ++i) rows.as<float>()[r * slice + i] = round_bf16(from[i]);
  }
  return {};
}

}  // namespace

std::optional<DerivedWeight> derived_weight(const Config& c, std::span<const Weight> weights, const NumericMode& mode,
                                            std::string_view value_name) {
  const auto* name = std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return value_name.ends_with(n.suffix); });
  if (name == std::end(kNames)) return std::nullopt;
  std::string source(value_name.substr(0, value_name.size() - name->suffix.size()));
  if (is_half(name->kind)) source += kSource;
  const Weight* w = find_weight(weights, source);
  if (w == nullptr || (!is_half(name->kind) && format_of(*w) != name->format)) return std::nullopt;
  const auto derived = [&](DType dtype, const Shape& shape, WeightSplit split) { return DerivedWeight{name->kind, w->name, {dtype, shape}, split}; };
  // Exact where fp32 is asked for; the vendors round a quantised kv_b to BF16 first.
  const DType half = mode.dtype == DType::kBF16 || w->type.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  const int64_t rows = w->type.shape[w->type.shape.rank() - 2];
  switch (name->kind) {
    case Kind::kKeyUp: return derived(half, {c.num_attention_heads * c.kv_lora_rank, c.qk_nope_head_dim}, WeightSplit::kHeads);
    case Kind::kValueUp: return derived(half, {c.num_attention_heads * c.v_head_dim, c.kv_lora_rank}, WeightSplit::kHeads);
    case Kind::kWeightScale:
    case Kind::kOutputScale: return derived(DType::kF32, {rows, 1}, WeightSplit::kWhole);
    case Kind::kInputQuant:
    case Kind::kInputQuantBf16: return derived(DType::kF32, {3}, WeightSplit::kWhole);
    case Kind::kScaleBf16:
      return w->num_experts > 0 ? derived(DType::kF32, {w->num_experts, rows, 1}, WeightSplit::kExpertScales) : derived(DType::kF32, {rows, 1}, WeightSplit::kWhole);
  }
  WEFT_CHECK(false, "derived weight {}", static_cast<int>(name->kind));
}

Status derive(const Config& config, const DerivedWeight& derived, FunctionRef<Result<TensorView>(std::string_view)> stored, int64_t first,
              const TensorView& rows) {
  if (is_half(derived.kind)) return take_apart(config, derived, stored, first, rows);
  if (derived.kind == Kind::kScaleBf16) {
    WEFT_ASSIGN_OR_RETURN(const TensorView scale, stored(derived.source + ".scale"));
    return round_scales(scale, first, rows);
  }
  WEFT_ASSIGN_OR_RETURN(const TensorView deq, stored(derived.source + ".deq_scale"));
  WEFT_ASSIGN_OR_RETURN(const TensorView input, stored(derived.source + ".input_scale"));
  WEFT_ASSIGN_OR_RETURN(const TensorView offset, stored(derived.source + ".input_offset"));
  const float scale = input.as<float>()[0];
  const bool exact = derived.kind != Kind::kInputQuantBf16;
  const float quant[] = {exact ? scale : 1, exact ? 1 : round_bf16(1 / round_bf16(scale)), offset.as<float>()[0]};
  for (int64_t r = 0; r < rows.shape()[0]; ++r) {
    float& out = rows.as<float>()[r];
    if (derived.kind == Kind::kWeightScale) {
      out = deq.as<float>()[first + r] / scale;
    } else if (derived.kind == Kind::kOutputScale) {
      out = deq.as<float>()[first + r];
    } else {
      out = quant[first + r];
    }
  }
  return {};
}

}  // namespace weft::glm_moe_dsa
