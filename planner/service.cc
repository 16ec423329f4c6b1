#include "planner/service.h"

#include <algorithm>

namespace weft {
namespace {

constexpr double kDefaultAcceptance = 0.7;  // of the first draft of a one-layer MTP head; models publish 0.6 to 0.9

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

double tokens_per_step(int64_t drafts, std::span<const double> conditional) {
  double tokens = 1, chain = 1;
  for (int64_t depth = 0; depth < drafts; ++depth) {
    const auto at = std::min(static_cast<size_t>(depth), conditional.empty() ? 0 : conditional.size() - 1);
    chain *= conditional.empty() ? kDefaultAcceptance : conditional[at];
    tokens += chain;
  }
  return tokens;
}

ServiceResult service(const ServiceInput& in) {
  ServiceResult out;
  const auto batch = static_cast<double>(in.batch), gen = static_cast<double>(in.gen);
  const auto prompt = static_cast<double>(in.prompt - in.cached), devices = static_cast<double>(in.devices);
  double prefill_all_s = 0, waited_s = 0, prompts = 0;  // waited: sum over prompts of when they are done
  for (const PrefillWave& wave : in.prefill) {
    const auto requests = static_cast<double>(wave.requests), times = static_cast<double>(wave.times);
    waited_s += requests * (times * prefill_all_s + wave.seconds * times * (times + 1) / 2);
    prompts += requests * times;
    prefill_all_s += times * wave.seconds;
  }
  if (prompts > 0) {
    out.ttft_s = waited_s / prompts + in.transfer_s;
    out.ttft_alone_s = in.prefill.front().seconds + in.transfer_s;
    out.ttft_last_s = prefill_all_s + in.transfer_s;
  }
  out.itl_s = in.decode_step_s;
  out.tpot_s = in.decode_step_s / in.tokens_per_step;
  const double steps = (gen - 1) / in.tokens_per_step;  // the first token comes with the prompt
  const double decode_all_s = steps * in.decode_step_s;
  const double round_s = prefill_all_s + decode_all_s;
  if (prefill_all_s > 0 && in.decode_step_s > 0) {
    out.output_tokens_per_s = rate(batch * gen, round_s);
    out.total_tokens_per_s = rate(batch * (gen + static_cast<double>(in.prompt)), round_s);
    out.requests_per_s = rate(batch, round_s);
    const double others_s = prefill_all_s * (batch - 1) / batch;
    out.tpot_loaded_s = gen > 1 ? (decode_all_s + others_s) / (gen - 1) : 0;
  } else if (in.decode_step_s > 0) {
    out.output_tokens_per_s = out.total_tokens_per_s = rate(batch * in.tokens_per_step, in.decode_step_s);
    out.requests_per_s = rate(batch, decode_all_s);
    out.tpot_loaded_s = out.tpot_s;
  } else {
    out.total_tokens_per_s = rate(batch * static_cast<double>(in.prompt), prefill_all_s);
    out.requests_per_s = rate(batch, prefill_all_s);
  }
  out.e2e_s = out.ttft_s + out.tpot_loaded_s * (gen - 1);
  out.decode_tokens_per_s = rate(batch * in.tokens_per_step, in.decode_step_s);
  out.prefill_tokens_per_s = rate(batch * prompt, prefill_all_s);
  out.output_tokens_per_s_device = out.output_tokens_per_s / devices;
  out.tokens_per_s_user = rate(1, out.tpot_loaded_s > 0 ? out.tpot_loaded_s : out.tpot_s);
  return out;
}

double pipeline_bubble(int64_t stages, int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

}  // namespace weft
