#include "graph/ops/embedding.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/numeric.h"

namespace weft {

Result<ValueTypes> Embedding::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "tokens", 1));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "tokens", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "table", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "table", {DType::kBF16, DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "rows of table", in[1].shape()[0], 1, std::numeric_limits<int32_t>::max()));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "streams", streams, 0, 64));
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return invalid_argument(fmt::format("{}: dtype is {}, expected F32 or BF16", kName, dtype_name(dtype)));
  }
  const int64_t rows = in[0].shape()[0], width = in[1].shape()[1];
  const Shape shape = streams == 0 ? Shape{rows, width} : Shape{rows, streams, width};
  return ValueTypes{{{dtype, shape}, in[0].rows}};
}

Work Embedding::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work;
  const int64_t row = in[1].tensor.bytes() / in[1].shape()[0];
  work.bytes_stored = in[0].shape()[0] * row;
  work.bytes_read = in[0].tensor.bytes() + work.bytes_stored;
  work.bytes_written = out[0].tensor.bytes();
  return work;
}

Status Embedding::run(RunContext& ctx) const {
  const TensorView &tokens = ctx.in[0], &table = ctx.in[1], &out = ctx.out[0];
  const int64_t rows = tokens.shape()[0], vocab = table.shape()[0], width = table.shape()[1];
  const int64_t copies = std::max<int64_t>(streams, 1), row_bytes = width * dtype_bits(dtype) / 8;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t id = tokens.as<int32_t>()[t];
    if (id < 0 || id >= vocab) {
      return invalid_argument(fmt::format("token id {} at row {} is outside the vocabulary of {}", id, t, vocab));
    }
    std::byte* row = out.as<std::byte>() + t * copies * row_bytes;
    if (table.dtype() == dtype) {
      std::memcpy(row, table.as<std::byte>() + id * row_bytes, row_bytes);
    } else {
      for (int64_t d = 0; d < width; ++d) {
        if (dtype == DType::kF32) {
          reinterpret_cast<float*>(row)[d] = to_float(table.as<bf16>()[id * width + d]);
        } else {
          reinterpret_cast<bf16*>(row)[d] = to_bf16(table.as<float>()[id * width + d]);
        }
      }
    }
    for (int64_t s = 1; s < copies; ++s) std::memcpy(row + s * row_bytes, row, row_bytes);
  }
  return {};
}

}  // namespace weft
