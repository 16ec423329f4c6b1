// Random checkpoints in the official format of a family, for tests of scale and speed. Not degenerate: logits are
// finite and differ, the experts are used about alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "io/json.h"
#include "models/random_tensor.h"

namespace weft {

struct SynthOptions {
  std::vector<int64_t> layers = {};  // layers of the config to keep, with their kinds; empty: all
  bool mtp = false;                  // keep the draft layers
  std::optional<int64_t> hidden_size = {}, experts = {}, vocab_size = {};
  bool int8 = false;                 // there is a quant_model_description.json: int8 weights, which it names in the copy
};

struct SynthTensor {
  std::string name;  // in the official spelling
  RandomTensor random;
};

struct SynthPlan {
  Json config;  // config.json of the new checkpoint
  Json quant_description = {};  // its quant_model_description.json; null: none
  std::vector<SynthTensor> tensors;
  int64_t bytes() const;
};

// The family is found from `config`; `where` starts the messages about it.
Result<SynthPlan> plan_synth(const Json& config, const std::string& where, const SynthOptions& options);

struct SynthWrite {
  uint64_t seed = 0;
  int64_t max_shard_bytes = 5'000'000'000;         // of tensors
  std::vector<std::filesystem::path> copies = {};  // files that go into the folder as they are
  // Called now and then with the bytes written so far; an error stops the writing.
  FunctionRef<Status(int64_t bytes)> on_progress;
};

// Writes the folder `out`: new, or empty. It is made beside its place and renamed when complete, so there is never
// half a checkpoint under its name. Errors: `out` is in use, too little disk space, I/O.
Status write_synth(const SynthPlan& plan, const std::filesystem::path& out, const SynthWrite& options,
                   ThreadPool& pool);

}  // namespace weft
