#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/bytes.h"
#include "comm/conformance.h"
#include "comm/mpi_comm.h"
#include "comm/thread_comm.h"
#include "comm/tree_sum.h"

namespace weft {
namespace {

class ThreadConformance : public testing::TestWithParam<int> {};

TEST_P(ThreadConformance, Passes) {
  const int ranks = GetParam();
  const uint64_t seed = 17 + ranks;
  std::mutex mutex;
  std::vector<std::string> failures;
  int64_t checks = 0;
  const RankRun run = run_thread_ranks(ranks, {}, [&](Communicator& comm) {
    const ConformanceReport report = run_conformance(comm, seed);
    std::lock_guard lock(mutex);
    checks += report.checks;
    failures.insert(failures.end(), report.failures.begin(), report.failures.end());
    return Status();
  });
  EXPECT_TRUE(run.status.ok()) << run.status.message();
  EXPECT_TRUE(failures.empty()) << fmt::format("{} ranks:\n{}", ranks, fmt::join(failures, "\n"));
  EXPECT_GT(checks, 500 * ranks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadConformance, testing::Values(1, 2, 3, 4, 8), testing::PrintToStringParamName());

TEST(ThreadComm, Faults) {
  for (const FaultCase& fault : fault_cases()) {
    if (fault.where == FaultCase::Where::kProcesses || std::string_view(fault.name) == "gone_for_good") continue;
    SCOPED_TRACE(fault.name);
    // Shared: a thread that is left behind may still write when the case is over.
    struct Seen {
      std::mutex mutex;
      std::vector<std::string> messages;  // of each rank
    };
    const auto seen = std::make_shared<Seen>();
    const auto start = std::chrono::steady_clock::now();
    const RankRun run = run_thread_ranks(fault.num_ranks, fault.options, [seen, body = fault.body](Communicator& comm) {
      const Status status = body(comm);
      std::lock_guard lock(seen->mutex);
      if (!status.ok()) seen->messages.push_back(status.message());
      return status;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 5);
    EXPECT_EQ(run.status.ok(), fault.expect.empty()) << run.status.message();
    EXPECT_EQ(missing_text(run.status.message(), fault.expect), "") << run.status.message();
    const std::lock_guard lock(seen->mutex);
    for (const std::string& message : seen->messages) EXPECT_EQ(message, run.status.message());
  }
}

// A thread that never returns cannot be stopped; the others, and the caller, go on in time.
TEST(ThreadComm, LostThreadIsAbandoned) {
  auto release = std::make_shared<std::atomic<bool>>(false);
  auto gone = std::make_shared<std::atomic<bool>>(false);
  const auto start = std::chrono::steady_clock::now();
  const RankRun run = run_thread_ranks(2, {.timeout_s = 0.3}, [release, gone](Communicator& comm) {
    while (comm.rank() == 1 && !*release) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Status status = comm.barrier("start");
    if (comm.rank() == 1) *gone = true;
    return status;
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 2);
  EXPECT_TRUE(run.abandoned || run.status.ok());
  EXPECT_FALSE(run.status.ok());
  *release = true;  // lets the test process end cleanly
  while (!*gone) std::this_thread::yield();
}

// A job that is suspended and goes on: the time in between counts against no rank.
TEST(ThreadComm, APauseOfTheProcessIsNoStandstill) {
  const pid_t self = getpid(), child = fork();
  if (child == 0) {  // only calls that are safe in a copy of a process with threads
    usleep(100'000);
    kill(self, SIGSTOP);
    usleep(700'000);
    kill(self, SIGCONT);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - start; };
  const RankRun run = run_thread_ranks(2, {.timeout_s = 0.5}, [&](Communicator& comm) {
    // Rank 1 comes when the pause is over, and a while later.
    for (int naps = 0; comm.rank() == 1 && (passed() < std::chrono::milliseconds(850) || naps < 12); ++naps) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (passed() < std::chrono::milliseconds(60)) comm.tick();
    }
    return comm.barrier("behind the pause");
  });
  waitpid(child, nullptr, 0);
  EXPECT_GE(passed(), std::chrono::milliseconds(790));
  EXPECT_TRUE(run.status.ok()) << run.status.message();
}

// The thread ends, its endpoint stays.
TEST(ThreadComm, EndedThreadIsNoticed) {
  auto endpoints = make_thread_world(2);
  std::thread thread([&] {
    endpoints[1]->set_step(6);
    EXPECT_TRUE(endpoints[1]->send("x", 0, {}).ok());
  });
  EXPECT_TRUE(endpoints[0]->recv("x", 1, {}).ok());
  thread.join();
  const Status status = endpoints[0]->barrier("next");
  EXPECT_EQ(missing_text(status.message(),
                         {"rank 1/2, step 6, after send 'x'", "the thread of this rank ended unexpectedly"}),
            "")
      << status.message();
}

TEST(ThreadComm, EveryCallAfterAFailureFails) {
  auto endpoints = make_thread_world(1);
  Communicator& comm = *endpoints[0];
  const Status first = comm.abort(invalid_argument("bad"));
  EXPECT_EQ(first.message(), "rank 0/1, step 0, before its first operation: bad");
  EXPECT_EQ(first.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(comm.abort(machine_failed("later")).message(), first.message());
  EXPECT_EQ(comm.barrier("b").message(), first.message());
  EXPECT_EQ(comm.failure().message(), first.message());
  const std::vector<int> self = {0};
  EXPECT_EQ(comm.subgroup(self).status().message(), first.message());
}

TEST(TreeSum, OrderForGroupsThatAreNoPowerOfTwo) {
  // 1, tiny, tiny ...: the result tells the order.
  const float big = 1.0f, tiny = 0x1p-24f;
  std::vector<float> values(9, tiny);
  values[0] = big;
  std::vector<const float*> sources;
  for (const float& value : values) sources.push_back(&value);
  const auto sum = [&](size_t count) {
    float result = 0;
    tree_sum({sources.data(), count}, 1, &result, DType::kF32);
    return result;
  };
  EXPECT_EQ(sum(1), big);
  EXPECT_EQ(sum(2), big + tiny);
  EXPECT_EQ(sum(3), (big + tiny) + tiny);
  EXPECT_EQ(sum(4), (big + tiny) + (tiny + tiny));
  EXPECT_EQ(sum(5), ((big + tiny) + (tiny + tiny)) + tiny);
  EXPECT_EQ(sum(6), ((big + tiny) + (tiny + tiny)) + (tiny + tiny));
  EXPECT_EQ(sum(7), ((big + tiny) + (tiny + tiny)) + ((tiny + tiny) + tiny));
  EXPECT_EQ(sum(9), (((big + tiny) + (tiny + tiny)) + ((tiny + tiny) + (tiny + tiny))) + tiny);
  EXPECT_NE(sum(4), sum(3));
}

// sharding.md 11: V4-Flash CSA layer, N = 8192, P = 4, D = 4096, in MiB.
TEST(CommBytes, TableOfTheReference) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(all_gather_bytes(4, 8192, 4096 * 2), 48 * kMiB);           // L2a: AG x
  EXPECT_EQ(all_to_all_bytes(4, 2048 * 64 * 512 * 2 / 4), 96 * kMiB);  // L2a: heads to tokens
  EXPECT_EQ(reduce_scatter_bytes(4, 8192, 4096), 96 * kMiB);           // L2a: fp32 RS
  EXPECT_EQ(all_reduce_bytes(4, 8192, 4096, 2), (96 + 48) * kMiB);
  EXPECT_EQ(all_gather_bytes(4, 8192, 4 * 4096 * 4), 384 * kMiB);  // four fp32 streams by mistake
  EXPECT_EQ(all_gather_bytes(4, 9, 100), 3 * 3 * 100);             // 9 rows are counted as 12
  EXPECT_EQ(reduce_scatter_bytes(4, 9, 100), 3 * 3 * 400);
  EXPECT_EQ(all_gather_bytes(1, 9, 100), 0);
  EXPECT_EQ(first_row_of_rank(4, 9, 3), 9);
  EXPECT_EQ(broadcast_bytes(4, 2, 3, 10), 0);
  EXPECT_EQ(broadcast_bytes(4, 3, 3, 10), 10);
  EXPECT_EQ(broadcast_bytes(1, 0, 0, 10), 0);
  EXPECT_EQ(all_gather_bytes(8, int64_t{1} << 32, 1 << 14), 7 * (int64_t{1} << 43));  // no 32-bit arithmetic
}

TEST(Mpi, WithoutItTheErrorSaysSo) {
  if (mpi_available()) GTEST_SKIP() << "built with MPI";
  EXPECT_NE(MpiWorld::start({}).status().message().find("built without MPI"), std::string::npos);
}

}  // namespace
}  // namespace weft
