#include "sharding/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft {
namespace {

constexpr MeshAxis kAxes[] = {MeshAxis::kDp, MeshAxis::kPp,  MeshAxis::kPcp,
                              MeshAxis::kTp, MeshAxis::kDcp, MeshAxis::kEp};

}  // namespace

int MeshSizes::size(MeshAxis axis) const {
  switch (axis) {
    case MeshAxis::kDp: return dp;
    case MeshAxis::kPp: return pp;
    case MeshAxis::kPcp: return pcp;
    case MeshAxis::kTp: return tp;
    case MeshAxis::kDcp: return dcp;
    case MeshAxis::kEp: return ep;
  }
  WEFT_CHECK(false, "axis {}", static_cast<int>(axis));
}

std::string usable_sizes(int64_t n) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d * d != n) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return fmt::format("{}", fmt::join(small, " "));
}

Status check_divisible(std::string_view what, int64_t n, std::string_view axis, int64_t size) {
  if (size > 0 && n % size == 0) return {};
  return invalid_argument(
      fmt::format("{} {} is not divisible by {} {}; usable sizes: {}", what, n, axis, size, usable_sizes(n)));
}

Status check_mesh(const MeshSizes& sizes) {
  for (MeshAxis axis : kAxes) {
    const int size = sizes.size(axis);
    if (size < 1 || size > kMaxAxisSize) {
      return invalid_argument(fmt::format("{} {} is not in 1..{}", mesh_axis_name(axis), size, kMaxAxisSize));
    }
  }
  // Stepwise: the product of four sizes may not fit in 64 bits.
  int64_t world = 1;
  for (int size : {sizes.dp, sizes.pp, sizes.pcp, sizes.tp}) {
    world *= size;
    if (world > kMaxWorldSize) {
      return invalid_argument(fmt::format("dp {} x pp {} x pcp {} x tp {} is more than {} ranks", sizes.dp, sizes.pp,
                                          sizes.pcp, sizes.tp, kMaxWorldSize));
    }
  }
  WEFT_RETURN_IF_ERROR(check_divisible("tp", sizes.tp, "dcp", sizes.dcp));
  return check_divisible(fmt::format("dp {} x pcp {} x tp {} =", sizes.dp, sizes.pcp, sizes.tp), sizes.stage(), "ep",
                         sizes.ep);
}

Result<Mesh> Mesh::create(const MeshSizes& sizes) {
  WEFT_RETURN_IF_ERROR(check_mesh(sizes));
  return Mesh(sizes);
}

MeshCoordinate Mesh::coordinate(int rank) const {
  WEFT_CHECK(rank >= 0 && rank < world(), "rank {} of {}", rank, world());
  MeshCoordinate at;
  at.tp = rank % sizes_.tp;
  rank /= sizes_.tp;
  at.pcp = rank % sizes_.pcp;
  rank /= sizes_.pcp;
  at.pp = rank % sizes_.pp;
  at.dp = rank / sizes_.pp;
  return at;
}

int Mesh::rank(const MeshCoordinate& at) const {
  return ((at.dp * sizes_.pp + at.pp) * sizes_.pcp + at.pcp) * sizes_.tp + at.tp;
}

int Mesh::stage_index(int rank) const {
  const MeshCoordinate at = coordinate(rank);
  return (at.dp * sizes_.pcp + at.pcp) * sizes_.tp + at.tp;
}

int Mesh::rank_in_stage(int pp_rank, int stage_index) const {
  return rank({.dp = stage_index / (sizes_.pcp * sizes_.tp),
               .pp = pp_rank,
               .pcp = stage_index / sizes_.tp % sizes_.pcp,
               .tp = stage_index % sizes_.tp});
}

int Mesh::index(MeshAxis axis, int rank) const {
  const MeshCoordinate at = coordinate(rank);
  switch (axis) {
    case MeshAxis::kDp: return at.dp;
    case MeshAxis::kPp: return at.pp;
    case MeshAxis::kPcp: return at.pcp;
    case MeshAxis::kTp: return at.tp;
    case MeshAxis::kDcp: return at.tp % sizes_.dcp;
    case MeshAxis::kEp: return stage_index(rank) % sizes_.ep;
  }
  WEFT_CHECK(false, "axis {}", static_cast<int>(axis));
}

std::vector<int> Mesh::group(MeshAxis axis, int rank) const {
  const MeshCoordinate own = coordinate(rank);
  std::vector<int> members(size(axis));
  for (int i = 0; i < size(axis); ++i) {
    MeshCoordinate at = own;
    switch (axis) {
      case MeshAxis::kDp: at.dp = i; break;
      case MeshAxis::kPp: at.pp = i; break;
      case MeshAxis::kPcp: at.pcp = i; break;
      case MeshAxis::kTp: at.tp = i; break;
      case MeshAxis::kDcp: at.tp = own.tp / sizes_.dcp * sizes_.dcp + i; break;
      case MeshAxis::kEp: {
        const int first = stage_index(rank) / sizes_.ep * sizes_.ep;
        members[i] = rank_in_stage(own.pp, first + i);
        continue;
      }
    }
    members[i] = this->rank(at);
  }
  return members;
}

std::vector<int> Mesh::etp_group(int rank) const {
  MeshCoordinate at = coordinate(rank);
  std::vector<int> members;
  for (at.dp = 0; at.dp < sizes_.dp; ++at.dp) {
    for (at.tp = 0; at.tp < sizes_.tp; ++at.tp) members.push_back(this->rank(at));
  }
  return members;
}

int Mesh::etp_index(int rank) const {
  const MeshCoordinate at = coordinate(rank);
  return at.dp * sizes_.tp + at.tp;
}

Status Mesh::check_world(int64_t ranks) const {
  if (ranks == world()) return {};
  return invalid_argument(fmt::format("the layout has dp {} x pp {} x pcp {} x tp {} = {} ranks, the job has {}",
                                      sizes_.dp, sizes_.pp, sizes_.pcp, sizes_.tp, world(), ranks));
}

Status Mesh::check_group(MeshAxis axis, int rank, std::span<const int> members) const {
  const std::vector<int> expected = group(axis, rank);
  if (std::ranges::equal(members, expected)) return {};
  return invalid_argument(fmt::format("rank {}: its {} group must be the {} ranks [{}], got the {} ranks [{}]", rank,
                                      mesh_axis_name(axis), expected.size(), fmt::join(expected, " "), members.size(),
                                      fmt::join(members, " ")));
}

}  // namespace weft
