#include "planner/report_html.h"

#include <fmt/format.h>

#include "io/safetensors_writer.h"
#include "planner/html/page.h"
#include "planner/report.h"
#include "planner/search_report.h"

namespace weft {
namespace {

using Object = nlohmann::ordered_json;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// JSON inside of a script element: nothing in it can end the element or begin a comment. The characters occur in strings alone.
std::string embedded(const Object& object) {
  std::string out;
  for (const char c : object.dump(-1, ' ', false, Object::error_handler_t::replace)) {
    switch (c) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += c;
    }
  }
  return out;
}

std::string_view stream_name(Stream stream) {
  switch (stream) {
    case Stream::kCompute: return "compute";
    case Stream::kComm: return "comm";
    case Stream::kPrefetch: return "prefetch";
  }
  return "";
}

Object timelines_json(const StepPlan& step) {
  Object stages = Object::array();
  for (const StagePlan& stage : step.stages) {
    Object events = Object::array();
    for (const TimelineEvent& e : stage.timeline.events) {
      events.push_back({{"name", e.name},
                        {"op", e.op},
                        {"stream", stream_name(e.stream)},
                        {"start_s", e.start_s},
                        {"seconds", e.seconds},
                        {"layers", e.repeat},
                        {"period_s", e.period_s},
                        {"bound", bound_name(e.cost.bound)}});
    }
    stages.push_back(std::move(events));
  }
  return stages;
}

// What the page draws besides: schedules, in the order prefill, decode, drafts; and the roofs of the device.
Object view_json(const Plan& plan) {
  Object timelines = Object::array();
  for (const StepPlan& step : plan.prefill) timelines.push_back(timelines_json(step));
  if (plan.decode.rows > 0) timelines.push_back(timelines_json(plan.decode));
  for (const StepPlan& step : plan.drafts) timelines.push_back(timelines_json(step));
  const DeviceProfile& device = *plan.request.device;
  Object roofs = Object::object();
  for (const auto& [dtype, figure] : device.matrix_flops_per_s) roofs[std::string(dtype_name(dtype))] = figure.value;
  return {{"timelines", std::move(timelines)},
          {"roof",
           {{"memory_bytes_per_s", device.memory_bytes_per_s ? device.memory_bytes_per_s->value : 0.0},
            {"matrix_flops_per_s", std::move(roofs)}}}};
}

}  // namespace

std::string report_html(const HtmlReport& report) {
  Object data = {{"title", report.title}};
  std::string text;
  if (report.search != nullptr) {
    data["search"] = search_json(*report.search);
    text += search_text(*report.search);
  }
  if (report.plan != nullptr) {
    data["plan"] = plan_json(*report.plan);
    data["view"] = view_json(*report.plan);
    text += plan_text(*report.plan);
  }
  // Every placeholder of the page once, from left to right: what was filled in is not looked at again.
  const std::pair<std::string_view, std::string> fields[] = {
      {"@title@", escaped(report.title)}, {"@text@", escaped(text)}, {"@data@", embedded(data)}};
  std::string page;
  std::string_view rest = html::kPage;
  while (!rest.empty()) {
    size_t at = rest.size();
    const std::pair<std::string_view, std::string>* next = nullptr;
    for (const auto& field : fields) {
      if (const size_t found = rest.find(field.first); found < at) at = found, next = &field;
    }
    page += rest.substr(0, at);
    if (next == nullptr) break;
    page += next->second;
    rest.remove_prefix(at + next->first.size());
  }
  return page;
}

Status write_report_html(const std::filesystem::path& path, const HtmlReport& report) {
  return write_file(path, report_html(report));
}

}  // namespace weft
