#include "planner/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kernels/machine_bench/machine_bench.h"
#include "planner/calibration_cases.h"
#include "planner/comm_calibration.h"
#include "planner/cost_model.h"

namespace weft {
namespace {

constexpr double kCacheOverMemory = 4;  // stands behind the measured efficiencies: what it is does not matter

Figure measured(double value) { return {value, true, "weft calibrate"}; }

// The machine without efficiencies: what rooflines are computed with.
DeviceProfile bare_profile(const MachineLimits& limits, const CalibrationOptions& options, int cores) {
  DeviceProfile profile;
  profile.name = "this-machine";
  profile.vendor = "CPU";
  profile.description = fmt::format("{} cores, {}, measured by weft calibrate", cores, isa_name(options.isa));
  profile.cores = cores;
  profile.isa = isa_name(options.isa);
  const double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  profile.nominal_bytes = profile.visible_bytes = {bytes, true, "what the operating system reports"};
  const double all_cores = limits.read_bytes_per_s.back();
  profile.memory_bytes_per_s = measured(all_cores);
  profile.cache_bytes = {static_cast<double>(limits.last_level_cache_bytes), true, "what the operating system reports"};
  profile.cache_bytes_per_s = {kCacheOverMemory * all_cores, true,
                               "four times the memory's; the efficiencies were measured against it"};
  profile.matrix_flops_per_s[DType::kF32] = measured(limits.f32_flops_per_s);
  if (options.isa == Isa::kAvx512Bf16 && limits.bf16_dot_flops_per_s > 0) {
    profile.matrix_flops_per_s[DType::kBF16] = measured(limits.bf16_dot_flops_per_s);
  }
  if (options.isa >= Isa::kAvx512Vbmi && limits.int8_dot_ops_per_s > 0) {
    profile.matrix_flops_per_s[DType::kI8] = measured(limits.int8_dot_ops_per_s);
  }
  // Most operations are no multiply-adds.
  profile.vector_flops_per_s[DType::kF32] = measured(limits.f32_flops_per_s / 2);
  const Figure nothing = {0, true, "part of the measured times of the ops"};
  profile.launch_eager = profile.launch_graph = {nothing, nothing, nothing};
  for (const char* kind : {"matrix", "vector", "memory"}) {
    EfficiencyTable one;
    one.op = kind;
    one.values = {1};
    one.provenance = measured(0);
    profile.efficiency.push_back(std::move(one));
  }
  return profile;
}

struct Placing {
  int ranks, threads;
};

// 1 rank of all cores, 2 of half of them, ...
std::vector<Placing> placings(int cores, int max_ranks) {
  std::vector<Placing> list;
  for (int ranks = 1; ranks <= std::min(cores, max_ranks); ranks *= 2) list.push_back({ranks, cores / ranks});
  return list;
}

class Calibration {
 public:
  Calibration(const CalibrationOptions& options, const CalibrationProgress& progress)
      : options_(options), progress_(progress) {}

  Result<DeviceProfile> run() {
    const int cores = static_cast<int>(usable_cores().size());
    report("memory bandwidth and peaks");
    KernelBenchOptions bench;
    bench.isa = options_.isa;
    WEFT_ASSIGN_OR_RETURN(const MachineLimits limits, measure_machine(bench));
    profile_ = bare_profile(limits, options_, cores);
    for (int ranks = 1; ranks <= cores; ++ranks) {
      for (int threads = 1; ranks * threads <= cores; ++threads) {
        profile_.shared_bandwidth.push_back(
            {ranks, threads, limits.read_bytes_per_s[static_cast<size_t>(ranks * threads - 1)] / ranks});
      }
    }
    bare_ = profile_;
    const std::vector<Placing> all = placings(cores, options_.max_ranks);
    const std::vector<CalibrationTable> tables = calibration_tables();
    // Twice, far apart, and the shorter times: what else the machine does for some seconds is not its speed.
    constexpr int kPasses = 2;
    std::vector<std::vector<Timed>> times(all.size() * tables.size());
    WEFT_ASSIGN_OR_RETURN(memory_, ReadBandwidth::create(options_.isa));
    for (int pass = 0; pass < kPasses; ++pass) {
      for (size_t p = 0; p < all.size(); ++p) {
        WEFT_ASSIGN_OR_RETURN(const auto ops, OpBench::make(all[p].ranks, all[p].threads, options_.isa));
        for (size_t t = 0; t < tables.size(); ++t)
          WEFT_RETURN_IF_ERROR(measure(tables[t], *ops, times[p * tables.size() + t]));
        if (pass == 0) WEFT_RETURN_IF_ERROR(among_others(*ops, tables));
      }
    }
    for (size_t p = 0; p < all.size(); ++p) {
      for (size_t t = 0; t < tables.size(); ++t)
        WEFT_RETURN_IF_ERROR(add_table(tables[t], all[p], times[p * tables.size() + t]));
    }
    std::sort(bandwidths_.begin(), bandwidths_.end());
    set_memory_bandwidth(profile_,
                         {bandwidths_[bandwidths_.size() / 2], true, "weft calibrate: median of the calibration"});
    class_tables();
    WEFT_RETURN_IF_ERROR(collectives(all));
    return std::move(profile_);
  }

 private:
  void report(std::string_view what) {
    if (progress_) progress_(what);
  }

  // Of one shape, and how fast memory was meanwhile.
  struct Timed {
    double seconds = std::numeric_limits<double>::infinity(), bytes_per_s = 0;
  };

  // The shorter of these and of earlier times. Memory is measured before and after the table: on a shared machine it is
  // faster in one minute than in the next, and what an op makes of it is not.
  Status measure(const CalibrationTable& table, OpBench& ops, std::vector<Timed>& times) {
    report(fmt::format("{}{}, {} x {} threads", table.op, table.cached ? ", cached" : "", ops.ranks(), ops.threads()));
    times.resize(table.cases.size());
    const double before = memory_->measure();
    std::vector<double> seconds;
    for (const OpCase& test : table.cases) {
      WEFT_ASSIGN_OR_RETURN(seconds.emplace_back(), ops.measure(test, table.cached, options_.seconds_per_point));
    }
    const double bytes_per_s = (before + memory_->measure()) / 2;
    bandwidths_.push_back(bytes_per_s);
    for (size_t i = 0; i < times.size(); ++i) {
      if (seconds[i] < times[i].seconds) times[i] = {seconds[i], bytes_per_s};
    }
    return {};
  }

  // What an op would take, were all of its efficiencies 1.
  Result<double> roofline(const OpCase& test, const ValueTypes& out, const CostEnv& env, double bytes_per_s) const {
    DeviceProfile then = bare_;
    set_memory_bandwidth(then, measured(bytes_per_s));
    WEFT_ASSIGN_OR_RETURN(const CostModel bare, CostModel::create(std::move(then)));
    WEFT_ASSIGN_OR_RETURN(const OpCost cost, bare.cost(test.op, test.in, out, env));
    return cost.seconds;
  }

  Status add_table(const CalibrationTable& table, const Placing& placing, const std::vector<Timed>& times) {
    EfficiencyTable result;
    result.op = table.op;
    result.ranks = placing.ranks;
    result.threads = placing.threads;
    result.cached = table.cached;
    result.measured = true;
    result.provenance = measured(0);
    std::vector<ShapePoint> points;
    for (const OpCase& test : table.cases) {
      WEFT_ASSIGN_OR_RETURN(const ValueTypes out,
                            std::visit([&](const auto& op) { return op.infer(test.in); }, test.op));
      StepBatch batch;
      batch.segments = test.segments;
      CostEnv env;
      env.threads = placing.threads;
      env.local_ranks = placing.ranks;
      env.batch = test.segments.empty() ? nullptr : &batch;
      env.working_set_bytes = table.cached ? 1 : 0;
      const WorkEnv work_env{.num_threads = 1, .segments = test.segments};
      const Work work = std::visit([&](const auto& op) { return op.work(test.in, out, work_env); }, test.op);
      if (points.empty() && work.unit == WorkUnit::kMatrix) {
        result.weight = dtype_name(work.weight);
        result.activation = dtype_name(work.activation);
      }
      const Timed& timed = times[points.size()];
      WEFT_ASSIGN_OR_RETURN(const double ideal, roofline(test, out, env, timed.bytes_per_s));
      constexpr double kLeast = 1e-6, kMost = 100;
      result.values.push_back(std::clamp(ideal / timed.seconds, kLeast, kMost));
      points.push_back(shape_point(work, test.in, out));
    }
    // Values of the axes: along each, of the points where the others are at their first.
    size_t stride = points.size();
    for (size_t a = 0; a < table.axes.size(); ++a) {
      stride /= table.extents[a];
      const auto feature =
          static_cast<size_t>(std::find(kTableAxes.begin(), kTableAxes.end(), table.axes[a]) - kTableAxes.begin());
      EfficiencyTable::Axis axis{table.axes[a], {}};
      for (size_t i = 0; i < table.extents[a]; ++i) axis.values.push_back(points[i * stride][feature]);
      result.axes.push_back(std::move(axis));
    }
    profile_.efficiency.push_back(std::move(result));
    if (table.op == Experts::kName) {  // the same kernel
      profile_.efficiency.push_back(profile_.efficiency.back());
      profile_.efficiency.back().op = ExpertSlots::kName;
    }
    return {};
  }

  // What an op takes longer in a step than by itself, again and again: the launch of every op.
  Status among_others(OpBench& ops, const std::vector<CalibrationTable>& tables) {
    std::vector<const OpCase*> smallest;
    double alone = 0;
    for (const CalibrationTable& table : tables) {
      if (table.cached) continue;
      smallest.push_back(&table.cases.front());
      WEFT_ASSIGN_OR_RETURN(const double seconds, ops.measure(table.cases.front(), true, options_.seconds_per_point));
      alone += seconds;
    }
    WEFT_ASSIGN_OR_RETURN(const double together, ops.measure_in_turn(smallest, true, 10 * options_.seconds_per_point));
    const double launch = std::max(0.0, (together - alone) / static_cast<double>(smallest.size()));
    launches_.push_back(launch);
    const Figure figure = {*std::max_element(launches_.begin(), launches_.end()), true,
                           "weft calibrate: small ops in turn, against each by itself"};
    profile_.launch_eager = profile_.launch_graph = {figure, figure, figure};
    return {};
  }

  // Ops without a table of their own: what the most similar ones reach where they are large.
  void class_tables() {
    const auto largest = [&](std::string_view op) {
      for (const EfficiencyTable& table : profile_.efficiency) {
        if (table.op == op && table.ranks == 1) return table.values.back();
      }
      return 1.0;
    };
    const auto set = [&](std::string_view kind, double value, std::string source) {
      for (EfficiencyTable& table : profile_.efficiency) {
        if (table.op != kind) continue;
        table.values = {value};
        table.provenance.source = std::move(source);
        return;
      }
    };
    set("matrix", largest("linear"), "weft calibrate: the largest linear layer");
    set("vector", largest("rms_norm"), "weft calibrate: the largest norm");
    set("memory", largest("swiglu"), "weft calibrate: the largest swiglu");
  }

  Status collectives(const std::vector<Placing>& list) {
    for (const Placing& placing : list) {
      if (placing.ranks == 1) continue;
      report(fmt::format("collectives of {} ranks", placing.ranks));
      WEFT_RETURN_IF_ERROR(calibrate_thread_collectives(placing.ranks, placing.threads, profile_));
    }
    return {};
  }

  const CalibrationOptions& options_;
  const CalibrationProgress& progress_;
  DeviceProfile bare_, profile_;
  std::optional<ReadBandwidth> memory_;
  std::vector<double> bandwidths_;
  std::vector<double> launches_;
};

}  // namespace

Result<DeviceProfile> calibrate(const CalibrationOptions& options, const CalibrationProgress& progress) {
  return Calibration(options, progress).run();
}

}  // namespace weft
