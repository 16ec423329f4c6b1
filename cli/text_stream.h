// Tokens in, text out while they come: whole characters, nothing of a stop string.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "io/tokenizer.h"
#include "runtime/generate.h"
#include "runtime/stop_strings.h"

namespace weft {

class TextStream {
 public:
  using Sink = std::function<void(std::string_view)>;

  // Borrows the tokenizer.
  TextStream(const Tokenizer& tokenizer, StopStrings stops, SpecialTokens special, Sink sink)
      : decoder_(tokenizer, special), stops_(std::move(stops)), sink_(std::move(sink)) {}

  // kStop once a stop string is complete.
  TokenVerdict push(int32_t id) {
    show(stops_.push(decoder_.push(id)));
    return stops_.stopped() ? TokenVerdict::kStop : TokenVerdict::kContinue;
  }
  // No more tokens.
  void finish() {
    show(stops_.push(decoder_.flush()));
    show(stops_.finish());
  }

  const std::string& text() const { return text_; }  // all that was shown
  bool stopped() const { return stops_.stopped(); }

 private:
  void show(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    sink_(piece);
  }

  StreamDecoder decoder_;
  StopStrings stops_;
  Sink sink_;
  std::string text_;
};

}  // namespace weft
