#include "graph/builder.h"

namespace weft {

ValueId GraphBuilder::add_value(const std::string& name, ValueType type, ValueRole role) {
  if (!status_.ok()) return -1;
  const ValueId known = graph_.find(name);  // a weight or state that several nodes use
  if (known >= 0) {
    WEFT_CHECK(graph_.value(known).type == type && graph_.value(known).role == role, "'{}' added twice", name);
    return known;
  }
  auto id = graph_.add_value(name, type, role);
  if (!id.ok()) {
    fail(id.status());
    return -1;
  }
  return *id;
}

std::vector<ValueId> GraphBuilder::add_all(Op op, std::vector<ValueId> in, const std::string& name) {
  if (!status_.ok()) return {};
  for (ValueId id : in) WEFT_CHECK(id >= 0, "node '{}' has an input that was not made", name);
  auto out = graph_.add_node(std::move(op), std::move(in), region_.empty() ? name : region_ + "." + name, region_);
  if (!out.ok()) {
    fail(out.status());
    return {};
  }
  return *out;
}

Result<Graph> GraphBuilder::finish() {
  if (!status_.ok()) return status_;
  WEFT_RETURN_IF_ERROR(verify(graph_));
  return std::move(graph_);
}

}  // namespace weft
