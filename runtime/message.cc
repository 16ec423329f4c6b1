#include "runtime/message.h"

#include <numeric>

namespace weft {

Status send_message(Communicator& world, std::string_view name, std::span<const std::byte> message) {
  auto size = static_cast<int64_t>(message.size());
  WEFT_RETURN_IF_ERROR(world.broadcast(name, &size, sizeof(size), 0));
  return world.broadcast(name, const_cast<std::byte*>(message.data()), size, 0);  // the root only reads
}

Result<std::vector<std::byte>> receive_message(Communicator& world, std::string_view name) {
  int64_t size = 0;
  WEFT_RETURN_IF_ERROR(world.broadcast(name, &size, sizeof(size), 0));
  std::vector<std::byte> message(static_cast<size_t>(size));
  WEFT_RETURN_IF_ERROR(world.broadcast(name, message.data(), size, 0));
  return message;
}

Result<std::vector<std::vector<std::byte>>> gather_messages(Communicator& world, std::string_view name,
                                                            std::span<const std::byte> own) {
  const auto size = static_cast<int64_t>(own.size());
  std::vector<int64_t> sizes(static_cast<size_t>(world.size()));
  WEFT_RETURN_IF_ERROR(world.all_gather(name, {&size, sizes.data(), world.size(), sizeof(int64_t)}));
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<std::byte> all(static_cast<size_t>(total));
  WEFT_RETURN_IF_ERROR(world.all_gather_v(name, {own.data(), all.data(), total, 1}, sizes));
  std::vector<std::vector<std::byte>> messages;
  auto at = all.begin();
  for (const int64_t bytes : sizes) {
    messages.emplace_back(at, at + bytes);
    at += bytes;
  }
  return messages;
}

}  // namespace weft
