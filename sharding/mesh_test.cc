#include "sharding/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace weft {
namespace {

using Ranks = std::vector<int>;

Mesh mesh(const MeshSizes& sizes) { return Mesh::create(sizes).value(); }

TEST(Mesh, RankOrder) {
  const Mesh m = mesh({.dp = 2, .pp = 3, .pcp = 2, .tp = 4});
  EXPECT_EQ(m.world(), 48);
  EXPECT_EQ(m.rank({.dp = 1, .pp = 2, .pcp = 1, .tp = 3}), 47);
  EXPECT_EQ(m.rank({.dp = 1, .pp = 0, .pcp = 1, .tp = 2}), 30);  // ((1 * 3 + 0) * 2 + 1) * 4 + 2
  for (int rank = 0; rank < m.world(); ++rank) EXPECT_EQ(m.rank(m.coordinate(rank)), rank);
}

TEST(Mesh, Groups) {
  const Mesh m = mesh({.dp = 2, .pp = 2, .pcp = 2, .tp = 4, .dcp = 2, .ep = 8});
  EXPECT_EQ(m.group(MeshAxis::kTp, 14), (Ranks{12, 13, 14, 15}));
  EXPECT_EQ(m.group(MeshAxis::kDcp, 14), (Ranks{14, 15}));
  EXPECT_EQ(m.group(MeshAxis::kPcp, 14), (Ranks{10, 14}));
  EXPECT_EQ(m.group(MeshAxis::kPp, 14), (Ranks{6, 14}));
  EXPECT_EQ(m.group(MeshAxis::kDp, 14), (Ranks{14, 30}));
  EXPECT_EQ(m.group(MeshAxis::kEp, 14), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));  // pcp x tp of one stage and dp rank
  EXPECT_EQ(m.etp_group(14), (Ranks{12, 13, 14, 15, 28, 29, 30, 31}));
  EXPECT_EQ(m.etp_index(14), 2);
  EXPECT_EQ(m.etp_index(30), 6);

  // Experts over all ranks of a stage: the stage's ranks do not follow one another.
  const Mesh wide = mesh({.dp = 2, .pp = 2, .tp = 2, .ep = 4});
  EXPECT_EQ(wide.group(MeshAxis::kEp, 3), (Ranks{2, 3, 6, 7}));
  EXPECT_EQ(wide.index(MeshAxis::kEp, 6), 2);
}

// The CP group of a rank is every tp-th rank of its DP group: cp = 2, tp = 2, two DP groups.
TEST(Mesh, S24_CpGroups) {
  const Mesh m = mesh({.dp = 2, .pcp = 2, .tp = 2});
  const Ranks expected[] = {{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {4, 6}, {5, 7}};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(m.group(MeshAxis::kPcp, rank), expected[rank]);
    const auto at = m.coordinate(rank);
    for (int c = 0; c < 2; ++c) EXPECT_EQ(expected[rank][c], at.dp * 2 * 2 + c * 2 + at.tp);
  }
}

// Every axis cuts the ranks into groups; members agree on the group and have distinct indices.
TEST(Mesh, GroupsArePartitions) {
  const MeshSizes all[] = {{},
                           {.tp = 8, .dcp = 4, .ep = 2},
                           {.dp = 3, .pp = 2, .pcp = 2, .tp = 2, .dcp = 2, .ep = 6},
                           {.dp = 4, .pp = 3, .ep = 4},
                           {.pp = 2, .pcp = 3, .tp = 4, .dcp = 2, .ep = 12}};
  for (const MeshSizes& sizes : all) {
    const Mesh m = mesh(sizes);
    for (MeshAxis axis : {MeshAxis::kDp, MeshAxis::kPp, MeshAxis::kPcp, MeshAxis::kTp, MeshAxis::kDcp, MeshAxis::kEp}) {
      std::set<Ranks> groups;
      for (int rank = 0; rank < m.world(); ++rank) {
        const Ranks group = m.group(axis, rank);
        ASSERT_EQ(static_cast<int>(group.size()), m.size(axis));
        ASSERT_EQ(group[m.index(axis, rank)], rank);
        ASSERT_TRUE(std::ranges::is_sorted(group));
        for (int member : group) ASSERT_EQ(m.group(axis, member), group);
        for (int member : group) {
          if (axis != MeshAxis::kPp) {
            ASSERT_EQ(m.coordinate(member).pp, m.coordinate(rank).pp);
          }
        }
        groups.insert(group);
      }
      EXPECT_EQ(static_cast<int>(groups.size()) * m.size(axis), m.world()) << mesh_axis_name(axis);
    }
    for (int rank = 0; rank < m.world(); ++rank) ASSERT_EQ(m.etp_group(rank)[m.etp_index(rank)], rank);
  }
}

TEST(Mesh, ImpossibleSizes) {
  struct Case {
    MeshSizes sizes;
    const char* message;
  };
  const Case cases[] = {
      {{.tp = 0}, "tp 0 is not in 1..65536"},
      {{.dp = -2}, "dp -2 is not in 1..65536"},
      {{.ep = 70000}, "ep 70000 is not in 1..65536"},
      {{.dp = 65536, .pp = 65536, .pcp = 65536, .tp = 65536},
       "dp 65536 x pp 65536 x pcp 65536 x tp 65536 is more than 1048576 ranks"},
      {{.tp = 8, .dcp = 3}, "tp 8 is not divisible by dcp 3; usable sizes: 1 2 4 8"},
      {{.dp = 2, .pp = 2, .pcp = 1, .tp = 3, .ep = 4},
       "dp 2 x pcp 1 x tp 3 = 6 is not divisible by ep 4; usable sizes: 1 2 3 6"},
  };
  for (const Case& c : cases) EXPECT_EQ(Mesh::create(c.sizes).status().message(), c.message);
}

TEST(Mesh, Divisibility) {
  EXPECT_TRUE(check_divisible("num_attention_heads", 64, "tp", 8).ok());
  EXPECT_EQ(check_divisible("num_attention_heads", 64, "tp", 6).message(),
            "num_attention_heads 64 is not divisible by tp 6; usable sizes: 1 2 4 8 16 32 64");
  EXPECT_EQ(usable_sizes(1), "1");
  EXPECT_EQ(usable_sizes(36), "1 2 3 4 6 9 12 18 36");
}

}  // namespace
}  // namespace weft
