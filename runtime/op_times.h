// Where the time of steps goes on one rank: by kind of op and the name of its first output without the layer, e.g.
// ("linear", "wq_a"). An op between ranks counts the time that it waits for the others; one that goes on beside others
// its start and the wait for its end.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "runtime/message.h"

namespace weft {

struct OpTime {
  std::string op, name;
  int64_t calls = 0;
  double seconds = 0;
};

class OpTimer {
 public:
  using Clock = std::chrono::steady_clock;

  void add(const Graph& graph, const Node& node, Clock::duration time, int64_t calls = 1);
  // A step as a whole: what is not in its ops is between them.
  void add_step(Clock::duration time) { add("step", "", time); }
  std::vector<OpTime> times() const;  // the longest first

 private:
  struct Entry {
    int64_t calls = 0;
    Clock::duration time{};
  };
  void add(std::string_view op, std::string_view name, Clock::duration time, int64_t calls = 1);
  std::map<std::pair<std::string_view, std::string>, Entry, std::less<>> entries_;
};

void put(MessageWriter& message, const std::vector<OpTime>& times);
std::vector<OpTime> get_op_times(MessageReader& message);

}  // namespace weft
