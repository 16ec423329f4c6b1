#include "planner/validation.h"

#include <fmt/format.h>

#include "comm/bytes.h"
#include "planner/report.h"
#include "planner/report_units.h"
#include "planner/step_graph.h"

namespace weft {
namespace {

constexpr double kMiB = 1024 * 1024;

StepSetting setting_of(const Model& model, const Layout& layout, int64_t context) {
  StepSetting setting;
  setting.model = &model;
  setting.mode = model.mode(DType::kBF16, std::nullopt);
  setting.layout = layout;
  setting.cache.num_slots = 1;
  setting.cache.max_context = context;
  setting.cache.num_pages = (context + setting.cache.page_tokens - 1) / setting.cache.page_tokens;
  return setting;
}

// Arithmetic of one decoded token behind `context - 1` others.
Result<double> flops_per_token(const Model& model, int64_t context) {
  WEFT_ASSIGN_OR_RETURN(const StepGraph step, build_step(setting_of(model, {}, context), {GraphKind::kTrunk, StepPhase::kDecode, 1, 1, 0}));
  const Segment segment{0, 0, 1, context};
  WorkEnv env;
  env.segments = {&segment, 1};
  double flops = 0;
  for (size_t n = 0; n < step.graph.nodes().size(); ++n) {
    const Node& node = step.graph.nodes()[n];
    const std::vector<ValueType> in = types_of(step.graph, node.in), out = types_of(step.graph, node.out);
    flops += std::visit([&](const auto& op) { return op.work(in, out, env).flops; }, node.op) * static_cast<double>(step.node_repeat[n]);
  }
  return flops;
}

// What a rank sends for the attention side of one layer, up to the feed-forward part.
Result<int64_t> attention_bytes(const Model& model, const std::string& layout_text, int64_t tokens, const std::string& layer) {
  WEFT_ASSIGN_OR_RETURN(const Layout layout, parse_layout(layout_text));
  StepSetting setting = setting_of(model, layout, tokens);
  setting.expanded = true;
  WEFT_ASSIGN_OR_RETURN(const StepGraph step, build_step(setting, {GraphKind::kTrunk, StepPhase::kPrefill, tokens, 1, 0}));
  int64_t bytes = 0;
  for (const Node& node : step.graph.nodes()) {
    if (node.region != layer) continue;
    if (!node.out.empty() && step.graph.value(node.out[0]).name == layer + ".ffn_hc_pre") break;
    const std::vector<ValueType> in = types_of(step.graph, node.in), out = types_of(step.graph, node.out);
    bytes += std::visit([&](const auto& op) { return op.work(in, out, {}).bytes_sent; }, node.op);
  }
  return bytes;
}

class Lines {
 public:
  explicit Lines(const OpenModel& open) : open_(open) {}

  Result<std::vector<ValidationLine>> all() {
    WEFT_RETURN_IF_ERROR(weights());
    WEFT_RETURN_IF_ERROR(flops());
    WEFT_RETURN_IF_ERROR(traffic());
    return std::move(lines_);
  }

 private:
  void add(std::string what, double published, double planned, std::string unit, double tolerance, std::string source, std::string remark = "") {
    lines_.push_back({std::move(what), std::move(unit), std::move(source), published, planned, tolerance, std::move(remark)});
  }

  Status weights() {
    const struct {
      const char* model;
      double main, all;
    } cases[] = {{"deepseek-v4-flash-20260424", 156'015'698'140, 159'609'485'896}, {"deepseek-v4-pro", 850'748'205'004, 864'704'792'696}};
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const auto model, open_(c.model));
      const StepSetting setting = setting_of(*model, {}, 1024);
      WEFT_ASSIGN_OR_RETURN(const StepGraph trunk, build_step(setting, {GraphKind::kTrunk, StepPhase::kDecode, 1, 1, 0}));
      WEFT_ASSIGN_OR_RETURN(const StepGraph draft, build_step(setting, {GraphKind::kDraft, StepPhase::kDecode, 1, 1, 0}));
      int64_t draft_bytes = 0;  // embedding and head are those of the trunk
      for (const Value& value : draft.graph.values()) {
        if (value.role == ValueRole::kWeight && trunk.graph.find(value.name) < 0) draft_bytes += value.type.tensor.bytes();
      }
      const std::string source = "tensor census of the published files (deepseek_v4.md 8.1)";
      add(fmt::format("{}: weights of the main model", c.model), c.main, static_cast<double>(trunk.memory.weight_bytes), "B", 0, source);
      add(fmt::format("{}: weights with the draft layer", c.model), c.all, static_cast<double>(trunk.memory.weight_bytes + draft_bytes), "B", 0, source);
    }
    return {};
  }

  Status flops() {
    const struct {
      const char* model;
      int64_t context;
      double gflop;
    } cases[] = {{"deepseek-v4-flash-20260424", 4096, 29.1},    {"deepseek-v4-flash-20260424", 32768, 32.2},
                 {"deepseek-v4-flash-20260424", 131072, 42.6},  {"deepseek-v4-flash-20260424", 1048576, 140.3},
                 {"deepseek-v4-pro", 4096, 108.6},              {"deepseek-v4-pro", 32768, 113.9},
                 {"deepseek-v4-pro", 131072, 132.2},            {"deepseek-v4-pro", 1048576, 303.2}};
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const auto model, open_(c.model));
      WEFT_ASSIGN_OR_RETURN(const double flops, flops_per_token(*model, c.context));
      add(fmt::format("{}: arithmetic of a token at {}", c.model, c.context), c.gflop, flops / 1e9, "GFLOP", 0.02,
          "closed form of the shapes (deepseek_v4.md 8.3)", "weft counts norms, rotations and activations, too");
    }
    return {};
  }

  Status traffic() {
    constexpr int64_t kTokens = 8192, kHidden = 4096, kRanks = 4;
    WEFT_ASSIGN_OR_RETURN(const auto model, open_("deepseek-v4-flash-20260424"));
    // weft sends partial sums as fp32: twice what a bf16 sum sends.
    const double wider = static_cast<double>(reduce_scatter_bytes(kRanks, kTokens, kHidden)) / 2 / kMiB;
    const struct {
      const char* what;
      const char* layout;
      double mib, fp32_sums;
      const char* remark;
    } cases[] = {
        {"plain tp (L0)", "tp4", 96, wider, "published with sums in bf16; weft's are fp32: + 48"},
        {"sequence parallel (L1)", "tp4+sp", 96, wider, "published with sums in bf16; weft's are fp32: + 48"},
        {"queries split, heads to tokens (L2a)", "tp4+dsa_cp+sp", 240, 0, ""},
        {"queries split, projection streamed (L2b)", "tp4+dsa_cp+sp+o_proj=streamed", 96, 0, "weights of 8 bits, as the release has them"},
        {"the same, full boundary", "tp4+dsa_cp+o_proj=streamed", 96, 0, "weights of 8 bits: 48 + 48"},
    };
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const int64_t bytes, attention_bytes(*model, c.layout, kTokens, "layers.4"));
      add(fmt::format("V4-Flash, 8192 tokens, 4 ranks, a CSA layer's attention: {}", c.what), c.mib + c.fp32_sums,
          static_cast<double>(bytes) / kMiB, "MiB sent", 0, "sharding.md 11", c.remark);
    }
    return {};
  }

  const OpenModel& open_;
  std::vector<ValidationLine> lines_;
};

}  // namespace

Result<std::vector<ValidationLine>> validate_published(const OpenModel& open) { return Lines(open).all(); }

std::string validation_text(const std::vector<ValidationLine>& lines) {
  TextTable table("lrrlrlll");
  table.row({"figure", "published", "weft", "", "error", "", "source", "remark"});
  for (const ValidationLine& line : lines) {
    table.row({line.what, fmt::format("{:.12g}", line.published), fmt::format("{:.12g}", line.planned), line.unit, fmt::format("{:+.2f} %", 100 * line.error()),
               line.ok() ? "" : "OFF", line.source, line.remark});
  }
  return table.text("");
}

nlohmann::ordered_json validation_json(const std::vector<ValidationLine>& lines) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ValidationLine& line : lines) {
    all.push_back({{"what", line.what},
                   {"published", line.published},
                   {"planned", line.planned},
                   {"unit", line.unit},
                   {"error", line.error()},
                   {"tolerance", line.tolerance},
                   {"ok", line.ok()},
                   {"source", line.source},
                   {"remark", line.remark}});
  }
  return {{"schema", "weft.plan.validation"}, {"version", kPlanSchemaVersion}, {"lines", all}};
}

}  // namespace weft
