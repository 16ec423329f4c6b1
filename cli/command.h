// A command of the program: one file command_<name>.cc, one line in command_list.inc, one in CMakeLists.txt.
//
//   // cli/command_count.cc
//   namespace weft {
//   namespace {
//   class CountCommand : public Command {
//    public:
//     void declare(CLI::App& app) override { app.add_option("FILE", file_, "what to count")->required(); }
//     Status run(Console& console) override;
//    private:
//     std::string file_;
//   };
//   }  // namespace
//   CommandEntry count_command() { return make_command<CountCommand>("count", "counts things", "  weft count FILE\n");
//   } }  // namespace weft
//
// --json, --quiet and --help are added to every command. With --json a command prints one object by Console::print_json
// and nothing else on stdout. The status becomes the exit code: ok 0, check failed 1, bad input 2, machine 3, cancelled
// 130.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "cli/console.h"
#include "cli/number_options.h"

namespace weft {

class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(CLI::App& app) = 0;
  virtual Status run(Console& console) = 0;
};

struct CommandEntry {
  std::string name;
  std::string summary;   // one line of `weft --help`
  std::string examples;  // the end of `weft NAME --help`: lines that begin with two blanks
  std::unique_ptr<Command> command;
};

template <class T>
CommandEntry make_command(std::string name, std::string summary, std::string examples) {
  return {std::move(name), std::move(summary), std::move(examples), std::make_unique<T>()};
}

}  // namespace weft
