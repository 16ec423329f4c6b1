#include "cli/memory_report.h"

#include "cli/bench_report.h"
#include "cli/model_options.h"

namespace weft {
namespace {

std::string text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

nlohmann::ordered_json rank_json(const RankReport& report) {
  const MemoryUse& memory = report.memory;
  nlohmann::ordered_json json = {{"weights_bytes", memory.weight_file_bytes},
                                 {"derived_weights_bytes", memory.derived_weight_bytes},
                                 {"cache_bytes", memory.cache_bytes},
                                 {"step_bytes", memory.arena_bytes},
                                 {"activation_bytes", memory.arena.activations},
                                 {"communication_bytes", memory.arena.communication},
                                 {"scratch_bytes", memory.arena.scratch}};
  const CommCounters sent = report.all_sent();
  json["sent_bytes"] = sent.bytes_sent();
  json["sent"] = nlohmann::ordered_json::object();
  for (int kind = 0; kind < kNumCommKinds; ++kind) {
    const CommCounters::Kind& of = sent.kinds[static_cast<size_t>(kind)];
    if (of.calls > 0) json["sent"][std::string(comm_kind_name(static_cast<CommKind>(kind)))] = of.bytes_sent;
  }
  return json;
}

std::string sent_text(const RankReport& report) {
  const CommCounters sent = report.all_sent();
  std::string kinds;
  for (int kind = 0; kind < kNumCommKinds; ++kind) {
    const int64_t bytes = sent.kinds[static_cast<size_t>(kind)].bytes_sent;
    if (bytes == 0) continue;
    kinds +=
        fmt::format("{}{} {}", kinds.empty() ? " (" : ", ", comm_kind_name(static_cast<CommKind>(kind)), text(bytes));
  }
  return text(sent.bytes_sent()) + (kinds.empty() ? "" : kinds + ")");
}

}  // namespace

Result<nlohmann::ordered_json> memory_json(Engine& engine) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, engine.reports());
  nlohmann::ordered_json json = rank_json(reports[0]);
  json["ranks"] = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    json["ranks"].push_back({{"rank", rank}});
    json["ranks"].back().update(rank_json(reports[rank]));
  }
  return json;
}

Status note_memory(Engine& engine, Console& console) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, engine.reports());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const MemoryUse& m = reports[rank].memory;
    const bool many = reports.size() > 1;
    console.note(fmt::format(
        "memory    {}weights {} (mapped file), {}caches {} (reserved), step {}: activations {}, {}scratch {}",
        many ? fmt::format("rank {}: ", rank) : "", text(m.weight_file_bytes),
        m.derived_weight_bytes == 0 ? "" : fmt::format("derived weights {}, ", text(m.derived_weight_bytes)),
        text(m.cache_bytes), text(m.arena_bytes), text(m.arena.activations),
        many ? fmt::format("communication {}, ", text(m.arena.communication)) : "", text(m.arena.scratch)));
  }
  for (size_t rank = 0; rank < reports.size() && reports.size() > 1; ++rank) {
    console.note(fmt::format("sent      rank {}: {}", rank, sent_text(reports[rank])));
  }
  return {};
}

Result<std::string> memory_table(Engine& engine) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, engine.reports());
  std::vector<std::vector<std::string>> rows = {{"rank", "weights (mapped)", "derived weights", "caches", "step memory",
                                                 "activations", "communication", "scratch", "sent"}};
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const MemoryUse& m = reports[rank].memory;
    rows.push_back({fmt::format("{}", rank), text(m.weight_file_bytes), text(m.derived_weight_bytes),
                    text(m.cache_bytes), text(m.arena_bytes), text(m.arena.activations), text(m.arena.communication),
                    text(m.arena.scratch), sent_text(reports[rank])});
  }
  return markdown_table(rows);
}

}  // namespace weft
