// What every model family offers to the executor, the planner and the commands.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "graph/cache_spec.h"
#include "graph/graph.h"
#include "io/chat.h"
#include "io/checkpoint.h"
#include "models/model_summary.h"
#include "models/weight_split.h"
#include "sharding/layout.h"

namespace weft {

// int8: the input of the output projection becomes int8 codes, one scale for each row and output group, in every layout; where
// ranks exchange it, the codes travel. Not part of any checkpoint's profile.
enum class OutputQuant { kNone, kInt8 };

// --dtype, --act-quant and --output-quant (docs/numerics.md).
struct NumericMode {
  DType dtype = DType::kBF16;  // kF32 or kBF16: dtype of activations and caches
  bool act_quant = false;      // the activation quantisation of the checkpoint's profile
  OutputQuant output_quant = OutputQuant::kNone;
  bool operator==(const NumericMode&) const = default;
};

// Room for one step: the graph is built once per shape, the valid rows are a run-time count.
struct StepShape {
  int64_t tokens = 1;
  int64_t logits = 1;
  bool operator==(const StepShape&) const = default;
};

// What a draft continues: the step of the main model, or the draft before.
enum class DraftFrom { kTrunk, kDraft };

struct GraphOptions {
  NumericMode mode;
  StepShape shape;
  CacheCapacity cache;
  std::vector<int64_t> layers = {};  // the trunk layers to build, ascending; empty: all (models/distinct_layers.h)
  // Rows of each row set (graph/row_sets.h) where they are known, as for one step of a plan; 0: the most that a split can give.
  std::array<int64_t, 4> rows_of_set{};
  bool canonical_sums = true;        // false: a sum may be split over any number of ranks (other engines' layouts, planned only)
  DraftFrom draft_from = DraftFrom::kTrunk;  // draft graph
};

// What a weight value is, for accounts of memory.
struct WeightInfo {
  enum class Part { kPayload, kScale, kDerived };  // kDerived: made from other weights when they are loaded
  std::string_view component = "weights";          // "routed experts", in the words of the summary
  Part part = Part::kPayload;
};

// Names of values that the runtime looks for in a graph.
inline constexpr std::string_view kTokensInput = "tokens";        // I32 [tokens]
inline constexpr std::string_view kPositionsInput = "positions";  // I32 [tokens]
inline constexpr std::string_view kHiddenInput = "hidden_in";     // draft graph: from the trunk (or from a draft)
inline constexpr std::string_view kSelectionInput = "selection_in";  // draft graph: I32 [tokens, k], the picks of the first draft
inline constexpr std::string_view kLogitsResult = "logits";       // F32 [logits, vocab]

// One model: a config, and its weights when a checkpoint was given.
class Model {
 public:
  virtual ~Model() = default;

  virtual std::string_view family() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t num_layers() const = 0;
  virtual int64_t max_position_embeddings() const = 0;
  virtual std::vector<int32_t> eos_token_ids() const = 0;
  virtual int64_t bos_token_id() const = 0;
  virtual ChatFormat chat_format() const = 0;  // of the release
  // The mode of --dtype with the profile that belongs to the checkpoint's storage; act_quant overrides that part.
  virtual NumericMode mode(DType dtype, std::optional<bool> act_quant) const = 0;

  // Per-request state of trunk and draft layers.
  virtual std::vector<CacheSpec> caches(const NumericMode& mode, const CacheCapacity& capacity) const = 0;
  // The layer's output ("hidden.<l>" of the golden files) and selection ("topk.<l>"): value names in the trunk graph, and
  // of the selection of a draft layer (they follow the others) in the draft graph.
  virtual std::string hidden_value(int64_t layer) const = 0;
  virtual std::optional<std::string> selection_value(int64_t layer) const = 0;

  // Equal texts: the layers' parts of the graph differ in the layer's name alone. By default no two layers are equal.
  virtual std::string layer_kind(int64_t layer) const { return fmt::format("layer {}", layer); }

  // Whether a pipeline stage may begin with the layer: not where it uses more of earlier layers than the output of the last.
  virtual bool begins_stage(int64_t layer) const { return true; }

  virtual Result<Graph> build(const GraphOptions& options) const = 0;
  // Draft (MTP) layers that can be run; 0: none.
  virtual int64_t num_draft_layers() const = 0;
  virtual Result<Graph> build_draft(const GraphOptions& options) const = 0;
  // Inputs of the draft graph that are results of the graph that it continues: one row for every token. What a draft graph does not
  // make anew it passes on. Another number of links when a draft continues a draft means another graph, too.
  struct DraftLink {
    std::string result, input;
  };
  virtual std::vector<DraftLink> draft_links(DraftFrom from) const = 0;

  // Of a weight value; a scale is whole unless it is stacked with its experts.
  virtual WeightSplit weight_split(std::string_view value_name) const = 0;
  virtual WeightInfo weight_info(std::string_view value_name) const { return {}; }
  // The family's contract: which layouts it can be run in, and why not others. Checked before any weight is read.
  virtual Status check_layout(const Layout& layout) const = 0;
  // Whether the family can be computed so; checked with the layout.
  virtual Status check_mode(const NumericMode& mode) const {
    if (mode.output_quant == OutputQuant::kNone) return {};
    return invalid_argument(fmt::format("--output-quant int8: {} has no output groups, each of which would have a scale", family()));
  }

  // For `weft inspect`; needs no weight files.
  virtual ModelSummary summary() const = 0;

  // Data of a weight value of a graph (`parts` for stacked experts); an error when there are no weight files.
  virtual Result<TensorView> weight(std::string_view value_name) const = 0;
  // Makes the slices [first, first + rows.shape()[0]) along dimension 0 of a derived weight value (ValueRole::kDerived) from
  // stored ones, the same bytes however the dimension is cut. May be called by several threads at once.
  virtual Status derive(std::string_view value_name, int64_t first, const TensorView& rows) const {
    return invalid_argument(fmt::format("there is no derived weight '{}'", value_name));
  }
};

// The family is found from config.json (model_type, architectures).
struct ModelOptions {
  bool allow_unknown_config = false;
};
Result<std::unique_ptr<Model>> open_model(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options);

}  // namespace weft
