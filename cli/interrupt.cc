#include "cli/interrupt.h"

#include <csignal>

namespace weft {
namespace {

// A signal handler can be given nothing: the one variable of the program that is not passed in.
volatile std::sig_atomic_t interrupts = 0;

void count_interrupt(int) {
  if (interrupts > 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  interrupts = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupts = 0;
  struct sigaction action {};
  action.sa_handler = count_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no restart: reading a line ends, too
  sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() { std::signal(SIGINT, SIG_DFL); }

bool InterruptGuard::pending() const { return interrupts > 0; }
void InterruptGuard::clear() { interrupts = 0; }

}  // namespace weft
