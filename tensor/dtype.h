// Element types: those of the checkpoints (safetensors spelling) and F4_E2M1, two elements a byte (low nibble first),
// which the releases store as I8 with half the columns.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

enum class DType { kF32, kF16, kBF16, kF8E4M3, kF8E8M0, kF4E2M1, kI8, kU8, kI32, kI64, kBool };

int dtype_bits(DType dtype);
std::string_view dtype_name(DType dtype);                      // "F32", "F8_E4M3", ...
std::optional<DType> parse_dtype(std::string_view name);       // the safetensors spelling; F4_E2M1 too

}  // namespace weft
