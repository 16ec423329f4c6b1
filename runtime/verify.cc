#include "runtime/verify.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "runtime/draws.h"
#include "runtime/generate.h"
#include "runtime/value_trace.h"

namespace weft {
namespace {

constexpr int64_t kDrafts = 3;  // per step, where drafts are made or rolled back
constexpr int64_t kChunks[] = {1, 3, 4, 7, 64, 127, 128, 129};
constexpr size_t kIsaChunk = 64;         // when instruction sets are compared
constexpr int64_t kOthers = 3;           // sequences beside the one that is looked at
constexpr double kReferenceFlops = 4e8;  // what the plain C++ kernels may spend: some seconds

// A sequence that is fed from its tokens; one token more than is fed, for the draft layer.
struct Sequence {
  std::vector<int32_t> tokens;
  int32_t slot = -1;
  int64_t left(const Engine& engine) const { return static_cast<int64_t>(tokens.size()) - 1 - engine.length(slot); }
};

// What a line changes of the engine.
struct Machine {
  int num_threads = 0;  // 0: as asked for
  std::optional<Isa> isa = {};
};

// How a line feeds the tokens: makes engines, feeds, leaves its findings in the trace.
using Scenario = std::function<Status(ValueTrace&)>;

class Matrix {
 public:
  Matrix(std::shared_ptr<const Model> model, const VerifyOptions& options, const VerifyEvents& events)
      : model_(std::move(model)),
        options_(options),
        events_(events),
        drafts_(model_->num_draft_layers() > 0 ? kDrafts : 0) {}

  Result<VerifyReport> run() {
    const int64_t limit = model_->max_position_embeddings() - drafts_ - 1;
    if (options_.tokens < 2 || options_.tokens > limit) {
      return invalid_argument(fmt::format("--tokens {}: this model takes 2 to {}", options_.tokens, limit));
    }
    report_.tokens = options_.tokens;
    tokens_ = Draws(options_.seed, 0).tokens(options_.tokens + 1, model_->vocab_size());
    for (DType dtype : options_.dtypes) {
      mode_ = model_->mode(dtype, options_.act_quant);
      mode_.output_quant = options_.output_quant;
      WEFT_RETURN_IF_ERROR(run_mode());
    }
    return report_;
  }

 private:
  Status run_mode() {
    start("prefill whole");
    reference_ = ValueTrace();
    whole_ = [this](ValueTrace& trace) { return feed_alone(trace, {}, tokens_.size()); };
    WEFT_RETURN_IF_ERROR(whole_(reference_));
    WEFT_RETURN_IF_ERROR(same("run = run again", whole_));
    WEFT_RETURN_IF_ERROR(chunks());
    for (uint64_t order = 1; order <= 2; ++order) {
      WEFT_RETURN_IF_ERROR(same(fmt::format("alone = in a batch with others, order {}", order),
                                [this, order](ValueTrace& trace) { return feed_in_batch(trace, order); }));
    }
    WEFT_RETURN_IF_ERROR(threads());
    for (int64_t cut : {options_.tokens / 3, options_.tokens - 1}) {
      WEFT_RETURN_IF_ERROR(
          same(fmt::format("cold = continued from a saved cache state of {} tokens", std::max<int64_t>(cut, 1)),
               [this, cut](ValueTrace& trace) { return feed_restored(trace, std::max<int64_t>(cut, 1)); }));
    }
    WEFT_RETURN_IF_ERROR(drafts());
    return mode_.dtype == DType::kF32 ? instruction_sets() : Status();
  }

  Status chunks() {
    for (int64_t chunk : kChunks) {
      const std::string name =
          chunk == 1 ? "prefill whole = token by token" : fmt::format("prefill whole = in chunks of {}", chunk);
      if (chunk >= options_.tokens) {
        skip(name, "the sequence is not longer");
        continue;
      }
      WEFT_RETURN_IF_ERROR(
          same(name, [this, chunk](ValueTrace& trace) { return feed_alone(trace, {}, static_cast<size_t>(chunk)); }));
    }
    return {};
  }

  Status threads() {
    const int cores = static_cast<int>(usable_cores().size());
    std::vector<int> counts = {1, 2, 3, cores};
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    for (int count : counts) {
      constexpr size_t kChunk = 50;
      WEFT_RETURN_IF_ERROR(same(fmt::format("threads: {}", count), [this, count](ValueTrace& trace) {
        return feed_alone(trace, {.num_threads = count}, kChunk);
      }));
    }
    return {};
  }

  Status drafts() {
    constexpr const char *kRollback = "rollback after drafts", *kGenerate = "greedy text without drafts = with drafts";
    if (drafts_ == 0) {
      skip(kRollback, "there is no draft layer");
      skip(kGenerate, "there is no draft layer");
      return {};
    }
    WEFT_RETURN_IF_ERROR(same(kRollback, [this](ValueTrace& trace) { return feed_with_rollback(trace); }));
    return generate(kGenerate);
  }

  Status instruction_sets() {
    const auto flops_per_token = 2.0 * static_cast<double>(model_->summary().parameters_active);
    for (int level = 0; level <= static_cast<int>(max_isa()); ++level) {
      const Isa isa = static_cast<Isa>(level);
      if (isa == options_.isa) continue;
      int64_t tokens = options_.tokens;
      if (isa == Isa::kScalar) {
        constexpr int64_t kFewest = 4;
        tokens = std::clamp(static_cast<int64_t>(kReferenceFlops / flops_per_token), std::min(kFewest, tokens), tokens);
      }
      WEFT_RETURN_IF_ERROR(same(
          fmt::format("{} = {} ({} tokens)", isa_name(options_.isa), isa_name(isa), tokens),
          [this, isa, tokens](ValueTrace& trace) { return feed_alone(trace, {.isa = isa}, kIsaChunk, tokens); },
          tokens));
    }
    return {};
  }

  // ---- Lines

  void start(const std::string& name) {
    start_ = std::chrono::steady_clock::now();
    if (events_.on_start) events_.on_start(fmt::format("{} {}", mode_.dtype == DType::kF32 ? "f32" : "bf16", name));
  }
  void finish(std::string name, VerifyLine::Outcome outcome, std::string detail) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    report_.lines.push_back({mode_.dtype, std::move(name), outcome, std::move(detail), seconds});
    if (events_.on_line) events_.on_line(report_.lines.back());
  }
  void skip(const std::string& name, const std::string& why) {
    start(name);
    finish(name, VerifyLine::Outcome::kSkipped, why);
  }

  // Compares what the scenario gives with the whole prefill. `num_positions`: the tokens that it feeds; all if 0.
  Status same(const std::string& name, const Scenario& scenario, int64_t num_positions = 0) {
    start(name);
    const int64_t positions = num_positions == 0 ? options_.tokens : num_positions;
    ValueTrace trace;
    WEFT_RETURN_IF_ERROR(scenario(trace));
    std::string detail;
    if (const auto row = trace.first_difference(reference_, positions, common_values())) {
      WEFT_ASSIGN_OR_RETURN(detail, describe(*row, scenario));
    } else if (positions == options_.tokens) {
      detail = trace.cache_difference(reference_).value_or("");
    }
    finish(name, detail.empty() ? VerifyLine::Outcome::kPass : VerifyLine::Outcome::kFail, detail);
    return {};
  }

  // Steps of some layouts have other graphs in prefill than in decode.
  bool common_values() const { return options_.layout.mesh.world() > 1; }

  // Only hashes are kept of all rows: both runs are made again to see the elements of one.
  Result<std::string> describe(const ValueRow& row, const Scenario& scenario) {
    ValueTrace found(row), expected(row);
    WEFT_RETURN_IF_ERROR(scenario(found));
    WEFT_RETURN_IF_ERROR(whole_(expected));
    const std::string where = fmt::format("{}{}, position {}", row.draft ? "draft " : "", row.value, row.position);
    if (!found.kept() || !expected.kept()) return fmt::format("{}: the value is missing", where);
    if (found.kept()->bytes.size() != expected.kept()->bytes.size()) return fmt::format("{}: another shape", where);
    if (found.kept()->bytes == expected.kept()->bytes)
      return fmt::format("{}: differed, but not when run again", where);
    return fmt::format("{}: {}", where,
                       element_difference(expected.kept()->dtype, found.kept()->bytes, expected.kept()->bytes));
  }

  // ---- Feeding

  Result<std::unique_ptr<Engine>> make_engine(const Machine& machine, int64_t sequences, int64_t step_tokens) const {
    EngineOptions options;
    options.num_threads = machine.num_threads != 0 ? machine.num_threads : options_.num_threads;
    options.isa = machine.isa.value_or(options_.isa);
    options.mode = mode_;
    options.max_sequences = sequences;
    options.max_context = options_.tokens + drafts_ + 1;
    options.max_step_tokens = std::max<int64_t>(step_tokens, 1 + drafts_);
    options.max_drafts = drafts_;
    options.layout = options_.layout;
    return options_.make_engine ? options_.make_engine(options) : Engine::create(model_, options);
  }

  struct Part {
    Sequence* sequence;
    int64_t count;
  };

  // A step with these parts, then the draft layer on all of its rows. Rows of part `ours` go to the trace (-1: of
  // none).
  Status feed(Engine& engine, const std::vector<Part>& parts, int ours, ValueTrace* trace) const {
    std::vector<Engine::Request> requests;
    std::vector<Engine::DraftRequest> draft_requests;
    int64_t rows = 0, our_row = 0, our_count = 0, our_position = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Sequence& s = *parts[i].sequence;
      const int64_t at = engine.length(s.slot), count = parts[i].count;
      const auto all = std::span(s.tokens).subspan(static_cast<size_t>(at));
      requests.push_back({s.slot, all.first(static_cast<size_t>(count)), Engine::Logits::kAll});
      draft_requests.push_back({s.slot, rows, at, all.subspan(1, static_cast<size_t>(count)), Engine::Logits::kAll});
      if (static_cast<int>(i) == ours) our_row = rows, our_count = count, our_position = at;
      rows += count;
    }
    bool draft = false;
    const auto observe = [&](const Value& value, const TensorView& view, std::span<const int32_t> rows_here) {
      // Of several ranks: not the rows that this one has only some of, nor those that others sent.
      if (!rows_here.empty() || value.type.rows == Rows::kReceived) return;
      trace->record(draft, value, view, our_row, our_count, our_position);
    };
    const ValueObserver observer(observe);
    const ValueObserver* watch = trace != nullptr && ours >= 0 ? &observer : nullptr;
    WEFT_RETURN_IF_ERROR(engine.step(requests, watch));
    for (int64_t row = 0; row < engine.num_logit_rows(); ++row) WEFT_RETURN_IF_ERROR(expect_finite(engine.logits(row)));
    draft = true;
    return drafts_ > 0 ? engine.draft(draft_requests, Engine::DraftFrom::kTrunk, watch) : Status();
  }

  // Of rank 0, where its caches are those of the request.
  void record_caches(ValueTrace& trace, const Engine& engine, int32_t slot) const {
    if (options_.layout.split != TokenSplit::kOwned && options_.layout.mesh.dp == 1)
      trace.record_caches(engine.caches(), slot);
  }

  Status feed_rest(Engine& engine, Sequence& ours, size_t chunk, int64_t end, ValueTrace& trace) const {
    while (engine.length(ours.slot) < end) {
      const int64_t count = std::min(static_cast<int64_t>(chunk), end - engine.length(ours.slot));
      WEFT_RETURN_IF_ERROR(feed(engine, {{&ours, count}}, 0, &trace));
    }
    record_caches(trace, engine, ours.slot);
    return {};
  }

  Status feed_alone(ValueTrace& trace, const Machine& machine, size_t chunk, int64_t end = 0) const {
    WEFT_ASSIGN_OR_RETURN(const auto engine,
                          make_engine(machine, 1, std::min(static_cast<int64_t>(chunk), options_.tokens)));
    Sequence ours{tokens_};
    WEFT_ASSIGN_OR_RETURN(ours.slot, engine->open_sequence());
    return feed_rest(*engine, ours, chunk, end == 0 ? options_.tokens : end, trace);
  }

  std::vector<Sequence> make_others(Draws& draws) const {
    std::vector<Sequence> others(kOthers);
    for (Sequence& other : others) {
      other.tokens = draws.tokens(2 + draws.below(options_.tokens - 1), model_->vocab_size());
    }
    return others;
  }

  // Pieces of random size of all sequences, in an order that changes from step to step.
  Status feed_in_batch(ValueTrace& trace, uint64_t order) const {
    constexpr int64_t kMaxPiece = 40;
    WEFT_ASSIGN_OR_RETURN(const auto engine, make_engine({}, kOthers + 1, (kOthers + 1) * kMaxPiece));
    Draws draws(options_.seed, order);
    std::vector<Sequence> others = make_others(draws);
    Sequence ours{tokens_};
    std::vector<Sequence*> all = {&ours};
    for (Sequence& other : others) all.push_back(&other);
    if (order % 2 == 0) std::reverse(all.begin(), all.end());  // other slots, other pages
    for (Sequence* s : all) {
      WEFT_ASSIGN_OR_RETURN(s->slot, engine->open_sequence());
    }
    while (ours.left(*engine) > 0) {
      for (size_t i = all.size(); i > 1; --i)
        std::swap(all[i - 1], all[static_cast<size_t>(draws.below(static_cast<int64_t>(i)))]);
      std::vector<Part> parts;
      int at = -1;
      for (Sequence* s : all) {
        const int64_t count = std::min(1 + draws.below(kMaxPiece), s->left(*engine));
        if (count == 0) continue;
        if (s == &ours) at = static_cast<int>(parts.size());
        parts.push_back({s, count});
      }
      WEFT_RETURN_IF_ERROR(feed(*engine, parts, at, &trace));
    }
    record_caches(trace, *engine, ours.slot);
    return {};
  }

  // The state goes to another engine, into another slot and other pages than it came from.
  Status feed_restored(ValueTrace& trace, int64_t cut) const {
    WEFT_ASSIGN_OR_RETURN(const auto first, make_engine({}, 1, cut));
    Sequence ours{tokens_};
    WEFT_ASSIGN_OR_RETURN(ours.slot, first->open_sequence());
    WEFT_RETURN_IF_ERROR(feed(*first, {{&ours, cut}}, 0, &trace));
    WEFT_ASSIGN_OR_RETURN(const SavedSequence saved, first->save(ours.slot));

    WEFT_ASSIGN_OR_RETURN(const auto second, make_engine({}, kOthers + 1, options_.tokens));
    Draws draws(options_.seed, 3);
    std::vector<Sequence> others = make_others(draws);
    for (Sequence& other : others) {
      WEFT_ASSIGN_OR_RETURN(other.slot, second->open_sequence());
      WEFT_RETURN_IF_ERROR(feed(*second, {{&other, other.left(*second)}}, -1, nullptr));
    }
    second->close_sequence(others.front().slot);
    WEFT_ASSIGN_OR_RETURN(ours.slot, second->open_sequence());
    WEFT_RETURN_IF_ERROR(second->restore(ours.slot, saved));
    return feed_rest(*second, ours, static_cast<size_t>(options_.tokens), options_.tokens, trace);
  }

  // After every piece some wrong tokens, forgotten again.
  Status feed_with_rollback(ValueTrace& trace) const {
    constexpr int64_t kMaxPiece = 9;
    WEFT_ASSIGN_OR_RETURN(const auto engine, make_engine({}, 1, kMaxPiece));
    Draws draws(options_.seed, 4);
    Sequence ours{tokens_};
    WEFT_ASSIGN_OR_RETURN(ours.slot, engine->open_sequence());
    while (ours.left(*engine) > 0) {
      const int64_t count = std::min(1 + draws.below(kMaxPiece), ours.left(*engine));
      WEFT_RETURN_IF_ERROR(feed(*engine, {{&ours, count}}, 0, &trace));
      const int64_t length = engine->length(ours.slot);
      Sequence wrong{tokens_, ours.slot};
      wrong.tokens.resize(static_cast<size_t>(length));
      for (int32_t token : draws.tokens(drafts_ + 1, model_->vocab_size())) wrong.tokens.push_back(token);
      WEFT_RETURN_IF_ERROR(feed(*engine, {{&wrong, drafts_}}, -1, nullptr));
      WEFT_RETURN_IF_ERROR(engine->truncate(ours.slot, length));
    }
    record_caches(trace, *engine, ours.slot);
    return {};
  }

  // ---- Generation

  struct Texts {
    std::vector<std::vector<int32_t>> tokens;
    int64_t drafted = 0, accepted = 0;
  };

  // Greedy text of some prompts at once.
  Result<Texts> texts(int64_t drafts) const {
    const int64_t longest = std::max<int64_t>(options_.tokens - options_.generate, 1);
    constexpr int64_t kStep = 64;
    WEFT_ASSIGN_OR_RETURN(const auto engine, make_engine({}, kOthers, kStep));
    Generator generator(*engine);
    std::vector<Generator::RequestId> ids;
    for (int64_t i = 0; i < kOthers; ++i) {
      GenerateRequest request;
      request.prompt.assign(tokens_.begin(), tokens_.begin() + std::max<int64_t>(longest / (i + 1), 1));
      request.sampling.temperature = 0;
      request.max_tokens = options_.generate;
      request.drafts = drafts;
      WEFT_ASSIGN_OR_RETURN(const Generator::RequestId id, generator.submit(std::move(request)));
      ids.push_back(id);
    }
    WEFT_RETURN_IF_ERROR(generator.run());
    Texts result;
    for (Generator::RequestId id : ids) {
      const std::optional<GenerateResult> done = generator.take(id);
      WEFT_CHECK(done.has_value(), "request {} has no result", id);
      std::vector<int32_t>& tokens = result.tokens.emplace_back();
      for (const SampledToken& token : done->tokens) tokens.push_back(token.id);
      result.drafted += done->drafted;
      result.accepted += done->accepted;
    }
    return result;
  }

  Status generate(const std::string& name) {
    start(name);
    WEFT_ASSIGN_OR_RETURN(const Texts expected, texts(0));
    std::string detail;
    int64_t drafted = 0, accepted = 0;
    for (int64_t drafts : {int64_t{1}, drafts_}) {
      if (!detail.empty()) break;
      WEFT_ASSIGN_OR_RETURN(const Texts found, texts(drafts));
      drafted += found.drafted;
      accepted += found.accepted;
      for (size_t i = 0; i < expected.tokens.size() && detail.empty(); ++i) {
        const auto &want = expected.tokens[i], &have = found.tokens[i];
        if (want == have) continue;
        const auto at = std::mismatch(want.begin(), want.end(), have.begin(), have.end());
        const auto token = [](const auto& it, const auto& list) {
          return it == list.end() ? std::string("no token") : fmt::format("{}", *it);
        };
        detail = fmt::format("{} drafts, request {}, token {}: {}, expected {}", drafts, i, at.first - want.begin(),
                             token(at.second, have), token(at.first, want));
      }
    }
    if (!detail.empty()) {
      finish(name, VerifyLine::Outcome::kFail, detail);
    } else {
      finish(name, VerifyLine::Outcome::kPass, fmt::format("{} of {} drafts were kept", accepted, drafted));
    }
    return {};
  }

  std::shared_ptr<const Model> model_;
  const VerifyOptions& options_;
  const VerifyEvents& events_;
  const int64_t drafts_;
  NumericMode mode_;
  std::vector<int32_t> tokens_;  // one more than are fed
  ValueTrace reference_;
  Scenario whole_;
  VerifyReport report_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

bool VerifyReport::ok() const {
  return std::none_of(lines.begin(), lines.end(),
                      [](const VerifyLine& line) { return line.outcome == VerifyLine::Outcome::kFail; });
}

Result<VerifyReport> verify_model(std::shared_ptr<const Model> model, const VerifyOptions& options,
                                  const VerifyEvents& events) {
  return Matrix(std::move(model), options, events).run();
}

}  // namespace weft
