// libFuzzer target: the safetensors header parser on arbitrary bytes. The first byte decides by how much the claimed
// file size exceeds the bytes given, so that headers with a data section are reached too.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const int64_t file_size = static_cast<int64_t>(bytes.size()) + data[0];
  const auto header = weft::parse_safetensors_header(bytes, file_size, "fuzz");
  if (!header.ok()) return 0;
  for (const weft::SafetensorsEntry& entry : header->entries) {
    WEFT_CHECK(entry.offset >= header->data_offset && entry.offset + entry.type.bytes() <= file_size, "{}", entry.name);
  }
  return 0;
}
