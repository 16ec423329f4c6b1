// weft inspect: what a model is and what it needs.
#include <set>

#include "cli/command.h"
#include "cli/model_location.h"

namespace weft {
namespace {

constexpr int64_t kContexts[] = {1 << 10, 128 << 10, 1 << 20};

// 1234567 as "1,234,567".
std::string grouped(int64_t n) {
  std::string digits = fmt::format("{}", n);
  constexpr size_t kGroup = 3;
  for (size_t at = digits.size(); at > kGroup + (n < 0 ? 1 : 0);) digits.insert(at -= kGroup, 1, ',');
  return digits;
}

std::string rounded(int64_t n) {  // "284.3 B"
  constexpr std::pair<double, const char*> kUnits[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, unit] : kUnits) {
    if (static_cast<double>(n) >= size) return fmt::format("{:.2f} {}", static_cast<double>(n) / size, unit);
  }
  return fmt::format("{}", n);
}

// Bytes beside the weights, of the main model or of its draft layers: derived from stored weights when they are loaded, and caches
// of one sequence, without the room that is kept for drafts.
struct GraphUse {
  int64_t derived_bytes = 0;
  int64_t fixed_bytes = 0;     // rings: the same for every length
  double bytes_per_token = 0;  // growth

  struct At {
    int64_t tokens = 0, bytes = 0;
  };
  std::vector<At> at;
};

GraphUse use_of(const Graph& graph, const Model& model, const NumericMode& mode) {
  GraphUse use;
  std::set<std::string_view> states;
  for (const Value& value : graph.values()) {
    if (value.role == ValueRole::kDerived) use.derived_bytes += value.type.tensor.bytes();
    if (value.role == ValueRole::kState) states.insert(value.name);
  }
  std::vector<CacheSpec> specs = model.caches(mode, {});
  std::erase_if(specs, [&](const CacheSpec& spec) { return !states.contains(spec.name); });
  const auto total = [&](int64_t tokens) {
    int64_t bytes = 0;
    for (const CacheSpec& spec : specs) {
      bytes += (spec.kind == CacheKind::kRing ? spec.ring_rows : tokens / spec.ratio) * spec.row_bytes();
    }
    return bytes;
  };
  use.fixed_bytes = total(0);
  for (const CacheSpec& spec : specs) {
    if (spec.kind == CacheKind::kAppend) use.bytes_per_token += static_cast<double>(spec.row_bytes()) / static_cast<double>(spec.ratio);
  }
  for (int64_t tokens : kContexts) {
    if (tokens <= model.max_position_embeddings()) use.at.push_back({tokens, total(tokens)});
  }
  return use;
}

struct ModelUse {
  GraphUse main, drafts;
};

Result<ModelUse> use_of(const Model& model, const NumericMode& mode) {
  GraphOptions options;
  options.mode = mode;
  options.cache = {.num_pages = 1, .max_context = 1, .draft_rows = 1};
  WEFT_ASSIGN_OR_RETURN(const Graph trunk, model.build(options));
  ModelUse use{use_of(trunk, model, mode), {}};
  if (model.num_draft_layers() == 0) return use;
  WEFT_ASSIGN_OR_RETURN(const Graph drafts, model.build_draft(options));
  use.drafts = use_of(drafts, model, mode);
  return use;
}

std::string_view contents_name(Checkpoint::Contents contents) {
  switch (contents) {
    case Checkpoint::Contents::kTensors: return "config and weights";
    case Checkpoint::Contents::kNames: return "config and index";
    case Checkpoint::Contents::kConfigOnly: return "config only";
  }
  return "";
}

class InspectCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_location(app, args_);
    add_dtype_option(app, args_);
  }

  Status run(Console& console) override {
    WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_location(args_, console));
    ModelSummary summary = loaded.model->summary();
    const Checkpoint& checkpoint = *loaded.checkpoint;
    if (checkpoint.contents() == Checkpoint::Contents::kTensors &&
        !std::filesystem::exists(checkpoint.dir() / "tokenizer.json")) {
      summary.notes.push_back("there is no tokenizer.json: weft can run token ids, not text");
    }
    const NumericMode mode = args_.mode(*loaded.model);
    WEFT_ASSIGN_OR_RETURN(const ModelUse use, use_of(*loaded.model, mode));
    if (console.json) {
      console.print_json(to_json(loaded, summary, use));
    } else {
      print(console, loaded, summary, use);
    }
    return {};
  }

 private:
  void print(Console& console, const LoadedModel& loaded, const ModelSummary& s, const ModelUse& use) const {
    std::string out =
        fmt::format("{}: {} ({})\n\n", args_.model_dir, s.title, contents_name(loaded.checkpoint->contents()));
    const auto line = [&](std::string_view name, int64_t value, std::string_view unit, std::string_view more = "") {
      out += fmt::format("  {:<36} {:>21}", name, grouped(value));
      if (!more.empty()) {
        out += fmt::format(" {:<12}{}", unit, more);
      } else if (!unit.empty()) {
        out += fmt::format(" {}", unit);
      }
      out += "\n";
    };
    out += "layers\n";
    for (const auto& [kind, count] : s.layers) line(kind, count, "");
    out += "\ndimensions\n";
    for (const auto& [name, value] : s.dimensions) line(name, value, "");
    out += "\nparameters\n";
    line("main model", s.parameters_main, rounded(s.parameters_main));
    line("draft layers", s.parameters_mtp, rounded(s.parameters_mtp));
    line("total", s.parameters(), rounded(s.parameters()));
    line("active per token", s.parameters_active, rounded(s.parameters_active));

    out += "\nweights, bytes\n";
    const auto share = [&](const ModelSummary::Share& part) {
      line(
          part.name, part.bytes, bytes_text(static_cast<double>(part.bytes)),
          fmt::format("{:>5.1f} %  {:>9} tensors",
                      100.0 * static_cast<double>(part.bytes) / static_cast<double>(s.bytes()), grouped(part.tensors)));
    };
    for (const auto& part : s.by_component) share(part);
    out += "  by type\n";
    for (const auto& part : s.by_dtype) share(part);
    share({"total", s.tensors, s.bytes()});
    line("without draft layers", s.bytes_main, bytes_text(static_cast<double>(s.bytes_main)));
    line("read to decode a token alone", s.bytes_per_decoded_token,
         bytes_text(static_cast<double>(s.bytes_per_decoded_token)));

    if (use.main.derived_bytes > 0) {
      out += fmt::format("\nderived from weights when they are loaded (--dtype {}), bytes\n", args_.dtype);
      line("main model", use.main.derived_bytes, bytes_text(static_cast<double>(use.main.derived_bytes)));
      line("draft layers", use.drafts.derived_bytes, bytes_text(static_cast<double>(use.drafts.derived_bytes)));
    }
    out += fmt::format("\ncaches of a sequence (--dtype {}), bytes\n", args_.dtype);
    line("fixed", use.main.fixed_bytes, bytes_text(static_cast<double>(use.main.fixed_bytes)));
    out += fmt::format("  {:<36} {:>21.1f}\n", "growth per token", use.main.bytes_per_token);
    if (loaded.model->num_draft_layers() > 0) {
      line("draft layers, fixed", use.drafts.fixed_bytes, bytes_text(static_cast<double>(use.drafts.fixed_bytes)));
      out += fmt::format("  {:<36} {:>21.1f}\n", "draft layers, growth per token", use.drafts.bytes_per_token);
    }
    for (const GraphUse::At& at : use.main.at) {
      const std::string name = at.tokens < (1 << 20) ? fmt::format("{}k tokens", at.tokens >> 10)
                                                     : fmt::format("{}M tokens", at.tokens >> 20);
      line("at " + name, at.bytes, bytes_text(static_cast<double>(at.bytes)),
           fmt::format("{:>9.1f} per token", static_cast<double>(at.bytes) / static_cast<double>(at.tokens)));
    }
    out += "\nunusual\n";
    if (s.notes.empty()) out += "  nothing\n";
    for (const std::string& note : s.notes) out += fmt::format("  {}\n", note);
    console.print(out);
  }

  nlohmann::ordered_json to_json(const LoadedModel& loaded, const ModelSummary& s, const ModelUse& use) const {
    const auto numbers = [](const std::vector<std::pair<std::string, int64_t>>& list) {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (const auto& [name, value] : list) object[name] = value;
      return object;
    };
    const auto shares = [](const std::vector<ModelSummary::Share>& list) {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (const auto& part : list) object[part.name] = {{"tensors", part.tensors}, {"bytes", part.bytes}};
      return object;
    };
    nlohmann::ordered_json contexts = nlohmann::ordered_json::array();
    for (const GraphUse::At& at : use.main.at) {
      contexts.push_back({{"tokens", at.tokens},
                          {"bytes", at.bytes},
                          {"bytes_per_token", static_cast<double>(at.bytes) / static_cast<double>(at.tokens)}});
    }
    return {{"model", args_.model_dir},
            {"family", std::string(loaded.model->family())},
            {"contents", std::string(contents_name(loaded.checkpoint->contents()))},
            {"layers", numbers(s.layers)},
            {"dimensions", numbers(s.dimensions)},
            {"parameters",
             {{"main", s.parameters_main},
              {"mtp", s.parameters_mtp},
              {"total", s.parameters()},
              {"active", s.parameters_active}}},
            {"tensors", s.tensors},
            {"bytes",
             {{"main", s.bytes_main},
              {"mtp", s.bytes_mtp},
              {"total", s.bytes()},
              {"per_decoded_token", s.bytes_per_decoded_token}}},
            {"derived_bytes", {{"dtype", args_.dtype}, {"main", use.main.derived_bytes}, {"mtp", use.drafts.derived_bytes}}},
            {"components", shares(s.by_component)},
            {"dtypes", shares(s.by_dtype)},
            {"caches",
             {{"dtype", args_.dtype},
              {"fixed_bytes", use.main.fixed_bytes},
              {"growth_bytes_per_token", use.main.bytes_per_token},
              {"draft_fixed_bytes", use.drafts.fixed_bytes},
              {"draft_growth_bytes_per_token", use.drafts.bytes_per_token},
              {"contexts", contexts}}},
            {"unusual", s.notes}};
  }

  ModelArgs args_;
};

}  // namespace

CommandEntry inspect_command() {
  return make_command<InspectCommand>("inspect", "tells what a model is and what it needs",
                                      "  weft inspect MODEL_DIR\n"
                                      "  weft inspect deepseek-v4-flash          a config that is shipped with weft\n"
                                      "  weft inspect DIR/config.json --json\n");
}

}  // namespace weft
