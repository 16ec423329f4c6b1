#include "cli/perplexity.h"

#include <algorithm>
#include <cmath>

#include "runtime/sampling.h"

namespace weft {
namespace {

double negative_log_probability(std::span<const float> logits, int32_t token) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  return std::log(sum) + best - logits[token];
}

struct Sums {
  int64_t count = 0;
  double sum = 0, squares = 0;

  void add(double value) {
    ++count;
    sum += value;
    squares += value * value;
  }
  Perplexity result() const {
    Perplexity result;
    result.predicted = count;
    if (count > 0) result.nll = sum / static_cast<double>(count);
    if (count > 1) {
      const double variance = std::max(0.0, squares / static_cast<double>(count) - result.nll * result.nll);
      result.nll_standard_error = std::sqrt(variance / static_cast<double>(count - 1));
    }
    return result;
  }
};

// Scores window[i] for i >= first_scored (>= 1).
Status score_window(Engine& engine, int32_t slot, std::span<const int32_t> window, int64_t first_scored, Sums& sums) {
  const auto size = static_cast<int64_t>(window.size());
  for (int64_t begin = 0; begin < size;) {
    const int64_t rows = std::min(engine.options().max_step_tokens, size - begin);
    // Row r gives the distribution of window[begin + r + 1].
    const bool wanted = begin + rows >= first_scored && begin + 1 < size;
    const Engine::Request request{slot, window.subspan(begin, rows),
                                  wanted ? Engine::Logits::kAll : Engine::Logits::kNone};
    WEFT_RETURN_IF_ERROR(engine.step({&request, 1}));
    for (int64_t row = std::max<int64_t>(0, first_scored - begin - 1); wanted && row < rows && begin + row + 1 < size;
         ++row) {
      WEFT_RETURN_IF_ERROR(expect_finite(engine.logits(row)));
      sums.add(negative_log_probability(engine.logits(row), window[begin + row + 1]));
    }
    begin += rows;
  }
  return {};
}

}  // namespace

double Perplexity::perplexity() const { return std::exp(nll); }

Result<Perplexity> measure_perplexity(Engine& engine, std::span<const int32_t> tokens, const PerplexityOptions& options,
                                      const std::function<bool(int64_t, const Perplexity&)>& on_window) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (size < 2) return invalid_argument(fmt::format("the text has {} tokens; at least 2 are needed", size));
  if (options.window < 2)
    return invalid_argument(fmt::format("a window of {} tokens; at least 2 are needed", options.window));
  if (options.stride < 1 || options.stride > options.window) {
    return invalid_argument(
        fmt::format("a stride of {} tokens; 1 to {} (the window) are possible", options.stride, options.window));
  }
  WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine.open_sequence());
  Sums sums;
  Status status;
  int64_t seen = 0;  // tokens of the windows so far
  for (int64_t begin = 0; seen < size && status.ok(); begin += options.stride) {
    if (begin > 0 && !on_window(seen, sums.result())) {
      status = cancelled("interrupted");
      break;
    }
    const int64_t end = std::min(begin + options.window, size);
    status = score_window(engine, slot, tokens.subspan(begin, end - begin), std::max<int64_t>(seen - begin, 1), sums);
    seen = end;
    if (status.ok()) status = engine.truncate(slot, 0);
  }
  engine.close_sequence(slot);
  WEFT_RETURN_IF_ERROR(status);
  return sums.result();
}

}  // namespace weft
