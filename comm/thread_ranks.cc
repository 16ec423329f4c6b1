#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/thread_comm.h"

namespace weft {
namespace {

// What the threads of run_thread_ranks share with their starter; it lives as long as the last of them.
struct Run {
  std::function<Status(Communicator&)> body;
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  Status status;
};

Status guarded(const std::function<Status(Communicator&)>& body, Communicator& comm) {
  try {
    return body(comm);
  } catch (const std::exception& error) {
    return machine_failed(fmt::format("exception: {}", error.what()));
  } catch (...) {
    return machine_failed("exception of an unknown type");
  }
}

void run_rank(const std::shared_ptr<Run>& run, std::unique_ptr<Communicator> comm) {
  comm->set_step(0);  // from here on a thread that stands still is noticed, also before its first call
  Status status = guarded(run->body, *comm);
  if (!status.ok()) status = comm->abort(status);
  comm.reset();
  std::lock_guard lock(run->mutex);
  if (run->status.ok()) run->status = status;
  --run->running;
  run->changed.notify_all();
}

constexpr auto kGrace = std::chrono::milliseconds(500);

}  // namespace

RankRun run_thread_ranks(int num_ranks, const CommOptions& options, std::function<Status(Communicator&)> body) {
  auto run = std::make_shared<Run>();
  run->body = std::move(body);
  run->running = num_ranks;
  std::vector<std::thread> threads;
  for (std::unique_ptr<Communicator>& comm : make_thread_world(num_ranks, options)) {
    threads.emplace_back(run_rank, run, std::move(comm));
  }
  std::unique_lock lock(run->mutex);
  run->changed.wait(lock, [&] { return run->running == 0 || !run->status.ok(); });
  const bool all_back = run->changed.wait_for(lock, kGrace, [&] { return run->running == 0; });
  const RankRun result{.status = run->status, .abandoned = !all_back};
  lock.unlock();
  for (std::thread& thread : threads) all_back ? thread.join() : thread.detach();
  return result;
}

}  // namespace weft
