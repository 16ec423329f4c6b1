#include "planner/collective_simulation.h"

#include <algorithm>
#include <bit>

namespace weft {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

// held[r][b]: of block b, whose parts (a bit per rank) rank r has, added up.
class Ranks {
 public:
  Ranks(int n, const LinkTerms& link)
      : n_(n),
        link_(link),
        held_(size(n), std::vector<uint64_t>(size(n))),
        sends_(size(n)),
        receives_(size(n)),
        now_(size(n)) {}

  static size_t size(int n) { return static_cast<size_t>(n); }
  int n() const { return n_; }
  uint64_t all() const { return n_ == 64 ? ~uint64_t{0} : (uint64_t{1} << n_) - 1; }
  uint64_t& held(int r, int b) { return held_[size(r)][size(b)]; }
  double now(int r) const { return now_[size(r)]; }
  double last() const { return *std::max_element(now_.begin(), now_.end()); }
  bool ok() const { return ok_; }

  double start(int from, int to, double ready) const {
    return std::max({ready, sends_[size(from)], receives_[size(to)]});
  }
  // A message that may leave at `ready`; when it is there.
  double send(int from, int to, double bytes, double ready) {
    sends_[size(from)] = receives_[size(to)] = start(from, to, ready) + bytes / link_.bytes_per_s;
    return sends_[size(from)] + link_.latency_s;
  }
  void new_ports() { std::fill(sends_.begin(), sends_.end(), 0), std::fill(receives_.begin(), receives_.end(), 0); }
  void wait(int r, double until) { now_[size(r)] = std::max(now_[size(r)], until); }
  void add(int r, double bytes) {
    now_[size(r)] += link_.reduce_bytes_per_s > 0 ? bytes / link_.reduce_bytes_per_s : 0;
  }
  // A part that arrives must be new: nothing may be added twice.
  void merge(int r, int b, uint64_t parts) {
    ok_ = ok_ && (held(r, b) & parts) == 0;
    held(r, b) |= parts;
  }

  struct Move {
    int from, to;
    std::vector<int> blocks;
  };
  // All moves of a step leave with what their senders have now; a rank goes on when its messages of the step are there.
  void step(const std::vector<Move>& moves, double block_bytes, bool reduce) {
    std::vector<double> until = now_;
    std::vector<std::pair<const Move*, std::vector<uint64_t>>> parts;
    std::vector<double> added(size(n_));
    for (const Move& move : moves) {
      const double bytes = block_bytes * static_cast<double>(move.blocks.size());
      until[size(move.to)] = std::max(until[size(move.to)], send(move.from, move.to, bytes, now(move.from)));
      added[size(move.to)] += bytes;
      std::vector<uint64_t>& list = parts.emplace_back(&move, std::vector<uint64_t>()).second;
      for (const int b : move.blocks) list.push_back(held(move.from, b));
    }
    for (const auto& [move, list] : parts) {
      for (size_t i = 0; i < list.size(); ++i) {
        if (reduce) {
          merge(move->to, move->blocks[i], list[i]);
        } else {
          held(move->to, move->blocks[i]) = list[i];
        }
      }
    }
    now_ = until;
    if (!reduce) return;
    for (int r = 0; r < n_; ++r) add(r, added[size(r)]);
  }

 private:
  int n_;
  LinkTerms link_;
  std::vector<std::vector<uint64_t>> held_;
  std::vector<double> sends_, receives_, now_;
  bool ok_ = true;
};

int around(int i, int n) { return (i % n + n) % n; }
bool bit(int value, int mask) { return (value & mask) != 0; }

std::vector<int> blocks_where(int n, auto wanted) {
  std::vector<int> blocks;
  for (int b = 0; b < n; ++b) {
    if (wanted(b)) blocks.push_back(b);
  }
  return blocks;
}

bool reduce_scatter(Ranks& ranks, Algorithm algorithm, double bytes) {
  const int n = ranks.n();
  const double block = bytes / n;
  using Moves = std::vector<Ranks::Move>;
  if (algorithm == Algorithm::kRing) {
    for (int s = 0; s < n - 1; ++s) {
      Moves moves;
      for (int r = 0; r < n; ++r) moves.push_back({r, around(r + 1, n), {around(r - 1 - s, n)}});
      ranks.step(moves, block, true);
    }
  } else if (algorithm == Algorithm::kRecursive) {
    for (int d = n / 2; d >= 1; d /= 2) {
      Moves moves;
      for (int r = 0; r < n; ++r) {
        // Of the blocks that agree with r above d, those of the partner's half.
        moves.push_back(
            {r, r ^ d, blocks_where(n, [&](int b) { return (b ^ r) / (2 * d) == 0 && bit(b, d) != bit(r, d); })});
      }
      ranks.step(moves, block, true);
    }
  } else if (algorithm == Algorithm::kOneShot) {
    Moves moves;
    for (int k = 1; k < n; ++k) {
      for (int r = 0; r < n; ++r) moves.push_back({r, around(r + k, n), {around(r + k, n)}});
    }
    ranks.step(moves, block, true);
  } else {
    return false;
  }
  return true;
}

bool all_gather(Ranks& ranks, Algorithm algorithm, double bytes) {
  const int n = ranks.n();
  const double block = bytes / n;
  using Moves = std::vector<Ranks::Move>;
  if (algorithm == Algorithm::kRing) {
    for (int s = 0; s < n - 1; ++s) {
      Moves moves;
      for (int r = 0; r < n; ++r) moves.push_back({r, around(r + 1, n), {around(r - s, n)}});
      ranks.step(moves, block, false);
    }
  } else if (algorithm == Algorithm::kRecursive) {
    for (int d = 1; d < n; d *= 2) {
      Moves moves;
      for (int r = 0; r < n; ++r) moves.push_back({r, r ^ d, blocks_where(n, [&](int b) { return (b ^ r) / d == 0; })});
      ranks.step(moves, block, false);
    }
  } else if (algorithm == Algorithm::kOneShot) {
    Moves moves;
    for (int k = 1; k < n; ++k) {
      for (int r = 0; r < n; ++r) moves.push_back({r, around(r + k, n), {r}});
    }
    ranks.step(moves, block, false);
  } else {
    return false;
  }
  return true;
}

// parent of r in a binary tree in which odd ranks are leaves; -1: the root (0).
int tree_parent(int r, int n) {
  if (r == 0) return -1;
  const int low = r & -r, up = (r ^ low) | (low << 1);
  return up >= n ? r ^ low : up;
}

// Messages in pieces up (or down) both trees, each of which carries half of the value: always the piece that can leave first.
double pipeline(Ranks& ranks, bool up, double bytes, int pieces) {
  constexpr double kSame = 1e-9;
  const int n = ranks.n();
  const auto rank_of = [&](int tree, int r) { return tree == 0 ? r : around(r + 1, n); };
  struct Edge {
    int tree, from, to;  // nodes of the tree
    int piece = 0;       // the next one
  };
  std::vector<Edge> edges;
  // What a node waits for before it can hand on a piece: all children on the way up, the parent on the way down.
  const auto trees = [&](auto value) {
    return std::vector(2, std::vector(Ranks::size(n), std::vector(Ranks::size(pieces), value)));
  };
  auto missing = trees(0);
  auto ready = trees(0.0);
  for (int tree = 0; tree < 2; ++tree) {
    for (int r = 1; r < n; ++r) {
      const int parent = tree_parent(r, n), from = up ? r : parent, to = up ? parent : r;
      edges.push_back({tree, from, to});
      for (int& count : missing[Ranks::size(tree)][Ranks::size(to)]) ++count;
    }
  }
  ranks.new_ports();
  double last = 0;
  const size_t messages = edges.size() * Ranks::size(pieces);
  for (size_t sent = 0; sent < messages; ++sent) {
    Edge* next = nullptr;
    double first = 0;
    for (Edge& e : edges) {
      if (e.piece == pieces || missing[Ranks::size(e.tree)][Ranks::size(e.from)][Ranks::size(e.piece)] != 0) continue;
      const double start = ranks.start(rank_of(e.tree, e.from), rank_of(e.tree, e.to),
                                       ready[Ranks::size(e.tree)][Ranks::size(e.from)][Ranks::size(e.piece)]);
      // Of those that can leave at the same time the oldest piece: no level waits for the end of another one.
      if (next != nullptr && (start > first * (1 + kSame) || (start > first * (1 - kSame) && e.piece >= next->piece)))
        continue;
      next = &e;
      first = start;
    }
    const size_t tree = Ranks::size(next->tree), to = Ranks::size(next->to), piece = Ranks::size(next->piece++);
    const int sender = rank_of(next->tree, next->from), receiver = rank_of(next->tree, next->to);
    ready[tree][to][piece] = std::max(ready[tree][to][piece], ranks.send(sender, receiver, bytes / 2 / pieces, first));
    --missing[tree][to][piece];
    last = std::max(last, ready[tree][to][piece]);
    if (piece != 0) continue;  // what travels is the same for every piece; block `tree` stands for its half
    if (up) {
      ranks.merge(receiver, next->tree, ranks.held(sender, next->tree));
    } else {
      ranks.held(receiver, next->tree) = ranks.held(sender, next->tree);
    }
  }
  return last;
}

// A double binary tree: what is a leaf in one is none in the other. Adding has its time apart: two children, half of the value each.
void double_tree(Ranks& ranks, double bytes, int pieces) {
  const double seconds = pipeline(ranks, true, bytes, pieces) + pipeline(ranks, false, bytes, pieces);
  for (int r = 0; r < ranks.n(); ++r) {
    ranks.wait(r, seconds);
    ranks.add(r, bytes);
  }
}

std::optional<SimulationResult> simulate_all_reduce(Ranks& ranks, Algorithm algorithm, double bytes, int pieces) {
  const int n = ranks.n();
  for (int r = 0; r < n; ++r) {
    for (int b = 0; b < n; ++b) ranks.held(r, b) = uint64_t{1} << r;
  }
  int blocks = n;
  switch (algorithm) {
    case Algorithm::kRing:
    case Algorithm::kRecursive:
      reduce_scatter(ranks, algorithm, bytes);
      all_gather(ranks, algorithm, bytes);
      break;
    case Algorithm::kTwoShot:
      reduce_scatter(ranks, Algorithm::kOneShot, bytes);
      all_gather(ranks, Algorithm::kOneShot, bytes);
      break;
    case Algorithm::kOneShot: {
      std::vector<Ranks::Move> moves;
      for (int k = 1; k < n; ++k) {
        for (int r = 0; r < n; ++r) moves.push_back({r, around(r + k, n), blocks_where(n, [](int) { return true; })});
      }
      ranks.step(moves, bytes / n, true);
      break;
    }
    case Algorithm::kTree:
      blocks = 2;
      double_tree(ranks, bytes, pieces);
      break;
    default: return std::nullopt;
  }
  SimulationResult result{ranks.last(), ranks.ok()};
  for (int r = 0; r < n; ++r) {
    for (int b = 0; b < blocks; ++b) result.correct = result.correct && ranks.held(r, b) == ranks.all();
  }
  return result;
}

// What a block for a rank is after its way: block d of rank s has bit s, and has to get to d.
std::optional<SimulationResult> simulate_all_to_all(int n, Algorithm algorithm, double bytes, const LinkTerms& link) {
  Ranks ranks(n, link);
  // on[s][d]: the rank that has the block from s for d.
  std::vector<std::vector<int>> on(Ranks::size(n), std::vector<int>(Ranks::size(n)));
  for (int s = 0; s < n; ++s) std::fill(on[Ranks::size(s)].begin(), on[Ranks::size(s)].end(), s);
  const double block = bytes / n;
  // Every rank hands over the blocks that `goes` names: to the rank `hop` further on.
  const auto pass = [&](int hop, auto goes, bool wait) {
    std::vector<double> until(Ranks::size(n));
    auto next = on;
    for (int r = 0; r < n; ++r) {
      double sent = 0;
      for (int s = 0; s < n; ++s) {
        for (int d = 0; d < n; ++d) {
          if (on[Ranks::size(s)][Ranks::size(d)] != r || !goes(r, s, d)) continue;
          next[Ranks::size(s)][Ranks::size(d)] = around(r + hop, n);
          sent += block;
        }
      }
      const int to = around(r + hop, n);
      until[Ranks::size(to)] = ranks.send(r, to, sent, wait ? ranks.now(r) : 0);
    }
    for (int r = 0; r < n; ++r) ranks.wait(r, until[Ranks::size(r)]);
    on = next;
  };
  if (algorithm == Algorithm::kPairwise || algorithm == Algorithm::kOneShot) {
    for (int k = 1; k < n; ++k) {
      pass(
          k, [&](int r, int s, int d) { return s == r && d == around(r + k, n); }, algorithm == Algorithm::kPairwise);
    }
  } else if (algorithm == Algorithm::kRing) {
    for (int k = 1; k < n; ++k)
      pass(
          1, [&](int r, int, int d) { return d != r; }, true);
  } else if (algorithm == Algorithm::kBruck) {
    if (!std::has_single_bit(static_cast<unsigned>(n))) return std::nullopt;
    for (int d = 1; d < n; d *= 2)
      pass(
          d, [&](int, int s, int to) { return bit(around(to - s, n), d); }, true);
  } else {
    return std::nullopt;
  }
  SimulationResult result{ranks.last(), true};
  for (int s = 0; s < n; ++s) {
    for (int d = 0; d < n; ++d) result.correct = result.correct && on[Ranks::size(s)][Ranks::size(d)] == d;
  }
  return result;
}

std::optional<SimulationResult> simulate_broadcast(int n, Algorithm algorithm, double bytes, const LinkTerms& link,
                                                   int pieces) {
  Ranks ranks(n, link);
  ranks.held(0, 0) = 1;
  if (algorithm == Algorithm::kTree) {
    for (int have = 1; have < n; have *= 2) {
      std::vector<Ranks::Move> moves;
      for (int r = 0; r < have && r + have < n; ++r) moves.push_back({r, r + have, {0}});
      for (int r = 0; r < n; ++r) ranks.wait(r, ranks.last());  // in step: the closed form counts whole steps
      ranks.step(moves, bytes, false);
    }
  } else if (algorithm == Algorithm::kRing) {
    for (int p = 0; p < pieces; ++p) {
      double ready = 0;
      for (int r = 0; r + 1 < n; ++r) {
        ready = ranks.send(r, r + 1, bytes / pieces, ready);
        ranks.wait(r + 1, ready);
        ranks.held(r + 1, 0) = 1;
      }
    }
  } else {
    return std::nullopt;
  }
  SimulationResult result{ranks.last(), true};
  for (int r = 0; r < n; ++r) result.correct = result.correct && ranks.held(r, 0) == 1;
  return result;
}

}  // namespace

std::optional<SimulationResult> simulate_collective(Kind kind, Algorithm algorithm, int n, double bytes,
                                                    const LinkTerms& link, int pieces) {
  if (kind != Kind::kSendRecv && algorithm == Algorithm::kRecursive && !std::has_single_bit(static_cast<unsigned>(n)))
    return std::nullopt;
  Ranks ranks(n, link);
  switch (kind) {
    case Kind::kAllReduce: return simulate_all_reduce(ranks, algorithm, bytes, pieces);
    case Kind::kReduceScatter: {
      for (int r = 0; r < n; ++r) {
        for (int b = 0; b < n; ++b) ranks.held(r, b) = uint64_t{1} << r;
      }
      if (!reduce_scatter(ranks, algorithm, bytes)) return std::nullopt;
      SimulationResult result{ranks.last(), ranks.ok()};
      for (int r = 0; r < n; ++r) result.correct = result.correct && ranks.held(r, r) == ranks.all();
      return result;
    }
    case Kind::kAllGather: {
      for (int r = 0; r < n; ++r) ranks.held(r, r) = uint64_t{1} << r;
      if (!all_gather(ranks, algorithm, bytes)) return std::nullopt;
      SimulationResult result{ranks.last(), ranks.ok()};
      for (int r = 0; r < n; ++r) {
        for (int b = 0; b < n; ++b) result.correct = result.correct && ranks.held(r, b) == uint64_t{1} << b;
      }
      return result;
    }
    case Kind::kAllToAll: return simulate_all_to_all(n, algorithm, bytes, link);
    case Kind::kBroadcast: return simulate_broadcast(n, algorithm, bytes, link, pieces);
    case Kind::kSendRecv: return SimulationResult{ranks.send(0, 1, bytes, 0), true};
  }
  return std::nullopt;
}

}  // namespace weft
