#include "planner/search_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "planner/report_units.h"

namespace weft {
namespace {

using Object = nlohmann::ordered_json;

constexpr double kMillion = 1e6;

// What a figure that nobody verified has behind it.
std::string_view mark(bool unverified) { return unverified ? "*" : ""; }

double device_seconds_per_million(const Deployment& d) {
  return d.tokens_per_s_device > 0 ? kMillion / d.tokens_per_s_device : 0;
}

std::string rate_text(double per_s) {
  return per_s >= 100 ? fmt::format("{:.0f}", per_s) : fmt::format("{:.3g}", per_s);
}

std::string memory_text(const SearchPoint& point) {
  const std::string needed = bytes_words(static_cast<double>(point.needed_bytes));
  return point.capacity_bytes == 0 ? needed : needed + " of " + bytes_words(static_cast<double>(point.capacity_bytes));
}

std::string batch_text(const Deployment& d) {
  return d.prefill ? fmt::format("{} + {}", d.prefill->batch, d.decode.batch) : fmt::format("{}", d.decode.batch);
}

// ---- Text

std::vector<std::string> cells(const Deployment& d) {
  const std::string_view m = mark(d.times_unverified());
  return {deployment_name(d),
          fmt::format("{}", d.devices),
          batch_text(d),
          memory_text(d.decode) + std::string(mark(d.memory_unverified())),
          seconds_words(d.ttft_s) + std::string(m),
          seconds_words(d.tpot_s) + std::string(m),
          rate_text(d.tokens_per_s_user) + std::string(m),
          rate_text(d.tokens_per_s_device) + std::string(m),
          rate_text(d.output_tokens_per_s) + std::string(m)};
}

TextTable deployments_table() {
  TextTable table("lrrrrrrrr");
  table.row({"layout", "devices", "batch", "memory", "TTFT", "TPOT", "tok/s/user", "tok/s/device", "tok/s"});
  return table;
}

std::string limits_text(const SearchRequest& request) {
  std::string text;
  if (request.ttft_s) text += fmt::format(", TTFT up to {}", seconds_words(*request.ttft_s));
  if (request.tpot_s) text += fmt::format(", TPOT up to {}", seconds_words(*request.tpot_s));
  return text;
}

void append_instance(std::string& out, const SearchRequest& request, std::string_view what, const SearchPoint& point) {
  out += fmt::format("  {:<9} {}\n", what, plan_command(request, point));
  const std::string refused = why_not_run(request, point);
  out += refused.empty() ? fmt::format("  {:<9} {}\n", "", run_command(request, point))
                         : fmt::format("  {:<9} ({})\n", "", refused);
}

// ---- JSON

Object point_json(const SearchRequest& request, const SearchPoint& p) {
  Object object = {{"phase", plan_phase_name(p.phase)},
                   {"layout", to_string(p.layout)},
                   {"devices", p.devices},
                   {"batch", p.batch},
                   {"chunk", p.chunk},
                   {"needed_bytes", p.needed_bytes},
                   {"capacity_bytes", p.capacity_bytes},
                   {"ttft_s", p.ttft_s},
                   {"tpot_s", p.tpot_s},
                   {"transfer_s", p.transfer_s},
                   {"requests_per_s", p.requests_per_s},
                   {"unverified", p.unverified()},
                   {"plan_command", plan_command(request, p)}};
  const std::string refused = why_not_run(request, p);
  object[refused.empty() ? "run_command" : "why_not_run"] = refused.empty() ? run_command(request, p) : refused;
  return object;
}

Object figures_json(const Deployment& d) {
  return {{"name", deployment_name(d)},
          {"devices", d.devices},
          {"mode", d.prefill ? "apart" : "together"},
          {"batch", d.decode.batch},
          {"needed_bytes", d.decode.needed_bytes},
          {"ttft_s", d.ttft_s},
          {"tpot_s", d.tpot_s},
          {"e2e_s", d.e2e_s},
          {"requests_per_s", d.requests_per_s},
          {"output_tokens_per_s", d.output_tokens_per_s},
          {"tokens_per_s_device", d.tokens_per_s_device},
          {"tokens_per_s_user", d.tokens_per_s_user},
          {"device_seconds_per_million_tokens", device_seconds_per_million(d)},
          {"unverified", d.memory_unverified() || d.times_unverified()},
          {"memory_unverified", d.memory_unverified()},
          {"times_unverified", d.times_unverified()}};
}

Object deployment_json(const SearchRequest& request, const Deployment& d) {
  Object object = figures_json(d);
  object["idle_devices"] = d.idle_devices();
  if (d.prefill) {
    object["prefill_instances"] = d.prefill_instances;
    object["prefill"] = point_json(request, *d.prefill);
  }
  object["decode_instances"] = d.decode_instances;
  object[d.prefill ? "decode" : "instance"] = point_json(request, d.decode);
  return object;
}

}  // namespace

std::string search_text(const SearchResult& r) {
  const SearchRequest& request = r.request;
  const SearchCounts& counts = r.counts;
  const auto lost = [&](LossReason reason) { return counts.by_reason[static_cast<int>(reason)]; };
  std::string devices;
  for (const int64_t n : request.devices) devices += fmt::format("{}{}", devices.empty() ? "" : ", ", n);
  std::string out = fmt::format("{} on {} x {}: prompt {}, answer {}{}; best {}\n", request.plan.model_name, devices,
                                request.plan.device->name, request.plan.prompt, request.plan.gen, limits_text(request),
                                objective_name(request.objective));
  out += fmt::format(
      "{} layouts, {} plans in {:.2f} s: {} fit and keep the limits, {} do not fit, {} miss TTFT, {} miss TPOT{}\n\n",
      counts.layouts, counts.plans, r.seconds, counts.feasible, lost(LossReason::kMemory), lost(LossReason::kTtft),
      lost(LossReason::kTpot),
      lost(LossReason::kError) > 0 ? fmt::format(", {} cannot be planned", lost(LossReason::kError)) : "");
  if (r.winner) {
    out += fmt::format("winner: {}\n", deployment_name(*r.winner));
    if (r.winner->prefill) {
      append_instance(out, request, "prefill", *r.winner->prefill);
      append_instance(out, request, "decode", r.winner->decode);
      if (const int64_t idle = r.winner->idle_devices(); idle > 0) out += fmt::format("  {} devices stay idle\n", idle);
    } else {
      append_instance(out, request, "", r.winner->decode);
    }
    constexpr size_t kRanked = 10;
    out += "\nbest\n";
    TextTable best = deployments_table();
    for (size_t i = 0; i < std::min(r.ranking.size(), kRanked); ++i) best.row(cells(r.ranking[i]));
    out += best.text();
    constexpr size_t kFront = 20;
    out += "\nPareto front: nothing else is better for the user and for the device\n";
    TextTable front = deployments_table();
    const size_t step = (r.front.size() + kFront - 1) / kFront;
    for (size_t i = 0; i < r.front.size(); i += step) front.row(cells(r.front[i]));
    out += front.text();
  } else {
    out += "no layout fits and keeps the limits\n";
  }
  if (!r.losers.empty()) {
    // Some of each reason, nearest misses first.
    constexpr int kEach = 4;
    out += "\nwhy others lost\n";
    int shown[5] = {};
    for (const Loser& loser : r.losers) {
      if (shown[static_cast<int>(loser.reason)]++ >= kEach) continue;
      out += fmt::format(
          "  {}{} on {}: {}{}\n", to_string(loser.layout),
          loser.phase == PlanPhase::kBoth ? "" : fmt::format(" ({} instance)", plan_phase_name(loser.phase)),
          loser.devices, loser.why, mark(loser.unverified));
    }
  }
  if (!r.refused.empty()) {
    constexpr size_t kRules = 6;
    out += "\nrefused by the model's contract\n";
    for (size_t i = 0; i < std::min(r.refused.size(), kRules); ++i) {
      out += fmt::format("  {} x, e.g. {}: {}\n", r.refused[i].count, r.refused[i].example, r.refused[i].rule);
    }
    if (r.refused.size() > kRules)
      out += fmt::format("  ... and {} other rules (--json has all)\n", r.refused.size() - kRules);
  }
  if (!r.unverified.empty()) {
    out += "\n* rests on figures that nobody verified:";
    constexpr size_t kFigures = 8;
    for (size_t i = 0; i < std::min(r.unverified.size(), kFigures); ++i)
      out += fmt::format("{} {}", i == 0 ? "" : ",", r.unverified[i]);
    if (r.unverified.size() > kFigures) out += fmt::format(", and {} more", r.unverified.size() - kFigures);
    out += "\n";
  }
  return out;
}

nlohmann::ordered_json search_json(const SearchResult& r) {
  const SearchRequest& request = r.request;
  const PlanRequest& plan = request.plan;
  const auto optional = [](const std::optional<double>& value) { return value ? Object(*value) : Object(); };
  Object asked = {{"model", plan.model_name},
                  {"device", plan.device->name},
                  {"engine", plan.engine->name},
                  {"devices", request.devices},
                  {"objective", objective_name(request.objective)},
                  {"ttft_s", optional(request.ttft_s)},
                  {"tpot_s", optional(request.tpot_s)},
                  {"together", request.together},
                  {"apart", request.apart},
                  {"choices", request.breadth == SpaceBreadth::kAll ? "all" : "usual"},
                  {"chunks", request.chunks},
                  {"max_batch", request.max_batch},
                  {"prompt", plan.prompt},
                  {"gen", plan.gen},
                  {"cached", plan.cached},
                  {"mtp", plan.drafts}};
  Object lost = Object::object();
  for (int reason = 0; reason < 5; ++reason)
    lost[std::string(loss_reason_name(static_cast<LossReason>(reason)))] = r.counts.by_reason[reason];
  Object front = Object::array(), ranking = Object::array(), points = Object::array(), losers = Object::array(),
         refused = Object::array();
  for (const Deployment& d : r.front) front.push_back(deployment_json(request, d));
  for (const Deployment& d : r.ranking) ranking.push_back(deployment_json(request, d));
  for (const Deployment& d : r.points) points.push_back(figures_json(d));
  for (const Loser& loser : r.losers) {
    losers.push_back({{"layout", to_string(loser.layout)},
                      {"phase", plan_phase_name(loser.phase)},
                      {"devices", loser.devices},
                      {"reason", loss_reason_name(loser.reason)},
                      {"by", loser.by},
                      {"why", loser.why},
                      {"unverified", loser.unverified}});
  }
  for (const RefusedLayouts& rule : r.refused)
    refused.push_back({{"rule", rule.rule}, {"example", rule.example}, {"count", rule.count}});
  return {{"schema", "weft.plan.search"},
          {"version", kSearchSchemaVersion},
          {"request", std::move(asked)},
          {"counts",
           {{"layouts", r.counts.layouts},
            {"plans", r.counts.plans},
            {"feasible", r.counts.feasible},
            {"lost", std::move(lost)}}},
          {"winner", r.winner ? deployment_json(request, *r.winner) : Object()},
          {"front", std::move(front)},
          {"ranking", std::move(ranking)},
          {"points", std::move(points)},
          {"losers", std::move(losers)},
          {"refused", std::move(refused)},
          {"unverified", r.unverified},
          {"seconds", r.seconds}};
}

}  // namespace weft
