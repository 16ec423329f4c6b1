// Memory of an exchange: what a rank sends to one peer, or receives from it, as equal pieces at a constant distance.
// The two sides of a transfer may cut the same bytes into different pieces; bytes are matched in order.
//
// PeerBlocks is the regular case: the block for peer p lies p * peer_stride bytes behind the block for peer 0.
// The four exchanges of the layouts are one all_to_all with these descriptors (functions below).
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

struct Blocks {
  std::byte* base = nullptr;  // the sending side is only read
  int64_t stride = 0;         // bytes from one piece to the next
  int64_t count = 0;          // pieces
  int64_t bytes = 0;          // of one piece

  int64_t total_bytes() const { return count * bytes; }
  bool contiguous() const { return count <= 1 || stride == bytes; }
  bool operator==(const Blocks&) const = default;
};

inline Blocks contiguous_block(const void* data, int64_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), bytes, 1, bytes};
}

struct PeerBlocks {
  Blocks first;
  int64_t peer_stride = 0;

  Blocks of(int peer) const { return {first.base + peer * peer_stride, first.stride, first.count, first.bytes}; }
};

struct Exchange {
  PeerBlocks send, recv;
};

// Copies src.total_bytes() bytes, which dst.total_bytes() must equal. Nothing between the pieces of dst is touched.
void copy_blocks(const Blocks& src, const Blocks& dst);

// local_rows must be equal on all ranks of the group; P = group_size, r = this rank, b = elem_bytes.
// src and dst are buffers of capacity rows; rows behind the valid ones are neither read nor written.

// [local_rows, H, Dh] -> [P * local_rows, H / P, Dh]:  dst_p[s * local_rows + j, h] = src_s[j, p * H/P + h]
// row_bytes = H * Dh * b, divisible by P. The K-slices exchange [t, Kin] -> [P, t, Kin / P] is the same bytes.
Exchange heads_to_tokens(const void* src, void* dst, int group_size, int64_t local_rows, int64_t row_bytes);

// The inverse: [P * local_rows, H / P, Dh] -> [local_rows, H, Dh]. row_bytes = H * Dh * b, the whole row.
Exchange tokens_to_heads(const void* src, void* dst, int group_size, int64_t local_rows, int64_t row_bytes);

// Group-major heads -> tokens (sharded O-A): rows are (group, token).
//   src  group g, local token j at row g * src_group_rows + j;        src_group_rows >= local_rows
//   dst  own group lg, token j of source s at row lg * dst_group_rows + s * local_rows + j;  dst_group_rows >= P *
//   local_rows
// groups_per_rank = G / P; row_bytes = H / G * Dh * b.
struct GroupMajor {
  int64_t groups_per_rank = 1, local_rows = 0, src_group_rows = 0, dst_group_rows = 0, row_bytes = 0;
};
Exchange group_major(const void* src, void* dst, const GroupMajor& layout);

// Slices of columns -> whole rows: rank s holds columns [s * slice_bytes, (s + 1) * slice_bytes) of every row; all
// ranks get all columns. (A weight that is sharded along its inputs, a value that is sharded along its features.)
Exchange gather_columns(const void* src, void* dst, int group_size, int64_t rows, int64_t slice_bytes);

}  // namespace weft
