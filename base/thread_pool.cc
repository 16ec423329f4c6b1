#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace weft {
namespace {

// How long an idle worker spins before it sleeps. Decode steps issue a call every few microseconds; sleeping between
// them would cost a wake-up (tens of microseconds) each.
constexpr auto kSpinTime = std::chrono::microseconds(200);
constexpr int kSpinsPerClockRead = 64;

// Waits a little; every so often lets another thread run, for machines with more threads than cores.
constexpr int kSpinsPerYield = 2048;

inline void relax(int spins) {
  if (spins % kSpinsPerYield == kSpinsPerYield - 1) {
    std::this_thread::yield();
  } else {
    __builtin_ia32_pause();
  }
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a failure only costs speed
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus) {
  WEFT_CHECK(num_threads >= 1, "num_threads {}", num_threads);
  for (int worker = 1; worker < num_threads; ++worker) {
    const int cpu = worker < static_cast<int>(cpus.size()) ? cpus[worker] : -1;
    threads_.emplace_back([this, worker, cpu] {
      if (cpu >= 0) pin_to(cpu);
      work(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::take_ranges(const Body& body, int worker) {
  while (true) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    body(begin, std::min(begin + grain_, count_), worker);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, Body body) {
  if (count <= 0) return;
  WEFT_CHECK(grain >= 1, "grain {}", grain);
  if (threads_.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count), 0);
    return;
  }
  WEFT_CHECK(!busy_.exchange(true), "parallel_for inside parallel_for");
  body_ = &body;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // seq_cst: ordered before the read of sleeping_
  if (sleeping_.load() > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  take_ranges(body, 0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) relax(spins);
  busy_.store(false);
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  while (true) {
    auto spin_end = std::chrono::steady_clock::now() + kSpinTime;
    for (int spins = 0; generation_.load() == seen && !stop_.load(std::memory_order_relaxed); ++spins) {
      relax(spins);
      if (spins % kSpinsPerClockRead != 0 || std::chrono::steady_clock::now() < spin_end) continue;
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen || stop_.load(); });
      sleeping_.fetch_sub(1);
    }
    if (generation_.load() == seen) return;  // stop
    seen = generation_.load();
    take_ranges(*body_, worker);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace weft
