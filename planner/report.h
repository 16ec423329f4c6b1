// A plan for readers: text for a terminal, JSON (docs/planner.md has the schema), traces for Perfetto.
#pragma once

#include <string>

#include "io/json.h"
#include "planner/plan.h"

namespace weft {

inline constexpr int kPlanSchemaVersion = 2;

std::string plan_text(const Plan& plan);
nlohmann::ordered_json plan_json(const Plan& plan);

// Two plans side by side: what moved and why.
std::string plan_diff_text(const Plan& a, const Plan& b);
nlohmann::ordered_json plan_diff_json(const Plan& a, const Plan& b);

// Chrome trace events (ui.perfetto.dev): a process per rank, a track per stream. Needs PlanOptions::timeline. `ranks`: most ranks
// that are written out.
std::string plan_trace(const Plan& plan, int64_t ranks = 8);

}  // namespace weft
