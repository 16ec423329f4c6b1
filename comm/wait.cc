// The detection half of the board: what a rank looks for while it waits.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "comm/board.h"

namespace weft {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kSpinsPerClockRead = 16;
constexpr auto kFirstPoll = microseconds(500);
constexpr auto kPollInterval = milliseconds(1);
// After this long, sleeping costs little beside what was waited already. Over MPI a wait also drives the transfers, so
// there it sleeps only where nothing can be under way any more.
constexpr auto kSleepAfterThreads = milliseconds(20);
constexpr auto kSleepAfterProcesses = milliseconds(1000);
constexpr auto kSleep = microseconds(100);

// Polls of a waiting rank that show that it looked again, and that it is really waiting for what it says.
constexpr uint64_t kBeatsOfProof = 3;
// Over MPI data may have left their sender and not yet be seen by a rank that looks every millisecond.
constexpr double kProofOverMpiS = 0.1;
// Messages that are under way on a busy machine or a slow network are no slower than this.
constexpr double kSlowestBytesPerS = 50e6;

// A rank that sleeps in a loop uses a little processor time, too (about 0.2 % with naps of 10 ms), one that reads its
// weights from a slow disk some percent. Less than this share over the whole timeout is standing still.
constexpr double kCpuShare = 0.01;

// A rank that looks every millisecond and did not for so long was stopped itself (a suspended job, a starved machine),
// and so may its peers have been: that time is nobody's standing still.
constexpr auto kAway = milliseconds(100);

// How often the state of an idle process is read.
constexpr auto kStateInterval = milliseconds(100);

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

bool is_pair(const OpRecord& op) { return op.comm_kind() == CommKind::kSend || op.comm_kind() == CommKind::kRecv; }

// Two ranks in one call wait for each other while its data are under way.
bool same_transfer(const OpRecord& a, const OpRecord& b) {
  return a.group == b.group && a.sequence == b.sequence && a.call_hash == b.call_hash &&
         (!is_pair(a) || a.kind != b.kind);
}

}  // namespace

Wait::Wait(Board& board, int rank, const OpRecord& op) : board_(board), rank_(rank), op_(op) {}

Wait::~Wait() {
  if (polled_) board_.set_missing(rank_, {});
}

bool Wait::pause() {
  if (++spins_ < board_.spin_limit()) {
    __builtin_ia32_pause();
    return false;
  }
  if (spins_ % kSpinsPerClockRead != 0 && !polled_) {
    std::this_thread::yield();
    return false;
  }
  const Clock::time_point now = Clock::now();
  if (start_ == Clock::time_point{}) {
    start_ = now;
    next_poll_ = now + kFirstPoll;
  }
  if (now >= next_poll_) {
    next_poll_ = now + kPollInterval;
    return true;
  }
  if (now - start_ > (board_.ranks() == Board::Ranks::kThreads ? kSleepAfterThreads : kSleepAfterProcesses)) {
    std::this_thread::sleep_for(kSleep);
  } else {
    std::this_thread::yield();
  }
  return false;
}

Status Wait::poll(const RankSet& missing) {
  if (board_.failed()) return board_.failure();
  polled_ = true;
  board_.set_missing(rank_, missing);
  const Clock::time_point now = Clock::now();
  if (const auto away = now - last_poll_; last_poll_ != Clock::time_point{} && away > kAway) {
    for (Peer& peer : peers_) {
      if (peer.moved != Clock::time_point{}) peer.moved += away;
      if (peer.ticked != Clock::time_point{}) peer.ticked += away;
      if (peer.stopped != Clock::time_point{}) peer.stopped += away;
    }
    cycle_since_ += away;
  }
  last_poll_ = now;
  for (int peer = 0; peer < board_.num_ranks(); ++peer) {
    if (peer != rank_ && missing.has(peer)) WEFT_RETURN_IF_ERROR(check_peer(peer, now));
  }
  return check_cycle(missing, now);
}

Status Wait::check_peer(int peer, Clock::time_point now) {
  BoardSlot& slot = board_.slot(peer);
  if (board_.is_dead(peer)) return board_.report_death(peer);
  if (slot.state.load(std::memory_order_acquire) == BoardSlot::kLeft) {
    return board_.fail(StatusCode::kMachineFailed, fmt::format("{}: this rank has left, but rank {} waits for it in {}",
                                                               board_.where(peer), rank_, describe(op_)));
  }
  if (peers_.empty()) peers_.resize(board_.num_ranks());
  Peer& seen = peers_[peer];
  const uint64_t ticks = slot.ticks.load(std::memory_order_relaxed) + slot.version.load(std::memory_order_relaxed);
  const uint64_t progress = ticks + slot.beats.load(std::memory_order_relaxed);
  const int64_t cpu_ns = board_.cpu_time_ns(peer);
  const bool idle = slot.idle.load(std::memory_order_relaxed) != 0;
  if (idle) WEFT_RETURN_IF_ERROR(check_idle_peer(peer, seen, now));
  const bool first_look = seen.moved == Clock::time_point{};
  const bool excused = first_look || idle || progress != seen.progress;
  if (excused || ticks != seen.ticks) seen.ticked = now;
  // A rank whose clock cannot be read (it has not begun, or runs on another host) may be computing.
  const double cpu_s = static_cast<double>(cpu_ns - seen.cpu_ns) * 1e-9;
  if (excused || cpu_ns < 0 || cpu_s > kCpuShare * board_.options().timeout_s) {
    seen.moved = now;
    seen.cpu_ns = cpu_ns;
  }
  seen.progress = progress;
  seen.ticks = ticks;
  const double still_s = seconds(now - seen.moved), stuck_s = seconds(now - seen.ticked);
  if (still_s <= board_.options().timeout_s && stuck_s <= board_.options().stuck_timeout_s) return {};
  const std::string what = still_s > board_.options().timeout_s
                               ? fmt::format("this rank stands still for {:.1f} s", still_s)
                               : fmt::format("this rank computes for {:.0f} s without a sign of progress", stuck_s);
  return board_.fail(StatusCode::kMachineFailed, fmt::format("{}: {}, and rank {} waits for it in {}",
                                                             board_.where(peer), what, rank_, describe(op_)));
}

// An idle rank may stand still for as long as it likes, but one that was stopped would not hear of a request either.
// Its process tells the two apart. (Threads are stopped together, and with them whoever waits.)
Status Wait::check_idle_peer(int peer, Peer& seen, Clock::time_point now) {
  if (now - seen.state_read < kStateInterval) return {};
  seen.state_read = now;
  if (!board_.is_stopped(peer)) {
    seen.stopped = {};
    return {};
  }
  if (seen.stopped == Clock::time_point{}) seen.stopped = now;
  const double stopped_s = seconds(now - seen.stopped);
  if (stopped_s <= board_.options().timeout_s) return {};
  return board_.fail(
      StatusCode::kMachineFailed,
      fmt::format("{}: the process of this rank was stopped by a signal {:.1f} s ago, and rank {} waits for it in {}",
                  board_.where(peer), stopped_s, rank_, describe(op_)));
}

// Depth-first along "waits for", to a way back to this rank.
bool Wait::find_cycle(int from, const OpRecord& op, const RankSet& missing, RankSet& seen,
                      std::vector<CycleRank>& path) {
  for (int next = 0; next < board_.num_ranks(); ++next) {
    if (!missing.has(next) || (seen.has(next) && next != rank_)) continue;
    OpRecord next_op;
    const bool known = next == rank_ || board_.read_op(next, &next_op);
    if (next == rank_) next_op = op_;
    if (known && same_transfer(op, next_op)) continue;
    if (next == rank_) return true;
    seen.add(next);
    BoardSlot& slot = board_.slot(next);
    path.push_back({next, slot.version.load(std::memory_order_acquire), slot.beats.load(std::memory_order_acquire),
                    is_pair(next_op), slot.pair_bytes.load()});
    if (find_cycle(next, next_op, board_.read_missing(next), seen, path)) return true;
    path.pop_back();
  }
  return false;
}

// Every rank of a cycle waits for all that it misses, so none of them can go on. What a rank says may be old, however
// (it may not have run since): the cycle counts once every rank of it has looked again since it was first seen. Over
// MPI a message may be under way between two ranks that wait for each other, and only time tells.
Status Wait::check_cycle(const RankSet& missing, Clock::time_point now) {
  std::vector<CycleRank> path;
  RankSet seen;
  seen.add(rank_);
  if (!find_cycle(rank_, op_, missing, seen, path)) {
    cycle_.clear();
    return {};
  }
  const auto same = [](const CycleRank& a, const CycleRank& b) { return a.rank == b.rank && a.version == b.version; };
  if (!std::equal(path.begin(), path.end(), cycle_.begin(), cycle_.end(), same)) {
    cycle_ = std::move(path);
    cycle_since_ = now;
    return {};
  }
  bool pair = is_pair(op_);
  int64_t pair_bytes = board_.slot(rank_).pair_bytes.load();
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i].beats < cycle_[i].beats + kBeatsOfProof) return {};
    pair |= path[i].pair;
    pair_bytes += path[i].pair_bytes;
  }
  if (board_.ranks() == Board::Ranks::kProcesses) {
    const double proof_s =
        pair ? board_.options().timeout_s + static_cast<double>(pair_bytes) / kSlowestBytesPerS : kProofOverMpiS;
    if (seconds(now - cycle_since_) < proof_s) return {};
  }
  // From its lowest rank on, whoever found it.
  path.push_back({rank_, 0, 0, false, 0});
  const auto lower = [](const CycleRank& a, const CycleRank& b) { return a.rank < b.rank; };
  std::rotate(path.begin(), std::min_element(path.begin(), path.end(), lower), path.end());
  std::string message = "ranks wait for each other";
  for (const CycleRank& one : path) message += (&one == &path.front() ? ": " : "; ") + board_.where(one.rank);
  return board_.fail(StatusCode::kMachineFailed, message);
}

}  // namespace weft
