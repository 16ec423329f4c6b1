#include "graph/value_type.h"

#include <fmt/format.h>

namespace weft {

std::string to_string(const ValueType& type) {
  std::string dims;
  for (int i = 0; i < type.shape().rank(); ++i) {
    if (i > 0) dims += ',';
    if (i == 0 && type.rows == Rows::kTokens) dims += "tokens ";
    if (i == 0 && type.rows == Rows::kLogits) dims += "logits ";
    if (i == 0 && type.rows == Rows::kReceived) dims += "received ";
    dims += std::to_string(type.shape()[i]);
  }
  return fmt::format("{}[{}]{}", dtype_name(type.dtype()), dims, to_string(type.placement));
}

}  // namespace weft
