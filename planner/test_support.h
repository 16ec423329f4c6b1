// Requests for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "models/test_support.h"
#include "planner/plan_request.h"

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

}  // namespace weft
