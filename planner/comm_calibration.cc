#include "planner/comm_calibration.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/function_ref.h"
#include "comm/blocks.h"
#include "comm/thread_comm.h"
#include "planner/cost_model.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

constexpr int64_t kWidth = 1024;
constexpr int64_t kRows[] = {8, 64, 512, 8192};  // of fp32 values of kWidth: 32 KiB to 32 MiB
constexpr size_t kNumSizes = std::size(kRows);
static_assert(kNumSizes == CollectiveTimes::kSizes);

// Seconds of one call, median; the same number of calls on every rank.
Result<double> time_calls(Communicator& comm, int64_t bytes, FunctionRef<Status()> call) {
  constexpr int64_t kBytesToMove = int64_t{256} << 20;
  const int calls = static_cast<int>(std::clamp<int64_t>(kBytesToMove / std::max<int64_t>(bytes, 1), 7, 2000));
  std::vector<double> times(static_cast<size_t>(calls));
  WEFT_RETURN_IF_ERROR(call());
  for (double& time : times) {
    WEFT_RETURN_IF_ERROR(comm.barrier("start"));
    const auto start = Clock::now();
    WEFT_RETURN_IF_ERROR(call());
    time = seconds_since(start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The ops whose time these are, at the sizes that were measured.
struct Call {
  Op op;
  ValueType in;
};

Call call_of(CollectiveKind kind, int64_t ranks, int64_t rows) {
  constexpr auto kTp = static_cast<size_t>(MeshAxis::kTp);
  const MeshAxis axis = MeshAxis::kTp;
  ValueType x{{DType::kF32, {rows, kWidth}}, Rows::kTokens};
  switch (kind) {
    case CollectiveKind::kAllReduce:
      x.placement[kTp] = Placement::partial();
      return {AllReduce{axis, ranks, DType::kBF16}, x};
    case CollectiveKind::kReduceScatter:
      x.placement[kTp] = Placement::partial();
      return {ReduceScatter{axis, ranks, DType::kBF16, (rows + ranks - 1) / ranks}, x};
    case CollectiveKind::kAllGather:
      x.tensor.shape[0] = (rows + ranks - 1) / ranks;
      x.placement[kTp] = Placement::sharded(0);
      return {AllGather{axis, ranks, 0, rows}, x};
    default:
      x.tensor.shape = {rows / ranks, ranks, kWidth / ranks};
      x.placement[kTp] = Placement::sharded(0);
      return {HeadsToRows{axis, ranks, rows / ranks * ranks}, x};
  }
}

}  // namespace

Result<CollectiveTimes> measure_collectives(Communicator& comm) {
  const int64_t most = kRows[kNumSizes - 1] * kWidth * 4;
  WEFT_ASSIGN_OR_RETURN(const Buffer src, Buffer::allocate(most));
  WEFT_ASSIGN_OR_RETURN(const Buffer dst, Buffer::allocate(most));
  std::memset(src.data(), 0, static_cast<size_t>(most));
  std::memset(dst.data(), 0, static_cast<size_t>(most));
  const auto* floats = reinterpret_cast<const float*>(src.data());
  CollectiveTimes times;
  WEFT_ASSIGN_OR_RETURN(times.barrier, time_calls(comm, 1 << 18, [&] { return comm.barrier("barrier"); }));
  for (size_t i = 0; i < kNumSizes; ++i) {
    const int64_t rows = kRows[i], bytes = rows * kWidth * 4;
    WEFT_ASSIGN_OR_RETURN(
        times.all_reduce[i], time_calls(comm, bytes, [&] {
          return comm.all_reduce(
              "x", {.src = floats, .dst = dst.data(), .dst_dtype = DType::kBF16, .rows = rows, .width = kWidth});
        }));
    WEFT_ASSIGN_OR_RETURN(
        times.reduce_scatter[i], time_calls(comm, bytes, [&] {
          return comm.reduce_scatter(
              "x", {.src = floats, .dst = dst.data(), .dst_dtype = DType::kBF16, .rows = rows, .width = kWidth});
        }));
    WEFT_ASSIGN_OR_RETURN(times.all_gather[i], time_calls(comm, bytes, [&] {
                            return comm.all_gather(
                                "x", {.src = src.data(), .dst = dst.data(), .rows = rows, .row_bytes = kWidth * 4});
                          }));
    WEFT_ASSIGN_OR_RETURN(times.all_to_all[i], time_calls(comm, bytes, [&] {
                            return comm.all_to_all("x", heads_to_tokens(src.data(), dst.data(), comm.size(),
                                                                        rows / comm.size(), kWidth * 4));
                          }));
  }
  return times;
}

Status add_collectives(const CollectiveTimes& times, int ranks, int threads, std::string_view text,
                       DeviceProfile& profile) {
  const std::string source(text);
  const bool known = std::any_of(profile.links.begin(), profile.links.end(),
                                 [](const Link& link) { return link.kind == LinkKind::kHostMemory; });
  if (!known) {
    Link link;
    link.level = "machine";
    link.kind = LinkKind::kHostMemory;
    const double bytes = static_cast<double>(kRows[kNumSizes - 1] * kWidth * 4) * (ranks - 1) / ranks;
    link.bytes_per_s = {ranks * bytes / times.all_gather[kNumSizes - 1], true, source};
    link.latency_s = {times.barrier, true, source};
    profile.links.insert(profile.links.begin(), std::move(link));
  }
  DeviceProfile bare = profile;
  bare.efficiency.erase(
      std::remove_if(bare.efficiency.begin(), bare.efficiency.end(), [](const auto& t) { return t.measured; }),
      bare.efficiency.end());
  WEFT_ASSIGN_OR_RETURN(const CostModel model, CostModel::create(std::move(bare)));
  CostEnv env;
  env.threads = threads;
  env.local_ranks = ranks;
  std::vector<int> members(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) members[static_cast<size_t>(r)] = r;
  env.groups[static_cast<size_t>(MeshAxis::kTp)] = group_shape(members, model.device(), ranks);
  const auto add = [&](std::vector<std::string> ops, CollectiveKind kind,
                       const std::array<double, kNumSizes>& seconds) -> Status {
    EfficiencyTable table;
    table.ranks = ranks;
    table.threads = threads;
    table.measured = true;
    table.provenance = {0, true, source};
    table.axes = {{"bytes", {}}};
    for (size_t i = 0; i < kNumSizes; ++i) {
      const Call call = call_of(kind, ranks, kRows[i]);
      WEFT_ASSIGN_OR_RETURN(const ValueTypes out, std::visit(
                                                      [&](const auto& op) {
                                                        return op.infer({&call.in, 1});
                                                      },
                                                      call.op));
      WEFT_ASSIGN_OR_RETURN(const OpCost cost, model.cost(call.op, {&call.in, 1}, out, env));
      table.axes[0].values.push_back(cost.bytes_sent);
      table.values.push_back(cost.network_s / seconds[i]);
    }
    for (std::string& op : ops) {
      std::erase_if(profile.efficiency, [&](const EfficiencyTable& t) { return t.op == op && t.ranks == ranks; });
      table.op = std::move(op);
      profile.efficiency.push_back(table);
    }
    return {};
  };
  WEFT_RETURN_IF_ERROR(add({"all_reduce"}, CollectiveKind::kAllReduce, times.all_reduce));
  WEFT_RETURN_IF_ERROR(add({"reduce_scatter"}, CollectiveKind::kReduceScatter, times.reduce_scatter));
  WEFT_RETURN_IF_ERROR(add({"all_gather", "shared_quantise"}, CollectiveKind::kAllGather, times.all_gather));
  return add({"heads_to_rows", "expert_dispatch", "expert_combine"}, CollectiveKind::kAllToAll, times.all_to_all);
}

Status calibrate_thread_collectives(int ranks, int threads, DeviceProfile& profile) {
  CollectiveTimes times;
  const RankRun run = run_thread_ranks(ranks, {}, [&](Communicator& comm) -> Status {
    WEFT_ASSIGN_OR_RETURN(const CollectiveTimes mine, measure_collectives(comm));
    if (comm.rank() == 0) times = mine;
    return {};
  });
  WEFT_RETURN_IF_ERROR(run.status);
  return add_collectives(times, ranks, threads, "weft calibrate, ranks as threads of one process", profile);
}

}  // namespace weft
