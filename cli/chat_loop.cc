#include "cli/chat_loop.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>

#include "cli/interrupt.h"
#include "cli/run_report.h"

namespace weft {
namespace {

constexpr char kHelp[] =
    "/reset          forget the conversation\n"
    "/system TEXT    set the system message, and forget the conversation\n"
    "/save FILE      write the conversation as JSON\n"
    "/exit           leave (also: end of input)\n"
    "Ctrl-C stops an answer. A line that begins with // is a message that begins with /.";

class ChatLoop {
 public:
  ChatLoop(ChatSession& session, Console& console) : session_(session), console_(console) {}

  // An answer to one message. A bad message (too long) is a note, unless it is the only one.
  Status answer(const std::string& text);
  // Until the end of input, /exit, or Ctrl-C twice.
  Status read_messages();
  const OrderedJson& turns() const { return turns_; }

 private:
  enum class Next { kGoOn, kLeave };
  std::optional<std::string> read_line();
  Next obey(const std::string& line);
  Status save(const std::string& file) const;

  ChatSession& session_;
  Console& console_;
  InterruptGuard interrupt_;
  OrderedJson turns_ = OrderedJson::array();
};

Status ChatLoop::answer(const std::string& text) {
  const auto show = [&](std::string_view piece) {
    if (!console_.json) console_.print(piece);
  };
  WEFT_ASSIGN_OR_RETURN(const GenerateResult result, session_.say(text, show, [&] { return interrupt_.pending(); }));
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

Status ChatLoop::save(const std::string& file) const {
  std::ofstream out(file, std::ios::binary);
  out << session_.to_json().dump(2) << "\n";
  out.close();
  if (!out) return invalid_argument(fmt::format("{}: cannot be written", file));
  return {};
}

ChatLoop::Next ChatLoop::obey(const std::string& line) {
  const std::string name = line.substr(0, line.find(' '));
  const std::string value = line.substr(std::min(line.find_first_not_of(' ', name.size()), line.size()));
  if (name == "/exit" || name == "/quit") return Next::kLeave;
  Status status;
  std::string done;
  if (name == "/help") {
    done = kHelp;
  } else if (name == "/reset") {
    status = session_.reset();
    done = "(forgotten)";
  } else if (name == "/system") {
    status = session_.set_system(value);
    done = "(system message set, conversation forgotten)";
  } else if (name == "/save" && !value.empty()) {
    status = save(value);
    done = fmt::format("(saved in {})", value);
  } else {
    status = invalid_argument(name == "/save" ? "/save needs a file name"
                                              : fmt::format("{} is not known; /help lists what is", name));
  }
  if (status.ok()) {
    console_.note(done);
  } else {
    console_.error(status.message());
  }
  return Next::kGoOn;
}

Status ChatLoop::read_messages() {
  console_.note("chat: /help lists what can be said besides messages");
  while (std::optional<std::string> line = read_line()) {
    interrupt_.clear();
    if (line->empty()) continue;
    if (line->starts_with("//")) {
      line->erase(0, 1);
    } else if (line->starts_with("/")) {
      if (obey(*line) == Next::kLeave) break;
      continue;
    }
    const Status status = answer(*line);
    if (status.code() == StatusCode::kInvalidArgument) {
      console_.error(status.message() + " (/reset begins anew)");
    } else {
      WEFT_RETURN_IF_ERROR(status);
    }
    interrupt_.clear();
  }
  return {};
}

ChatOptions chat_format(const std::string& thinking) {
  ChatOptions format;
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
  settings.format = chat_format(args.thinking);
  settings.sampling = sampling;
  settings.stop_ids = args.stop_ids(tokenizer, *loaded.model);
  settings.stops = args.stops;
  settings.max_tokens = args.max_tokens;
  settings.drafts = args.drafts;
  WEFT_ASSIGN_OR_RETURN(ChatSession session, ChatSession::create(*loaded.engine, tokenizer, std::move(settings)));
  WEFT_RETURN_IF_ERROR(session.set_system(args.system));
  ChatLoop loop(session, console);
  WEFT_RETURN_IF_ERROR(message ? loop.answer(*message) : loop.read_messages());
  if (console.json) {
    OrderedJson json = describe(args.model, *loaded.engine);
    json["messages"] = session.to_json();
    json["turns"] = loop.turns();
    json["memory"] = memory_json(*loaded.engine);
    console.print_json(json);
  } else {
    console.note(memory_line(*loaded.engine));
  }
  return {};
}

}  // namespace weft
