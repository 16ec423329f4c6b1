#include "graph/op_spec.h"

#include <algorithm>

namespace weft {

Work streaming_work(TypeSpan in, TypeSpan out) {
  Work work;
  for (const ValueType& type : in) work.bytes_read += type.tensor.bytes();
  for (const ValueType& type : out) work.bytes_written += type.tensor.bytes();
  return work;
}

Status expect_inputs(std::string_view op, TypeSpan in, int at_least, int at_most) {
  const int n = static_cast<int>(in.size());
  if (at_least <= n && n <= at_most) return {};
  return invalid_argument(fmt::format("{}: {} inputs, expected {} to {}", op, n, at_least, at_most));
}

Status expect_rank(std::string_view op, TypeSpan in, int input, std::string_view name, int rank) {
  if (in[input].shape().rank() == rank) return {};
  return invalid_argument(fmt::format("{}: {} is {}, expected {} dimensions", op, name, to_string(in[input]), rank));
}

Status expect_rank_2_or_3(std::string_view op, TypeSpan in, int input, std::string_view name) {
  const int rank = in[input].shape().rank();
  if (rank == 2 || rank == 3) return {};
  return invalid_argument(fmt::format("{}: {} is {}, expected 2 or 3 dimensions", op, name, to_string(in[input])));
}

Status expect_range(std::string_view op, std::string_view name, int64_t found, int64_t at_least, int64_t at_most) {
  if (at_least <= found && found <= at_most) return {};
  return invalid_argument(fmt::format("{}: {} is {}, expected {} to {}", op, name, found, at_least, at_most));
}

Status expect_dim(std::string_view op, std::string_view name, int64_t found, int64_t expected) {
  if (found == expected) return {};
  return invalid_argument(fmt::format("{}: {} is {}, expected {}", op, name, found, expected));
}

Status expect_dtype(std::string_view op, TypeSpan in, int input, std::string_view name,
                    std::initializer_list<DType> allowed) {
  const DType dtype = in[input].dtype();
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return {};
  std::string list;
  for (DType d : allowed) list += fmt::format("{}{}", list.empty() ? "" : " or ", dtype_name(d));
  return invalid_argument(fmt::format("{}: {} is {}, expected {}", op, name, dtype_name(dtype), list));
}

Status expect_cache(std::string_view op, TypeSpan in, int input, std::string_view name, int64_t width) {
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, input, name, 3));
  WEFT_RETURN_IF_ERROR(expect_range(op, fmt::format("rows of {}", name), in[input].shape()[1], 1, 1 << 30));
  return expect_dim(op, fmt::format("width of {}", name), in[input].shape()[2], width);
}

}  // namespace weft
