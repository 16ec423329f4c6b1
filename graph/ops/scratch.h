// Pieces of an op's scratch: taken in the same order for counting (work) and for using (run).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/int_math.h"

namespace weft {

inline constexpr int64_t kScratchAlignment = 64;
inline int64_t aligned_scratch(int64_t bytes) { return align_up(bytes, kScratchAlignment); }

class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}  // null: for counting
  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned_scratch(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace weft
