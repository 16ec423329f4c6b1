// Golden cases: a small checkpoint with the outputs that an independent oracle gives for it.
//
// A folder holds config.json, the tensors, case.json (prompts, greedy tokens, tolerances) and expected.safetensors
// (logits.<i>, hidden.<i>.<layer>, topk.<i>.<layer>, mtp.<i> for prompt i; docs/golden_cases.md). case.json is a closed
// schema: a key that is not known is an error.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace weft {

// One compared quantity. A tolerance that the case does not give is not checked (ok stays true).
struct GoldenQuantity {
  std::string name;       // "logits", "hidden (relative)", "selected indices", ...
  double found = 0;       // largest error; for counts: how many differ; for argmax_agree: the share
  double tolerance = 0;   // 0 for counts: they must be equal
  bool at_least = false;  // found must be >= tolerance
  bool ok = true;
  std::string detail = {};  // where the largest error or the first difference is
};

struct GoldenReport {
  std::string name, description, family, dtype;
  std::vector<GoldenQuantity> quantities;
  bool ok() const;
};

struct GoldenOptions {
  int num_threads = 0;
  Isa isa = max_isa();
  int64_t max_step_tokens = 512;
  Layout layout = {};  // of several ranks: values that rank 0 has in full are compared, beside all logits
  // Instead of Engine::create, for the model of the folder.
  std::function<Result<std::unique_ptr<Engine>>(const std::shared_ptr<const Model>&, const EngineOptions&)>
      make_engine = {};
};

Result<GoldenReport> check_golden_case(const std::filesystem::path& dir, const GoldenOptions& options);

}  // namespace weft
