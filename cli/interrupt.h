// Ctrl-C: what runs is asked to stop; a second Ctrl-C before it did ends the program.
#pragma once

namespace weft {

// While an object lives, SIGINT is counted instead of ending the program. One object at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool pending() const;  // since the start or the last clear()
  void clear();
};

}  // namespace weft
