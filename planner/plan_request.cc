#include "planner/plan_request.h"

#include <fmt/format.h>

namespace weft {

std::string_view plan_phase_name(PlanPhase phase) {
  switch (phase) {
    case PlanPhase::kBoth: return "both";
    case PlanPhase::kPrefill: return "prefill";
    case PlanPhase::kDecode: return "decode";
  }
  return "";
}

Status check_request(const PlanRequest& request) {
  WEFT_CHECK(request.model != nullptr && request.device != nullptr && request.engine != nullptr,
             "a plan needs model, device and engine");
  constexpr int64_t kMost = int64_t{1} << 30;
  const struct {
    const char* option;
    int64_t value, least, most;
  } sizes[] = {
      {"--prompt", request.prompt, 1, kMost},
      {"--gen", request.gen, 1, kMost},
      {"--batch", request.batch, 1, 1 << 20},
      {"--cached", request.cached, 0, request.prompt - 1},
      {"--chunk", request.chunk, 0, 1 << 20},
      {"--mtp", request.drafts, 0, 64},
      {"--local-ranks", request.local_ranks, 1, 1 << 16},
      {"--threads", request.threads, 1, 1 << 16},
  };
  for (const auto& size : sizes) {
    if (size.value >= size.least && size.value <= size.most) continue;
    return invalid_argument(
        fmt::format("{}: expected {} to {}, found {}", size.option, size.least, size.most, size.value));
  }
  if (request.reserve_bytes < 0)
    return invalid_argument(fmt::format("--reserve: expected bytes of at least 0, found {}", request.reserve_bytes));
  if (!(request.dp_imbalance >= 1 && request.dp_imbalance <= static_cast<double>(request.layout.mesh.dp))) {
    return invalid_argument(
        fmt::format("--dp-imbalance: expected 1 to {}, the data-parallel groups of layout {}; found {}",
                    request.layout.mesh.dp, to_string(request.layout), request.dp_imbalance));
  }
  for (const double a : request.acceptance) {
    if (a < 0 || a > 1)
      return invalid_argument(fmt::format("--acceptance: expected probabilities of 0 to 1, found {}", a));
  }
  if (!request.acceptance.empty() && request.drafts == 0) {
    return invalid_argument("--acceptance: there are no drafts to accept; add --mtp N");
  }
  if (request.drafts > 0 && request.model->num_draft_layers() == 0) {
    return invalid_argument(
        fmt::format("--mtp {}: {} has no draft (MTP) layer that weft can run", request.drafts, request.model_name));
  }
  const int64_t limit = request.model->max_position_embeddings();
  if (request.context() > limit) {
    return invalid_argument(
        fmt::format("--prompt {} + --gen {}{} = {} tokens; this model takes at most {}", request.prompt, request.gen,
                    request.drafts > 0 ? fmt::format(" + {} drafts", request.drafts) : "", request.context(), limit));
  }
  if (request.batch < request.layout.mesh.dp) {
    return invalid_argument(
        fmt::format("--batch {}: {} data-parallel groups of layout {} need at least one request each; use --batch {} "
                    "or a smaller dp",
                    request.batch, request.layout.mesh.dp, to_string(request.layout), request.layout.mesh.dp));
  }
  if (request.local_ranks > 1 && !request.device->is_cpu()) {
    return invalid_argument(
        fmt::format("--local-ranks {}: {} has one rank a device", request.local_ranks, request.device->name));
  }
  if (request.local_ranks > request.layout.mesh.world()) {
    return invalid_argument(fmt::format("--local-ranks {}: layout {} has {} rank{} in all", request.local_ranks,
                                        to_string(request.layout), request.layout.mesh.world(),
                                        request.layout.mesh.world() == 1 ? "" : "s"));
  }
  return {};
}

}  // namespace weft
