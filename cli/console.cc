#include "cli/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/shown_text.h"

namespace weft {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

}  // namespace

Console::Console(std::FILE* out, std::FILE* err)
    : out_(out), err_(err), out_is_terminal_(isatty(fileno(out)) != 0), err_is_terminal_(isatty(fileno(err)) != 0) {}

void Console::write(std::FILE* file, std::string_view text) {
  if (file == out_ && (reader_gone_ || write_error_ != 0)) return;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (written || file != out_) return;
  if (errno == EPIPE) {
    reader_gone_ = true;
  } else {
    write_error_ = errno;
  }
}

void Console::print(std::string_view text) {
  progress("");
  write(out_, text);
}

void Console::print_json(const nlohmann::ordered_json& object) {
  // Names of files need not be UTF-8.
  print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void Console::note(std::string_view line) {
  if (quiet) return;
  progress("");
  write(err_, fmt::format("{}\n", line));
}

void Console::warn(std::string_view line) {
  progress("");
  write(err_, fmt::format("weft: warning: {}\n", shown(line, kMessageBytes)));
}

void Console::progress(std::string_view line) {
  if (quiet || !err_is_terminal_) return;
  if (progress_shown_) write(err_, kClearLine);
  write(err_, line);
  progress_shown_ = !line.empty();
}

void Console::error(std::string_view message) {
  progress("");
  write(err_, fmt::format("weft: {}\n", shown(message, kMessageBytes)));
}

Status Console::finish() {
  progress("");
  if (write_error_ != 0) return machine_failed(fmt::format("cannot write to stdout: {}", std::strerror(write_error_)));
  return {};
}

}  // namespace weft
