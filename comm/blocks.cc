#include "comm/blocks.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace weft {

void copy_blocks(const Blocks& src, const Blocks& dst) {
  const int64_t total = src.total_bytes();
  WEFT_CHECK(total == dst.total_bytes(), "copy of {} bytes into {}", total, dst.total_bytes());
  if (total == 0) return;
  if (src.contiguous() && dst.contiguous()) {
    std::memcpy(dst.base, src.base, static_cast<size_t>(total));
    return;
  }
  int64_t src_piece = 0, src_at = 0, dst_piece = 0, dst_at = 0;  // piece, and position in it
  for (int64_t done = 0; done < total;) {
    const int64_t run = std::min(src.bytes - src_at, dst.bytes - dst_at);
    std::memcpy(dst.base + dst_piece * dst.stride + dst_at, src.base + src_piece * src.stride + src_at,
                static_cast<size_t>(run));
    done += run;
    src_at += run;
    dst_at += run;
    if (src_at == src.bytes) ++src_piece, src_at = 0;
    if (dst_at == dst.bytes) ++dst_piece, dst_at = 0;
  }
}

namespace {

PeerBlocks peers(const void* base, int64_t peer_stride, int64_t stride, int64_t count, int64_t bytes) {
  return {{static_cast<std::byte*>(const_cast<void*>(base)), stride, count, bytes}, peer_stride};
}

}  // namespace

Exchange heads_to_tokens(const void* src, void* dst, int group_size, int64_t local_rows, int64_t row_bytes) {
  WEFT_CHECK(row_bytes % group_size == 0, "{} bytes a row, {} ranks", row_bytes, group_size);
  const int64_t slice = row_bytes / group_size;
  return {.send = peers(src, slice, row_bytes, local_rows, slice),
          .recv = peers(dst, local_rows * slice, slice, local_rows, slice)};
}

Exchange tokens_to_heads(const void* src, void* dst, int group_size, int64_t local_rows, int64_t row_bytes) {
  const Exchange inverse = heads_to_tokens(dst, const_cast<void*>(src), group_size, local_rows, row_bytes);
  return {.send = inverse.recv, .recv = inverse.send};
}

Exchange group_major(const void* src, void* dst, const GroupMajor& layout) {
  WEFT_CHECK(layout.src_group_rows >= layout.local_rows && layout.dst_group_rows >= layout.local_rows,
             "{} rows, groups of {} and {} rows", layout.local_rows, layout.src_group_rows, layout.dst_group_rows);
  const int64_t slab = layout.local_rows * layout.row_bytes;
  const int64_t src_group = layout.src_group_rows * layout.row_bytes;
  const int64_t dst_group = layout.dst_group_rows * layout.row_bytes;
  return {.send = peers(src, layout.groups_per_rank * src_group, src_group, layout.groups_per_rank, slab),
          .recv = peers(dst, slab, dst_group, layout.groups_per_rank, slab)};
}

Exchange gather_columns(const void* src, void* dst, int group_size, int64_t rows, int64_t slice_bytes) {
  return {.send = peers(src, 0, slice_bytes, rows, slice_bytes),
          .recv = peers(dst, slice_bytes, group_size * slice_bytes, rows, slice_bytes)};
}

}  // namespace weft
