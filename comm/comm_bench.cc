// Speed of the collectives, as text: small calls in microseconds, 64 MiB calls as bytes per second beside a memory copy
// that as many threads make at the same time.
//
//   weft_comm_bench [RANKS]               ranks as threads (2 if not given)
//   mpirun -n 2 weft_comm_bench --mpi
//
// Bytes of a large call are what a rank must read and write at least: all_gather T + T (T = 64 MiB of gathered rows,
// its own among them), reduce_scatter P * T/P partials read, T/P written. The copy counts its reads and writes, too.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/function_ref.h"
#include "comm/mpi_comm.h"
#include "comm/thread_comm.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLarge = int64_t{64} << 20;
constexpr int64_t kSmall = 4096;
constexpr int kSmallCalls = 20'000, kLargeCalls = 15;

struct Sample {
  double median_s = 0, p90_s = 0;
};

// All ranks run `call`; the figures of rank 0 are printed.
Result<Sample> measure(Communicator& comm, int calls, FunctionRef<Status()> call) {
  std::vector<double> times(calls);
  for (int i = 0; i < calls / 10 + 1; ++i) WEFT_RETURN_IF_ERROR(call());
  for (double& time : times) {
    // Large calls start together; small ones follow each other without pause.
    if (calls < 1000) WEFT_RETURN_IF_ERROR(comm.barrier("start"));
    const Clock::time_point start = Clock::now();
    WEFT_RETURN_IF_ERROR(call());
    time = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::sort(times.begin(), times.end());
  return Sample{times[calls / 2], times[calls * 9 / 10]};
}

Status small_calls(Communicator& comm, std::byte* src, std::byte* dst) {
  const int P = comm.size();
  const auto row = [&](std::string_view name, FunctionRef<Status()> call) -> Status {
    WEFT_ASSIGN_OR_RETURN(const Sample sample, measure(comm, kSmallCalls, call));
    if (comm.rank() == 0) {
      std::printf("%s", fmt::format("{:<28} {:>8.2f} us median {:>8.2f} us p90\n", name, sample.median_s * 1e6,
                                    sample.p90_s * 1e6)
                            .c_str());
    }
    return {};
  };
  auto* floats = reinterpret_cast<float*>(src);
  WEFT_RETURN_IF_ERROR(row("barrier", [&] { return comm.barrier("barrier"); }));
  WEFT_RETURN_IF_ERROR(row("all_gather 4 KiB", [&] {
    return comm.all_gather("x", {.src = src, .dst = dst, .rows = P, .row_bytes = kSmall / P});
  }));
  WEFT_RETURN_IF_ERROR(row("reduce_scatter 4 KiB", [&] {
    return comm.reduce_scatter("x", {.src = floats, .dst = dst, .rows = P, .width = kSmall / 4 / P});
  }));
  WEFT_RETURN_IF_ERROR(row("all_reduce 4 KiB to BF16", [&] {
    return comm.all_reduce("x",
                           {.src = floats, .dst = dst, .dst_dtype = DType::kBF16, .rows = P, .width = kSmall / 4 / P});
  }));
  WEFT_RETURN_IF_ERROR(row("all_to_all 4 KiB",
                           [&] { return comm.all_to_all("x", heads_to_tokens(src, dst, P, 4, kSmall / 4 / P * P)); }));
  return row("broadcast 4 KiB", [&] { return comm.broadcast("x", dst, kSmall, 0); });
}

Status large_calls(Communicator& comm, std::byte* src, std::byte* dst) {
  const int P = comm.size();
  double copy_bytes_per_s = 0;
  const auto row = [&](std::string_view name, int64_t bytes, FunctionRef<Status()> call) -> Status {
    WEFT_ASSIGN_OR_RETURN(const Sample sample, measure(comm, kLargeCalls, call));
    const double bytes_per_s = static_cast<double>(bytes) / sample.median_s;
    if (copy_bytes_per_s == 0) copy_bytes_per_s = bytes_per_s;
    if (comm.rank() == 0) {
      std::printf("%s", fmt::format("{:<28} {:>8.2f} ms median {:>8.2f} GB/s a rank {:>5.0f} % of the copy\n", name,
                                    sample.median_s * 1e3, bytes_per_s * 1e-9, 100 * bytes_per_s / copy_bytes_per_s)
                            .c_str());
    }
    return {};
  };
  constexpr int64_t kWidth = 4096;
  auto* floats = reinterpret_cast<float*>(src);
  const int64_t rows = kLarge / kWidth / 4;
  WEFT_RETURN_IF_ERROR(row("memcpy 64 MiB, all ranks", 2 * kLarge, [&] {
    std::memcpy(dst, src, kLarge);
    return comm.barrier("copied");
  }));
  WEFT_RETURN_IF_ERROR(row("all_gather 64 MiB", 2 * kLarge, [&] {
    return comm.all_gather("x", {.src = src, .dst = dst, .rows = rows, .row_bytes = kWidth * 4});
  }));
  WEFT_RETURN_IF_ERROR(row("reduce_scatter 64 MiB to F32", kLarge + kLarge / P, [&] {
    return comm.reduce_scatter("x", {.src = floats, .dst = dst, .rows = rows, .width = kWidth});
  }));
  WEFT_RETURN_IF_ERROR(row("reduce_scatter 64 MiB to BF16", kLarge + kLarge / P / 2, [&] {
    return comm.reduce_scatter("x",
                               {.src = floats, .dst = dst, .dst_dtype = DType::kBF16, .rows = rows, .width = kWidth});
  }));
  WEFT_RETURN_IF_ERROR(row("all_reduce 64 MiB to BF16", kLarge + kLarge / P + kLarge / 2, [&] {
    return comm.all_reduce("x", {.src = floats, .dst = dst, .dst_dtype = DType::kBF16, .rows = rows, .width = kWidth});
  }));
  return row("heads to tokens 64 MiB", 2 * kLarge,
             [&] { return comm.all_to_all("x", heads_to_tokens(src, dst, P, kLarge / 65536, 65536)); });
}

Status bench(Communicator& comm) {
  WEFT_ASSIGN_OR_RETURN(const Buffer src, Buffer::allocate(kLarge));
  WEFT_ASSIGN_OR_RETURN(const Buffer dst, Buffer::allocate(kLarge));
  std::memset(src.data(), 0x11, kLarge);
  std::memset(dst.data(), 0x11, kLarge);
  WEFT_RETURN_IF_ERROR(small_calls(comm, src.data(), dst.data()));
  return large_calls(comm, src.data(), dst.data());
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--mpi") {
    MpiOptions options;
    options.print = [](const Status& status) { std::fprintf(stderr, "weft: %s\n", status.message().c_str()); };
    auto job = MpiWorld::start(options);
    if (!job.ok()) return options.print(job.status()), options.exit_code;
    Status status = bench((*job)->world());
    if (status.ok()) status = (*job)->finish();
    if (!status.ok()) (*job)->end_job(status);
    return 0;
  }
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const RankRun result = run_thread_ranks(ranks, {}, bench);
  if (!result.status.ok()) std::fprintf(stderr, "weft: %s\n", result.status.message().c_str());
  return result.status.ok() ? 0 : 3;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run(argc, argv); }
