// `weft run --chat`: reads messages from stdin until its end, or answers one message that was given.
#pragma once

#include "cli/chat_session.h"

namespace weft {

Status run_chat(const RunArgs& args, const std::optional<std::string>& message, const SamplingParams& sampling,
                LoadedEngine& loaded, const Tokenizer& tokenizer, Console& console);

}  // namespace weft
