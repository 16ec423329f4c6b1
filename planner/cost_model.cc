#include "planner/cost_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace weft {
namespace {

// Dtypes from the narrowest: products run at the peak of the first one, from their own on, that the device has.
constexpr std::array<DType, 6> kWidening = {DType::kF4E2M1, DType::kF8E4M3, DType::kI8,
                                            DType::kBF16,   DType::kF16,    DType::kF32};

size_t width_place(DType dtype) {
  const auto it = std::find(kWidening.begin(), kWidening.end(), dtype);
  return it == kWidening.end() ? kWidening.size() - 1 : static_cast<size_t>(it - kWidening.begin());
}

// int8 and fp8 have the same width and no products with each other: both go on to bf16.
bool widens_to(DType from, DType to) {
  return !(from == DType::kF8E4M3 && to == DType::kI8) && !(from == DType::kF4E2M1 && to == DType::kI8);
}

CollectiveKind kind_of(CommPattern pattern) {
  switch (pattern) {
    case CommPattern::kAllReduce: return CollectiveKind::kAllReduce;
    case CommPattern::kReduceScatter: return CollectiveKind::kReduceScatter;
    case CommPattern::kAllGather: return CollectiveKind::kAllGather;
    case CommPattern::kAllToAll:
    case CommPattern::kNone: break;
  }
  return CollectiveKind::kAllToAll;
}

// Bytes of the value that a collective is about, from what a rank sends (planner/collective_cost.h).
double value_bytes(const Work& work) {
  const auto n = static_cast<double>(work.group_size);
  const double whole = static_cast<double>(work.bytes_sent) * n / (n - 1);
  return work.pattern == CommPattern::kAllReduce ? whole / 2 : whole;
}

CostSource source_of(const TableValue& value, bool exact) {
  if (!exact || value.match == TableMatch::kHeld) return CostSource::kRoofline;
  return value.match == TableMatch::kMeasured ? CostSource::kMeasured : CostSource::kInterpolated;
}

}  // namespace

WorkEnv with_rows(WorkEnv env, TypeSpan in, const StepBatch& batch, const RowSets* row_sets) {
  static constexpr Segment kNoRows;  // an empty list would stand for the longest context
  if (in.empty()) return env;
  const RowSet set = row_set(in[0].placement);
  WEFT_CHECK(set == RowSet::kAll || row_sets != nullptr, "rows are split, but there are no row sets");
  env.segments =
      set == RowSet::kAll ? std::span<const Segment>(batch.segments) : row_sets->of(Rows::kTokens, set).segments;
  if (env.segments.empty()) env.segments = {&kNoRows, 1};
  return env;
}

// What one rank has of the device.
struct CostModel::Rates {
  double arithmetic = 1;   // part of the peaks
  double memory = 0;       // bytes per second
  double cache = 0;        // 0: reading it costs nothing
  double cache_bytes = 0;  // its part
};

CostModel::CostModel(DeviceProfile device) : device_(std::move(device)), efficiency_(device_.efficiency) {}

Result<CostModel> CostModel::create(DeviceProfile device) {
  if (device.missing.empty()) return CostModel(std::move(device));
  return invalid_argument(
      fmt::format("device {} has no {}: times cannot be told; {}", device.name, fmt::join(device.missing, ", "),
                  "measure the device and add the figures to a copy of its profile (docs/devices.md)"));
}

CostModel::Rates CostModel::rates(const CostEnv& env) const {
  Rates rates;
  const auto ranks = static_cast<double>(std::max(1, env.local_ranks));
  rates.memory = device_.memory_bytes_per_s->value / ranks;
  rates.cache = device_.cache_bytes_per_s ? device_.cache_bytes_per_s->value / ranks : 0;
  rates.cache_bytes = device_.cache_bytes ? device_.cache_bytes->value / ranks : 0;
  if (!device_.is_cpu()) return rates;
  rates.arithmetic = std::min(static_cast<double>(env.threads) / device_.cores, 1 / ranks);
  rates.cache *= std::min(1.0, env.threads * ranks / device_.cores);
  // The point with as many ranks and threads, or with the nearest number of both together.
  const SharedBandwidth* best = nullptr;
  const auto distance = [&](const SharedBandwidth& s) {
    return std::pair(std::abs(s.ranks * s.threads - env.local_ranks * env.threads),
                     std::abs(s.ranks - env.local_ranks));
  };
  for (const SharedBandwidth& s : device_.shared_bandwidth) {
    if (best == nullptr || distance(s) < distance(*best)) best = &s;
  }
  if (best != nullptr) rates.memory = best->bytes_per_s * best->ranks / ranks;
  return rates;
}

const Figure& CostModel::matrix_peak(DType weight, DType activation) const {
  const size_t wider = std::max(width_place(weight), width_place(activation));
  for (size_t i = wider; i < kWidening.size(); ++i) {
    const auto it = device_.matrix_flops_per_s.find(kWidening[i]);
    if (it != device_.matrix_flops_per_s.end() && widens_to(kWidening[wider], kWidening[i])) return it->second;
  }
  return vector_peak(DType::kF32);
}

const Figure& CostModel::vector_peak(DType dtype) const {
  const auto it = device_.vector_flops_per_s.find(dtype);
  if (it != device_.vector_flops_per_s.end()) return it->second;
  const auto f32 = device_.vector_flops_per_s.find(DType::kF32);
  return f32 != device_.vector_flops_per_s.end() ? f32->second : device_.vector_flops_per_s.begin()->second;
}

OpCost CostModel::local(const Op& op, const Work& work, TypeSpan in, TypeSpan out, const CostEnv& env) const {
  const Rates rates = this->rates(env);
  const bool matrix = work.unit == WorkUnit::kMatrix;
  const DType activation = matrix || in.empty() ? work.activation : in[0].dtype();
  const Figure& peak = matrix_peak(work.weight, work.activation);
  const Figure& vector = vector_peak(activation);
  const LaunchCosts& launches = env.launch == LaunchMode::kEager ? device_.launch_eager : device_.launch_graph;
  const Figure& launch = matrix ? launches.matrix_s : launches.vector_s;

  // Weights and caches come from memory, unless all that a step touches stays in the cache; what the step has just made is in the
  // cache if it fits; what rows of a step read again is at hand. An efficiency is of the roofline that it was measured against.
  const bool stays =
      env.working_set_bytes > 0 && rates.cache_bytes > 0 && env.working_set_bytes <= device_.cache_bytes->value;
  const ShapePoint point = shape_point(work, in, out);
  const TableKey key{dtype_name(work.weight), dtype_name(activation), env.local_ranks, env.threads, stays};
  const EfficiencySet::Found found = efficiency_.find(op, key);
  const bool resident = found.grid != nullptr ? found.grid->table().cached : stays;
  const auto stored = static_cast<double>(work.bytes_stored - work.bytes_repeated);
  const auto made = static_cast<double>(work.bytes_read - work.bytes_stored + work.bytes_written);
  const auto repeated = static_cast<double>(work.bytes_repeated);
  const auto seconds_of = [&](double bytes, bool cached) {
    return cached ? (rates.cache > 0 ? bytes / rates.cache : 0) : bytes / rates.memory;
  };
  const double memory_s =
      seconds_of(stored, resident) + seconds_of(made, made <= rates.cache_bytes) + seconds_of(repeated, true);
  const double matrix_s = matrix ? work.flops / (peak.value * rates.arithmetic) : 0;
  const double vector_s = ((matrix ? 0 : work.flops) + work.vector_beside) / (vector.value * rates.arithmetic);
  const double apart_s = work.vector_apart / (vector.value * rates.arithmetic);

  OpCost cost;
  cost.flops = work.flops;
  cost.bytes = static_cast<double>(work.bytes_read - work.bytes_repeated + work.bytes_written);
  double scale_matrix = 1, scale_vector = 1, scale_memory = 1;
  if (found.grid != nullptr) {
    const TableValue value = found.grid->at(point);
    scale_matrix = scale_vector = scale_memory = 1 / value.value;
    cost.source = found.grid->table().measured ? source_of(value, found.exact) : CostSource::kRoofline;
    cost.unverified = found.grid->table().provenance.marks();
  } else {
    const auto scale = [&](std::string_view name, double term) {
      const EfficiencyGrid* grid = efficiency_.find_class(name);
      if (grid == nullptr) grid = efficiency_.find_class("memory");
      if (term > 0) cost.unverified |= grid->table().provenance.marks();
      return 1 / grid->at(point).value;
    };
    scale_matrix = scale("matrix", matrix_s);
    scale_vector = scale("vector", vector_s + apart_s);
    scale_memory = scale("memory", memory_s);
  }
  cost.matrix_term_s = matrix_s * scale_matrix;
  cost.vector_term_s = (vector_s + apart_s) * scale_vector;
  cost.memory_term_s = memory_s * scale_memory;
  cost.launch_s = launch.value;
  const double beside_s = vector_s * scale_vector, most = std::max({cost.matrix_term_s, beside_s, cost.memory_term_s});
  const double work_s = most + apart_s * scale_vector;
  cost.seconds = work_s + cost.launch_s;
  const bool by_memory = cost.memory_term_s == most && most > 0;
  cost.compute_s = by_memory ? work_s - most : work_s;
  cost.memory_s = by_memory ? most : 0;
  cost.bound = cost.launch_s >= work_s      ? Bound::kLaunch
               : by_memory                  ? Bound::kMemory
               : cost.matrix_term_s == most ? Bound::kMatrix
                                            : Bound::kVector;
  cost.unverified |= launch.marks();
  if (matrix_s > 0) cost.unverified |= peak.marks();
  if (vector_s + apart_s > 0) cost.unverified |= vector.marks();
  if (stored + made + repeated > 0) {  // the cache decides what comes from memory
    cost.unverified |= device_.memory_bytes_per_s->marks();
    for (const auto& figure : {device_.cache_bytes, device_.cache_bytes_per_s})
      cost.unverified |= figure ? figure->marks() : 0;
  }
  return cost;
}

Result<OpCost> CostModel::collective(const Op& op, const Work& work, const CostEnv& env) const {
  OpCost cost;
  cost.flops = work.flops;
  cost.bytes = static_cast<double>(work.bytes_read + work.bytes_written);
  cost.bytes_sent = static_cast<double>(work.bytes_sent);
  if (work.group_size <= 1) return cost;
  const GroupShape& group = env.groups[static_cast<size_t>(work.axis)];
  WEFT_CHECK(group.size == work.group_size, "a group of {} along {}, the env says {}", work.group_size,
             mesh_axis_name(work.axis), group.size);
  const auto calls = static_cast<double>(work.calls);
  constexpr double kBytesPerAdded = 3;  // two summands read, one written
  WEFT_ASSIGN_OR_RETURN(const CollectiveCost one,
                        collective_cost(device_, kind_of(work.pattern), group, value_bytes(work) / calls,
                                        rates(env).memory / kBytesPerAdded));
  const LaunchCosts& launches = env.launch == LaunchMode::kEager ? device_.launch_eager : device_.launch_graph;
  cost.network_s = one.seconds * calls;
  cost.unverified = one.unverified | launches.collective_s.marks();
  const TableKey key{"", "", env.local_ranks, env.threads, false};
  if (const EfficiencySet::Found found = efficiency_.find(op, key); found.grid != nullptr) {
    const TableValue value =
        found.grid->at({0, 0, 0, 0, static_cast<double>(work.bytes_sent) / calls, static_cast<double>(group.size)});
    cost.network_s /= value.value;
    cost.source = found.grid->table().measured ? source_of(value, true) : CostSource::kRoofline;
    cost.unverified |= found.grid->table().provenance.marks();
  }
  cost.launch_s = launches.collective_s.value * calls;
  cost.seconds = cost.network_s + cost.launch_s;
  cost.bound = cost.launch_s + one.latency_s * calls > cost.seconds / 2 ? Bound::kLaunch : Bound::kNetwork;
  return cost;
}

Result<OpCost> CostModel::cost(const Op& op, TypeSpan in, TypeSpan out, const CostEnv& env) const {
  WorkEnv work_env{.num_threads = env.threads, .routing = env.routing};
  if (env.batch != nullptr) work_env = with_rows(work_env, in, *env.batch, env.row_sets);
  Work work = std::visit([&](const auto& o) { return o.work(in, out, work_env); }, op);
  if (work.pattern != CommPattern::kNone) {
    if (env.engine != nullptr) work.bytes_sent = sent_bytes_of(*env.engine, op, in, out, work.bytes_sent);
    return collective(op, work, env);
  }
  return local(op, work, in, out, env);
}

Result<OpCost> CostModel::cost(const Graph& graph, const Node& node, const CostEnv& env) const {
  return cost(node.op, types_of(graph, node.in), types_of(graph, node.out), env);
}

Result<CollectiveCost> CostModel::transfer(int from, int to, double bytes, int local_ranks) const {
  const std::array<int, 2> members = {from, to};
  return collective_cost(device_, CollectiveKind::kSendRecv, group_shape(members, device_, local_ranks), bytes);
}

}  // namespace weft
