#include "cli/chat_loop.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "cli/interrupt.h"
#include "cli/memory_report.h"
#include "cli/run_report.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

constexpr char kHelp[] =
    "/reset          forget the conversation\n"
    "/system TEXT    set the system message, and forget the conversation\n"
    "/save FILE      write the conversation as JSON; /save! FILE overwrites a file\n"
    "/exit           leave (also: end of input)\n"
    "Ctrl-C stops an answer. A line that begins with // is a message that begins with /.";

class ChatLoop {
 public:
  ChatLoop(ChatSession& session, Console& console) : session_(session), console_(console) {}

  // An answer to one message.
  Status answer(const std::string& text);
  // Until the end of input, /exit, or Ctrl-C twice. At a terminal a bad line is told and the conversation goes on;
  // otherwise it ends there with the error.
  Status read_messages();
  const OrderedJson& turns() const { return turns_; }

 private:
  std::optional<std::string> read_line();
  Status take(std::string line, bool& leave);
  Status obey(const std::string& line, bool& leave);
  Status save(const std::string& file, bool overwrite) const;

  ChatSession& session_;
  Console& console_;
  InterruptGuard interrupt_;
  OrderedJson turns_ = OrderedJson::array();
};

Status ChatLoop::answer(const std::string& text) {
  const auto show = [&](std::string_view piece) {
    if (!console_.json) console_.print(piece);
  };
  const auto interrupted = [&] { return interrupt_.pending() || console_.reader_gone(); };
  WEFT_ASSIGN_OR_RETURN(const GenerateResult result, session_.say(text, show, interrupted));
  if (!console_.json) console_.print("\n");
  note_result(result, console_);
  turns_.push_back(result_json(result));
  return {};
}

// None: the end of input, or Ctrl-C twice in a row.
std::optional<std::string> ChatLoop::read_line() {
  const bool terminal = isatty(STDIN_FILENO) != 0 && console_.err_is_terminal();
  std::string line;
  for (int interrupts = 0; interrupts < 2;) {
    if (terminal) {
      std::fputs("> ", stderr);
      std::fflush(stderr);
    }
    if (std::getline(std::cin, line)) return line;
    if (!interrupt_.pending()) return std::nullopt;
    interrupt_.clear();
    std::cin.clear();
    std::clearerr(stdin);
    if (++interrupts < 2) console_.note("\n(Ctrl-C again, or /exit, leaves)");
  }
  return std::nullopt;
}

Status ChatLoop::save(const std::string& file, bool overwrite) const {
  const std::string text = session_.to_json().dump(2) + "\n";
  std::FILE* out = std::fopen(file.c_str(), overwrite ? "w" : "wx");
  if (out == nullptr && errno == EEXIST) {
    return invalid_argument(fmt::format("{} exists already; `/save! {}` overwrites it", file, file));
  }
  if (out == nullptr) return invalid_argument(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (std::fclose(out) != 0 || !written) {
    return machine_failed(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
  }
  return {};
}

// A line that begins with one slash.
Status ChatLoop::obey(const std::string& line, bool& leave) {
  const std::string name = line.substr(0, line.find(' '));
  const std::string value = line.substr(std::min(line.find_first_not_of(' ', name.size()), line.size()));
  std::string done;
  if (name == "/exit" || name == "/quit") {
    leave = true;
    return {};
  }
  if (name == "/help") {
    done = kHelp;
  } else if (name == "/reset") {
    WEFT_RETURN_IF_ERROR(session_.reset());
    done = "(forgotten)";
  } else if (name == "/system") {
    WEFT_RETURN_IF_ERROR(expect_utf8(value, "the message"));
    WEFT_RETURN_IF_ERROR(session_.set_system(value));
    done = "(system message set, conversation forgotten)";
  } else if (name == "/save" || name == "/save!") {
    if (value.empty()) return invalid_argument(name + " needs a file name");
    WEFT_RETURN_IF_ERROR(save(value, name.ends_with('!')));
    done = fmt::format("(saved in {})", value);
  } else {
    return invalid_argument(fmt::format("{} is not known; /help lists what is", to_valid_utf8(name)));
  }
  console_.note(done);
  return {};
}

Status ChatLoop::take(std::string line, bool& leave) {
  if (line.empty()) return {};
  if (line.starts_with("/") && !line.starts_with("//")) return obey(line, leave);
  if (line.starts_with("//")) line.erase(0, 1);
  // Here, so that bytes are counted in what was said and not in the prompt that is made of it.
  WEFT_RETURN_IF_ERROR(expect_utf8(line, "the message"));
  const Status status = answer(line);
  if (status.code() != StatusCode::kInvalidArgument) return status;
  return invalid_argument(status.message() + " (/reset begins anew)");
}

Status ChatLoop::read_messages() {
  console_.note("chat: /help lists what can be said besides messages");
  const bool interactive = isatty(STDIN_FILENO) != 0;
  bool leave = false;
  for (int64_t number = 1; !leave && !console_.reader_gone(); ++number) {
    const std::optional<std::string> line = read_line();
    if (!line) break;
    interrupt_.clear();
    const Status status = take(*line, leave);
    // Nobody is there to put it right: a script is told, and what follows is not said into another conversation.
    if (!status.ok() && !interactive) {
      return Status(status.code(), fmt::format("stdin: line {}: {}", number, status.message()));
    }
    if (status.code() == StatusCode::kInvalidArgument) {
      console_.error(status.message());
    } else {
      WEFT_RETURN_IF_ERROR(status);
    }
    interrupt_.clear();
  }
  return {};
}

ChatOptions chat_format(const Model& model, const std::string& thinking) {
  ChatOptions format;
  format.format = model.chat_format();
  format.thinking = thinking != "off";
  format.effort = thinking == "max"    ? ReasoningEffort::kMax
                  : thinking == "high" ? ReasoningEffort::kHigh
                                       : ReasoningEffort::kLow;
  return format;
}

}  // namespace

Status run_chat(const RunArgs& args, const std::optional<std::string>& message, const SamplingParams& sampling,
                LoadedEngine& loaded, const Tokenizer& tokenizer, Console& console) {
  ChatSession::Settings settings;
  settings.format = chat_format(*loaded.model, args.thinking);
  settings.sampling = sampling;
  settings.stop_ids = args.stop_ids(tokenizer, *loaded.model);
  settings.stops = args.stops;
  settings.max_tokens = args.max_tokens;
  settings.drafts = args.drafts;
  WEFT_ASSIGN_OR_RETURN(ChatSession session, ChatSession::create(*loaded.engine, tokenizer, std::move(settings)));
  WEFT_RETURN_IF_ERROR(session.set_system(args.system));
  ChatLoop loop(session, console);
  Status status;
  if (message) {
    WEFT_RETURN_IF_ERROR(loop.answer(*message));
  } else {
    status = loop.read_messages();
  }
  if (console.json) {
    OrderedJson json = describe(args.model, *loaded.engine);
    json["messages"] = session.to_json();
    json["turns"] = loop.turns();
    // After a failure of another rank there is no such report.
    if (auto memory = memory_json(*loaded.engine); memory.ok()) json["memory"] = std::move(memory).value();
    if (!status.ok()) json["error"] = status.message();  // what was said until then is not lost
    console.print_json(json);
  } else if (status.ok()) {
    WEFT_RETURN_IF_ERROR(note_memory(*loaded.engine, console));
  }
  return status;
}

}  // namespace weft
