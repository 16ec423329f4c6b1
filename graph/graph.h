// The SPMD graph of one step: what every rank executes.
//
// Nodes stand in execution order. Values are inputs of the step, weights (of the files, or derived from those: made when a model
// is loaded), states (caches) or activations. A node's outputs are
// typed once, by its op's infer and shard_rule, when it is added; nobody computes them again.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/op.h"
#include "sharding/mesh.h"

namespace weft {

using ValueId = int32_t;

enum class ValueRole { kInput, kWeight, kDerived, kState, kActivation };
inline bool is_weight(ValueRole role) { return role == ValueRole::kWeight || role == ValueRole::kDerived; }
enum class Stream { kCompute, kComm, kPrefetch };

struct Value {
  std::string name;
  ValueType type;
  ValueRole role = ValueRole::kActivation;
  bool operator==(const Value&) const = default;
};

struct Node {
  Op op;
  std::vector<ValueId> in, out;
  std::string region;               // the layer it belongs to, "layers.3"; "" outside of layers
  Stream stream = Stream::kCompute;
  bool operator==(const Node&) const = default;
};

class Graph {
 public:
  explicit Graph(std::string name = "") : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Value& value(ValueId id) const;
  // -1: there is no value of this name (the first one, should a faulty graph have several).
  ValueId find(std::string_view name) const;
  // Values that must survive the step (logits, hidden states): results in the order in which they were marked.
  const std::vector<ValueId>& results() const { return results_; }

  // Inputs, weights and states. Names are unique in a graph.
  Result<ValueId> add_value(std::string name, ValueType type, ValueRole role);
  // Appends a node. Output i is named `name` (i = 0) or `name`.i. The error says which node and why.
  Result<std::vector<ValueId>> add_node(Op op, std::vector<ValueId> in, std::string name, std::string region = "",
                                        Stream stream = Stream::kCompute);
  void mark_result(ValueId id) { results_.push_back(id); }
  // Other sizes in the same structure: graph/passes/resize.h, which leaves no value with another type than its op infers.
  void set_type(ValueId id, const TensorType& type) { values_[static_cast<size_t>(id)].type.tensor = type; }
  void set_op(size_t node, Op op) { nodes_[node].op = std::move(op); }

  bool operator==(const Graph&) const = default;

 private:
  std::string name_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> results_;
  std::unordered_map<std::string, ValueId> by_name_;
};

std::vector<ValueType> types_of(const Graph& graph, const std::vector<ValueId>& ids);

// The rules that hold for every graph after every pass: ids in range, names unique, every input made before it is used, output
// types equal to what infer and shard_rule give, no Partial result.
Status verify(const Graph& graph);

// verify(), and what every rank's graph of a layout on this mesh has besides: nothing lies split, or as a summand, over an axis
// of one rank; every op between ranks is over a group of its axis's size; all values of one row set (row_sets.h) have room for
// the same number of rows, and no set for more than the set above it.
Status verify(const Graph& graph, const MeshSizes& mesh);

}  // namespace weft
