#include "cli/program.h"

#include <new>
#include <vector>

#include "cli/command.h"

namespace weft {

#define WEFT_COMMAND(name) CommandEntry name##_command();
#include "cli/command_list.inc"
#undef WEFT_COMMAND

namespace {

enum ExitCode { kExitOk = 0, kExitCheckFailed = 1, kExitBadInput = 2, kExitMachine = 3, kExitInterrupted = 130 };

int exit_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kCheckFailed: return kExitCheckFailed;
    case StatusCode::kInvalidArgument: return kExitBadInput;
    case StatusCode::kMachineFailed: return kExitMachine;
    case StatusCode::kCancelled: return kExitInterrupted;
  }
  return kExitMachine;
}

std::vector<CommandEntry> all_commands() {
  std::vector<CommandEntry> commands;
#define WEFT_COMMAND(name) commands.push_back(name##_command());
#include "cli/command_list.inc"
#undef WEFT_COMMAND
  return commands;
}

Status unknown_command(const std::string& name, const std::vector<CommandEntry>& commands) {
  std::string known;
  for (const CommandEntry& entry : commands) known += " " + entry.name;
  return invalid_argument(fmt::format("'{}' is not a command; the commands are:{}", name, known));
}

Status run_command_line(int argc, const char* const* argv, Console& console) {
  std::vector<CommandEntry> commands = all_commands();
  CLI::App app("weft runs long-context sparse-attention language models on CPUs, exactly and fast.", "weft");
  app.set_version_flag("--version", std::string("weft " WEFT_VERSION));
  app.set_help_flag("-h,--help", "print this help and exit");
  app.footer("`weft COMMAND --help` shows the options of a command, with examples.");
  app.require_subcommand(0, 1);
  std::vector<CLI::App*> subs;
  for (CommandEntry& entry : commands) {
    CLI::App* sub = app.add_subcommand(entry.name, entry.summary);
    entry.command->declare(*sub);
    sub->add_flag("--json", console.json, "print one JSON object on stdout");
    sub->add_flag("--quiet", console.quiet, "print results and errors only");
    sub->footer("Examples:\n" + entry.examples);
    subs.push_back(sub);
  }
  if (argc > 1 && argv[1][0] != '-') {
    const std::string name = argv[1];
    const bool known =
        std::any_of(commands.begin(), commands.end(), [&](const CommandEntry& c) { return c.name == name; });
    if (!known) return unknown_command(name, commands);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // The help of the command that was named: CLI11 leaves the choice to the parsed subcommands.
    console.print(app.help());
    return {};
  } catch (const CLI::CallForVersion& version) {
    console.print(std::string(version.what()) + "\n");
    return {};
  } catch (const CLI::Error& error) {
    std::string where = "weft";
    for (size_t i = 0; i < subs.size(); ++i) {
      if (subs[i]->parsed()) where += " " + commands[i].name;
    }
    return invalid_argument(fmt::format("{} (see {} --help)", error.what(), where));
  }
  for (size_t i = 0; i < subs.size(); ++i) {
    if (subs[i]->parsed()) return commands[i].command->run(console);
  }
  return invalid_argument("no command was given\n" + app.help());
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  Console console(stdout, stderr);
  Status status;
  try {
    status = run_command_line(argc, argv, console);
  } catch (const std::bad_alloc&) {
    status = machine_failed("out of memory");
  } catch (const std::exception& exception) {
    status = machine_failed(fmt::format("internal error: {}", exception.what()));
  }
  if (const Status written = console.finish(); status.ok()) status = written;
  if (!status.ok()) console.error(status.message());
  return exit_code(status.code());
}

CLI::Validator at_least(int64_t min) {
  return CLI::Validator(
      [min](std::string& text) {
        int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value)) return fmt::format("'{}' is not a whole number", text);
        return value >= min ? std::string() : fmt::format("{} is not >= {}", value, min);
      },
      fmt::format(">= {}", min));
}

CLI::Validator in_range(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) {
        double value = 0;
        if (!CLI::detail::lexical_cast(text, value)) return fmt::format("'{}' is not a number", text);
        return min <= value && value <= max ? std::string() : fmt::format("{} is not in {} .. {}", value, min, max);
      },
      fmt::format("{} .. {}", min, max));
}

}  // namespace weft
