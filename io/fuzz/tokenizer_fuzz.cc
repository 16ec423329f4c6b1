// The loader of tokenizer.json, then encode and decode: the input is the file, a zero byte, and the text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto tokenizer = weft::Tokenizer::parse(input.substr(0, zero), "fuzz");
  if (!tokenizer.ok() || zero == std::string_view::npos) return 0;
  const auto ids = tokenizer->encode(input.substr(zero + 1));
  if (!ids.ok()) return 0;
  const std::string whole = tokenizer->decode(*ids);
  weft::StreamDecoder stream(*tokenizer);
  std::string joined;
  for (weft::TokenId id : *ids) joined += stream.push(id);
  joined += stream.flush();
  if (joined != whole) std::abort();
  return 0;
}
