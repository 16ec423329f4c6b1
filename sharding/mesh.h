// The mesh of ranks: how many ranks each axis has, which rank stands where, and who is in a group with whom.
//
//   world = dp * pp * pcp * tp
//   rank  = ((dp_rank * pp + pp_rank) * pcp + pcp_rank) * tp + tp_rank
//
// dcp and ep add no ranks, they regroup those that are there:
//   dcp   neighbouring ranks of a TP group, dcp divides tp
//   ep    neighbouring ranks of one stage in the order (dp, pcp, tp); ep divides dp * pcp * tp
//   etp   no axis of its own: the dp x tp ranks of one stage and PCP rank, dp-major; they share tables with ple=etp
// Slices are always taken by the index within a group, never by the world rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sharding/placement.h"

namespace weft {

struct MeshSizes {
  int dp = 1, pp = 1, pcp = 1, tp = 1, dcp = 1, ep = 1;

  int64_t world() const { return int64_t{dp} * pp * pcp * tp; }
  int64_t stage() const { return int64_t{dp} * pcp * tp; }  // ranks of one pipeline stage
  int size(MeshAxis axis) const;
  bool operator==(const MeshSizes&) const = default;
};

inline constexpr int kMaxAxisSize = 65536;         // far above any machine; keeps products within int64
inline constexpr int64_t kMaxWorldSize = 1 << 20;  // groups are listed rank by rank

// Sizes in 1..kMaxAxisSize, world within kMaxWorldSize, dcp | tp, ep | dp * pcp * tp. Messages list the usable sizes.
Status check_mesh(const MeshSizes& sizes);

// "1 2 4 8": the divisors of n, ascending.
std::string usable_sizes(int64_t n);

// `what` (e.g. "num_attention_heads") of n must be divisible by an axis (or "ep" ...) of `size`:
//   "num_attention_heads 64 is not divisible by tp 6; usable sizes: 1 2 4 8 16 32 64"
Status check_divisible(std::string_view what, int64_t n, std::string_view axis, int64_t size);

struct MeshCoordinate {
  int dp = 0, pp = 0, pcp = 0, tp = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

class Mesh {
 public:
  static Result<Mesh> create(const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int world() const { return static_cast<int>(sizes_.world()); }
  int size(MeshAxis axis) const { return sizes_.size(axis); }

  MeshCoordinate coordinate(int rank) const;
  int rank(const MeshCoordinate& at) const;

  // World ranks of rank's group along an axis, in the order of their indices; index(axis, rank) is rank's place there.
  std::vector<int> group(MeshAxis axis, int rank) const;
  int index(MeshAxis axis, int rank) const;

  std::vector<int> etp_group(int rank) const;  // dp x tp ranks of rank's stage and PCP rank
  int etp_index(int rank) const;
  int etp_size() const { return sizes_.dp * sizes_.tp; }

  // The job has as many ranks as the mesh.
  Status check_world(int64_t ranks) const;
  // A communicator made elsewhere is that of this axis: same members, same order.
  Status check_group(MeshAxis axis, int rank, std::span<const int> members) const;

 private:
  explicit Mesh(const MeshSizes& sizes) : sizes_(sizes) {}
  int stage_index(int rank) const;       // (dp_rank * pcp + pcp_rank) * tp + tp_rank
  int rank_in_stage(int pp_rank, int stage_index) const;

  MeshSizes sizes_;
};

}  // namespace weft
