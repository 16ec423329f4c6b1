// Where a command prints: results on stdout, everything else on stderr.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/status.h"
#include "io/json.h"

namespace weft {

class RankJob;

class Console {
 public:
  Console(std::FILE* out, std::FILE* err);

  bool json = false;   // --json: one object on stdout
  bool quiet = false;  // --quiet: no notes, no progress
  RankJob* job = nullptr;  // the job of mpirun of which this process is rank 0; null: none

  // Result text on stdout, at once. The first failure (disk full) is kept for finish(). A reader that closes the pipe
  // (`| head`) has what it wants: that is no failure, the rest is dropped.
  void print(std::string_view text);
  bool reader_gone() const { return reader_gone_; }  // nobody will see more results: long work may end
  // --json: the object, and a newline.
  void print_json(const nlohmann::ordered_json& object);

  // A line on stderr, unless --quiet.
  void note(std::string_view line);
  void warn(std::string_view line);  // "weft: warning: ..."; also with --quiet, and as error()
  // The line that a terminal shows while something lasts; each replaces the one before, an empty one removes it.
  void progress(std::string_view line);

  // "weft: ...", one line whatever was quoted in it (base/shown_text.h).
  void error(std::string_view message);

  bool out_is_terminal() const { return out_is_terminal_; }
  bool err_is_terminal() const { return err_is_terminal_; }

  // Flushes; an error if something could not be written.
  Status finish();

 private:
  void write(std::FILE* file, std::string_view text);

  std::FILE* out_;
  std::FILE* err_;
  bool out_is_terminal_, err_is_terminal_;
  bool progress_shown_ = false;
  int write_error_ = 0;  // errno
  bool reader_gone_ = false;
};

}  // namespace weft
