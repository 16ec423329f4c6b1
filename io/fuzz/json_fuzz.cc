// libFuzzer target: the strict JSON reader on arbitrary bytes. What it accepts must survive print and parse.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = weft::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json.ok()) return 0;
  const auto again = weft::parse_json(json->dump(), "fuzz");
  WEFT_CHECK(again.ok() && *again == *json, "{}", json->dump());
  return 0;
}
