#include "cli/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <thread>
#include <vector>

#include "base/shown_text.h"
#include "cli/command.h"
#include "cli/rank_job.h"

namespace weft {

#define WEFT_COMMAND(name) CommandEntry name##_command();
#include "cli/command_list.inc"
#undef WEFT_COMMAND

namespace {

constexpr size_t kUsageBytes = 1000;  // of a message by CLI11: the lists of words that are allowed, and what was found

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
  return invalid_argument(fmt::format("'{}' is not a command; the commands are:{}", shown(name), known));
}

// CLI11 says "--ctx: 1 required INT missing" or "--ctx: At Most 1 required but received 2", and gives no parts of it.
std::string wrong_number_of_values(const std::string& text) {
  const std::string option = shown(text.substr(0, text.find(": ")));
  const size_t received = text.rfind(' ');
  const bool number = received != text.npos && text.find_first_not_of("0123456789", received + 1) == text.npos;
  return fmt::format("{}: expected one value, found {}", option, number ? text.substr(received + 1) : "none");
}

// `weft plan --html FILE diff ...`: a subcommand has options of its own.
Status nothing_before(const CLI::App& command, const CLI::App& inner) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->check_name("--json") || option->check_name("--quiet")) continue;
    return invalid_argument(fmt::format("{} has no effect in front of '{}': weft {} {} takes its options behind its name", option->get_name(),
                                        inner.get_name(), command.get_name(), inner.get_name()));
  }
  return {};
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
    std::vector<CLI::App*> takers = sub->get_subcommands(nullptr);
    takers.push_back(sub);
    for (CLI::App* taker : takers) {
      taker->add_flag("--json", console.json, "print one JSON object on stdout");
      taker->add_flag("--quiet", console.quiet, "print results and errors only");
    }
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
      if (!subs[i]->parsed()) continue;
      where += " " + commands[i].name;
      for (const CLI::App* inner : subs[i]->get_subcommands()) where += " " + inner->get_name();
    }
    const bool count = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
    return invalid_argument(
        fmt::format("{} (see {} --help)", count ? wrong_number_of_values(error.what()) : shown(error.what(), kUsageBytes), where));
  }
  for (size_t i = 0; i < subs.size(); ++i) {
    if (!subs[i]->parsed()) continue;
    for (const CLI::App* inner : subs[i]->get_subcommands()) WEFT_RETURN_IF_ERROR(nothing_before(*subs[i], *inner));
    return commands[i].command->run(console);
  }
  return invalid_argument("no command was given (weft --help lists them)");
}

// A file that is opened while 0, 1 or 2 is closed would get that number, and printing would go into it. Here they are
// occupied by files on which the wrong use fails: reading from stdin, writing to stdout or stderr.
void occupy_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is taken, which is fd.
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  occupy_standard_files();
  std::signal(SIGPIPE, SIG_IGN);  // writing reports EPIPE instead: Console, and errors of other files
  Console console(stdout, stderr);
  const Result<std::unique_ptr<RankJob>> job = RankJob::join();
  if (!job.ok()) {
    // The first process to end makes mpirun end the others: the one that prints comes first.
    if (!RankJob::is_first_process()) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (RankJob::is_first_process()) console.error(job.status().message());
    return exit_code(job.status().code());
  }
  if (*job != nullptr && (*job)->rank() > 0) return (*job)->follow();
  console.job = job->get();
  Status status;
  try {
    status = run_command_line(argc, argv, console);
  } catch (const std::bad_alloc&) {
    status = machine_failed("out of memory");
  } catch (const std::exception& exception) {
    status = machine_failed(fmt::format("internal error: {}", exception.what()));
  }
  if (const Status written = console.finish(); status.ok()) status = written;
  // A failure of the job is printed by the one process that ends it.
  if (!status.ok() && (*job == nullptr || !(*job)->failed())) console.error(status.message());
  return *job == nullptr ? exit_code(status.code()) : (*job)->finish(exit_code(status.code()));
}

}  // namespace weft
