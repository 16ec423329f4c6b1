// A plan as JSON: docs/planner.md has the schema.
#include "planner/report.h"

namespace weft {
namespace {

using Out = nlohmann::ordered_json;

Out line_json(const LedgerLine& line) {
  return {{"category", ledger_category_name(line.category)},
          {"what", line.what},
          {"tensor", line.tensor},
          {"storage", line.storage},
          {"bytes", line.bytes},
          {"tensors", line.tensors},
          {"copies", line.copies},
          {"reason", line.reason},
          {"unverified", line.unverified}};
}

Out ledger_json(const RankLedger& ledger) {
  Out categories = Out::object();
  for (int c = 0; c < kNumLedgerCategories; ++c) {
    const auto category = static_cast<LedgerCategory>(c);
    categories[std::string(ledger_category_name(category))] = ledger.of(category);
  }
  Out lines = Out::array();
  for (const LedgerLine& line : ledger.lines) lines.push_back(line_json(line));
  return {{"stage", ledger.stage},
          {"ranks", ledger.ranks},
          {"total_bytes", ledger.total()},
          {"static_bytes", ledger.static_bytes()},
          {"weight_bytes", ledger.weight_bytes},
          {"engine_bytes", ledger.engine_bytes},
          {"cache_bytes", ledger.cache_bytes},
          {"step_bytes", ledger.arena_bytes},
          {"activation_bytes", ledger.arena.activations},
          {"communication_bytes", ledger.arena.communication},
          {"scratch_bytes", ledger.arena.scratch},
          {"reserve_bytes", ledger.reserve_bytes},
          {"cache_bytes_per_request", ledger.cache_bytes_per_request},
          {"cache_bytes_per_token", ledger.cache_bytes_per_token},
          {"peak_op", ledger.peak_op},
          {"peak_step", ledger.peak_step},
          {"categories", categories},
          {"lines", lines}};
}

Out traffic_json(const std::vector<TrafficLine>& lines) {
  Out all = Out::array();
  for (const TrafficLine& line : lines) {
    all.push_back({{"op", line.op},
                   {"axis", mesh_axis_name(line.axis)},
                   {"group", line.group_size},
                   {"calls", line.calls},
                   {"bytes_sent", line.bytes_sent},
                   {"expected", line.expected}});
  }
  return all;
}

Out op_json(const PlanOp& op) {
  return {{"name", op.name},
          {"op", op.op},
          {"stream", op.stream == Stream::kCompute ? "compute"
                     : op.stream == Stream::kComm  ? "comm"
                                                   : "prefetch"},
          {"calls", op.calls},
          {"seconds", op.cost.seconds},
          {"bound", bound_name(op.cost.bound)},
          {"source", cost_source_name(op.cost.source)},
          {"unverified", op.cost.unverified != 0},
          {"flops", op.cost.flops},
          {"bytes", op.cost.bytes},
          {"bytes_sent", op.cost.bytes_sent}};
}

Out stage_json(const StagePlan& stage) {
  Out ops = Out::array();
  for (const PlanOp& op : stage.ops) ops.push_back(op_json(op));
  return {{"seconds", stage.seconds},
          {"hand_over_s", stage.hand_over_s},
          {"exposed_s", stage.exposed_s},
          {"compute_s", stage.compute_s},
          {"memory_s", stage.memory_s},
          {"network_s", stage.network_s},
          {"launch_s", stage.launch_s},
          {"measured_s", stage.source_s[0]},
          {"interpolated_s", stage.source_s[1]},
          {"roofline_s", stage.source_s[2]},
          {"traffic", traffic_json(stage.traffic)},
          {"ops", ops}};
}

Out step_json(const StepPlan& step) {
  Out stages = Out::array();
  for (const StagePlan& stage : step.stages) stages.push_back(stage_json(stage));
  return {{"name", step.name},       {"rows", step.rows},     {"requests", step.requests},
          {"context", step.context}, {"times", step.times},   {"micro_batches", step.micro_batches},
          {"seconds", step.seconds}, {"bubble", step.bubble}, {"logits_s", step.logits_s},
          {"stages", stages}};
}

}  // namespace

nlohmann::ordered_json plan_json(const Plan& plan) {
  const PlanRequest& r = plan.request;
  const auto steps = [](const std::vector<StepPlan>& all) {
    Out list = Out::array();
    for (const StepPlan& step : all) list.push_back(step_json(step));
    return list;
  };
  Out json = {{"schema", "weft.plan"}, {"version", kPlanSchemaVersion}};
  json["request"] = {{"model", r.model_name},
                     {"layout", to_string(r.layout)},
                     {"device", r.device->name},
                     {"engine", r.engine->name},
                     {"dtype", r.mode.dtype == DType::kF32 ? "f32" : "bf16"},
                     {"act_quant", r.mode.act_quant},
                     {"output_quant", r.mode.output_quant == OutputQuant::kInt8 ? "int8" : "none"},
                     {"phase", plan_phase_name(r.phase)},
                     {"prompt", r.prompt},
                     {"gen", r.gen},
                     {"batch", r.batch},
                     {"cached", r.cached},
                     {"chunk", r.chunk},
                     {"mtp", r.drafts},
                     {"acceptance", r.acceptance},
                     {"dp_imbalance", r.dp_imbalance},
                     {"reserve_bytes", r.reserve_bytes},
                     {"local_ranks", r.local_ranks},
                     {"threads", r.threads},
                     {"memory_bytes_per_s", r.memory_bytes_per_s > 0 ? Out(r.memory_bytes_per_s) : Out(nullptr)},
                     {"expert_load", r.expert_load.empty() ? Out(nullptr) : Out(r.expert_load)}};
  json["ranks"] = plan.ranks;
  json["devices"] = plan.devices;
  json["fits"] = plan.fits;
  json["capacity_bytes"] = plan.capacity_bytes;
  json["needed_bytes"] = plan.needed_bytes();
  json["max_batch"] = plan.max_batch;
  json["prefill_step_rows"] = plan.chunk;
  json["worst_stage"] = plan.worst_stage;
  json["memory"] = Out::array();
  for (const RankLedger& ledger : plan.ledger) json["memory"].push_back(ledger_json(ledger));
  if (plan.has_times) {
    const ServiceResult& s = plan.service;
    json["service"] = {{"ttft_s", s.ttft_s},
                       {"ttft_first_s", s.ttft_alone_s},
                       {"ttft_last_s", s.ttft_last_s},
                       {"tpot_s", s.tpot_s},
                       {"tpot_loaded_s", s.tpot_loaded_s},
                       {"itl_s", s.itl_s},
                       {"e2e_s", s.e2e_s},
                       {"tokens_per_step", plan.tokens_per_step},
                       {"output_tokens_per_s", s.output_tokens_per_s},
                       {"total_tokens_per_s", s.total_tokens_per_s},
                       {"decode_tokens_per_s", s.decode_tokens_per_s},
                       {"prefill_tokens_per_s", s.prefill_tokens_per_s},
                       {"requests_per_s", s.requests_per_s},
                       {"output_tokens_per_s_device", s.output_tokens_per_s_device},
                       {"tokens_per_s_user", s.tokens_per_s_user}};
  }
  json["prefill"] = steps(plan.prefill);
  json["prefill_drafts"] = steps(plan.prefill_drafts);
  json["decode"] = plan.decode.rows > 0 ? step_json(plan.decode) : Out(nullptr);
  json["drafts"] = steps(plan.drafts);
  json["unverified"] = plan.unverified;
  json["memory_unverified"] = plan.memory_unverified;
  json["times_unverified"] = plan.times_unverified;
  json["notes"] = plan.notes;
  json["planning_s"] = plan.planning_s;
  return json;
}

}  // namespace weft
