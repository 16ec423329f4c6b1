#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace weft {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64}) {
        std::vector<int> hits(count, 0);
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LE(end - begin, grain);
          EXPECT_LT(worker, pool.size());
          for (int64_t i = begin; i < end; ++i) ++hits[i];
        });
        EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), count);
      }
    }
  }
}

TEST(ThreadPool, ManyShortCallsAndSleepsBetween) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20; ++round) {
    for (int call = 0; call < 200; ++call) {
      pool.parallel_for(8, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than the workers spin
  }
  EXPECT_EQ(sum, 20 * 200 * 28);
}

}  // namespace
}  // namespace weft
