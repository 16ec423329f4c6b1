#include "planner/collective_cost.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/bytes.h"
#include "planner/collective_simulation.h"

namespace weft {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

// planner.md 8.5: every algorithm against its messages, N = 2 .. 64. Pipelined ones reach the closed form as pieces get small.
TEST(CollectiveSeconds, EqualASimulationOfTheSteps) {
  const LinkTerms fast{2e-6, 50e9, 0}, adding{5e-6, 10e9, 40e9};
  int compared = 0;
  for (int k = 0; k < kNumCollectiveKinds; ++k) {
    for (int a = 0; a < kNumCollectiveAlgorithms; ++a) {
      const auto kind = static_cast<Kind>(k);
      const auto algorithm = static_cast<Algorithm>(a);
      if (algorithm == Algorithm::kInNetwork) continue;  // the switch adds: no messages between ranks
      for (int n = 2; n <= 64; n += n < 17 ? 1 : 5 + n % 3) {
        for (const double bytes : {1e3, 1e6, 256e6}) {
          for (const LinkTerms& link : {fast, adding}) {
            SCOPED_TRACE(testing::Message() << collective_kind_name(kind) << " " << collective_algorithm_name(algorithm)
                                            << " n " << n << " bytes " << bytes);
            const std::optional<double> closed = collective_seconds(kind, algorithm, n, bytes, link);
            const bool tree = kind == Kind::kAllReduce && algorithm == Algorithm::kTree;
            const bool chain = kind == Kind::kBroadcast && algorithm == Algorithm::kRing;
            if ((tree || chain) && bytes < 256e6) continue;
            constexpr int kTreePieces = 128, kChainPieces = 512;
            const auto steps = simulate_collective(kind, algorithm, n, bytes, link, tree ? kTreePieces : kChainPieces);
            ASSERT_EQ(closed.has_value(), steps.has_value());
            if (!closed) continue;
            EXPECT_TRUE(steps->correct);
            const double ratio = steps->seconds / *closed;
            if (tree) {  // full bandwidth but for what ports cost that both trees want; two ranks move half of it
              EXPECT_GE(ratio, n == 2 ? 0.5 : 0.98);
              EXPECT_LE(ratio, 1.25);
            } else {  // a chain fills over as many pieces as ranks
              EXPECT_NEAR(ratio, 1, chain ? 0.13 : 1e-9);
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

DeviceProfile two_tiers(LinkKind inner, std::vector<Algorithm> algorithms) {
  DeviceProfile device;
  device.name = "test";
  Link node{
      .level = "node", .peers = 4, .bytes_per_s = {100e9, true, "t"}, .latency_s = {1e-6, true, "t"}, .kind = inner};
  node.algorithms = algorithms;
  Link cluster{.level = "cluster", .peers = 0, .bytes_per_s = {10e9, true, "t"}, .latency_s = {5e-6, false, "t"}};
  cluster.algorithms = algorithms;
  device.links = {node, cluster};
  return device;
}

std::vector<int> ranks(int n, int stride = 1) {
  std::vector<int> list(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) list[static_cast<size_t>(i)] = i * stride;
  return list;
}

TEST(GroupShape, CountsMembersByTier) {
  const DeviceProfile device = two_tiers(LinkKind::kSwitch, {});
  EXPECT_EQ(group_shape(ranks(4), device).extent, (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(group_shape(ranks(8), device).extent, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(group_shape(ranks(3, 4), device).extent, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(group_shape(ranks(4, 2), device).extent, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(group_shape(ranks(1), device).extent, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(group_shape(ranks(16), device, 2).extent, (std::vector<int64_t>{4 * 2, 2}));  // two ranks a device
}

TEST(CollectiveCost, OverTwoTiersIsTheSumOfItsStages) {
  const DeviceProfile device = two_tiers(LinkKind::kSwitch, {Algorithm::kRing});
  const GroupShape group = group_shape(ranks(8), device);
  constexpr double kBytes = 64e6;
  const auto seconds = [&](Kind kind) { return collective_cost(device, kind, group, kBytes).value().seconds; };
  // Inside: ring over 4 at 100 GB/s; outside: over 2 at 10 GB/s, a quarter of the bytes on each of 4 rails.
  const double scatter = 3 * 1e-6 + 0.75 * kBytes / 100e9;
  EXPECT_DOUBLE_EQ(seconds(Kind::kAllReduce), 2 * scatter + 2 * 5e-6 + kBytes / 4 / 10e9);
  EXPECT_DOUBLE_EQ(seconds(Kind::kAllGather), scatter + 5e-6 + 0.5 * kBytes / 4 / 10e9);
  EXPECT_DOUBLE_EQ(seconds(Kind::kReduceScatter), scatter + 5e-6 + 0.5 * kBytes / 4 / 10e9);
  const CollectiveCost cost = collective_cost(device, Kind::kAllReduce, group, kBytes).value();
  EXPECT_EQ(cost.level, "cluster");
  EXPECT_TRUE(cost.unverified);  // the cluster's latency
  EXPECT_FALSE(collective_cost(device, Kind::kAllReduce, group_shape(ranks(4), device), kBytes).value().unverified);
}

// The slow links carry each byte once per destination node; the fast ones work at the same time.
TEST(CollectiveCost, AllToAllOverTwoTiersIsBoundByTheSlowOne) {
  const DeviceProfile device = two_tiers(LinkKind::kSwitch, {Algorithm::kPairwise});
  constexpr double kBytes = 64e6;
  const double seconds =
      collective_cost(device, Kind::kAllToAll, group_shape(ranks(8), device), kBytes).value().seconds;
  const double wire = 0.5 * kBytes / 10e9;
  EXPECT_GE(seconds, wire);
  EXPECT_LE(seconds, wire + 30e-6);
}

// planner.md 2.5: g peers of a mesh of G use (g - 1) / (G - 1) of the ports.
TEST(CollectiveCost, MeshGivesASmallGroupFewPorts) {
  DeviceProfile device = two_tiers(LinkKind::kMesh, {Algorithm::kTwoShot});
  device.links[0].peers = 8;
  constexpr double kBytes = 64e6;
  for (const int g : {2, 4, 8}) {
    const double seconds =
        collective_cost(device, Kind::kAllReduce, group_shape(ranks(g), device), kBytes).value().seconds;
    EXPECT_NEAR(seconds, 2e-6 + 2.0 * (g - 1) / g * kBytes / (100e9 * (g - 1) / 7), 1e-12) << g;
  }
}

TEST(CollectiveCost, SaysWhatIsMissing) {
  DeviceProfile device = two_tiers(LinkKind::kSwitch, {Algorithm::kBruck});
  EXPECT_EQ(collective_cost(device, Kind::kAllReduce, group_shape(ranks(4), device), 1).status().message(),
            "device test: none of the algorithms of link 'node' does all_reduce for 4 ranks");
  device.links.pop_back();
  EXPECT_EQ(collective_cost(device, Kind::kAllReduce, group_shape(ranks(8), device), 1).status().message(),
            "device test: its links do not join a group of 8 ranks");
  EXPECT_EQ(collective_cost(device, Kind::kAllReduce, group_shape(ranks(1), device), 1).value().seconds, 0);
}

// The fastest at each size: one step for small messages, bandwidth for large ones.
TEST(CollectiveCost, TakesTheCheapestAlgorithm) {
  const DeviceProfile device = two_tiers(LinkKind::kSwitch, {Algorithm::kRing, Algorithm::kOneShot});
  const GroupShape group = group_shape(ranks(4), device);
  EXPECT_EQ(collective_cost(device, Kind::kAllReduce, group, 1e3).value().algorithm, Algorithm::kOneShot);
  EXPECT_EQ(collective_cost(device, Kind::kAllReduce, group, 1e8).value().algorithm, Algorithm::kRing);
}

// sharding.md 11: sent bytes of a V4-Flash CSA layer, N = 8192, P = 4, attention side, of an engine that reduces in bf16.
TEST(SentBytes, OfTheTableOfLayouts) {
  constexpr int64_t kN = 8192, kP = 4, kT = kN / kP, kD = 4096, kMiB = 1 << 20, kHeads = 64, kHeadDim = 512;
  constexpr int64_t kWeights = 128 * kMiB;  // O-A and O-B, bf16
  const int64_t gather_x = all_gather_bytes(kP, kN, kD * 2);
  const int64_t half_all_reduce = (kP - 1) * kT * kD * 2;
  EXPECT_EQ(2 * half_all_reduce, 96 * kMiB);         // L0: AR bf16
  EXPECT_EQ(half_all_reduce + gather_x, 96 * kMiB);  // L1: RS + AG
  const int64_t exchange = all_to_all_bytes(kP, kT * kHeads * kHeadDim * 2 / kP),
                fp32_scatter = reduce_scatter_bytes(kP, kN, kD);
  EXPECT_EQ(gather_x, 48 * kMiB);
  EXPECT_EQ(exchange, 96 * kMiB);
  EXPECT_EQ(fp32_scatter, 96 * kMiB);
  EXPECT_EQ(gather_x + exchange + fp32_scatter, 240 * kMiB);  // L2a local
  const int64_t weights = all_to_all_bytes(kP, kWeights / kP);
  EXPECT_EQ(weights, 96 * kMiB);
  EXPECT_EQ(gather_x + weights, 144 * kMiB);               // L2b local
  EXPECT_EQ(all_gather_bytes(kP, kN, 512 * 2), 6 * kMiB);  // L11: raw K
  const int64_t compressed = (kP - 1) * (kT / 4) * (512 + 128) * 2;
  EXPECT_NEAR(static_cast<double>(compressed) / kMiB, 1.9, 0.05);
  EXPECT_NEAR(static_cast<double>(all_gather_bytes(kP, kN, 512 * 2) + compressed + weights) / kMiB, 104, 0.5);
  EXPECT_EQ(all_gather_bytes(kP, kN, 4 * kD * 4), 384 * kMiB);  // 4 fp32 streams by mistake
  // GLM-5, T = 4096, P = 16
  EXPECT_EQ(all_gather_bytes(16, 4096, 6144 * 2), 45 * kMiB);
  EXPECT_EQ(2 * all_gather_bytes(16, 4096, 6144 * 2), 90 * kMiB);
  EXPECT_NEAR(static_cast<double>(all_gather_bytes(16, 4096, 704 * 2)) / kMiB, 5.2, 0.05);
}

}  // namespace
}  // namespace weft
