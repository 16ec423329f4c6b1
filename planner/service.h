// From step times to what a user sees (planner.md 2.7). Every formula is in docs/planner.md, with its source.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// Tokens that one decode step yields per request: 1 + sum over depth i of the product of the first i acceptances.
// conditional[j]: probability that the draft at depth j + 1 is taken if all before it were; the last one holds further on.
double tokens_per_step(int64_t drafts, std::span<const double> conditional);

// Prompts that are done together.
struct PrefillWave {
  int64_t requests = 1, times = 1;  // ... one such wave after the other
  double seconds = 0;               // of one wave, all chunks
};

struct ServiceInput {
  int64_t batch = 1;  // requests at a time
  int64_t gen = 1;    // tokens of an answer
  int64_t prompt = 1, cached = 0;
  int64_t devices = 1;
  std::vector<PrefillWave> prefill;  // of the whole batch, first to last; empty: none
  double decode_step_s = 0;          // one decode step of the whole batch, drafts included
  double tokens_per_step = 1;
  double transfer_s = 0;  // disaggregated: caches of one request
};

struct ServiceResult {
  double ttft_s = 0;                // mean over the batch when all prompts arrive together; transfer included
  double ttft_alone_s = 0;          // one prompt, idle engine
  double ttft_last_s = 0;           // of the last request of the batch
  double tpot_s = 0;                // between two tokens of a request, decode steps alone
  double tpot_loaded_s = 0;         // closed loop: the prefills of the other requests come in between
  double itl_s = 0;                 // between two steps: equals tpot without drafts
  double e2e_s = 0;                 // ttft_s, then all other tokens at tpot_loaded_s
  double output_tokens_per_s = 0;   // closed loop of `batch` requests: prefill and decode share the devices
  double total_tokens_per_s = 0;    // prompts among them
  double decode_tokens_per_s = 0;   // decode alone
  double prefill_tokens_per_s = 0;  // prefill alone, cached tokens not counted
  double requests_per_s = 0;
  double output_tokens_per_s_device = 0;
  double tokens_per_s_user = 0;  // 1 / tpot_loaded_s
};
ServiceResult service(const ServiceInput& input);

// Share of the time in which a stage waits: (stages - 1) / (micro_batches + stages - 1).
double pipeline_bubble(int64_t stages, int64_t micro_batches);

}  // namespace weft
