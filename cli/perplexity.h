// How well a model predicts a text.
//
// Windows of `window` tokens begin every `stride` tokens, each from position 0 without BOS. A token is scored in the
// first window that holds it, given the tokens before it in that window; the first token of a window that nothing
// precedes is not scored. stride = window: consecutive windows, all tokens but the first of each.
//   nll = mean of -log p(token)        perplexity = exp(nll)
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "runtime/engine.h"

namespace weft {

struct PerplexityOptions {
  int64_t window = 512;
  int64_t stride = 512;  // 1 .. window
};

struct Perplexity {
  int64_t predicted = 0;  // scored tokens
  double nll = 0;
  double nll_standard_error = 0;  // of the mean, as if tokens were independent

  double perplexity() const;
};

// At least 2 tokens. `on_window`: what is known so far, before each window but the first; false stops with a cancelled
// status.
Result<Perplexity> measure_perplexity(
    Engine& engine, std::span<const int32_t> tokens, const PerplexityOptions& options,
    const std::function<bool(int64_t next_token, const Perplexity& so_far)>& on_window);

}  // namespace weft
