// Measures how fast a model runs: the tests of `weft bench`.
//
//   pp N   a prompt of N tokens, logits of the last one        tg N   N tokens, one per sequence and step
// each by `batch` sequences at a time, after `depth` tokens that are not timed. Tokens are random: what they are does
// not matter but for which experts they pick. With drafts, tg generates greedily instead, since random tokens would
// accept no draft.
// A deep context takes long to compute; where `computed` is below `depth`, the caches' rows beyond it are drawn from
// those before.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/engine.h"
#include "runtime/generate.h"

namespace weft {

enum class BenchKind { kPrefill, kDecode };

struct BenchTest {
  BenchKind kind = BenchKind::kPrefill;
  int64_t tokens = 512;  // per sequence
  int64_t batch = 1;
  int64_t depth = 0;
  int64_t drafts = 0;    // kDecode
  int64_t computed = 0;  // of depth, at most; 0: all

  int64_t computed_depth() const { return computed > 0 && computed < depth ? computed : depth; }

  std::string name() const;  // "pp512", "tg64 b4 @ d4096"
};

struct BenchResult {
  BenchTest test;
  std::vector<double> seconds;  // of each repetition
  std::vector<double> read_bytes_per_s;  // of memory: before the first repetition and after each; if asked for
  int64_t drafted = 0, accepted = 0;
  // Of one repetition, as the ops of the graphs count it: multiply-adds count 2, memory traffic with each weight once
  // per step.
  double flops = 0, bytes = 0;
  std::vector<std::vector<OpTime>> op_times;  // by rank, of all repetitions; if asked for

  int64_t total_tokens() const { return test.tokens * test.batch; }
  double tokens_per_s() const;         // mean over the repetitions
  double tokens_per_s_spread() const;  // their standard deviation; 0 for one
  double flops_per_s() const;          // at the mean time
  double bytes_per_s() const;
};

class ModelBench {
 public:
  struct Options {
    uint64_t seed = 0;
    bool time_ops = false;                    // each op besides each test as a whole
    const ValueObserver* observer = nullptr;  // sees the values of the steps that are timed; borrowed
    std::function<double()> bandwidth = {};   // measures what BenchResult::read_bytes_per_s says
  };
  // Borrows the engine, of which all sequences are free.
  ModelBench(Engine& engine, Options options) : engine_(engine), seed_(options.seed), options_(std::move(options)) {}

  // `interrupted` is asked between steps.
  Result<BenchResult> run(const BenchTest& test, int repetitions, const std::function<bool()>& interrupted);

 private:
  struct Run {
    double seconds = 0;
    int64_t drafted = 0, accepted = 0;
  };
  std::vector<int32_t> random_tokens(int64_t count, uint64_t stream) const;
  Status prepare(const BenchTest& test);  // fills saved_
  Result<Run> once(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream);
  Result<Run> prefill(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream);
  Result<Run> decode(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream);
  Result<Run> generate(const BenchTest& test, const std::vector<int32_t>& slots, uint64_t stream);
  Result<Run> finished(double seconds) const;
  Status check_interrupt() const;
  const ValueObserver* observer() const { return observed_ ? options_.observer : nullptr; }

  Engine& engine_;
  uint64_t seed_;
  Options options_;
  bool observed_ = false;  // not while the context before a test is computed, nor in the first run
  const std::function<bool()>* interrupted_ = nullptr;
  // The state after `depth` tokens, kept from test to test.
  SavedSequence saved_;
  int64_t saved_depth_ = 0, saved_computed_ = 0, saved_drafts_ = 0;
};

// What the steps of a test cost by the work() of their ops, without running them.
struct WorkTotals {
  double flops = 0, bytes = 0;
};
Result<WorkTotals> count_work(const Engine& engine, const BenchTest& test);

// Of the trunk, without scales and tables of ids.
Result<int64_t> count_parameters(const Engine& engine);

}  // namespace weft
