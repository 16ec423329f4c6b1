// What a plan is asked for: a model, a layout, a device, a workload.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/routing.h"
#include "models/model.h"
#include "planner/device_profile.h"
#include "planner/engine_profile.h"
#include "sharding/layout.h"

namespace weft {

enum class PlanPhase {
  kBoth,
  kPrefill,
  kDecode
};  // kPrefill, kDecode: an instance that does only this (disaggregated)
std::string_view plan_phase_name(PlanPhase phase);

struct PlanRequest {
  std::shared_ptr<const Model> model;  // no weights are needed
  std::string model_name;              // as the user wrote it
  bool has_weights = false;            // `model_name` is a folder that weft can run
  Layout layout;
  std::shared_ptr<const DeviceProfile> device;
  std::shared_ptr<const EngineProfile> engine;

  NumericMode mode;
  PlanPhase phase = PlanPhase::kBoth;
  int64_t prompt = 8192, gen = 512;  // tokens of every request
  int64_t batch = 16;                // requests at a time, over all data-parallel groups
  int64_t cached = 0;                // tokens of every prompt that the caches hold already (prefix cache), below prompt
  int64_t chunk = 0;                 // most rows of a prefill step, over all groups; 0: the engine's default
  int64_t drafts = 0;                // --mtp: draft tokens per request and step
  std::vector<double> acceptance;    // conditional, by depth; the last one holds for all further depths; empty: 0.7
  Routing routing{.kind = Routing::Kind::kUniform};  // how rows pick experts; expert_ranks follows from the layout
  // Measured (planner/expert_load.h): by layer and expert, the probability that a row picks it; what `routing` says is
  // then left to draft layers. Null: not measured.
  std::shared_ptr<const std::map<int64_t, std::vector<double>>> expert_shares;
  std::string expert_load;        // the file that they are from
  double memory_bytes_per_s = 0;  // that the device was given in place of its profile's; 0: that of the profile
  double dp_imbalance = 1;   // work of the data-parallel group that has most, over the mean; at most the groups
  double reserve_bytes = 0;  // of every device, left alone

  // CPUs: ranks that share a device, and threads of each; accelerators have one rank a device.
  int local_ranks = 1, threads = 1;
  bool eager = false;  // every kernel is issued by the host instead of a captured graph

  int64_t context() const { return prompt + gen + drafts; }  // longest sequence
};

// Sizes in range, and what fits together; the message names the command-line option.
Status check_request(const PlanRequest& request);

}  // namespace weft
