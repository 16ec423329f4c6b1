#include "runtime/golden_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/numeric.h"
#include "io/json_fields.h"

namespace weft {
namespace {

struct Case {
  std::string description;
  DType dtype = DType::kF32;
  std::vector<std::vector<int32_t>> prompts, greedy;
  std::map<std::string, double> tolerance;
  std::set<std::string> covers;
};

Result<std::vector<std::vector<int32_t>>> token_lists(const Json& json, std::string_view key,
                                                      const std::string& where) {
  const auto error = [&] {
    return invalid_argument(fmt::format("{}: '{}' is not a list of lists of token ids", where, key));
  };
  const auto at = json.find(key);
  if (at == json.end() || !at->is_array()) return error();
  std::vector<std::vector<int32_t>> lists;
  for (const Json& inner : *at) {
    if (!inner.is_array()) return error();
    std::vector<int32_t>& list = lists.emplace_back();
    for (const Json& id : inner) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) return error();
      list.push_back(id.get<int32_t>());
    }
  }
  return lists;
}

// The first key that nobody asked for is an error: a tolerance with a typing error must not go unnoticed.
Status closed(JsonFields& fields) {
  std::vector<std::string> unknown;
  WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kWarn, &unknown));
  return unknown.empty() ? Status() : invalid_argument(unknown.front());
}

Result<Case> read_case(const std::filesystem::path& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, read_json_file(path));
  const std::string where = path.string();
  JsonFields fields(json, where);
  Case c;
  if (fields.has("description")) c.description = fields.string("description");
  c.dtype = fields.one_of("dtype", {"f32", "bf16"}) == "f32" ? DType::kF32 : DType::kBF16;
  if (fields.has("covers")) {
    for (std::string& what : fields.strings("covers")) c.covers.insert(std::move(what));
  }
  fields.informational({"description", "covers", "oracle", "max_new_tokens", "min_top1_gap", "notes"});
  fields.informational({"prompts", "greedy"});  // read below
  const Json* tolerance = fields.object("tolerance");
  WEFT_RETURN_IF_ERROR(closed(fields));
  WEFT_ASSIGN_OR_RETURN(c.prompts, token_lists(json, "prompts", where));
  WEFT_ASSIGN_OR_RETURN(c.greedy, token_lists(json, "greedy", where));
  if (c.prompts.empty() || c.prompts.size() != c.greedy.size()) {
    return invalid_argument(
        fmt::format("{}: {} prompts, {} greedy continuations", where, c.prompts.size(), c.greedy.size()));
  }
  for (const auto& prompt : c.prompts) {
    if (prompt.empty()) return invalid_argument(fmt::format("{}: an empty prompt", where));
  }
  JsonFields limits(*tolerance, where, "tolerance.");
  constexpr double kHuge = std::numeric_limits<double>::max();
  limits.number("logits_max_abs", 0, kHuge);  // required
  for (const std::string prefix : {"", "a8_"}) {
    for (const char* key : {"logits_max_abs", "hidden_max_rel", "logits_row_mean_abs", "argmax_agree"}) {
      if (limits.has(prefix + key)) c.tolerance[prefix + key] = limits.number(prefix + key, 0, kHuge);
    }
  }
  WEFT_RETURN_IF_ERROR(closed(limits));
  return c;
}

// FloatRows of F32 values that a run produced, in position order.
struct FloatRows {
  std::vector<float> values;
  void append(const TensorView& view) {
    for (int64_t i = 0; i < view.shape().num_elements(); ++i) {
      values.push_back(view.dtype() == DType::kF32 ? view.as<float>()[i] : to_float(view.as<bf16>()[i]));
    }
  }
};

int64_t arg_max(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// Largest errors so far of everything that is compared.
class Comparison {
 public:
  // `prefix` of the names of its tolerances.
  Comparison(const Case& c, std::string prefix) : case_(c), prefix_(std::move(prefix)) {}

  Status logits(const std::string& name, const FloatRows& found, const SafetensorsFile& expected) {
    WEFT_ASSIGN_OR_RETURN(const TensorView want, tensor(expected, name, DType::kF32, found.values.size()));
    const int64_t width = want.shape().back(), rows = want.shape()[0];
    for (int64_t t = 0; t < rows; ++t) {
      double row_max = 0;
      for (int64_t v = 0; v < width; ++v) {
        row_max = std::max(row_max, distance(found.values[t * width + v], want.as<float>()[t * width + v]));
      }
      note(logits_, row_max, fmt::format("{} row {}", name, t));
      row_sum_ += row_max;
      ++rows_;
      agree_ += arg_max({found.values.data() + t * width, static_cast<size_t>(width)}) ==
                        arg_max({want.as<float>() + t * width, static_cast<size_t>(width)})
                    ? 1
                    : 0;
    }
    return {};
  }

  Status hidden(const std::string& name, const FloatRows& found, const SafetensorsFile& expected) {
    WEFT_ASSIGN_OR_RETURN(const TensorView want, tensor(expected, name, DType::kF32, found.values.size()));
    double largest = 0, scale = 0;
    for (size_t i = 0; i < found.values.size(); ++i) {
      largest = std::max(largest, distance(found.values[i], want.as<float>()[i]));
      scale = std::max(scale, std::fabs(static_cast<double>(want.as<float>()[i])));
    }
    note(hidden_, largest / scale, name);
    return {};
  }

  Status tokens(const std::string& name, const std::vector<int32_t>& found, const SafetensorsFile& expected) {
    const SafetensorsEntry* entry = expected.find(name);
    if (entry == nullptr || entry->type.dtype != DType::kI32 ||
        entry->type.shape.num_elements() != static_cast<int64_t>(found.size())) {
      return invalid_argument(
          fmt::format("{}: no I32 tensor '{}' with {} tokens", expected.path().string(), name, found.size()));
    }
    const auto* want = expected.view(*entry).as<int32_t>();
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != want[i])
        note(drafted_, drafted_.found + 1, fmt::format("first in {} step {}", name, i), Keep::kFirst);
    }
    drafted_total_ += static_cast<int64_t>(found.size());
    return {};
  }

  Status selection(const std::string& name, const std::vector<int32_t>& found, int64_t top_k,
                   const SafetensorsFile& expected) {
    const SafetensorsEntry* entry = expected.find(name);
    if (entry == nullptr || entry->type.dtype != DType::kI32 || entry->type.shape.rank() != 2) {
      return invalid_argument(fmt::format("{}: no I32 tensor '{}'", expected.path().string(), name));
    }
    const TensorView want = expected.view(*entry);
    const int64_t rows = want.shape()[0], width = want.shape()[1];
    for (int64_t t = 0; t < rows; ++t) {
      bool equal = true;
      for (int64_t j = 0; j < std::max(width, top_k); ++j) {
        const int32_t a = j < top_k ? found[t * top_k + j] : -1, b = j < width ? want.as<int32_t>()[t * width + j] : -1;
        equal = equal && a == b;
      }
      if (!equal) note(selection_, selection_.found + 1, fmt::format("first in {} row {}", name, t), Keep::kFirst);
    }
    has_selection_ = true;
    return {};
  }

  void greedy(size_t prompt, size_t step, int32_t found, int32_t want) {
    ++greedy_total_;
    if (found != want) {
      note(greedy_, greedy_.found + 1,
           fmt::format("first in prompt {} step {}: {}, expected {}", prompt, step, found, want), Keep::kFirst);
    }
  }

  std::vector<GoldenQuantity> quantities() {
    std::vector<GoldenQuantity> all;
    const auto limited = [&](GoldenQuantity q, const char* key) {
      const auto at = case_.tolerance.find(prefix_ + key);
      if (at == case_.tolerance.end()) return;
      q.tolerance = at->second;
      q.ok = q.at_least ? q.found >= q.tolerance : q.found <= q.tolerance;
      all.push_back(q);
    };
    limited(logits_, "logits_max_abs");
    limited(
        {.name = "logits, mean of row maxima", .found = row_sum_ / static_cast<double>(std::max<int64_t>(rows_, 1))},
        "logits_row_mean_abs");
    limited({.name = "rows with the expected best token",
             .found = static_cast<double>(agree_) / static_cast<double>(std::max<int64_t>(rows_, 1)),
             .at_least = true},
            "argmax_agree");
    limited(hidden_, "hidden_max_rel");
    if (has_selection_) all.push_back(selection_);
    drafted_.name = fmt::format("drafted tokens that differ (of {})", drafted_total_);
    if (drafted_total_ > 0) all.push_back(drafted_);
    greedy_.name = fmt::format("greedy tokens that differ (of {})", greedy_total_);
    if (prefix_.empty()) all.push_back(greedy_);  // the tokens of the case are those without quantised activations
    for (GoldenQuantity& q : all) {
      if (q.tolerance == 0) q.ok = q.found == 0;
      if (!prefix_.empty()) q.name = "int8 activations: " + q.name;
    }
    return all;
  }

 private:
  enum class Keep { kLargest, kFirst };

  // NaN counts as infinitely far.
  static double distance(float a, float b) {
    const double d = std::fabs(static_cast<double>(a) - static_cast<double>(b));
    return std::isnan(d) ? INFINITY : d;
  }
  static void note(GoldenQuantity& q, double value, const std::string& where, Keep keep = Keep::kLargest) {
    if (keep == Keep::kLargest ? value > q.found || q.detail.empty() : q.detail.empty()) q.detail = where;
    q.found = std::max(q.found, value);
  }
  static Result<TensorView> tensor(const SafetensorsFile& file, const std::string& name, DType dtype, size_t elements) {
    const SafetensorsEntry* entry = file.find(name);
    if (entry == nullptr) return invalid_argument(fmt::format("{}: there is no '{}'", file.path().string(), name));
    if (entry->type.dtype != dtype || entry->type.shape.num_elements() != static_cast<int64_t>(elements)) {
      return invalid_argument(fmt::format("{}: '{}' is {}, this run has {} elements of {}", file.path().string(), name,
                                          to_string(entry->type), elements, dtype_name(dtype)));
    }
    return file.view(*entry);
  }

  const Case& case_;
  const std::string prefix_;
  GoldenQuantity logits_{.name = "logits"}, hidden_{.name = "hidden states, relative"};
  GoldenQuantity selection_{.name = "rows with other selected indices"}, greedy_, drafted_;
  double row_sum_ = 0;
  int64_t rows_ = 0, agree_ = 0, greedy_total_ = 0, drafted_total_ = 0;
  bool has_selection_ = false;
};

// What one run of the model gives, compared with one file of the case.
class GoldenRun {
 public:
  GoldenRun(const Case& c, const Model& model, Engine& engine, const SafetensorsFile& expected, std::string prefix,
            int64_t step_tokens)
      : case_(c),
        model_(model),
        engine_(engine),
        expected_(expected),
        comparison_(c, std::move(prefix)),
        step_tokens_(step_tokens),
        with_draft_(engine.options().max_drafts > 0) {}

  Result<std::vector<GoldenQuantity>> run() {
    for (size_t i = 0; i < case_.prompts.size(); ++i) {
      WEFT_RETURN_IF_ERROR(sequence(i));
      if (with_draft_ && expected_.find("draft.0") != nullptr) WEFT_RETURN_IF_ERROR(draft_chain(i));
    }
    return comparison_.quantities();
  }

 private:
  // Values that layers give, by layer.
  struct Watched {
    std::map<int64_t, FloatRows> hidden;
    std::map<int64_t, std::vector<int32_t>> picks;
    std::map<int64_t, int64_t> pick_width;
    std::set<std::string> in_parts;  // values of which rank 0 had only some rows in a step

    void see(const Model& model, const Value& value, const TensorView& view, std::span<const int32_t> rows) {
      if (!rows.empty()) in_parts.insert(value.name);
      for (int64_t l = 0; l < model.num_layers() + model.num_draft_layers(); ++l) {
        if (l < model.num_layers() && value.name == model.hidden_value(l)) hidden[l].append(view);
        if (value.name == model.selection_value(l)) {
          picks[l].insert(picks[l].end(), view.as<int32_t>(), view.as<int32_t>() + view.shape().num_elements());
          pick_width[l] = view.shape()[1];
        }
      }
    }
  };

  static int32_t best(std::span<const float> row) { return static_cast<int32_t>(arg_max(row)); }

  // Feeds `tokens`, and the draft layer with the token after each (after the last: the best one). Called with the rows
  // of every step, of the trunk and of the draft layer.
  template <class Rows>
  Status feed(int32_t slot, std::span<const int32_t> tokens, const ValueObserver* observer, Rows&& rows) {
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(step_tokens_)) {
      const size_t n = std::min<size_t>(static_cast<size_t>(step_tokens_), tokens.size() - at);
      const Engine::Request request{slot, tokens.subspan(at, n), Engine::Logits::kAll};
      WEFT_RETURN_IF_ERROR(engine_.step({&request, 1}, observer));
      for (size_t r = 0; r < n; ++r) rows(at + r, engine_.logits(static_cast<int64_t>(r)), false);
      if (!with_draft_) continue;
      std::vector<int32_t> next(tokens.begin() + static_cast<int64_t>(at) + 1,
                                tokens.begin() + static_cast<int64_t>(std::min(at + n + 1, tokens.size())));
      if (next.size() < n) next.push_back(best(engine_.logits(static_cast<int64_t>(n) - 1)));
      const Engine::DraftRequest draft{slot, 0, static_cast<int64_t>(at), next, Engine::Logits::kAll};
      WEFT_RETURN_IF_ERROR(engine_.draft({&draft, 1}, Engine::DraftFrom::kTrunk, observer));
      for (size_t r = 0; r < n; ++r) rows(at + r, engine_.draft_logits(static_cast<int64_t>(r)), true);
      last_rows_ = static_cast<int64_t>(n);
    }
    return {};
  }

  Status sequence(size_t i) {
    std::vector<int32_t> tokens = case_.prompts[i];
    tokens.insert(tokens.end(), case_.greedy[i].begin(), case_.greedy[i].end());
    FloatRows logits, drafts;
    Watched watched;
    const auto observe = [&](const Value& value, const TensorView& view, std::span<const int32_t> rows) {
      watched.see(model_, value, view, rows);
    };
    const ValueObserver observer(observe);
    WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine_.open_sequence());
    WEFT_RETURN_IF_ERROR(feed(slot, tokens, &observer, [&](size_t position, std::span<const float> row, bool draft) {
      std::vector<float>& values = draft ? drafts.values : logits.values;
      values.insert(values.end(), row.begin(), row.end());
      if (!draft && position + 1 >= case_.prompts[i].size() && position + 1 < tokens.size()) {
        comparison_.greedy(i, position + 1 - case_.prompts[i].size(), best(row), tokens[position + 1]);
      }
    }));
    engine_.close_sequence(slot);

    WEFT_RETURN_IF_ERROR(comparison_.logits(fmt::format("logits.{}", i), logits, expected_));
    if (with_draft_) WEFT_RETURN_IF_ERROR(comparison_.logits(fmt::format("mtp.{}", i), drafts, expected_));
    std::erase_if(watched.hidden,
                  [&](const auto& of) { return watched.in_parts.contains(model_.hidden_value(of.first)); });
    std::erase_if(watched.picks, [&](const auto& of) {
      return watched.in_parts.contains(model_.selection_value(of.first).value_or(""));
    });
    for (const auto& [layer, rows] : watched.hidden) {
      const std::string name = fmt::format("hidden.{}.{}", i, layer);
      if (expected_.find(name) != nullptr) WEFT_RETURN_IF_ERROR(comparison_.hidden(name, rows, expected_));
    }
    for (const auto& [layer, rows] : watched.picks) {
      WEFT_RETURN_IF_ERROR(
          comparison_.selection(fmt::format("topk.{}.{}", i, layer), rows, watched.pick_width[layer], expected_));
    }
    return {};
  }

  // Drafts after the prompt, each from the one before.
  Status draft_chain(size_t i) {
    FloatRows rows;
    std::vector<int32_t> drafted;
    const auto count = static_cast<size_t>(engine_.options().max_drafts);
    const auto take = [&](std::span<const float> row) {
      rows.values.insert(rows.values.end(), row.begin(), row.end());
      drafted.push_back(best(row));
    };
    const std::vector<int32_t>& prompt = case_.prompts[i];
    WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine_.open_sequence());
    WEFT_RETURN_IF_ERROR(feed(slot, prompt, nullptr, [&](size_t position, std::span<const float> row, bool draft) {
      if (draft && position + 1 == prompt.size()) take(row);
    }));
    for (int64_t row = last_rows_ - 1, position = static_cast<int64_t>(prompt.size()); drafted.size() < count;
         row = 0, ++position) {
      const int32_t token = drafted.back();
      const Engine::DraftRequest draft{slot, row, position, {&token, 1}, Engine::Logits::kLast};
      WEFT_RETURN_IF_ERROR(engine_.draft({&draft, 1}, Engine::DraftFrom::kDraft));
      take(engine_.draft_logits(0));
    }
    engine_.close_sequence(slot);
    WEFT_RETURN_IF_ERROR(comparison_.logits(fmt::format("draft.{}", i), rows, expected_));
    return comparison_.tokens(fmt::format("draft_tokens.{}", i), drafted, expected_);
  }

  const Case& case_;
  const Model& model_;
  Engine& engine_;
  const SafetensorsFile& expected_;
  Comparison comparison_;
  const int64_t step_tokens_;
  const bool with_draft_;
  int64_t last_rows_ = 0;  // of the last step
};

}  // namespace

namespace {

// What a case says to cover has to be there: what is not there would not be compared.
Status expect_covered(const Case& c, const SafetensorsFile& expected, bool first) {
  for (const auto& [what, tensor] : {std::pair<const char*, const char*>{"mtp", "mtp.0"}, {"draft_chain", "draft.0"}}) {
    const bool needed = c.covers.contains(what) && (first || std::string_view(what) != "draft_chain");
    if (!needed || expected.find(tensor) != nullptr) continue;
    return invalid_argument(fmt::format("{}: the case covers '{}', but there is no tensor '{}'", expected.path().string(), what, tensor));
  }
  return {};
}

}  // namespace

bool GoldenReport::ok() const {
  return std::all_of(quantities.begin(), quantities.end(), [](const GoldenQuantity& q) { return q.ok; });
}

Result<GoldenReport> check_golden_case(const std::filesystem::path& dir, const GoldenOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const Case c, read_case(dir / "case.json"));
  WEFT_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::open(dir));
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                        open_model(std::make_shared<const Checkpoint>(std::move(opened)), {}));
  GoldenReport report{(dir / "").parent_path().filename().string(), c.description, std::string(model->family()),
                      c.dtype == DType::kF32 ? "f32" : "bf16", {}};
  struct File {
    const char* name;
    std::string prefix;
    std::optional<bool> act_quant;
  };
  for (const File& file :
       {File{"expected.safetensors", "", std::nullopt}, File{"expected_a8.safetensors", "a8_", true}}) {
    const bool limited = std::any_of(c.tolerance.begin(), c.tolerance.end(),
                                     [&](const auto& t) { return t.first.starts_with(file.prefix); });
    if (!limited) continue;
    WEFT_ASSIGN_OR_RETURN(const auto expected, SafetensorsFile::open(dir / file.name));
    WEFT_RETURN_IF_ERROR(expect_covered(c, *expected, file.prefix.empty()));
    EngineOptions engine_options;
    engine_options.mode = model->mode(c.dtype, file.act_quant);
    engine_options.num_threads = options.num_threads;
    engine_options.isa = options.isa;
    engine_options.max_step_tokens = options.max_step_tokens;
    if (model->num_draft_layers() > 0 && expected->find("mtp.0") != nullptr) {
      const SafetensorsEntry* chain = expected->find("draft.0");
      engine_options.max_drafts = chain != nullptr ? chain->type.shape[0] : 1;
    }
    for (size_t i = 0; i < c.prompts.size(); ++i) {
      const auto tokens = static_cast<int64_t>(c.prompts[i].size() + c.greedy[i].size());
      engine_options.max_context = std::max(engine_options.max_context, tokens + engine_options.max_drafts);
    }
    engine_options.layout = options.layout;
    WEFT_ASSIGN_OR_RETURN(const auto engine, options.make_engine ? options.make_engine(model, engine_options)
                                                                 : Engine::create(model, engine_options));
    WEFT_ASSIGN_OR_RETURN(const auto quantities,
                          GoldenRun(c, *model, *engine, *expected, file.prefix, options.max_step_tokens).run());
    report.quantities.insert(report.quantities.end(), quantities.begin(), quantities.end());
  }
  return report;
}

}  // namespace weft
