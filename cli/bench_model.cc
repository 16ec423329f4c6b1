#include "cli/bench_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "runtime/counter_rng.h"

namespace weft {
namespace {

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> rates(const BenchResult& result) {
  std::vector<double> rates;
  for (const double s : result.seconds) rates.push_back(static_cast<double>(result.total_tokens()) / s);
  return rates;
}

constexpr uint64_t kDepthStream = uint64_t{1} << 32;  // apart from the repetitions

}  // namespace

std::string BenchTest::name() const {
  std::string name = fmt::format("{}{}", kind == BenchKind::kPrefill ? "pp" : "tg", tokens);
  if (batch > 1) name += fmt::format(" b{}", batch);
  if (depth > 0) name += fmt::format(" @ d{}", depth);
  if (computed_depth() < depth) name += fmt::format(" ({} computed)", computed_depth());
  if (drafts > 0) name += fmt::format(" mtp{}", drafts);
  return name;
}

double BenchResult::tokens_per_s() const { return mean(rates(*this)); }

double BenchResult::tokens_per_s_spread() const {
  const std::vector<double> all = rates(*this);
  if (all.size() < 2) return 0;
  const double centre = mean(all);
  double squares = 0;
  for (const double rate : all) squares += (rate - centre) * (rate - centre);
  return std::sqrt(squares / static_cast<double>(all.size() - 1));
}

double BenchResult::flops_per_s() const { return seconds.empty() ? 0 : flops / mean(seconds); }
double BenchResult::bytes_per_s() const { return seconds.empty() ? 0 : bytes / mean(seconds); }

std::vector<int32_t> ModelBench::random_tokens(int64_t count, uint64_t stream) const {
  std::vector<int32_t> tokens(count);
  const auto vocab = static_cast<double>(engine_.model().vocab_size());
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(uniform({seed_, stream, i}, DrawPurpose::kToken) * vocab);
  }
  return tokens;
}

Status ModelBench::check_interrupt() const { return (*interrupted_)() ? cancelled("interrupted") : Status(); }

Result<BenchResult> ModelBench::run(const BenchTest& test, int repetitions, const std::function<bool()>& interrupted) {
  interrupted_ = &interrupted;
  WEFT_RETURN_IF_ERROR(prepare(test));
  BenchResult result;
  result.test = test;
  WEFT_ASSIGN_OR_RETURN(const WorkTotals work, count_work(engine_, test));
  result.flops = work.flops;
  result.bytes = work.bytes;
  // The first run reads weights from the disk and builds graphs: it is not counted.
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    if (repetition == 0 && options_.time_ops) WEFT_RETURN_IF_ERROR(engine_.start_timing());
    if (repetition == 0 && options_.bandwidth) result.read_bytes_per_s.push_back(options_.bandwidth());
    std::vector<int32_t> slots;
    Status status;
    for (int64_t i = 0; i < test.batch && status.ok(); ++i) {
      Result<int32_t> slot = engine_.open_sequence();
      status = slot.status();
      if (!status.ok()) break;
      slots.push_back(*slot);
      if (test.depth > 0) status = engine_.restore(*slot, saved_);
    }
    BenchTest this_test = test;
    constexpr int64_t kWarmUpTokens = 4;
    if (repetition < 0 && test.kind == BenchKind::kDecode) this_test.tokens = std::min(test.tokens, kWarmUpTokens);
    observed_ = repetition >= 0;
    Result<Run> timed =
        status.ok() ? once(this_test, slots, static_cast<uint64_t>(repetition + 1)) : Result<Run>(status);
    observed_ = false;
    for (const int32_t slot : slots) engine_.close_sequence(slot);
    if (!timed.ok()) return timed.status();
    if (repetition < 0) continue;
    if (options_.bandwidth) result.read_bytes_per_s.push_back(options_.bandwidth());
    result.seconds.push_back(timed->seconds);
    result.drafted += timed->drafted;
    result.accepted += timed->accepted;
  }
  if (options_.time_ops) {
    WEFT_ASSIGN_OR_RETURN(result.op_times, engine_.op_times());
  }
  return result;
}

Status ModelBench::prepare(const BenchTest& test) {
  const int64_t depth = test.computed_depth();
  if (test.depth == 0 || (test.depth == saved_depth_ && depth == saved_computed_ && test.drafts == saved_drafts_))
    return {};
  WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine_.open_sequence());
  const std::vector<int32_t> tokens = random_tokens(depth, kDepthStream);
  Status status;
  if (test.drafts == 0) {
    for (int64_t begin = 0; begin < depth && status.ok();) {
      const int64_t rows = std::min(engine_.options().max_step_tokens, depth - begin);
      const Engine::Request request{slot, std::span(tokens).subspan(begin, rows), Engine::Logits::kNone};
      status = engine_.step({&request, 1});
      if (status.ok()) status = check_interrupt();
      begin += rows;
    }
  } else {
    Generator generator(engine_);
    GenerateRequest request;
    request.prompt = tokens;
    request.max_tokens = 1;
    request.sampling.temperature = 0;
    request.drafts = test.drafts;
    request.slot = slot;
    status = generator.submit(std::move(request)).status();
    while (status.ok() && !generator.idle()) {
      status = check_interrupt();
      if (status.ok()) status = generator.step();
    }
  }
  if (status.ok()) {
    WEFT_ASSIGN_OR_RETURN(saved_, engine_.save(slot));
    if (depth < test.depth) {
      const std::vector<CacheSpec> specs = engine_.model().caches(engine_.options().mode, engine_.caches().capacity());
      WEFT_ASSIGN_OR_RETURN(saved_, stretch(specs, saved_, test.depth, seed_));
    }
    saved_depth_ = test.depth;
    saved_computed_ = depth;
    saved_drafts_ = test.drafts;
  }
  engine_.close_sequence(slot);
  return status;
}

Result<ModelBench::Run> ModelBench::once(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream) {
  if (test.kind == BenchKind::kPrefill) return prefill(test, slots, stream);
  return test.drafts == 0 ? decode(test, slots, stream) : generate(test, slots, stream);
}

// The logits of the last step are looked at when the time has been taken.
Result<ModelBench::Run> ModelBench::finished(double seconds) const {
  for (int64_t row = 0; row < engine_.num_logit_rows(); ++row) WEFT_RETURN_IF_ERROR(expect_finite(engine_.logits(row)));
  return Run{seconds};
}

Result<ModelBench::Run> ModelBench::prefill(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream) {
  const std::vector<int32_t> tokens = random_tokens(test.tokens * test.batch, stream);
  const int64_t step_tokens = engine_.options().max_step_tokens;
  const auto start = Clock::now();
  // Steps are filled to the brim: the end of one prompt and the beginning of the next share a step.
  for (int64_t done = 0; done < test.tokens * test.batch;) {
    const int64_t step_end = std::min(done + step_tokens, test.tokens * test.batch);
    std::vector<Engine::Request> requests;
    while (done < step_end) {
      const int64_t sequence = done / test.tokens, sequence_end = (sequence + 1) * test.tokens;
      const int64_t end = std::min(step_end, sequence_end);
      requests.push_back({slots[sequence], std::span(tokens).subspan(done, end - done),
                          end == sequence_end ? Engine::Logits::kLast : Engine::Logits::kNone});
      done = end;
    }
    WEFT_RETURN_IF_ERROR(engine_.step(requests, observer()));
    WEFT_RETURN_IF_ERROR(check_interrupt());
  }
  return finished(seconds_since(start));
}

Result<ModelBench::Run> ModelBench::decode(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream) {
  const std::vector<int32_t> tokens = random_tokens(test.tokens * test.batch, stream);
  const auto start = Clock::now();
  for (int64_t i = 0; i < test.tokens; ++i) {
    std::vector<Engine::Request> requests;
    for (int64_t b = 0; b < test.batch; ++b) {
      requests.push_back({slots[b], std::span(tokens).subspan(i * test.batch + b, 1), Engine::Logits::kLast});
    }
    WEFT_RETURN_IF_ERROR(engine_.step(requests, observer()));
    WEFT_RETURN_IF_ERROR(check_interrupt());
  }
  return finished(seconds_since(start));
}

Result<ModelBench::Run> ModelBench::generate(const BenchTest& test, const std::vector<int32_t>& slots,
                                             uint64_t stream) {
  const std::vector<int32_t> first = random_tokens(test.batch, stream);
  Generator generator(engine_);
  std::vector<Generator::RequestId> ids;
  for (int64_t b = 0; b < test.batch; ++b) {
    GenerateRequest request;
    if (test.depth > 0) request.prompt = random_tokens(test.depth, kDepthStream);
    request.prompt.push_back(first[b]);
    request.max_tokens = test.tokens + 1;
    request.sampling.temperature = 0;
    request.drafts = test.drafts;
    request.slot = slots[b];
    WEFT_ASSIGN_OR_RETURN(const Generator::RequestId id, generator.submit(std::move(request)));
    ids.push_back(id);
  }
  WEFT_RETURN_IF_ERROR(generator.step());  // the first token of each belongs to the prompts
  const auto start = Clock::now();
  while (!generator.idle()) {
    WEFT_RETURN_IF_ERROR(generator.step());
    WEFT_RETURN_IF_ERROR(check_interrupt());
  }
  Run run{seconds_since(start)};
  for (const Generator::RequestId id : ids) {
    const GenerateResult result = generator.take(id).value();
    run.drafted += result.drafted;
    run.accepted += result.accepted;
  }
  return run;
}

}  // namespace weft
