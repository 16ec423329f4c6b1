// The options of `weft run`, as given.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "cli/sampling_options.h"
#include "io/chat.h"

namespace weft {

struct RunArgs {
  ModelArgs model;
  SamplingArgs sampling;
  std::optional<std::string> prompt, file;
  bool chat = false;
  std::string system;                 // chat: the first system message
  std::string thinking = "off";       // chat: off, low, high, max
  std::optional<int64_t> max_tokens;  // none: the command's default
  int64_t drafts = 0;
  std::vector<std::string> stops;
  int logprobs = -1;
  bool ignore_eos = false;
  bool keep_special = false;  // show special tokens
  std::optional<bool> bos;    // raw prompts; none: as tokenizer_config.json says

  // Ids that end an answer: of the tokenizer files and of config.json.
  std::vector<int32_t> stop_ids(const Tokenizer& tokenizer, const Model& opened) const;
};

}  // namespace weft
