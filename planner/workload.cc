#include "planner/workload.h"

#include <algorithm>
#include <cmath>

#include "base/int_math.h"
#include "planner/service.h"

namespace weft {
namespace {

constexpr int64_t kCpuChunk = 512;  // the engine's default step
constexpr int64_t kAcceleratorChunk =
    8192;  // of a data-parallel group: fills an accelerator; what serving engines take by default
constexpr int64_t kCostedChunks = 4;  // chunks of one prompt that are costed one by one; more are alike

// Requests of `rows` new tokens each, which then hold `context` tokens; logits of the last `logits` rows of each.
StepBatch batch_of(int64_t requests, int64_t rows, int64_t context, int64_t logits) {
  StepBatch batch;
  for (int64_t r = 0; r < requests; ++r) {
    batch.segments.push_back({static_cast<int32_t>(r), batch.num_tokens(), rows, context});
    for (int64_t j = 0; j < rows; ++j) {
      if (j >= rows - logits) batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()));
      batch.tokens.push_back(0);
      batch.positions.push_back(static_cast<int32_t>(context - rows + j));
    }
  }
  return batch;
}

class Maker {
 public:
  explicit Maker(const PlanRequest& request)
      : r_(request),
        dp_(request.layout.mesh.dp),
        group_requests_(ceil_div(request.batch, dp_)),
        busy_requests_(std::min<int64_t>(
            std::llround(std::ceil(static_cast<double>(group_requests_) * request.dp_imbalance)), request.batch)),
        rows_per_request_(1 + request.drafts) {}

  Workload make() {
    sizes();
    if (r_.phase != PlanPhase::kDecode) prefill();
    decode();
    return std::move(out_);
  }

 private:
  void sizes() {
    EngineSizes& sizes = out_.sizes;
    sizes.max_sequences = r_.batch;
    sizes.max_context = r_.context();
    sizes.total_context = r_.batch * r_.context();
    sizes.max_drafts = r_.drafts;
    const int64_t chunk = r_.chunk > 0 ? r_.chunk : r_.device->is_cpu() ? kCpuChunk : kAcceleratorChunk * dp_;
    // No step is longer than all there is to compute.
    chunk_ = std::min(chunk, r_.batch * (r_.prompt - r_.cached));
    out_.chunk = chunk_;
    sizes.max_step_tokens = std::max(r_.phase == PlanPhase::kDecode ? 1 : chunk_,
                                     r_.phase == PlanPhase::kPrefill ? 1 : r_.batch * rows_per_request_);
  }

  // rows, logits: of the group that has most.
  void shape(GraphKind kind, StepPhase phase, int64_t rows, int64_t logits) {
    const int64_t largest = out_.sizes.max_step_tokens;
    const StepKey key{kind, phase, row_capacity(rows, largest), row_capacity(logits, largest), 0, {}};
    if (std::find(out_.shapes.begin(), out_.shapes.end(), key) == out_.shapes.end()) out_.shapes.push_back(key);
  }

  void prefill() {
    const int64_t left = r_.prompt - r_.cached, room = std::max<int64_t>(chunk_ / dp_, 1);  // of one group
    if (left <= room) {  // whole prompts, several in a step
      const int64_t together = std::min(group_requests_, room / left);
      for (const auto& [requests, times] :
           {std::pair(together, busy_requests_ / together), std::pair(busy_requests_ % together, int64_t{1})}) {
        if (requests == 0) continue;
        out_.waves.push_back({requests, times, out_.prefill.size(), 1});
        add_prefill(requests, left, r_.prompt, times, true);
      }
      return;
    }
    const int64_t full = left / room, rest = left % room;
    const int64_t last_full = rest == 0 ? full - 1 : full;  // chunks before the last one
    const int64_t parts = std::min(last_full, kCostedChunks);
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = last_full * p / parts, end = last_full * (p + 1) / parts;
      // The middle one of those that it stands for: costs grow evenly with the context.
      const int64_t context = r_.cached + (begin + end + 1) * room / 2;
      add_prefill(1, room, context, (end - begin) * busy_requests_, false);
    }
    add_prefill(1, rest == 0 ? room : rest, r_.prompt, busy_requests_, true);
    out_.waves.push_back({1, busy_requests_, 0, out_.prefill.size()});
  }

  void add_prefill(int64_t requests, int64_t rows, int64_t context, int64_t times, bool last) {
    WorkStep step;
    step.name = "prefill";
    step.times = times;
    step.context = context;
    step.rows = requests * rows * dp_;
    step.requests = requests * dp_;
    step.logits = last ? requests : 0;
    step.micro_batches = micro_batches(r_.layout, GraphKind::kTrunk, StepPhase::kPrefill, step.rows);
    // One of the micro-batches: its share of the rows; the wanted logits are all in the last one, the costliest.
    const int64_t all = requests * rows, part = ceil_div(all, step.micro_batches);
    const int64_t part_requests = step.micro_batches == 1 ? requests : ceil_div(part, rows),
                  part_rows = ceil_div(part, part_requests);
    step.batch = batch_of(part_requests, part_rows, context - (rows - part_rows) / 2, last ? 1 : 0);
    shape(GraphKind::kTrunk, StepPhase::kPrefill, part_requests * part_rows, last ? part_requests : 0);
    if (r_.drafts > 0) {
      WorkStep draft = step;
      draft.name = "draft";
      draft.kind = GraphKind::kDraft;
      draft.micro_batches = 1;
      draft.batch = batch_of(requests, rows, context, last ? 1 : 0);
      shape(GraphKind::kDraft, StepPhase::kPrefill, requests * rows, last ? requests : 0);
      out_.prefill_drafts.push_back(std::move(draft));
    }
    out_.prefill.push_back(std::move(step));
  }

  void decode() {
    if (r_.phase == PlanPhase::kPrefill) return;
    const int64_t context = std::min(r_.prompt + r_.gen / 2 + rows_per_request_, r_.context());
    const auto step_of = [&](GraphKind kind, int64_t rows) {
      WorkStep step;
      step.name = kind == GraphKind::kTrunk ? "decode" : "draft";
      step.kind = kind;
      step.phase = StepPhase::kDecode;
      step.context = context;
      step.rows = group_requests_ * dp_ * rows;
      step.batch = batch_of(busy_requests_, rows, context, kind == GraphKind::kTrunk ? rows : 1);
      step.requests = group_requests_ * dp_;
      step.logits = step.group_logits();
      return step;
    };
    out_.decode = step_of(GraphKind::kTrunk, rows_per_request_);
    shape(GraphKind::kTrunk, StepPhase::kDecode, group_requests_ * rows_per_request_,
          group_requests_ * rows_per_request_);
    if (r_.drafts == 0) return;
    // Behind the trunk the draft layer sees the tokens that were taken, then one draft after the other.
    const auto taken = static_cast<int64_t>(std::lround(tokens_per_step(r_.drafts, r_.acceptance)));
    for (int64_t d = 0; d < r_.drafts; ++d) out_.drafts.push_back(step_of(GraphKind::kDraft, d == 0 ? taken : 1));
    shape(GraphKind::kDraft, StepPhase::kDecode, group_requests_ * rows_per_request_, group_requests_);
    shape(GraphKind::kDraft, StepPhase::kDecode, group_requests_, group_requests_);
  }

  const PlanRequest& r_;
  // Of one data-parallel group: on average, and of the one that has most to do.
  const int64_t dp_, group_requests_, busy_requests_, rows_per_request_;
  int64_t chunk_ = 0;
  Workload out_;
};

}  // namespace

Workload make_workload(const PlanRequest& request) { return Maker(request).make(); }

}  // namespace weft
