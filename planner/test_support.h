// Requests and graphs of steps for tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "models/test_support.h"
#include "planner/plan_request.h"
#include "planner/step_graph.h"

namespace weft {

// The sample model in a layout, on a device without figures.
inline PlanRequest sample_request(const std::string& layout, EngineProfile engine = {}) {
  PlanRequest request;
  request.model = load_test_model("sample/austen-v4");
  request.model_name = "sample";
  request.layout = *parse_layout(layout);
  DeviceProfile device;
  device.name = "test";
  request.device = std::make_shared<const DeviceProfile>(std::move(device));
  request.engine = std::make_shared<const EngineProfile>(std::move(engine));
  request.mode = request.model->mode(DType::kBF16, std::nullopt);
  return request;
}

// Everything but names, over all nodes of the whole model.
inline std::map<std::string, int64_t> nodes_of(const StepGraph& step) {
  std::map<std::string, int64_t> nodes;
  for (size_t n = 0; n < step.graph.nodes().size(); ++n) {
    const Node& node = step.graph.nodes()[n];
    std::string text(op_name(node.op));
    for (const ValueType& type : types_of(step.graph, node.in)) text += " " + to_string(type);
    for (const ValueType& type : types_of(step.graph, node.out)) text += " -> " + to_string(type);
    nodes[text] += step.node_repeat[n];
  }
  return nodes;
}

}  // namespace weft
