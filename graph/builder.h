// Builds a graph the way a model reads: values in, value out. The first error sticks; later calls do nothing and finish()
// returns it.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace weft {

class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name) : graph_(std::move(name)) {}

  // Region ("layers.3") of the nodes that follow, and prefix of their names.
  void set_region(std::string region) { region_ = std::move(region); }

  ValueId input(const std::string& name, ValueType type) { return add_value(name, type, ValueRole::kInput); }
  ValueId weight(const std::string& name, TensorType type) { return add_value(name, {type}, ValueRole::kWeight); }
  // A weight that no file holds: Model::derive makes it.
  ValueId derived(const std::string& name, TensorType type) { return add_value(name, {type}, ValueRole::kDerived); }
  ValueId state(const std::string& name, TensorType type) { return add_value(name, {type}, ValueRole::kState); }

  // Appends a node named "<region>.<name>" and returns its first output (-1 after an error, or without outputs).
  ValueId add(Op op, std::vector<ValueId> in, const std::string& name) {
    const std::vector<ValueId> out = add_all(std::move(op), std::move(in), name);
    return out.empty() ? -1 : out[0];
  }
  // The same for ops with several outputs.
  std::vector<ValueId> add_all(Op op, std::vector<ValueId> in, const std::string& name);

  void result(ValueId id) {
    if (status_.ok()) graph_.mark_result(id);
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  bool ok() const { return status_.ok(); }

  // The verified graph.
  Result<Graph> finish();

 private:
  ValueId add_value(const std::string& name, ValueType type, ValueRole role);

  Graph graph_;
  std::string region_;
  Status status_;
};

}  // namespace weft
