// The list of faults: each body is run by all ranks of a fresh world.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "comm/conformance.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Rows for every small call here.
struct Data {
  std::array<float, 64> src{}, dst{};
};

Status gather(Communicator& comm, const char* name, int64_t rows = 4) {
  Data data;
  const int64_t t = (rows + comm.size() - 1) / comm.size();
  return comm.all_gather(
      name, {.src = data.src.data(), .dst = data.dst.data(), .rows = rows, .row_bytes = 4 * (t > 0 ? 1 : 0)});
}

Status reduce(Communicator& comm, const char* name, DType dtype = DType::kF32) {
  Data data;
  return comm.all_reduce(name,
                         {.src = data.src.data(), .dst = data.dst.data(), .dst_dtype = dtype, .rows = 4, .width = 2});
}

void compute_for(milliseconds time) {
  const Clock::time_point end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

Status different_kind(Communicator& comm) {
  comm.set_step(12);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  return comm.rank() == 1 ? reduce(comm, "ffn_out") : gather(comm, "ffn_in");
}

Status different_name(Communicator& comm) { return gather(comm, comm.rank() == 2 ? "layers.1" : "layers.0"); }

Status different_rows(Communicator& comm) { return gather(comm, "x", comm.rank() == 1 ? 5 : 4); }

Status different_dtype(Communicator& comm) { return reduce(comm, "x", comm.rank() == 1 ? DType::kBF16 : DType::kF32); }

Status different_root(Communicator& comm) {
  int32_t token = 0;
  return comm.broadcast("token", &token, 4, comm.rank() == 1 ? 1 : 0);
}

Status different_group(Communicator& comm) {
  std::unique_ptr<Communicator> pair;
  if (comm.rank() < 2) {
    const std::array<int, 2> ranks = {0, 1};
    WEFT_ASSIGN_OR_RETURN(pair, comm.subgroup(ranks));
  }
  return comm.rank() == 0 ? pair->barrier("tp group") : comm.barrier("world");
}

Status different_subgroup(Communicator& comm) {
  const std::array<int, 2> low = {0, 1}, high = {1, 2};
  if (comm.rank() == 0) return comm.subgroup(low).status();
  return comm.subgroup(high).ok() ? comm.barrier("behind the group") : comm.failure();
}

Status different_exchange(Communicator& comm) {
  std::array<std::byte, 64> out{}, in{};
  std::vector<Blocks> send(comm.size(), contiguous_block(out.data(), 8)),
      recv(comm.size(), contiguous_block(in.data(), 8));
  if (comm.rank() == 0) send[2] = contiguous_block(out.data(), 12);
  return comm.all_to_all_v("dispatch", send, recv);
}

Status different_message(Communicator& comm) {
  std::array<std::byte, 64> data{};
  if (comm.rank() == 0) return comm.send("hidden", 1, contiguous_block(data.data(), 32));
  if (comm.rank() == 1) return comm.recv("hidden", 0, contiguous_block(data.data(), 16));
  return comm.barrier("others");
}

Status both_receive(Communicator& comm) {
  std::array<std::byte, 8> data{};
  return comm.recv("hidden", 1 - comm.rank(), contiguous_block(data.data(), 8));
}

Status rank_fails(Communicator& comm) {
  comm.set_step(7);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) return comm.abort(machine_failed("experts.3: page fault on the weight file"));
  return reduce(comm, "attn_out");
}

Status rank_throws(Communicator& comm) {
  comm.set_step(3);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 2) throw std::runtime_error("out of paper");
  return reduce(comm, "attn_out");
}

Status rank_sleeps(Communicator& comm) {
  comm.set_step(5);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(700));
    return comm.failure();
  }
  return reduce(comm, "attn_out");
}

Status rank_never_comes_back(Communicator& comm) {
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  while (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(10));
  return reduce(comm, "attn_out");
}

Status rank_loops(Communicator& comm) {
  comm.set_step(5);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) {
    compute_for(milliseconds(800));
    return comm.failure();
  }
  return reduce(comm, "attn_out");
}

Status rank_leaves(Communicator& comm) {
  comm.set_step(9);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  return comm.rank() == 1 ? Status() : reduce(comm, "attn_out");
}

Status rank_is_killed(Communicator& comm) {
  comm.set_step(4);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(50));
    kill(getpid(), SIGKILL);
  }
  return reduce(comm, "attn_out");
}

// The others compute; without a watcher mpirun would end them before they come to a call.
Status killed_while_others_compute(Communicator& comm) {
  comm.set_step(4);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) kill(getpid(), SIGKILL);
  compute_for(milliseconds(3000));
  return reduce(comm, "attn_out");
}

Status computes_long(Communicator& comm) {
  if (comm.rank() == 1) compute_for(milliseconds(600));
  return reduce(comm, "attn_out");
}

Status sleeps_with_ticks(Communicator& comm) {
  for (int i = 0; comm.rank() == 1 && i < 12; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    comm.tick();
  }
  return reduce(comm, "attn_out");
}

Status idles(Communicator& comm) {
  if (comm.rank() == 1) {
    const CommIdle idle(comm);
    std::this_thread::sleep_for(milliseconds(600));
  }
  return reduce(comm, "attn_out");
}

// Between two requests, where it may stand still as long as it likes: but not stopped.
Status stopped_while_idle(Communicator& comm) {
  comm.set_step(6);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  if (comm.rank() == 1) {
    const CommIdle idle(comm);
    kill(getpid(), SIGSTOP);
  }
  return reduce(comm, "attn_out");
}

// Stops this process for a time; a process of its own continues it.
void pause_process(milliseconds duration) {
  const pid_t self = getpid();
  if (fork() == 0) {
    usleep(static_cast<useconds_t>(std::chrono::microseconds(milliseconds(50)).count()));
    kill(self, SIGSTOP);
    usleep(static_cast<useconds_t>(std::chrono::microseconds(duration).count()));
    kill(self, SIGCONT);
    _exit(0);
  }
}

// All processes of a job, as a batch system does it, for longer than a rank may stand still.
Status paused_as_a_whole(Communicator& comm) {
  pause_process(milliseconds(900));
  if (comm.rank() == 1) {
    const CommIdle idle(comm);
    std::this_thread::sleep_for(milliseconds(1500));
  }
  return reduce(comm, "attn_out");
}

// The groups are there, and the first step never comes.
Status refuses_at_its_start(Communicator& comm) {
  const std::array<int, 2> both = {0, 1};
  WEFT_ASSIGN_OR_RETURN(const auto group, comm.subgroup(both));
  if (comm.rank() == 1) return comm.abort(check_failed("caches 9.00 GiB, but 1.00 GiB are free"));
  return group->barrier("first step");
}

// Rank 2 waits for rank 1, which waits for a slow rank 0, each in another group.
Status chain_of_waits(Communicator& comm) {
  const std::array<int, 2> low = {0, 1}, high = {1, 2};
  std::unique_ptr<Communicator> first, second;
  if (comm.rank() <= 1) {
    WEFT_ASSIGN_OR_RETURN(first, comm.subgroup(low));
  }
  if (comm.rank() >= 1) {
    WEFT_ASSIGN_OR_RETURN(second, comm.subgroup(high));
  }
  if (comm.rank() == 0) compute_for(milliseconds(600));
  if (first != nullptr) WEFT_RETURN_IF_ERROR(first->barrier("low"));
  if (second != nullptr) WEFT_RETURN_IF_ERROR(second->barrier("high"));
  return comm.barrier("all");
}

Result<Communicator::Request> start_gather(Communicator& comm, Data& data, const char* name) {
  return comm.start_all_gather(name,
                               {.src = data.src.data(), .dst = data.dst.data(), .rows = comm.size(), .row_bytes = 4});
}

Status different_started(Communicator& comm) {
  Data data;
  WEFT_ASSIGN_OR_RETURN(const auto request, start_gather(comm, data, comm.rank() == 1 ? "wo_b" : "wo_a"));
  return comm.wait(request);
}

Status fails_while_started(Communicator& comm) {
  Data data;
  comm.set_step(7);
  WEFT_RETURN_IF_ERROR(gather(comm, "attn_in"));
  WEFT_ASSIGN_OR_RETURN(const auto request, start_gather(comm, data, "wo_a"));
  if (comm.rank() == 1) return comm.abort(machine_failed("experts.3: page fault on the weight file"));
  WEFT_RETURN_IF_ERROR(reduce(comm, "attn_out"));
  return comm.wait(request);
}

constexpr CommOptions kDefault;
constexpr CommOptions kShort{.timeout_s = 0.3, .stuck_timeout_s = 600};
constexpr CommOptions kImpatient{.timeout_s = 0.3, .stuck_timeout_s = 0.5};
using Where = FaultCase::Where;

}  // namespace

const std::vector<FaultCase>& fault_cases() {
  static const std::vector<FaultCase> cases = {
      {"kind",
       2,
       kDefault,
       {"ranks issue different operations: rank 0/2, step 12: all_gather 'ffn_in' (4 rows of 4 bytes); ",
        "rank 1/2, step 12: all_reduce 'ffn_out' (4 rows of 8 bytes, to F32)"},
       different_kind},
      {"name",
       3,
       kDefault,
       {"different operations", "all_gather 'layers.0'", "rank 2/3, step 0: all_gather 'layers.1'"},
       different_name},
      {"started",
       2,
       kDefault,
       {"different operations", "all_gather 'wo_a'", "rank 1/2, step 0: all_gather 'wo_b'"},
       different_started},
      {"fails_while_started",
       3,
       kDefault,
       {"rank 1/3, step 7, after all_gather '", "experts.3: page fault on the weight file"},
       fails_while_started},
      {"rows", 2, kDefault, {"rank 0/2", "(4 rows of 4 bytes)", "rank 1/2", "(5 rows of 4 bytes)"}, different_rows},
      {"dtype", 2, kDefault, {"rank 0/2", "to F32", "rank 1/2", "to BF16"}, different_dtype},
      {"root",
       2,
       kDefault,
       {"different operations: rank ", "/2, step 0: broadcast 'token' (4 bytes from rank "},
       different_root},
      {"group",
       3,
       kDefault,
       {"ranks wait for each other: rank 0/3, step 0, in barrier 'tp group'; rank 1/3, step 0, in barrier 'world'"},
       different_group},
      {"subgroup",
       3,
       kDefault,
       {"ranks wait for each other: rank 0/3, step 0, in subgroup 'ranks 0,1'; rank 1/3, step 0, in barrier 'behind "
        "the group'"},
       different_subgroup},
      {"exchange",
       3,
       kDefault,
       {"rank 2/3, step 0, in all_to_all_v 'dispatch': rank 0 sends", "bytes to this rank"},
       different_exchange},
      {"message",
       2,
       kDefault,
       {"rank 0/2", "send 'hidden' (32 bytes to rank 1)", "rank 1/2", "recv 'hidden' (16 bytes from rank 0)"},
       different_message},
      {"both_receive",
       2,
       kShort,
       {"ranks wait for each other: rank 0/2, step 0, in recv 'hidden'", "; rank 1/2, step 0, in recv 'hidden'"},
       both_receive},
      {"abort",
       3,
       kDefault,
       {"rank 1/3, step 7, after all_gather 'attn_in' (4 rows of 4 bytes): experts.3: page fault on the weight file"},
       rank_fails},
      {"throws",
       3,
       kDefault,
       {"rank 2/3, step 3, after all_gather 'attn_in'", "exception: out of paper"},
       rank_throws,
       Where::kThreads},
      {"sleeps",
       3,
       kShort,
       {"rank 1/3, step 5, after all_gather 'attn_in'", "this rank stands still for 0.3 s, and rank ",
        " waits for it in all_reduce 'attn_out'"},
       rank_sleeps},
      {"gone_for_good",
       3,
       kDefault,
       {"rank 1/3", "stands still for 4.0 s", "all_reduce 'attn_out'"},
       rank_never_comes_back},
      {"loops", 2, kImpatient, {"rank 1/2, step 5", "without a sign of progress", "all_reduce 'attn_out'"}, rank_loops},
      {"leaves", 2, kDefault, {"rank 1/2, step 9"}, rank_leaves},
      {"killed",
       3,
       kDefault,
       {"rank 1/3, step 4, after all_gather 'attn_in' (4 rows of 4 bytes): the process of this rank ended "
        "unexpectedly"},
       rank_is_killed,
       Where::kProcesses},
      {"killed_while_others_compute",
       3,
       kDefault,
       {"rank 1/3, step 4", "the process of this rank ended unexpectedly"},
       killed_while_others_compute,
       Where::kProcesses},
      {"slow_is_not_dead", 2, kShort, {}, computes_long},
      {"ticks", 2, kShort, {}, sleeps_with_ticks},
      {"idle", 2, kShort, {}, idles},
      {"stopped_while_idle",
       3,
       kShort,
       {"rank 1/3, step 6, after all_gather 'attn_in'", "the process of this rank was stopped by a signal 0.",
        " s ago, and rank ", " waits for it in all_reduce 'attn_out'"},
       stopped_while_idle,
       Where::kProcesses},
      {"paused_as_a_whole", 2, kShort, {}, paused_as_a_whole, Where::kProcesses},
      {"refuses_at_its_start",
       2,
       kDefault,
       {"rank 1/2, before its first step: caches 9.00 GiB, but 1.00 GiB are free"},
       refuses_at_its_start},
      {"chain", 3, kShort, {}, chain_of_waits},
  };
  return cases;
}

std::string missing_text(const std::string& message, const std::vector<std::string>& expect) {
  size_t at = 0;
  for (const std::string& text : expect) {
    at = message.find(text, at);
    if (at == std::string::npos) return text;
    at += text.size();
  }
  return "";
}

}  // namespace weft
