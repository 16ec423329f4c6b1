// Plain values as bytes, and how ranks of one build tell them each other.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"

namespace weft {

class MessageWriter {
 public:
  template <class T>
  MessageWriter& put(const T& value) {
    return put_all(std::span<const T>(&value, 1));
  }
  template <class T>
  MessageWriter& put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t end = bytes_.size();
    bytes_.resize(end + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + end, values.data(), values.size_bytes());
    return *this;
  }
  template <class T>
  MessageWriter& put_list(std::span<const T> values) {
    return put(static_cast<int64_t>(values.size())).put_all(values);
  }
  MessageWriter& put_text(std::string_view text) { return put_list(std::span<const char>(text)); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    take(&value, sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> get_list() {
    std::vector<T> values(static_cast<size_t>(get<int64_t>()));
    take(values.data(), values.size() * sizeof(T));
    return values;
  }
  std::string get_text() {
    const std::vector<char> text = get_list<char>();
    return {text.begin(), text.end()};
  }

 private:
  void take(void* to, size_t size) {
    WEFT_CHECK(bytes_.size() >= size, "a message of {} bytes too few", size - bytes_.size());
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
};

// From rank 0 to all others, which call receive_message().
Status send_message(Communicator& world, std::string_view name, std::span<const std::byte> message);
Result<std::vector<std::byte>> receive_message(Communicator& world, std::string_view name);

// Every rank's bytes on every rank, by rank.
Result<std::vector<std::vector<std::byte>>> gather_messages(Communicator& world, std::string_view name,
                                                            std::span<const std::byte> own);

}  // namespace weft
