#include "planner/device_profile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/cost_model.h"

namespace weft {
namespace {

const std::vector<std::filesystem::path> kFolders = {WEFT_SOURCE_DIR "/devices"};

DeviceProfile load(const std::string& name) {
  Result<DeviceProfile> profile = load_device_profile(name, kFolders);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return profile.ok() ? std::move(profile).value() : DeviceProfile{};
}

TEST(DeviceProfiles, ShippedOnesAreReadAndWrittenBack) {
  const std::vector<std::string> names = device_profile_names(kFolders);
  EXPECT_GE(names.size(), 30u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const DeviceProfile profile = load(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_TRUE(profile.nominal_bytes && profile.nominal_bytes->value >= profile.visible_bytes->value);
    const std::string text = device_profile_json(profile);
    const Result<DeviceProfile> again = parse_device_profile(text, "again");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(device_profile_json(*again), text);
    // Complete profiles can tell times, others say what they lack.
    const Result<CostModel> model = CostModel::create(profile);
    EXPECT_EQ(model.ok(), profile.missing.empty());
    EXPECT_EQ(profile.missing.empty(), profile.vendor != "Hygon" && name != "gb10");
  }
}

// Figures of planner.md section 4, one of each table.
TEST(DeviceProfiles, HaveThePublishedFigures) {
  const DeviceProfile ascend = load("ascend-910c-752t"), h200 = load("h200-sxm"), rack = load("gb200-nvl72"),
                      amd = load("mi355x"), cpu = load("epyc-9654"), h20 = load("h20-96g");
  EXPECT_EQ(ascend.matrix_flops_per_s.at(DType::kBF16).value, 353.9e12);
  EXPECT_EQ(ascend.matrix_flops_per_s.at(DType::kI8).value, 752e12);
  EXPECT_EQ(ascend.nominal_bytes->value, 64.0 * (1 << 30));
  ASSERT_EQ(ascend.links.size(), 4u);  // twin die, node, supernode, cluster
  EXPECT_EQ(ascend.links[0].bytes_per_s.value, 224e9);
  EXPECT_EQ(ascend.links[2].peers, 48 * 16);
  EXPECT_EQ(h200.memory_bytes_per_s->value, 4.8e12);
  EXPECT_EQ(h200.visible_bytes->value, 140.4e9);
  EXPECT_EQ(rack.links[0].peers, 72);
  EXPECT_EQ(rack.matrix_flops_per_s.at(DType::kF4E2M1).value, 10000e12);
  EXPECT_EQ(rack.memory_bytes_per_s->value, 8e12);  // not InferSim's 13.4
  EXPECT_EQ(amd.links[0].kind, LinkKind::kMesh);
  EXPECT_NEAR(amd.links[0].bytes_per_s.value, 538e9, 1e9);
  EXPECT_EQ(cpu.cores, 96);
  EXPECT_EQ(cpu.memory_bytes_per_s->value, 460.8e9);
  EXPECT_EQ(h20.visible_bytes->value, 95.0 * (1 << 30));
  // Marks: int8 of H20 is a guess, its bf16 is not.
  const auto marked = [](const DeviceProfile& profile, const std::string& path) {
    return std::find(profile.unverified.begin(), profile.unverified.end(), path) != profile.unverified.end();
  };
  EXPECT_TRUE(marked(h20, "matrix_flops_per_s.I8"));
  EXPECT_FALSE(marked(h20, "matrix_flops_per_s.BF16"));
}

TEST(DeviceProfiles, AnUnknownNameGetsTheNearestOnes) {
  EXPECT_EQ(load_device_profile("h100", kFolders).status().message(),
            "device 'h100' is unknown; nearest: h100-sxm, a100-sxm-80g, h200-sxm");
  EXPECT_TRUE(load_device_profile("mi300", kFolders)
                  .status()
                  .message()
                  .starts_with("device 'mi300' is unknown; nearest: mi300x, "));
  EXPECT_NE(load_device_profile("no/such/file.json", kFolders).status().message().find("no/such/file.json"),
            std::string::npos);
}

TEST(DeviceProfiles, OneErrorForEachFault) {
  const std::string good = R"({"schema": 1, "name": "d", "vendor": "v", "description": "x",
    "memory": {"nominal_bytes": {"value": 1e9, "source": "s", "verified": true}, "bytes_per_s": null},
    "matrix_flops_per_s": {"BF16": {"value": 1e12, "source": "s", "verified": true}},
    "efficiency": [{"op": "linear", "axes": [{"name": "rows", "values": [1, 4]}], "values": [0.5, 0.6],
                    "source": "s", "verified": true}],
    "links": [{"level": "node", "kind": "switch", "peers": 8,
               "bytes_per_s": {"value": 1e9, "source": "s", "verified": true},
               "latency_s": {"value": 1e-6, "source": "s", "verified": false}, "full_duplex": true}]})";
  const Result<DeviceProfile> profile = parse_device_profile(good, "d.json");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->unverified, std::vector<std::string>{"links[0].latency_s"});
  EXPECT_EQ(CostModel::create(*profile).status().message(),
            "device d has no memory.visible_bytes, memory.bytes_per_s, vector_flops_per_s, launch, efficiency of "
            "'matrix', efficiency of "
            "'memory': times cannot be told; measure the device and add the figures to a copy of its profile "
            "(docs/devices.md)");

  struct Fault {
    const char* from;
    const char* to;
    const char* message;
  };
  for (const Fault& fault : {
           Fault{"\"schema\": 1", "\"schema\": 2", "d.json: schema: 2 is outside 1 .. 1"},
           Fault{"\"vendor\": \"v\", ", "", "d.json: vendor is missing"},
           Fault{"\"vendor\"", "\"colour\": 1, \"vendor\"", "d.json: unknown key 'colour'"},
           Fault{"\"bytes_per_s\": null", "\"bytes_per_second\": null",
                 "d.json: unknown key 'memory.bytes_per_second'"},
           Fault{"\"value\": 1e9, \"source\": \"s\", \"verified\": true}, \"bytes_per_s\": null",
                 "\"value\": 1e9, \"verified\": true}, \"bytes_per_s\": null",
                 "d.json: memory.nominal_bytes.source is missing"},
           Fault{"\"value\": 1e12, \"source\": \"s\", \"verified\": true", "\"value\": 1e12, \"source\": \"s\"",
                 "d.json: matrix_flops_per_s.BF16.verified is missing"},
           Fault{"\"value\": 1e12", "\"value\": \"fast\"",
                 "d.json: matrix_flops_per_s.BF16.value: expected a number, found a string"},
           Fault{"\"value\": 1e12", "\"value\": 0",
                 "d.json: matrix_flops_per_s.BF16: must be above 0; leave out what the device cannot do"},
           Fault{"\"BF16\"", "\"BF17\"",
                 "d.json: matrix_flops_per_s.BF17: is no dtype; F32, F16, BF16, F8_E4M3, F4_E2M1 and I8 are usual"},
           Fault{"\"bytes_per_s\": null", "\"bytes_per_s\": {\"value\": 0, \"source\": \"s\", \"verified\": true}",
                 "d.json: memory.bytes_per_s.value: 0 is outside 1e-12 .. 1e+21"},
           Fault{"\"value\": 1e9, \"source\": \"s\", \"verified\": true}, \"bytes_per_s\": null",
                 "\"value\": 1e19, \"source\": \"s\", \"verified\": true}",
                 "d.json: memory.nominal_bytes.value: 1e+19 is outside 1e-12 .. 1000000000000000"},
           Fault{"\"bytes_per_s\": null", "\"visible_bytes\": {\"value\": 2e9, \"source\": \"s\", \"verified\": true}",
                 "d.json: memory.visible_bytes: 2000000000 is more than the 1000000000 of nominal_bytes"},
           Fault{"\"op\": \"linear\"", "\"op\": \"foo\"",
                 "d.json: efficiency[0].op: 'foo' is no op of the graph, nor matrix, vector or memory"},
           Fault{"\"op\": \"linear\"", "\"op\": \"linear\", \"weight\": \"F8\"",
                 "d.json: efficiency[0].weight: 'F8' is no dtype"},
           Fault{"\"op\": \"linear\"", "\"op\": \"linear\", \"activation\": \"foo\"",
                 "d.json: efficiency[0].activation: 'foo' is no dtype"},
           Fault{"\"efficiency\"", "\"cpu\": {\"cores\": 2, \"isa\": \"foo\"}, \"efficiency\"",
                 "d.json: cpu.isa: 'foo' is no instruction-set level"},
           Fault{"[1, 4]", "[4, 1]", "d.json: efficiency[0].axes[0].values must be above 0 and ascend"},
           Fault{"\"rows\"", "\"raws\"",
                 "d.json: efficiency[0].axes[0].name: 'raws' is unknown; known: rows, columns, depth, count, bytes, "
                 "ranks"},
           Fault{"[0.5, 0.6]", "[0.5]", "d.json: efficiency[0].values has 1 entries, the axes have 2 points"},
           Fault{"\"kind\": \"switch\"", "\"kind\": \"star\"",
                 "d.json: links[0].kind: 'star' is unknown; known: switch, mesh, ring, host_memory"},
           Fault{"\"kind\": \"switch\"", "\"kind\": \"host_memory\"",
                 "d.json: links[0]: host_memory is for CPUs (a 'cpu' section), where ranks share a device"},
           Fault{"\"peers\": 8", "\"peers\": 1", "d.json: links[0]: a link needs at least 2 peers"},
           Fault{"\"full_duplex\": true", "\"full_duplex\": 1",
                 "d.json: links[0].full_duplex: expected true or false, found an integer"},
       }) {
    std::string text = good;
    const size_t at = text.find(fault.from);
    ASSERT_NE(at, std::string::npos) << fault.from;
    text.replace(at, std::string(fault.from).size(), fault.to);
    EXPECT_EQ(parse_device_profile(text, "d.json").status().message(), fault.message);
  }
}

}  // namespace
}  // namespace weft
