// The bitwise promises of the engine, checked on one model with random tokens: every graph value at every position
// (logits, hidden states, selections among them) and the caches are the same however the work is cut, shared or
// spread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace weft {

struct VerifyOptions {
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::optional<bool> act_quant = {};  // as --act-quant
  OutputQuant output_quant = OutputQuant::kNone;
  int64_t tokens = 300;                // long enough for windows and groups of every size to fill and roll over
  int64_t generate = 24;               // tokens per request when text with and without drafts is compared
  uint64_t seed = 0;
  Layout layout = {};            // of all engines; what rank 0 has in full is compared
  int num_threads = 0;           // as EngineOptions
  EngineMaker make_engine = {};  // none: Engine::create
  Isa isa = max_isa();
};

struct VerifyLine {
  enum class Outcome { kPass, kFail, kSkipped };
  DType dtype = DType::kF32;
  std::string name;  // "prefill whole = in chunks of 3"
  Outcome outcome = Outcome::kPass;
  std::string detail;  // kFail: the first difference; kSkipped: why; kPass: mostly empty
  double seconds = 0;
};

struct VerifyReport {
  int64_t tokens = 0;
  std::vector<VerifyLine> lines;
  bool ok() const;
};

// on_start(name) before and on_line(line) after each line. An error (not a line): input, memory.
struct VerifyEvents {
  std::function<void(const std::string& name)> on_start = {};
  std::function<void(const VerifyLine&)> on_line = {};
};
Result<VerifyReport> verify_model(std::shared_ptr<const Model> model, const VerifyOptions& options,
                                  const VerifyEvents& events = {});

}  // namespace weft
