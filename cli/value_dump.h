// Collects graph values whose names match a pattern, and writes them as a safetensors file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "graph/graph.h"

namespace weft {

class ValueDump {
 public:
  // Patterns as of a shell: * ? [abc]; * also matches '.'.
  explicit ValueDump(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}

  // From an observer; `prefix` goes before the name. Rows of later steps go below those of earlier ones; a value
  // without rows is kept as it was last.
  void record(const Value& value, const TensorView& view, std::string_view prefix = {});

  struct Tensor {
    TensorType type;
    std::vector<std::byte> bytes;
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // An error if a pattern matched nothing: it names the values that are spelt nearly so.
  Status check() const;
  Status write(const std::filesystem::path& file) const;

 private:
  std::vector<std::string> patterns_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, bool> seen_;  // every value: does it match
};

}  // namespace weft
