// What a device can do: devices/*.json, or what `weft calibrate` measured on this machine (docs/devices.md has the
// schema).
//
// A profile describes one rank's device, where the software sees devices (a die, a GPU, a socket, a machine), and the
// links between devices. Every figure has a source and whether somebody verified it; what is computed from a figure
// that nobody verified is marked so in every output. A figure that is missing is no default: the cost model names it
// when it needs it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace weft {

// Which figures of a profile that nobody verified something rests on: bit i stands for DeviceProfile::unverified[i],
// the last bit for all from there on.
using FigureMarks = uint64_t;
inline constexpr size_t kLastMark = 63;

struct Figure {
  double value = 0;
  bool verified = true;
  std::string source = {};
  size_t place = kLastMark;  // in DeviceProfile::unverified

  FigureMarks marks() const { return verified ? 0 : FigureMarks{1} << std::min(place, kLastMark); }
  bool operator==(const Figure& other) const {
    return value == other.value && verified == other.verified && source == other.source;
  }
};

// How the devices of a tier reach each other.
enum class LinkKind {
  kSwitch,      // full bandwidth to any set of peers
  kMesh,        // a port for every peer: a group of g among `peers` uses (g - 1) / (peers - 1) of the bandwidth
  kRing,        // two neighbours
  kHostMemory,  // ranks of one machine copy through its memory and share its bandwidth
};
std::string_view link_kind_name(LinkKind kind);  // "switch", "mesh", "ring", "host_memory"

// Collectives by what they do, and how.
enum class CollectiveKind { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kSendRecv };
inline constexpr int kNumCollectiveKinds = 6;
std::string_view collective_kind_name(CollectiveKind kind);  // "all_reduce", ...

enum class CollectiveAlgorithm { kRing, kTree, kOneShot, kTwoShot, kRecursive, kPairwise, kBruck, kInNetwork };
inline constexpr int kNumCollectiveAlgorithms = 8;
std::string_view collective_algorithm_name(CollectiveAlgorithm algorithm);  // "ring", "one_shot", ...

// One tier of the interconnect. Tiers are listed from the innermost; a tier's domain holds those of the tier before it.
struct Link {
  std::string level = {};   // "node", "cluster"
  int64_t peers = 1;        // devices of one domain of this tier; 0: any number
  Figure bytes_per_s = {};  // of one device, one direction
  Figure latency_s = {};
  LinkKind kind = LinkKind::kSwitch;
  bool full_duplex = true;
  double efficiency = 1;  // of bytes_per_s, for large messages
  // What the software between the devices can do; empty: all that fit the kind of link. The cheapest is taken.
  std::vector<CollectiveAlgorithm> algorithms = {};
  bool operator==(const Link&) const = default;
};

// Time per op that no arithmetic explains.
struct LaunchCosts {
  Figure matrix_s, vector_s, collective_s;
  bool operator==(const LaunchCosts&) const = default;
};

// The axes that an efficiency table may have: those of graph/work.h, and of collectives the bytes that a rank sends and
// the ranks.
inline constexpr std::array<std::string_view, 6> kTableAxes = {"rows", "columns", "depth", "count", "bytes", "ranks"};

// Part of its roofline that an op reaches: roofline time / time, on a grid of shapes. Between grid points it is
// interpolated in log space along every axis, beyond the grid the edge holds.
struct EfficiencyTable {
  struct Axis {
    std::string name;            // of kTableAxes
    std::vector<double> values;  // ascending
    bool operator==(const Axis&) const = default;
  };
  std::string op = {};          // name of an op ("linear"), or "matrix", "vector", "memory" for all that have no own
  std::string weight = {};      // dtype of the weights; "": any
  std::string activation = {};  // dtype of the activations; "": any
  int ranks = 0, threads = 0;   // CPUs: measured with so many ranks at work and threads of each; 0: any
  bool cached = false;          // measured with weights that stay in the cache
  std::vector<Axis> axes = {};  // may be empty: one value
  std::vector<double> values = {};  // last axis fastest
  bool measured = false;            // by kernels on this device; otherwise somebody's constant
  Figure provenance = {};           // source and verified; its value is unused
  bool operator==(const EfficiencyTable&) const = default;
};

// CPUs: bytes per second of each of `ranks` ranks with `threads` threads each, all at work.
struct SharedBandwidth {
  int ranks = 1, threads = 1;
  double bytes_per_s = 0;
  bool operator==(const SharedBandwidth&) const = default;
};

struct DeviceProfile {
  std::string name, vendor, description;
  std::filesystem::path file;

  std::optional<Figure> nominal_bytes, visible_bytes;  // memory: on the data sheet, left to software
  std::optional<Figure> memory_bytes_per_s;
  std::optional<Figure> cache_bytes, cache_bytes_per_s;  // last level
  std::map<DType, Figure> matrix_flops_per_s, vector_flops_per_s;
  LaunchCosts launch_eager, launch_graph;
  std::vector<EfficiencyTable> efficiency;
  std::vector<Link> links;

  // CPUs.
  int cores = 0;    // of one device, which its local ranks share; 0: an accelerator, one rank a device
  std::string isa;  // level that was measured
  std::vector<SharedBandwidth> shared_bandwidth;

  std::vector<std::string> notes;
  // Figures that nobody verified, by their place in the file: "memory.visible_bytes".
  std::vector<std::string> unverified;
  // What the profile must get by calibration before it can tell times; empty: complete.
  std::vector<std::string> missing;

  // The names of those figures.
  std::vector<std::string> names_of(FigureMarks marks) const;

  // Ranks that share one device: 1 on accelerators, as many as cores on CPUs.
  bool is_cpu() const { return cores > 0; }
};

// A profile from JSON text. Errors name file and field: unknown fields, wrong kinds, values out of range, a figure
// without source.
Result<DeviceProfile> parse_device_profile(std::string_view text, std::string_view where);

// A shipped name ("h100-sxm") or a path to a file. An unknown name lists the nearest ones. `folders` are searched in
// order.
Result<DeviceProfile> load_device_profile(std::string_view name_or_path,
                                          const std::vector<std::filesystem::path>& folders);
std::vector<std::string> device_profile_names(const std::vector<std::filesystem::path>& folders);

// Memory as fast as that in place of the profile's figure, which it must have; what ranks share in proportion, caches
// as they are.
void set_memory_bandwidth(DeviceProfile& profile, const Figure& bytes_per_s);

// The JSON text that parse_device_profile reads.
std::string device_profile_json(const DeviceProfile& profile);

// The names that are most like `wanted`, best first; for messages.
std::vector<std::string> nearest_names(std::string_view wanted, const std::vector<std::string>& names,
                                       size_t at_most = 3);

}  // namespace weft
