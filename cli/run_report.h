// What `weft run` says about one answer.
#pragma once

#include "cli/console.h"
#include "io/tokenizer.h"
#include "runtime/generate.h"

namespace weft {

// Lines on stderr: speed and drafts.
void note_result(const GenerateResult& result, Console& console);

// {"finish_reason", "prompt_tokens", "completion_tokens", "timings", "drafts"}
nlohmann::ordered_json result_json(const GenerateResult& result);
// [{"id", "text", "logprob", "top": [...]}]
nlohmann::ordered_json logprobs_json(const GenerateResult& result, const Tokenizer& tokenizer);

}  // namespace weft
