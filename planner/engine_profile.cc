#include "planner/engine_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/int_math.h"
#include "comm/bytes.h"
#include "io/json_fields.h"
#include "planner/profile_files.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, 4> kConditions = {"always", "dsa_cp", "no_dsa_cp", "sequence_parallel"};
constexpr std::array<std::string_view, 3> kLifetimes = {"persistent", "load", "step"};
constexpr std::array<std::string_view, 7> kEffects = {"replicate", "shard",      "store_as", "omit_scales",
                                                      "omit",      "extra_copy", "overhead"};
constexpr std::array<std::string_view, 10> kSplits = {"whole",         "heads",       "output_groups", "output_inputs",
                                                      "vocabulary",    "dense_inner", "dense_inputs",  "shared_inner",
                                                      "shared_inputs", "experts"};
constexpr double kMaxBytes = 1e15;

class EngineReader {
 public:
  EngineReader(std::string where, EngineProfile& profile) : where_(std::move(where)), profile_(profile) {}

  Status read(const Json& json) {
    JsonFields fields(json, where_);
    fields.integer("schema", 1, 1);
    profile_.name = fields.string("name");
    profile_.description = fields.string("description");
    profile_.exact = flag(fields, json, "exact", false);
    profile_.reduce_dtype = dtype(fields, "reduce_dtype");
    profile_.gather_dtype = dtype(fields, "gather_dtype");
    profile_.executor_limits = flag(fields, json, "executor_limits", true);
    profile_.shares_logits = flag(fields, json, "shares_logits", true);
    profile_.dsa_cp_with_sequence_parallel = flag(fields, json, "dsa_cp_with_sequence_parallel", false);
    if (fields.has("leaves_out")) profile_.leaves_out = fields.strings("leaves_out");
    items(fields, json, "weights", [&](JsonFields& item, const Json& object) { weight(item, object); });
    items(fields, json, "reserves", [&](JsonFields& item, const Json& object) { reserve(item, object); });
    return finish(fields);
  }

 private:
  Status finish(JsonFields& fields) {
    if (!status_.ok()) return status_;
    std::vector<std::string> unknown;
    WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kWarn, &unknown));
    return unknown.empty() ? Status() : invalid_argument(unknown.front());
  }

  bool flag(JsonFields& fields, const Json& json, const char* key, bool fallback) {
    fields.informational({key});
    if (!fields.has(key)) return fallback;
    const Json& value = json[key];
    if (!value.is_boolean()) fields.fail(key, fmt::format(": expected true or false, found {}", json_kind(value)));
    return value.is_boolean() ? value.get<bool>() : fallback;
  }

  std::optional<DType> dtype(JsonFields& fields, const char* key) {
    fields.informational({key});
    if (!fields.has(key)) return std::nullopt;
    const std::string text = fields.string(key);
    const std::optional<DType> found = parse_dtype(text);
    if (!found && fields.status().ok()) fields.fail(key, fmt::format(": '{}' is no dtype", text));
    return found;
  }

  template <class E, size_t N>
  E word(JsonFields& fields, const char* key, const std::array<std::string_view, N>& words) {
    const std::string text = fields.string(key);
    const auto it = std::find(words.begin(), words.end(), text);
    if (it != words.end()) return static_cast<E>(it - words.begin());
    if (fields.status().ok()) {
      std::string all;
      for (const std::string_view w : words) all += fmt::format("{}{}", all.empty() ? "" : ", ", w);
      fields.fail(key, fmt::format(": '{}' is unknown; known: {}", text, all));
    }
    return E{};
  }

  template <class Read>
  void items(JsonFields& fields, const Json& object, const char* key, Read read) {
    fields.informational({key});
    if (!fields.has(key)) return;
    const Json& list = object[key];
    if (!list.is_array()) return fields.fail(key, fmt::format(": expected a list, found {}", json_kind(list)));
    for (size_t i = 0; i < list.size() && status_.ok(); ++i) {
      JsonFields item(list[i], where_, fmt::format("{}[{}].", key, i));
      if (item.status().ok()) read(item, list[i]);
      status_ = finish(item);
    }
  }

  void weight(JsonFields& fields, const Json& json) {
    WeightRule rule;
    rule.name = fields.string("name");
    rule.source = fields.string("source");
    rule.verified = flag(fields, json, "verified", true);
    if (fields.has("when")) rule.when = word<RuleCondition>(fields, "when", kConditions);
    if (fields.has("patterns")) rule.patterns = fields.strings("patterns");
    if (fields.has("split")) rule.split = word<WeightSplit>(fields, "split", kSplits);
    rule.stored = dtype(fields, "stored");
    rule.effect = word<WeightEffect>(fields, "effect", kEffects);
    rule.dtype = dtype(fields, "dtype");
    rule.factor = fields.number_or("factor", 1, 0, 1e3);
    rule.bytes_per_output = fields.number_or("bytes_per_output", 0, 0, 1e3);
    rule.bytes_per_input = fields.number_or("bytes_per_input", 0, 0, 1e3);
    if (fields.has("lifetime")) rule.lifetime = word<Lifetime>(fields, "lifetime", kLifetimes);
    const bool needs_dtype = rule.effect == WeightEffect::kStoreAs || rule.effect == WeightEffect::kExtraCopy;
    if (fields.status().ok() && needs_dtype && !rule.dtype) fields.fail("dtype", " is missing: this effect needs it");
    if (!rule.verified) profile_.unverified.push_back(rule.name);
    profile_.weights.push_back(std::move(rule));
  }

  void reserve(JsonFields& fields, const Json& json) {
    ReserveRule rule;
    rule.name = fields.string("name");
    rule.source = fields.string("source");
    rule.verified = flag(fields, json, "verified", true);
    rule.bytes = fields.number_or("bytes", 0, 0, kMaxBytes);
    rule.bytes_per_communicator = fields.number_or("bytes_per_communicator", 0, 0, kMaxBytes);
    rule.bytes_per_position = fields.number_or("bytes_per_position", 0, 0, kMaxBytes);
    if (!rule.verified) profile_.unverified.push_back(rule.name);
    profile_.reserves.push_back(std::move(rule));
  }

  std::string where_;
  EngineProfile& profile_;
  Status status_;
};

bool holds(RuleCondition when, const Layout& layout) {
  const bool dsa_cp = layout.attention == AttentionChoice::kDsaCp;
  switch (when) {
    case RuleCondition::kAlways: return true;
    case RuleCondition::kDsaCp: return dsa_cp;
    case RuleCondition::kNoDsaCp: return !dsa_cp;
    case RuleCondition::kSequenceParallel: return layout.sequence_parallel;
  }
  return false;
}

bool applies(const WeightRule& rule, const HeldWeight& weight, const Layout& layout) {
  if (!holds(rule.when, layout)) return false;
  const WeightSplit split = weight.split == WeightSplit::kExpertScales ? WeightSplit::kExperts : weight.split;
  if (rule.split && *rule.split != split) return false;
  if (rule.stored && *rule.stored != weight.dtype && !weight.is_scale) return false;
  const auto named = [&](const std::string& pattern) {
    return matches(pattern, weight.name) ||
           (weight.is_scale && matches(pattern, weight.name.substr(0, weight.name.rfind('.'))));
  };
  return rule.patterns.empty() || std::any_of(rule.patterns.begin(), rule.patterns.end(), named);
}

}  // namespace

std::string_view lifetime_name(Lifetime lifetime) { return kLifetimes[static_cast<size_t>(lifetime)]; }

Result<EngineProfile> parse_engine_profile(std::string_view text, std::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const Json json, parse_json(text, where));
  EngineProfile profile;
  WEFT_RETURN_IF_ERROR(EngineReader(std::string(where), profile).read(json));
  return profile;
}

Result<EngineProfile> load_engine_profile(std::string_view name_or_path,
                                          const std::vector<std::filesystem::path>& folders) {
  WEFT_ASSIGN_OR_RETURN(const ProfileFile file, find_profile("engine", name_or_path, folders));
  return parse_engine_profile(file.text, file.path.string());
}

std::vector<std::string> engine_profile_names(const std::vector<std::filesystem::path>& folders) {
  return profile_names(folders);
}

bool matches(std::string_view pattern, std::string_view name) {
  // Greedy with one step back: after a star, the shortest text that lets the rest fit.
  size_t p = 0, n = 0, star = pattern.npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

EngineWeight engine_weight(const EngineProfile& engine, const HeldWeight& weight, const Layout& layout) {
  EngineWeight held{.dtype = weight.dtype, .elements = weight.elements, .pieces = weight.pieces};
  for (const WeightRule& rule : engine.weights) {
    if (!applies(rule, weight, layout)) continue;
    switch (rule.effect) {
      case WeightEffect::kReplicate:
        held.elements *= held.pieces;
        held.pieces = 1;
        break;
      case WeightEffect::kShard:
        if (weight.over_tp) continue;
        held.elements = ceil_div(held.elements, layout.mesh.tp);
        held.pieces *= layout.mesh.tp;
        break;
      case WeightEffect::kStoreAs:
        if (weight.is_scale) {
          held.omitted = true;
        } else {
          held.dtype = *rule.dtype;
        }
        break;
      case WeightEffect::kOmitScales:
        if (!weight.is_scale) continue;
        held.omitted = true;
        break;
      case WeightEffect::kOmit: held.omitted = true; break;
      case WeightEffect::kExtraCopy:
      case WeightEffect::kOverhead: {
        if (weight.is_scale) continue;
        const auto elements = static_cast<double>(held.elements), inputs = static_cast<double>(weight.inputs);
        const double bytes = rule.effect == WeightEffect::kExtraCopy
                                 ? rule.factor * elements * dtype_bits(*rule.dtype) / 8
                                 : rule.bytes_per_output * elements / inputs + rule.bytes_per_input * inputs;
        held.extra.push_back({&rule, std::llround(bytes), rule.lifetime});
        held.unverified = held.unverified || !rule.verified;
        continue;
      }
    }
    held.changed_by.push_back(&rule);
    held.unverified = held.unverified || !rule.verified;
  }
  return held;
}

int64_t sent_bytes_of(const EngineProfile& engine, const Op& op, TypeSpan in, TypeSpan out, int64_t bytes) {
  constexpr int64_t kBitsOfAByte = 8;
  const auto scaled = [](int64_t n, std::optional<DType> to, int64_t from_bits) {
    return to ? n * dtype_bits(*to) / from_bits : n;
  };
  const auto reduced = [&](int64_t size) {
    const Shape& shape = in[0].shape();
    const int64_t sums = reduce_scatter_bytes(size, shape[0], shape[0] == 0 ? 0 : shape.num_elements() / shape[0]);
    return scaled(sums, engine.reduce_dtype, kPartialBytes * kBitsOfAByte) +
           scaled(bytes - sums, engine.gather_dtype, dtype_bits(out[0].dtype()));
  };
  if (const auto* sum = std::get_if<AllReduce>(&op)) return reduced(sum->size);
  if (const auto* sum = std::get_if<ReduceScatter>(&op)) return reduced(sum->size);
  // Weights travel as they are stored.
  if (std::holds_alternative<AllGather>(op) && in[0].rows != Rows::kStatic)
    return scaled(bytes, engine.gather_dtype, dtype_bits(in[0].dtype()));
  return bytes;
}

int64_t reserve_bytes(const ReserveRule& rule, int64_t communicators, int64_t max_positions) {
  return std::llround(rule.bytes + rule.bytes_per_communicator * static_cast<double>(communicators) +
                      rule.bytes_per_position * static_cast<double>(max_positions));
}

}  // namespace weft
