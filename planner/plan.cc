#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <fmt/format.h>

#include "base/int_math.h"
#include "planner/engine_layout.h"
#include "planner/plan_memory.h"
#include "planner/plan_steps.h"
#include "planner/plan_store.h"
#include "planner/workload.h"

namespace weft {
namespace {

class Planner {
 public:
  Planner(const PlanRequest& request, const PlanOptions& options)
      : options_(options),
        own_store_(options.store == nullptr ? std::make_unique<PlanStore>() : nullptr),
        store_(options.store == nullptr ? *own_store_ : *options.store) {
    plan_.request = request;
  }

  Result<Plan> run() {
    const auto start = std::chrono::steady_clock::now();
    const PlanRequest& r = plan_.request;
    WEFT_ASSIGN_OR_RETURN(layout_, engine_layout(*r.engine, *r.model, r.layout));
    if (layout_ != r.layout) {
      plan_.notes.push_back(fmt::format("{} plans {} as {}: sequence parallelism on a model with DSA", r.engine->name,
                                        to_string(r.layout), to_string(layout_)));
      plan_.request.layout = layout_;
    }
    WEFT_RETURN_IF_ERROR(r.engine->executor_limits ? r.model->check_layout(layout_) : check_layout(layout_));
    WEFT_RETURN_IF_ERROR(r.model->check_mode(r.mode));
    WEFT_RETURN_IF_ERROR(check_request(r));
    WEFT_ASSIGN_OR_RETURN(mesh_, Mesh::create(layout_.mesh));
    plan_.ranks = layout_.mesh.world();
    plan_.devices = ceil_div(plan_.ranks, int64_t{r.local_ranks});
    workload_ = make_workload(r);
    plan_.chunk = workload_.chunk;
    setting_.model = r.model.get();
    setting_.mode = r.mode;
    setting_.layout = layout_;
    setting_.cache = cache_capacity(layout_, workload_.sizes);
    setting_.threads = r.threads;
    setting_.canonical_sums = r.engine->executor_limits;
    WEFT_RETURN_IF_ERROR(find_like_stages());
    WEFT_RETURN_IF_ERROR(memory());
    if (options_.fitting_only && !plan_.fits) {
      marks();
      return std::move(plan_);
    }
    if (options_.times) {
      WEFT_ASSIGN_OR_RETURN(CostModel model, CostModel::create(*r.device));
      cost_ = std::move(model);
      if (!r.device->cache_bytes)
        plan_.notes.push_back(fmt::format(
            "{}: the profile has no cache; what the rows of a step read again is taken to be at hand", r.device->name));
    }
    WEFT_RETURN_IF_ERROR(steps());
    if (options_.times) serve();
    marks();
    plan_.planning_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(plan_);
  }

 private:
  // ---- Pipeline stages that are alike in all but the numbers of their layers are looked at once.

  std::string kind_of_stage(int stage) const {
    // No two have the same picks.
    if (plan_.request.expert_shares != nullptr) return fmt::format("{}", stage);
    const int64_t stages = layout_.mesh.pp;
    // The first one has the embedding, the last one the head; the last but one ends the chain that broadcasts logits.
    std::string kind = fmt::format("{}{}{}", stage == 0, stage + 1 == stages, stage + 2 == stages);
    for (int64_t l = begins_[static_cast<size_t>(stage)]; l < begins_[static_cast<size_t>(stage) + 1]; ++l) {
      kind += fmt::format("|{}", plan_.request.model->layer_kind(l));
    }
    return kind;
  }
  Status find_like_stages() {
    WEFT_ASSIGN_OR_RETURN(begins_, stage_begins(*plan_.request.model, layout_.mesh.pp));
    begins_.push_back(plan_.request.model->num_layers());
    std::map<std::string, int> first;
    for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
      like_.push_back(first.emplace(kind_of_stage(stage), stage).first->second);
    }
    return {};
  }

  // ---- Memory

  Status memory() {
    const MemoryPlanner planner(plan_.request, options_.ops, like_, store_);
    WEFT_ASSIGN_OR_RETURN(plan_.ledger, planner.ledgers(workload_, setting_));
    for (size_t stage = 0; stage < plan_.ledger.size(); ++stage) {
      if (plan_.ledger[stage].total() > plan_.ledger[static_cast<size_t>(plan_.worst_stage)].total())
        plan_.worst_stage = static_cast<int>(stage);
    }
    const DeviceProfile& device = *plan_.request.device;
    const auto& bytes = device.visible_bytes ? device.visible_bytes : device.nominal_bytes;
    if (!bytes) {
      plan_.notes.push_back(fmt::format("{}: the profile does not say how much memory it has", device.name));
      plan_.fits = true;
      return {};
    }
    if (!device.visible_bytes)
      plan_.notes.push_back(fmt::format("{}: memory of the data sheet; what software may use is less", device.name));
    plan_.capacity_bytes = static_cast<int64_t>(bytes->value);
    plan_.fits = plan_.needed_bytes() <= plan_.capacity_bytes;
    memory_marks_ = bytes->marks();
    if (options_.max_batch) {
      WEFT_ASSIGN_OR_RETURN(plan_.max_batch, planner.most_requests(plan_.capacity_bytes, setting_, plan_.ledger));
    }
    return {};
  }

  // ---- Times

  Status steps() {
    StepPlanner planner(
        {plan_.request, options_, setting_, *mesh_, cost_ ? &*cost_ : nullptr, like_, begins_, plan_.ledger, store_});
    for (const WorkStep& work : workload_.prefill) {
      WEFT_ASSIGN_OR_RETURN(plan_.prefill.emplace_back(), planner.plan(work));
    }
    for (const WorkStep& work : workload_.prefill_drafts) {
      WEFT_ASSIGN_OR_RETURN(plan_.prefill_drafts.emplace_back(), planner.plan(work));
    }
    for (const auto* steps : {&plan_.prefill, &plan_.prefill_drafts}) {
      for (const StepPlan& step : *steps) plan_.prefill_all_s += step.seconds * static_cast<double>(step.times);
    }
    if (workload_.decode.rows > 0) {
      WEFT_ASSIGN_OR_RETURN(plan_.decode, planner.plan(workload_.decode));
      plan_.decode_step_s = plan_.decode.seconds;
    }
    for (const WorkStep& work : workload_.drafts) {
      const bool same = !plan_.drafts.empty() && plan_.drafts.back().rows == work.rows;
      if (same) {
        ++plan_.drafts.back().times;
      } else {
        WEFT_ASSIGN_OR_RETURN(plan_.drafts.emplace_back(), planner.plan(work));
      }
      plan_.decode_step_s += plan_.drafts.back().seconds;
    }
    time_marks_ = planner.unverified();
    plan_.tokens_per_step = tokens_per_step(plan_.request.drafts, plan_.request.acceptance);
    return {};
  }

  void serve() {
    const PlanRequest& r = plan_.request;
    ServiceInput input;
    input.batch = r.batch;
    input.gen = r.gen;
    input.prompt = r.prompt;
    input.cached = r.cached;
    input.devices = plan_.devices;
    for (const PromptWave& wave : workload_.waves) {
      double seconds = 0;
      for (size_t i = wave.first; i < wave.first + wave.steps; ++i) {
        seconds += plan_.prefill[i].seconds * static_cast<double>(plan_.prefill[i].times);
        if (!plan_.prefill_drafts.empty())
          seconds += plan_.prefill_drafts[i].seconds * static_cast<double>(plan_.prefill_drafts[i].times);
      }
      input.prefill.push_back({wave.requests, wave.times, seconds / static_cast<double>(wave.times)});
    }
    input.decode_step_s = plan_.decode_step_s;
    input.tokens_per_step = plan_.tokens_per_step;
    plan_.service = service(input);
    plan_.has_times = true;
  }

  void marks() {
    const DeviceProfile& device = *plan_.request.device;
    for (const std::string& figure : device.names_of(memory_marks_ | time_marks_))
      plan_.unverified.push_back(fmt::format("{}: {}", device.name, figure));
    plan_.memory_unverified = memory_marks_ != 0;
    plan_.times_unverified = time_marks_ != 0;
    for (const RankLedger& stage : plan_.ledger) {
      for (const LedgerLine& line : stage.lines) {
        if (!line.unverified) continue;
        plan_.memory_unverified = true;
        std::string text = fmt::format("{}: {}", plan_.request.engine->name, line.what);
        if (std::find(plan_.unverified.begin(), plan_.unverified.end(), text) == plan_.unverified.end())
          plan_.unverified.push_back(std::move(text));
      }
    }
  }

  const PlanOptions& options_;
  Layout layout_;
  const std::unique_ptr<PlanStore> own_store_;
  PlanStore& store_;
  Plan plan_;
  std::optional<Mesh> mesh_;
  Workload workload_;
  StepSetting setting_;
  std::vector<int64_t> begins_;  // by stage: its first layer; then the number of layers
  std::vector<int> like_;        // by stage
  std::optional<CostModel> cost_;
  FigureMarks memory_marks_ = 0, time_marks_ = 0;
};

}  // namespace

const StepPlan* Plan::main_prefill() const {
  const StepPlan* main = nullptr;
  for (const StepPlan& step : prefill) main = main != nullptr && main->rows > step.rows ? main : &step;
  return main;
}

Result<Plan> make_plan(const PlanRequest& request, const PlanOptions& options) {
  return Planner(request, options).run();
}

}  // namespace weft
