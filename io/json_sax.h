// Event parsing of JSON with byte positions; what json.cc and safetensors.cc share.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace weft {

// Reads a text and keeps the position where the parser stands.
struct JsonCursor {
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  const char** position = nullptr;

  reference operator*() const { return *at; }
  JsonCursor& operator++() {
    *position = ++at;
    return *this;
  }
  JsonCursor operator++(int) {
    JsonCursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const JsonCursor& other) const { return at == other.at; }
};

// Base of event handlers: the first error, with its position, stops the parse.
class JsonHandler {
 public:
  bool parse_error(size_t position, const std::string& last_token, const nlohmann::json::exception& e) {
    // Without the library's prefix and the last token, which may hold the bad bytes themselves.
    std::string_view text = e.what();
    if (const size_t colon = text.find(": "); text.find("parse error") != text.npos && colon != text.npos) {
      text.remove_prefix(colon + 2);
    } else if (const size_t bracket = text.find("] "); bracket != text.npos) {
      text.remove_prefix(bracket + 2);
    }
    text = text.substr(0, text.find("; last read"));
    return fail_at(position, std::string(text));
  }

  const std::string& error() const { return error_; }

 protected:
  bool fail(std::string message) { return fail_at(position_ - begin_, std::move(message)); }
  bool fail_at(size_t position, std::string message) {
    if (error_.empty()) error_ = fmt::format("byte {}: {}", position, message);
    return false;
  }

 private:
  template <class Handler>
  friend bool parse_json_events(std::string_view text, Handler& handler);
  const char* begin_ = nullptr;
  const char* position_ = nullptr;
  std::string error_;
};

// False: handler.error() says why and where.
template <class Handler>
bool parse_json_events(std::string_view text, Handler& handler) {
  handler.begin_ = handler.position_ = text.data();
  const JsonCursor first{text.data(), &handler.position_};
  const JsonCursor last{text.data() + text.size(), &handler.position_};
  return nlohmann::json::sax_parse(first, last, &handler) && handler.error_.empty();
}

}  // namespace weft
