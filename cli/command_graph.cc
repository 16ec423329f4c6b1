// weft graph: the graph of a step as text.
#include "cli/command.h"
#include "cli/model_location.h"
#include "graph/memory_plan.h"
#include "graph/text.h"

namespace weft {
namespace {

class GraphCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_location(app, args_);
    add_numeric_options(app, args_);
    app.add_option("--tokens", tokens_, "rows that the step has room for")
        ->check(whole_number(1))
        ->capture_default_str();
    app.add_option("--logits", logits_, "rows of logits; default: 1")->check(whole_number(1));
    app.add_option("--ctx", args_.context,
                   "tokens of the longest sequence; default: what the model takes, at most 8192")
        ->check(whole_number(1));
    app.add_flag("--draft", draft_, "the draft (MTP) layer instead of the trunk");
    app.add_flag("--summary", summary_, "one short line per node");
  }

  Status run(Console& console) override {
    constexpr int64_t kDefaultContext = 8192;
    if (logits_ > tokens_)
      return invalid_argument(fmt::format("--logits: expected 1 to {} rows (--tokens), found {}", tokens_, logits_));
    WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_location(args_, console));
    const Model& model = *loaded.model;
    GraphOptions options;
    options.mode = args_.mode(model);
    options.shape = {tokens_, logits_};
    const int64_t limit = model.max_position_embeddings();
    WEFT_RETURN_IF_ERROR(check_context("--ctx", args_.context, model));
    options.cache.max_context = args_.context != 0 ? args_.context : std::min(limit, kDefaultContext);
    options.cache.num_pages = (options.cache.max_context + options.cache.page_tokens - 1) / options.cache.page_tokens;
    WEFT_ASSIGN_OR_RETURN(const Graph graph, draft_ ? model.build_draft(options) : model.build(options));
    const std::string text = summary_ ? summarise(graph) : to_text(graph);
    if (!console.json) {
      console.print(text);
      return {};
    }
    const MemoryPlan plan = plan_memory(graph, {1});
    console.print_json(nlohmann::ordered_json{{"graph", graph.name()},
                                              {"tokens", tokens_},
                                              {"logits", logits_},
                                              {"dtype", args_.dtype},
                                              {"context", options.cache.max_context},
                                              {"nodes", graph.nodes().size()},
                                              {"values", graph.values().size()},
                                              {"bytes",
                                               {{"weights", plan.weight_bytes},
                                                {"derived_weights", plan.derived_bytes},
                                                {"caches", plan.state_bytes},
                                                {"activations", plan.arena_bytes}}},
                                              {"text", text}});
    return {};
  }

 private:
  ModelArgs args_;
  int64_t tokens_ = 8, logits_ = 1;
  bool draft_ = false, summary_ = false;
};

}  // namespace

CommandEntry graph_command() {
  return make_command<GraphCommand>("graph", "prints the graph of a step as text",
                                    "  weft graph MODEL_DIR --summary\n"
                                    "  weft graph deepseek-v4-flash --tokens 512 --dtype f32\n"
                                    "  weft graph MODEL_DIR --draft\n");
}

}  // namespace weft
