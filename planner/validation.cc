#include "planner/validation.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "comm/bytes.h"
#include "planner/plan.h"
#include "planner/report.h"
#include "planner/report_units.h"
#include "planner/step_graph.h"

namespace weft {
namespace {

constexpr double kMiB = 1024 * 1024, kGiB = 1024 * kMiB;

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
  WEFT_ASSIGN_OR_RETURN(const StepGraph step,
                        build_step(setting_of(model, {}, context), {GraphKind::kTrunk, StepPhase::kDecode, 1, 1, 0}));
  const Segment segment{0, 0, 1, context};
  WorkEnv env;
  env.segments = {&segment, 1};
  double flops = 0;
  for (size_t n = 0; n < step.graph.nodes().size(); ++n) {
    const Node& node = step.graph.nodes()[n];
    const std::vector<ValueType> in = types_of(step.graph, node.in), out = types_of(step.graph, node.out);
    flops += std::visit([&](const auto& op) { return op.work(in, out, env).flops; }, node.op) *
             static_cast<double>(step.node_repeat[n]);
  }
  return flops;
}

// What a rank sends for the attention side of one layer, up to the feed-forward part.
Result<int64_t> attention_bytes(const Model& model, const std::string& layout_text, int64_t tokens,
                                const std::string& layer) {
  WEFT_ASSIGN_OR_RETURN(const Layout layout, parse_layout(layout_text));
  StepSetting setting = setting_of(model, layout, tokens);
  setting.expanded = true;
  WEFT_ASSIGN_OR_RETURN(const StepGraph step,
                        build_step(setting, {GraphKind::kTrunk, StepPhase::kPrefill, tokens, 1, 0}));
  int64_t bytes = 0;
  for (const Node& node : step.graph.nodes()) {
    if (node.region != layer) continue;
    const std::string_view made = node.out.empty() ? std::string_view() : step.graph.value(node.out[0]).name;
    if (made == layer + ".ffn_hc_pre" || made == layer + ".ffn_in") break;
    const std::vector<ValueType> in = types_of(step.graph, node.in), out = types_of(step.graph, node.out);
    bytes += std::visit([&](const auto& op) { return op.work(in, out, {}).bytes_sent; }, node.op);
  }
  return bytes;
}

class Lines {
 public:
  Lines(const OpenModel& open, const OpenEngine& open_engine) : open_(open), open_engine_(open_engine) {}

  Result<std::vector<ValidationLine>> all() {
    WEFT_RETURN_IF_ERROR(weights());
    WEFT_RETURN_IF_ERROR(flops());
    WEFT_RETURN_IF_ERROR(traffic());
    WEFT_RETURN_IF_ERROR(traffic_of_latents());
    WEFT_RETURN_IF_ERROR(engines());
    return std::move(lines_);
  }

 private:
  void add(std::string what, double published, double planned, std::string unit, double tolerance, std::string source,
           std::string remark = "") {
    lines_.push_back({FigureKind::kPublished, false, std::move(what), std::move(unit), std::move(source), published,
                      planned, tolerance, std::move(remark), {}});
  }

  Status weights() {
    const struct {
      const char* model;
      double main, all;
    } cases[] = {{"deepseek-v4-flash-20260424", 156'015'698'140, 159'609'485'896},
                 {"deepseek-v4-pro", 850'748'205'004, 864'704'792'696}};
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const auto model, open_(c.model));
      const StepSetting setting = setting_of(*model, {}, 1024);
      WEFT_ASSIGN_OR_RETURN(const StepGraph trunk,
                            build_step(setting, {GraphKind::kTrunk, StepPhase::kDecode, 1, 1, 0}));
      WEFT_ASSIGN_OR_RETURN(const StepGraph draft,
                            build_step(setting, {GraphKind::kDraft, StepPhase::kDecode, 1, 1, 0}));
      int64_t draft_bytes = 0;  // embedding and head are those of the trunk
      for (const Value& value : draft.graph.values()) {
        if (value.role == ValueRole::kWeight && trunk.graph.find(value.name) < 0)
          draft_bytes += value.type.tensor.bytes();
      }
      const std::string source = "tensor census of the published files (deepseek_v4.md 8.1)";
      add(fmt::format("{}: weights of the main model", c.model), c.main, static_cast<double>(trunk.memory.weight_bytes),
          "B", 0, source);
      add(fmt::format("{}: weights with the draft layer", c.model), c.all,
          static_cast<double>(trunk.memory.weight_bytes + draft_bytes), "B", 0, source);
    }
    return {};
  }

  Status flops() {
    const struct {
      const char* model;
      int64_t context;
      double gflop;
    } cases[] = {{"deepseek-v4-flash-20260424", 4096, 29.1},
                 {"deepseek-v4-flash-20260424", 32768, 32.2},
                 {"deepseek-v4-flash-20260424", 131072, 42.6},
                 {"deepseek-v4-flash-20260424", 1048576, 140.3},
                 {"deepseek-v4-pro", 4096, 108.6},
                 {"deepseek-v4-pro", 32768, 113.9},
                 {"deepseek-v4-pro", 131072, 132.2},
                 {"deepseek-v4-pro", 1048576, 303.2},
                 {"deepseek-v3.2", 2048, 111.8},
                 {"deepseek-v3.2", 32768, 142.9},
                 {"deepseek-v3.2", 131072, 242.3},
                 {"glm-5.1", 2048, 105.2},
                 {"glm-5.1", 32768, 125.1},
                 {"glm-5.1", 131072, 188.6},
                 {"glm-5.2", 2048, 103.2},
                 {"glm-5.2", 32768, 108.5},
                 {"glm-5.2", 131072, 125.7},
                 {"glm-5.2", 1048576, 285.3}};
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const auto model, open_(c.model));
      WEFT_ASSIGN_OR_RETURN(const double flops, flops_per_token(*model, c.context));
      const bool v4 = std::string_view(c.model).starts_with("deepseek-v4");
      add(fmt::format("{}: arithmetic of a token at {}", c.model, c.context), c.gflop, flops / 1e9, "GFLOP", 0.02,
          v4 ? "closed form of the shapes (deepseek_v4.md 8.3)" : "closed form of the shapes (glm_moe_dsa.md 8.2)",
          "weft counts norms, rotations and activations, too");
    }
    return {};
  }

  struct AttentionTraffic {
    const char* what;
    const char* layout;
    double mib, more;  // published, and what weft sends besides
    const char* remark;
  };

  // Of a layer's attention; `where` says in which model, step and group.
  Status attention_traffic(const Model& model, int64_t tokens, std::string_view where,
                           std::span<const AttentionTraffic> cases) {
    for (const AttentionTraffic& c : cases) {
      WEFT_ASSIGN_OR_RETURN(const int64_t bytes, attention_bytes(model, c.layout, tokens, "layers.4"));
      add(fmt::format("{}: {}", where, c.what), c.mib + c.more, static_cast<double>(bytes) / kMiB, "MiB sent", 0,
          "sharding.md 11", c.remark);
    }
    return {};
  }

  Status traffic() {
    constexpr int64_t kTokens = 8192, kHidden = 4096, kRanks = 4;
    WEFT_ASSIGN_OR_RETURN(const auto model, open_("deepseek-v4-flash-20260424"));
    // weft sends partial sums as fp32: twice what a bf16 sum sends.
    const double wider = static_cast<double>(reduce_scatter_bytes(kRanks, kTokens, kHidden)) / 2 / kMiB;
    const AttentionTraffic cases[] = {
        {"plain tp (L0)", "tp4", 96, wider, "published with sums in bf16; weft's are fp32: + 48"},
        {"sequence parallel (L1)", "tp4+sp", 96, wider, "published with sums in bf16; weft's are fp32: + 48"},
        {"queries split, heads to tokens (L2a)", "tp4+dsa_cp+sp", 240, 0, ""},
        {"queries split, projection streamed (L2b)", "tp4+dsa_cp+sp+o_proj=streamed", 96, 0,
         "weights of 8 bits, as the release has them"},
        {"the same, full boundary", "tp4+dsa_cp+o_proj=streamed", 96, 0, "weights of 8 bits: 48 + 48"},
    };
    return attention_traffic(*model, kTokens, "V4-Flash, 8192 tokens, 4 ranks, a CSA layer's attention", cases);
  }

  Status traffic_of_latents() {
    constexpr int64_t kTokens = 4096, kHidden = 6144, kRanks = 16;
    WEFT_ASSIGN_OR_RETURN(const auto model, open_("glm-5"));
    const double wider = static_cast<double>(reduce_scatter_bytes(kRanks, kTokens, kHidden)) / 2 / kMiB;
    const double picks = 15.0 * 256 * 2048 * 4 / kMiB;
    const AttentionTraffic cases[] = {
        {"plain tp (L0)", "tp16", 90, wider, "published with sums in bf16; weft's are fp32: + 45"},
        {"sequence parallel (L1)", "tp16+sp", 90, wider, "published with sums in bf16; weft's are fp32: + 45"},
        {"queries split, keys gathered (L2c)", "tp16+dsa_cp+sp+o_proj=replicated", 15.0 * 256 * 704 * 2 / kMiB, 0,
         "704 columns"},
        {"all queries on every rank", "tp16+dsa_cp+sp+o_proj=replicated+queries=full", 45, picks,
         "published without the picks of other ranks: + 30"},
    };
    return attention_traffic(*model, kTokens, "GLM-5, 4096 tokens, 16 ranks, a layer's attention", cases);
  }

  // What other engines hold of a model: their published totals.
  Status engines() {
    const struct {
      const char *engine, *layout;
      double gib, tolerance;
      const char* source;
    } cases[] = {
        {"tensorcast", "dp2tp16+ep32", 28.452, 2e-5, "msmodeling, proposal of DSA-CP (glm_moe_dsa.md 8.3)"},
        {"tensorcast", "dp2tp16+sp+ep32", 38.068, 2e-5, "msmodeling, merge request 555 (glm_moe_dsa.md 8.3)"},
        {"vllm-ascend", "dp2tp16+ep32", 24.5, 0.02, "glm_moe_dsa.md 8.4"},
        {"vllm-ascend", "dp2tp16+dsa_cp+sp+ep32", 28.8, 0.02, "glm_moe_dsa.md 8.4"},
        {"vllm-ascend", "dp2tp16+dsa_cp+sp+ep32+shared=replicated", 31.3, 0.02,
         "about 31 in msmodeling's proposal (glm_moe_dsa.md 8.4)"},
        {"vllm-ascend", "dp2tp16+dsa_cp+sp+ep32+o_proj=replicated+shared=replicated", 38.1, 0.02,
         "about 38 in msmodeling's proposal (glm_moe_dsa.md 8.4)"},
    };
    PlanRequest request;
    WEFT_ASSIGN_OR_RETURN(request.model, open_("glm-5.1-w8a8"));
    request.model_name = "glm-5.1-w8a8";
    request.device = std::make_shared<const DeviceProfile>();
    request.mode = request.model->mode(DType::kBF16, std::nullopt);
    for (const auto& c : cases) {
      WEFT_ASSIGN_OR_RETURN(request.layout, parse_layout(c.layout));
      WEFT_ASSIGN_OR_RETURN(request.engine, open_engine_(c.engine));
      WEFT_ASSIGN_OR_RETURN(const Plan plan, make_plan(request, {.times = false, .ops = false}));
      const RankLedger& ledger = plan.ledger[0];
      // Buffers and the device's context are in none of these totals, TensorCast's tables of positions are in its own.
      const bool tables = std::string_view(c.engine) == "tensorcast";
      const int64_t bytes = ledger.weight_bytes + ledger.engine_bytes + (tables ? ledger.reserve_bytes : 0);
      add(fmt::format("glm-5.1-w8a8, {}, {}: weights of a rank", c.engine, c.layout), c.gib,
          static_cast<double>(bytes) / kGiB, "GiB", c.tolerance, c.source, "without the draft layer");
      lines_.back().fitted = true;
    }
    return {};
  }

  const OpenModel& open_;
  const OpenEngine& open_engine_;
  std::vector<ValidationLine> lines_;
};

}  // namespace

Result<std::vector<ValidationLine>> validate_published(const OpenModel& open, const OpenEngine& open_engine) {
  return Lines(open, open_engine).all();
}

std::vector<ErrorSummary> summarise(const std::vector<ValidationLine>& lines) {
  std::vector<ErrorSummary> all;
  for (const FigureKind kind : {FigureKind::kPublished, FigureKind::kMeasured}) {
    for (const bool fitted : {true, false}) {
      std::vector<double> errors;
      for (const ValidationLine& line : lines) {
        if (line.kind == kind && line.fitted == fitted) errors.push_back(std::abs(line.error()));
      }
      if (errors.empty()) continue;
      std::sort(errors.begin(), errors.end());
      const auto n = static_cast<double>(errors.size());
      // The least error that so many of them do not exceed.
      const auto at = [&](double share) { return errors[static_cast<size_t>(std::ceil(share * n)) - 1]; };
      constexpr double kHalf = 0.5, kMost = 0.9;
      all.push_back({fmt::format("{}, {}", kind == FigureKind::kPublished ? "published" : "measured",
                                 fitted ? "fitted" : "held out"),
                     static_cast<int64_t>(errors.size()), at(kHalf), at(kMost), errors.back()});
    }
  }
  return all;
}

std::string validation_text(const std::vector<ValidationLine>& lines) {
  TextTable table("lrrlrlll");
  table.row({"figure", "published or measured", "weft", "", "error", "", "source", "remark"});
  for (const ValidationLine& line : lines) {
    table.row({line.what, fmt::format("{:.12g}", line.published),
               line.kind == FigureKind::kMeasured ? fmt::format("{:.5g}", line.planned)
                                                  : fmt::format("{:.12g}", line.planned),
               line.unit, fmt::format("{:+.2f} %", 100 * line.error()),
               line.ok()       ? ""
               : line.passes() ? "off, see remark"
                               : "OFF",
               line.source,
               line.remark + (line.ok() || line.not_modelled.empty() ? "" : "; not modelled: " + line.not_modelled)});
  }
  TextTable errors("lrrrr");
  errors.row({"errors", "figures", "median", "p90", "largest"});
  const auto percent = [](double error) { return fmt::format("{:.2f} %", 100 * error); };
  for (const ErrorSummary& s : summarise(lines))
    errors.row({s.group, std::to_string(s.figures), percent(s.median), percent(s.p90), percent(s.max)});
  return table.text("") + "\n" + errors.text("");
}

nlohmann::ordered_json validation_json(const std::vector<ValidationLine>& lines) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ValidationLine& line : lines) {
    all.push_back({{"what", line.what},
                   {"kind", line.kind == FigureKind::kPublished ? "published" : "measured"},
                   {"fitted", line.fitted},
                   {"published", line.published},
                   {"planned", line.planned},
                   {"unit", line.unit},
                   {"error", line.error()},
                   {"tolerance", line.tolerance},
                   {"ok", line.ok()},
                   {"source", line.source},
                   {"remark", line.remark},
                   {"not_modelled", line.not_modelled}});
  }
  nlohmann::ordered_json errors = nlohmann::ordered_json::array();
  for (const ErrorSummary& s : summarise(lines)) {
    errors.push_back(
        {{"group", s.group}, {"figures", s.figures}, {"median", s.median}, {"p90", s.p90}, {"max", s.max}});
  }
  return {{"schema", "weft.plan.validation"}, {"version", kPlanSchemaVersion}, {"lines", all}, {"errors", errors}};
}

}  // namespace weft
