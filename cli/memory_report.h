// Where the memory of each rank goes, and what it sent: the end of `weft run`, `weft bench` and `weft eval`.
#pragma once

#include "cli/console.h"
#include "io/json.h"
#include "runtime/engine.h"

namespace weft {

// One object for each rank: {"rank", "weights_bytes", "cache_bytes", "step_bytes", "activation_bytes",
// "communication_bytes", "scratch_bytes", "sent_bytes", "sent": {"all_reduce": bytes, ...}}; all of rank 0 also at the
// top, as of the only one.
Result<nlohmann::ordered_json> memory_json(Engine& engine);
// Lines on stderr.
Status note_memory(Engine& engine, Console& console);
// A Markdown table, a row for each rank.
Result<std::string> memory_table(Engine& engine);

}  // namespace weft
