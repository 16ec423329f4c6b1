#include "planner/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft {
namespace {

const std::vector<std::filesystem::path> kFolders = {WEFT_SOURCE_DIR "/devices"};

CostModel model_of(const std::string& name) {
  return CostModel::create(load_device_profile(name, kFolders).value()).value();
}

ValueType rows_type(DType dtype, Shape shape) { return {{dtype, shape}, Rows::kTokens}; }
ValueType fixed(DType dtype, Shape shape) { return {{dtype, shape}}; }

struct Call {
  Op op;
  std::vector<ValueType> in, out;
};

Call call(Op op, std::vector<ValueType> in) {
  std::vector<ValueType> out = std::visit([&](const auto& o) { return o.infer(in); }, op).value();
  return {std::move(op), std::move(in), std::move(out)};
}

OpCost cost_of(const CostModel& model, const Call& c, const CostEnv& env = {}) {
  return model.cost(c.op, c.in, c.out, env).value();
}

Call linear(int64_t m, int64_t n, int64_t k, DType weight = DType::kBF16, ActQuant quant = ActQuant::kNone) {
  Linear op{.dtype = DType::kBF16, .act_quant = quant};
  std::vector<ValueType> in = {rows_type(DType::kBF16, {m, k}), fixed(weight, {n, k})};
  if (weight == DType::kF8E4M3) {
    op.scale_rows = op.scale_cols = 128;
    in.push_back(fixed(DType::kF32, {(n + 127) / 128, (k + 127) / 128}));
  }
  return call(op, in);
}

// A device with round figures, so that times can be written down.
DeviceProfile round_device() {
  DeviceProfile device;
  device.name = "round";
  const auto figure = [](double value) { return Figure{value, true, "test"}; };
  device.visible_bytes = figure(1e11);
  device.memory_bytes_per_s = figure(1e12);
  device.cache_bytes = figure(50e6);
  device.matrix_flops_per_s = {{DType::kBF16, figure(1e14)}, {DType::kF8E4M3, figure(2e14)}};
  device.vector_flops_per_s = {{DType::kF32, figure(1e13)}};
  device.launch_graph = {figure(1e-6), figure(2e-6), figure(3e-6)};
  device.launch_eager = {figure(1e-5), figure(1e-5), figure(1e-5)};
  EfficiencyTable matrix{.op = "matrix", .values = {0.5}, .provenance = figure(0)}, memory = matrix;
  memory.op = "memory";
  memory.values = {0.8};
  device.efficiency = {matrix, memory};
  return device;
}

// Sums of an engine that travel in bf16 take half the time of weft's fp32 ones, gathered rows in int8 half of those in bf16; what is
// gathered of a weight stays as it is stored.
TEST(CostModel, CollectivesTravelInTheDtypesOfTheEngine) {
  DeviceProfile device = round_device();
  device.links = {{.level = "node", .peers = 8, .bytes_per_s = {1e11, true, "test"}, .latency_s = {0, true, "test"}}};
  const CostModel model = CostModel::create(device).value();
  EngineProfile engine;
  engine.reduce_dtype = DType::kBF16;
  engine.gather_dtype = DType::kI8;
  CostEnv weft;
  weft.groups[static_cast<size_t>(MeshAxis::kTp)].size = 4;
  weft.groups[static_cast<size_t>(MeshAxis::kTp)].extent = {4};
  CostEnv other = weft;
  other.engine = &engine;
  ValueType part = rows_type(DType::kF32, {4096, 7168}), rows = rows_type(DType::kBF16, {1024, 7168}),
            weight = fixed(DType::kBF16, {1024, 7168});
  part.placement[static_cast<size_t>(MeshAxis::kTp)] = Placement::partial();
  rows.placement[static_cast<size_t>(MeshAxis::kTp)] = weight.placement[static_cast<size_t>(MeshAxis::kTp)] =
      Placement::sharded(0);
  const struct {
    const char* what;
    Call call;
    double share;  // of weft's time
  } cases[] = {
      {"reduce_scatter", call(ReduceScatter{MeshAxis::kTp, 4, DType::kBF16, 1024}, {part}), 0.5},
      {"all_gather", call(AllGather{MeshAxis::kTp, 4, 0, 4096}, {rows}), 0.5},
      {"all_gather of a weight", call(AllGather{MeshAxis::kTp, 4, 0, 4096}, {weight}), 1},
  };
  for (const auto& c : cases) {
    const double mine = cost_of(model, c.call, weft).network_s, theirs = cost_of(model, c.call, other).network_s;
    EXPECT_GT(mine, 0) << c.what;
    EXPECT_NEAR(theirs / mine, c.share, 1e-6) << c.what;
  }
}

TEST(CostModel, LinearIsBoundByMemoryThenByTheMatrixUnit) {
  const CostModel model = CostModel::create(round_device()).value();
  constexpr int64_t kN = 8192, kK = 8192;
  const OpCost few = cost_of(model, linear(1, kN, kK));
  EXPECT_EQ(few.bound, Bound::kMemory);
  EXPECT_NEAR(few.seconds, 2.0 * kN * kK / 1e12 / 0.8 + 1e-6, 1e-9);  // weights; activations of a row are in the cache
  const OpCost many = cost_of(model, linear(4096, kN, kK));
  EXPECT_EQ(many.bound, Bound::kMatrix);
  EXPECT_NEAR(many.seconds, 2.0 * 4096 * kN * kK / 1e14 / 0.5 + 1e-6, 1e-9);
  EXPECT_DOUBLE_EQ(many.compute_s + many.memory_s + many.network_s + many.launch_s, many.seconds);
  EXPECT_EQ(many.source, CostSource::kRoofline);
  EXPECT_FALSE(many.unverified);
  const OpCost tiny = cost_of(model, linear(1, 16, 16));
  EXPECT_EQ(tiny.bound, Bound::kLaunch);
  EXPECT_GT(cost_of(model, linear(1, 16, 16), {.launch = LaunchMode::kEager}).seconds, 9e-6);
}

// planner.md 2.1: the ridge of bf16 is at about 295 rows on H100 and 200 on 910B, efficiencies left out.
TEST(CostModel, RidgeOfPublishedDevices) {
  for (const auto& [name, ridge] : {std::pair{"h100-sxm", 295.0}, {"ascend-910b-376t", 200.0}}) {
    const DeviceProfile device = load_device_profile(name, kFolders).value();
    const double rows = device.matrix_flops_per_s.at(DType::kBF16).value * 2 / (2 * device.memory_bytes_per_s->value);
    EXPECT_NEAR(rows, ridge, 10) << name;
  }
}

TEST(CostModel, ADtypeThatTheDeviceLacksRunsAtTheNextWiderPeak) {
  const CostModel a100 = model_of("a100-sxm-80g"), h100 = model_of("h100-sxm"), b200 = model_of("b200-sxm");
  const Call bf16 = linear(8192, 8192, 8192), fp8 = linear(8192, 8192, 8192, DType::kF8E4M3, ActQuant::kFp8Block128);
  EXPECT_NEAR(cost_of(a100, fp8).matrix_term_s / cost_of(a100, bf16).matrix_term_s, 1, 1e-9);
  EXPECT_NEAR(cost_of(h100, fp8).matrix_term_s / cost_of(h100, bf16).matrix_term_s, 989.0 / 1979, 1e-9);
  // fp8 weights with bf16 activations are bf16 products, and read half the bytes.
  const Call mixed = linear(1, 8192, 8192, DType::kF8E4M3);
  EXPECT_NEAR(cost_of(h100, mixed).memory_term_s / cost_of(h100, linear(1, 8192, 8192)).memory_term_s, 0.5, 0.01);
  EXPECT_NEAR(cost_of(h100, linear(8192, 8192, 8192, DType::kF8E4M3)).matrix_term_s, cost_of(h100, bf16).matrix_term_s,
              1e-9);
  // Quantising the activations comes before the product.
  EXPECT_GT(cost_of(h100, fp8).vector_term_s, 0);
  // fp4 weights with fp8 activations are fp8 products.
  const auto experts = [](ActQuant quant) {
    Experts op{.act_quant = quant, .scale_rows = 1, .scale_cols = 32};
    const auto w = [](int64_t n, int64_t k) { return fixed(DType::kF4E2M1, {8, n, k}); };
    const auto s = [](int64_t n, int64_t k) { return fixed(DType::kF8E8M0, {8, n, k / 32}); };
    return call(op, {rows_type(DType::kBF16, {4096, 1024}), rows_type(DType::kI32, {4096, 2}),
                     rows_type(DType::kF32, {4096, 2}), w(512, 1024), w(512, 1024), w(1024, 512), s(512, 1024),
                     s(512, 1024), s(1024, 512)});
  };
  const OpCost fp8_experts = cost_of(b200, experts(ActQuant::kFp8Block128)),
               bf16_experts = cost_of(b200, experts(ActQuant::kNone));
  EXPECT_NEAR(fp8_experts.matrix_term_s / bf16_experts.matrix_term_s, 0.5, 1e-9);
}

// Weights of few rows are those of the experts that are hit.
TEST(CostModel, ExpertsReadWhatIsHit) {
  const CostModel model = CostModel::create(round_device()).value();
  Experts op;
  const auto at = [&](int64_t rows) {
    const auto w = [](int64_t n, int64_t k) { return fixed(DType::kBF16, {256, n, k}); };
    return call(op, {rows_type(DType::kBF16, {rows, 4096}), rows_type(DType::kI32, {rows, 8}),
                     rows_type(DType::kF32, {rows, 8}), w(2048, 4096), w(2048, 4096), w(4096, 2048)});
  };
  const double expert_bytes = 3.0 * 2048 * 4096 * 2;
  const auto memory = [&](int64_t rows, Routing routing) {
    return cost_of(model, at(rows), {.routing = routing}).memory_term_s * 0.8 * 1e12 / expert_bytes;
  };
  EXPECT_NEAR(memory(1, {Routing::Kind::kUniform}), 8, 0.1);
  EXPECT_NEAR(memory(32, {Routing::Kind::kUniform}), 256 * (1 - std::pow(1 - 8.0 / 256, 32)), 0.5);
  EXPECT_NEAR(memory(32, {Routing::Kind::kWorst}), 256, 0.5);
  EXPECT_LT(memory(32, {Routing::Kind::kZipf, 1.2}), 0.8 * memory(32, {Routing::Kind::kUniform}));
}

// The contexts of the rows decide what the index and attention cost.
TEST(CostModel, AttentionFollowsTheContexts) {
  const CostModel model = CostModel::create(round_device()).value();
  constexpr int64_t kRows = 64, kMax = 1 << 20;
  const Call index =
      call(IndexTopK{4, 512, 1, kMax}, {rows_type(DType::kBF16, {kRows, 64, 128}), rows_type(DType::kBF16, {kRows, 64}),
                                        fixed(DType::kBF16, {4096, 64, 128})});
  const auto at = [&](int64_t context) {
    StepBatch batch;
    for (int64_t r = 0; r < kRows; ++r) batch.segments.push_back({static_cast<int32_t>(r), r, 1, context});
    return cost_of(model, index, {.batch = &batch});
  };
  EXPECT_EQ(at(2048).flops, 0);  // no more entries than are picked
  EXPECT_NEAR(at(65536).flops, 2.0 * kRows * (65536 / 4) * 64 * 128, 1);
  EXPECT_NEAR(at(131072).memory_term_s / at(65536).memory_term_s, 2, 0.05);
  EXPECT_NEAR(cost_of(model, index).flops, 2.0 * kRows * (kMax / 4) * 64 * 128, 1);
}

TEST(CostModel, MeasuredTablesAreInterpolatedInLogSpaceAndHeldAtTheEdge) {
  DeviceProfile device = round_device();
  EfficiencyTable table{.op = "linear",
                        .weight = "BF16",
                        .values = {0.1, 0.4, 0.2, 0.8},
                        .measured = true,
                        .provenance = {0, false, "test"}};
  table.axes = {{"rows", {1, 16}}, {"columns", {256, 1024}}};
  device.efficiency.push_back(table);
  const CostModel model = CostModel::create(device).value();
  const auto efficiency = [&](int64_t m, int64_t n) {
    const OpCost cost = cost_of(model, linear(m, n, 4096));
    const double roofline =
        std::max(2.0 * static_cast<double>(m * n) * 4096 / 1e14, 2.0 * static_cast<double>(n) * 4096 / 1e12);
    EXPECT_TRUE(cost.unverified);
    return roofline / (cost.seconds - 1e-6);
  };
  EXPECT_NEAR(efficiency(1, 256), 0.1, 1e-9);
  EXPECT_NEAR(efficiency(16, 1024), 0.8, 1e-9);
  EXPECT_NEAR(efficiency(4, 256), std::sqrt(0.1 * 0.2), 1e-9);
  EXPECT_NEAR(efficiency(1, 512), std::sqrt(0.1 * 0.4), 1e-9);
  EXPECT_NEAR(efficiency(4, 512), std::sqrt(std::sqrt(0.1 * 0.4 * 0.2 * 0.8)), 1e-9);
  EXPECT_NEAR(efficiency(64, 8192), 0.8, 1e-9);
  EXPECT_EQ(cost_of(model, linear(1, 256, 4096)).source, CostSource::kMeasured);
  EXPECT_EQ(cost_of(model, linear(4, 512, 4096)).source, CostSource::kInterpolated);
  EXPECT_EQ(cost_of(model, linear(4096, 65536, 4096)).source, CostSource::kRoofline);
  EXPECT_EQ(cost_of(model, linear(1, 256, 4096, DType::kF8E4M3)).source,
            CostSource::kRoofline);  // another dtype's table
}

TEST(CostModel, CollectivesOverTheGroupOfTheAxis) {
  const CostModel model = model_of("h100-sxm");
  const AllReduce op{MeshAxis::kTp, 8, DType::kBF16};
  ValueType x = rows_type(DType::kF32, {4096, 4096});
  x.placement[static_cast<size_t>(MeshAxis::kTp)] = Placement::partial();
  const Call c = call(op, {x});
  CostEnv env;
  std::vector<int> members(8);
  for (int i = 0; i < 8; ++i) members[static_cast<size_t>(i)] = i;
  env.groups[static_cast<size_t>(MeshAxis::kTp)] = group_shape(members, model.device());
  const OpCost inside = cost_of(model, c, env);
  EXPECT_EQ(inside.bound, Bound::kNetwork);
  const double sent = 7.0 / 8 * 4096 * 4096 * (4 + 2);
  EXPECT_EQ(inside.bytes_sent, sent);
  EXPECT_NEAR(inside.network_s, sent / (450e9 * 0.8), 0.2 * inside.network_s);
  for (int i = 0; i < 8; ++i) members[static_cast<size_t>(i)] = 8 * i;
  env.groups[static_cast<size_t>(MeshAxis::kTp)] = group_shape(members, model.device());
  EXPECT_GT(cost_of(model, c, env).network_s, 5 * inside.network_s);  // one rank of each of 8 nodes
}

// A CPU's ranks share its cores, memory and cache.
TEST(CostModel, RanksOfACpuShareIt) {
  DeviceProfile device = load_device_profile("epyc-9654", kFolders).value();
  const CostModel model = CostModel::create(device).value();
  const Call few = linear(1, 16384, 8192), many = linear(2048, 8192, 8192);
  const CostEnv alone{.threads = 96}, four{.threads = 24, .local_ranks = 4};
  EXPECT_NEAR(cost_of(model, few, four).memory_term_s / cost_of(model, few, alone).memory_term_s, 4, 1e-6);
  EXPECT_NEAR(cost_of(model, many, four).matrix_term_s / cost_of(model, many, alone).matrix_term_s, 4, 1e-6);
  // Weights that stay in the cache come from there.
  CostEnv resident = alone;
  resident.working_set_bytes = 300e6;
  EXPECT_LT(cost_of(model, few, resident).memory_term_s, 0.5 * cost_of(model, few, alone).memory_term_s);
  device.shared_bandwidth = {{1, 96, 300e9}, {4, 24, 90e9}};
  const CostModel measured = CostModel::create(device).value();
  EXPECT_NEAR(cost_of(measured, few, four).memory_term_s / cost_of(measured, few, alone).memory_term_s, 300.0 / 90,
              1e-3);
}

}  // namespace
}  // namespace weft
