#include "tensor/dtype.h"

#include "base/check.h"

namespace weft {
namespace {

struct Row {
  DType dtype;
  int bits;
  std::string_view name;
};

constexpr Row kRows[] = {
    {DType::kF32, 32, "F32"},        {DType::kF16, 16, "F16"},       {DType::kBF16, 16, "BF16"},
    {DType::kF8E4M3, 8, "F8_E4M3"},  {DType::kF8E8M0, 8, "F8_E8M0"}, {DType::kF4E2M1, 4, "F4_E2M1"},
    {DType::kI8, 8, "I8"},           {DType::kU8, 8, "U8"},          {DType::kI32, 32, "I32"},
    {DType::kI64, 64, "I64"},        {DType::kBool, 8, "BOOL"},
};

const Row& row(DType dtype) {
  for (const Row& r : kRows) {
    if (r.dtype == dtype) return r;
  }
  WEFT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

}  // namespace

int dtype_bits(DType dtype) { return row(dtype).bits; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& r : kRows) {
    if (r.name == name) return r.dtype;
  }
  return std::nullopt;
}

}  // namespace weft
