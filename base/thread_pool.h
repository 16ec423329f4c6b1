// A fixed set of worker threads for the kernels of one rank.
//
// parallel_for splits [0, count) into ranges of `grain` indices (the last may be shorter) and hands them out to the
// workers, the calling thread among them, as they become free. Results must therefore not depend on which worker gets
// which range. Workers spin briefly between calls, then sleep. One thread at a time may call parallel_for; a call from
// inside `body` is an error of our own (checked).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace weft {

class ThreadPool {
 public:
  using Body = FunctionRef<void(int64_t begin, int64_t end, int worker)>;

  // num_threads counts the caller. cpus: CPU to pin worker i to (empty: no pinning); the caller is worker 0 and is
  // pinned only while it is inside parallel_for's owner, i.e. not at all.
  explicit ThreadPool(int num_threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // body(begin, end, worker): begin is a multiple of grain; 0 <= worker < size(). Returns when all ranges are done.
  void parallel_for(int64_t count, int64_t grain, Body body);

 private:
  void work(int worker);
  void take_ranges(const Body& body, int worker);

  std::vector<std::thread> threads_;
  const Body* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace weft
