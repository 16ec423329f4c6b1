// The program: parses the command line, runs one command, gives the exit code.
#pragma once

namespace weft {

int run_program(int argc, const char* const* argv);

}  // namespace weft
