// A plan as text for a terminal.
#include <algorithm>

#include <fmt/format.h>

#include "planner/report.h"
#include "planner/report_units.h"

namespace weft {
namespace {

constexpr size_t kOpsShown = 12;
constexpr int kBarWidth = 24;

std::string bytes(int64_t n) { return bytes_words(static_cast<double>(n)); }

class Text {
 public:
  explicit Text(const Plan& plan) : p_(plan), r_(plan.request) {}

  std::string all() {
    head();
    verdict();
    memory();
    if (p_.has_times) {
      service();
      steps();
      ops();
    }
    traffic();
    for (const std::string& note : p_.notes) out_ += fmt::format("note: {}\n", note);
    if (!p_.unverified.empty()) {
      out_ += fmt::format("unverified figures ({}): what rests on them is marked with *\n", p_.unverified.size());
      for (const std::string& figure : p_.unverified) out_ += fmt::format("  * {}\n", figure);
    }
    return std::move(out_);
  }

 private:
  std::string mark() const { return p_.times_unverified ? " *" : ""; }

  void head() {
    out_ += fmt::format("{}  layout {}  {} rank{} on {} x {}  engine {}\n", r_.model_name, to_string(r_.layout),
                        p_.ranks, p_.ranks == 1 ? "" : "s", p_.devices, r_.device->name, r_.engine->name);
    out_ += fmt::format(
        "{} requests of {} + {} tokens{}{}, {}{}, {} activations\n\n", r_.batch, r_.prompt, r_.gen,
        r_.cached > 0 ? fmt::format(" ({} of the prompt cached)", r_.cached) : "",
        r_.drafts > 0 ? fmt::format(", {} drafts a step ({:.2f} tokens)", r_.drafts, p_.tokens_per_step) : "",
        plan_phase_name(r_.phase) == "both" ? "prefill and decode" : fmt::format("{} alone", plan_phase_name(r_.phase)),
        r_.phase == PlanPhase::kDecode ? "" : fmt::format(", prefill in steps of up to {} rows", p_.chunk),
        dtype_name(r_.mode.dtype));
  }

  void verdict() {
    if (p_.capacity_bytes == 0) {
      out_ += fmt::format("needs {} a device; how much it has is not known\n\n", bytes(p_.needed_bytes()));
      return;
    }
    const int64_t slack = p_.capacity_bytes - p_.needed_bytes();
    out_ += fmt::format(
        "{}{}: {} of {} a device{}{}{}\n\n", p_.fits ? "fits" : "DOES NOT FIT", p_.memory_unverified ? " *" : "",
        bytes(p_.needed_bytes()), bytes(p_.capacity_bytes),
        p_.ledger.size() > 1 ? fmt::format(" (stage {} of {})", p_.worst_stage, p_.ledger.size()) : "",
        p_.fits ? fmt::format(", {} left", bytes(slack)) : fmt::format(", {} too much", bytes(-slack)),
        p_.max_batch > 0 && p_.max_batch != r_.batch ? fmt::format("; room for {} requests", p_.max_batch) : "");
  }

  void memory() {
    const RankLedger& ledger = p_.ledger[static_cast<size_t>(p_.worst_stage)];
    const int64_t total = ledger.total();
    out_ += fmt::format("memory of a rank{}\n", p_.ledger.size() > 1 ? fmt::format(" of stage {}", ledger.stage) : "");
    TextTable table("llrlll");
    const std::vector<LedgerLine> lines = by_component(ledger.lines);
    for (int c = 0; c < kNumLedgerCategories; ++c) {
      const auto category = static_cast<LedgerCategory>(c);
      const int64_t sum = ledger.of(category);
      if (sum == 0) continue;
      table.row({std::string(ledger_category_name(category)), "", bytes(sum),
                 percent_words(static_cast<double>(sum), static_cast<double>(total)),
                 bar(static_cast<double>(sum), static_cast<double>(total), kBarWidth)});
      for (const LedgerLine& line : lines) {
        if (line.category != category) continue;
        table.row({"", fmt::format("{}{}{}", line.what, line.storage.empty() ? "" : " ", line.storage),
                   bytes(line.bytes), line.unverified ? "*" : "",
                   line.copies > 1 ? fmt::format("x {} ranks: {}", line.copies, line.reason) : line.reason});
      }
    }
    table.row({"total", "", bytes(total)});
    out_ += table.text();
    int64_t replicated = 0;
    for (const LedgerLine& line : ledger.lines) {
      if (line.category <= LedgerCategory::kEngineCopies) replicated += line.replicated_bytes();
    }
    out_ += fmt::format("  of the weights {} are copies of what other ranks of the stage hold\n", bytes(replicated));
    out_ += fmt::format("  fullest at {} ({})\n", ledger.peak_op, ledger.peak_step);
    out_ += fmt::format("  caches: {} a request and {} a token\n", bytes(ledger.cache_bytes_per_request),
                        bytes_words(ledger.cache_bytes_per_token));
    if (p_.ledger.size() > 1) {
      out_ += "  stages:";
      for (const RankLedger& stage : p_.ledger) out_ += fmt::format(" {}", bytes(stage.total()));
      out_ += "\n";
    }
    out_ += "\n";
  }

  void service() {
    const ServiceResult& s = p_.service;
    TextTable table("lrl");
    if (!p_.prefill.empty()) {
      table.row({"TTFT", seconds_words(s.ttft_s),
                 fmt::format("mean of {} prompts that arrive together; first {}, last {}", r_.batch,
                             seconds_words(s.ttft_alone_s), seconds_words(s.ttft_last_s))});
    }
    if (p_.decode.rows > 0) {
      table.row({"TPOT", seconds_words(s.tpot_s),
                 fmt::format("step {} / {:.2f} tokens{}", seconds_words(p_.decode_step_s), p_.tokens_per_step,
                             s.tpot_loaded_s != s.tpot_s
                                 ? fmt::format("; {} with prompts of others in between", seconds_words(s.tpot_loaded_s))
                                 : "")});
      table.row({"output", fmt::format("{:.1f} tok/s", s.output_tokens_per_s),
                 fmt::format("{:.2f} a device, {:.1f} a user", s.output_tokens_per_s_device, s.tokens_per_s_user)});
    }
    if (!p_.prefill.empty()) table.row({"prefill", fmt::format("{:.1f} tok/s", s.prefill_tokens_per_s), ""});
    out_ += fmt::format("service{}\n{}\n", mark(), table.text());
  }

  void steps() {
    TextTable table("lrrrrrrrrr");
    table.row({"step", "times", "rows", "context", "time", "compute", "memory", "network", "launch", "exposed"});
    const auto add = [&](const StepPlan& step) {
      double compute = 0, memory = 0, network = 0, launch = 0, exposed = 0;
      for (const StagePlan& s : step.stages) {
        compute += s.compute_s, memory += s.memory_s, network += s.network_s, launch += s.launch_s,
            exposed += s.exposed_s * static_cast<double>(step.micro_batches);
      }
      const double sum = compute + memory + network + launch;
      table.row({step.name, fmt::format("{}", step.times), fmt::format("{}", step.rows),
                 fmt::format("{}", step.context), seconds_words(step.seconds), percent_words(compute, sum),
                 percent_words(memory, sum), percent_words(network, sum), percent_words(launch, sum),
                 seconds_words(exposed)});
    };
    for (const StepPlan& step : p_.prefill) add(step);
    for (const StepPlan& step : p_.prefill_drafts) add(step);
    if (p_.decode.rows > 0) add(p_.decode);
    for (const StepPlan& step : p_.drafts) add(step);
    out_ += fmt::format("steps{} (share of the time that each resource binds)\n{}", mark(), table.text());
    const auto& first = p_.decode.rows > 0 ? p_.decode : p_.prefill.front();
    if (const StepPlan* prefill = p_.main_prefill(); prefill != nullptr && first.stages.size() > 1) {
      out_ += fmt::format("  pipeline: {} micro-batches, {:.0f} % of a prefill step is waiting\n",
                          prefill->micro_batches, 100 * prefill->bubble);
    }
    if (p_.decode.rows > 0 && p_.decode.logits_s > 0) {
      out_ += fmt::format("  of a decode step {} are for the logits, which every rank gets\n",
                          seconds_words(p_.decode.logits_s));
    }
    out_ += "\n";
  }

  void ops() {
    for (const StepPlan* step : {p_.main_prefill(), p_.decode.rows > 0 ? &p_.decode : nullptr}) {
      if (step == nullptr) continue;
      const StagePlan* slowest = &step->stages[0];
      for (const StagePlan& s : step->stages) slowest = s.seconds > slowest->seconds ? &s : slowest;
      if (slowest->ops.empty()) continue;
      TextTable table("llrrrlrrl");
      table.row({"op", "kind", "calls", "time", "share", "bound", "flop/s", "byte/s", "source"});
      for (size_t i = 0; i < std::min(slowest->ops.size(), kOpsShown); ++i) {
        const PlanOp& op = slowest->ops[i];
        const double t = op.cost.seconds;
        table.row({op.name, op.op, fmt::format("{}", op.calls), seconds_words(t), percent_words(t, step->seconds),
                   std::string(bound_name(op.cost.bound)), t > 0 ? fmt::format("{:.2e}", op.cost.flops / t) : "-",
                   t > 0 ? fmt::format("{:.2e}", (op.cost.bytes + op.cost.bytes_sent) / t) : "-",
                   fmt::format("{}{}", cost_source_name(op.cost.source), op.cost.unverified ? " *" : "")});
      }
      out_ += fmt::format(
          "{}{}: {} of {} kinds of nodes, share of the step's {}\n{}\n", step->name,
          step->stages.size() > 1 ? fmt::format(", stage {} of {}", slowest - step->stages.data(), step->stages.size())
                                  : "",
          std::min(slowest->ops.size(), kOpsShown), slowest->ops.size(), seconds_words(step->seconds), table.text());
    }
  }

  void traffic() {
    for (const StepPlan* step : {p_.main_prefill(), p_.decode.rows > 0 ? &p_.decode : nullptr}) {
      if (step == nullptr) continue;
      TextTable table("lllrrl");
      for (size_t stage = 0; stage < step->stages.size(); ++stage) {
        if (stage != static_cast<size_t>(p_.worst_stage)) continue;
        for (const TrafficLine& line : step->stages[stage].traffic) {
          if (line.bytes_sent == 0) continue;
          table.row({line.op, fmt::format("{} {}", mesh_axis_name(line.axis), line.group_size), "",
                     fmt::format("{} calls", line.calls), bytes(line.bytes_sent), line.expected ? "expected" : ""});
        }
      }
      if (!table.empty())
        out_ += fmt::format("sent by a rank in a {} step of {} rows\n{}\n", step->name, step->rows, table.text());
    }
  }

  const Plan& p_;
  const PlanRequest& r_;
  std::string out_;
};

}  // namespace

std::string plan_text(const Plan& plan) { return Text(plan).all(); }

}  // namespace weft
