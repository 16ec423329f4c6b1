#include "runtime/layout_matrix.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "runtime/draws.h"
#include "runtime/layout_batches.h"
#include "runtime/layout_compare.h"

namespace weft {
namespace {

constexpr int64_t kMaxDrafts = 3;  // verified per step

// One more where drafts are handed on what the first one made: it is the first that gets it from a draft that was given it, too.
int64_t chained_drafts(const Model& model) {
  if (model.num_draft_layers() == 0) return 0;
  return model.draft_links(DraftFrom::kDraft).size() == model.draft_links(DraftFrom::kTrunk).size() ? 1 : kMaxDrafts - 1;
}

// All that one rank showed of a batch: what the layouts must show again.
struct BatchRecord {
  std::vector<StepRecord> calls;                   // in order: steps, and the drafts after each
  std::vector<std::vector<CacheHashes>> caches;    // by request
};

class Matrix {
 public:
  Matrix(std::shared_ptr<const Model> model, const LayoutMatrixOptions& options, const LayoutEvents& events)
      : model_(std::move(model)),
        options_(options),
        events_(events),
        drafts_(model_->num_draft_layers() > 0 ? kMaxDrafts : 0),
        chain_(chained_drafts(*model_)) {}

  Result<LayoutReport> run() {
    batches_ = layout_batches(options_.tokens, drafts_, options_.seed);
    for (const LayoutBatch& batch : batches_) {
      report_.batches.push_back(batch.name);
      requests_ = std::max(requests_, batch.num_requests());
      longest_ = std::max(longest_, batch.longest());
      total_ = std::max(total_, batch.total());
      largest_step_ = std::max(largest_step_, batch.largest_step());
    }
    const int64_t limit = model_->max_position_embeddings() - (longest_ - options_.tokens) - drafts_ - 1;
    if (options_.tokens < 2 || longest_ + drafts_ + 1 > model_->max_position_embeddings()) {
      return invalid_argument(
          fmt::format("--tokens {}: with --layouts this model takes 2 to {}", options_.tokens, limit));
    }
    report_.tokens = options_.tokens;
    for (DType dtype : options_.dtypes) {
      mode_ = model_->mode(dtype, options_.act_quant);
      mode_.output_quant = options_.output_quant;
      WEFT_RETURN_IF_ERROR(record_reference());
      for (const Layout& layout : options_.layouts) WEFT_RETURN_IF_ERROR(check(layout));
    }
    return report_;
  }

 private:
  EngineOptions engine_options(const Layout& layout) const {
    EngineOptions options;
    options.mode = mode_;
    options.layout = layout;
    options.num_threads = options_.num_threads;
    options.isa = options_.isa;
    options.max_sequences = requests_;
    options.max_context = longest_ + drafts_ + 1;
    options.total_context = total_ + requests_ * (drafts_ + 1);
    options.max_step_tokens = largest_step_;
    options.max_drafts = drafts_;
    return options;
  }

  int32_t token(int request, int64_t position, bool wrong) const {
    const auto at =
        static_cast<size_t>((static_cast<int64_t>(request) * 131 + position) % static_cast<int64_t>(text_.size()));
    return wrong ? static_cast<int32_t>((text_[at] + 1) % model_->vocab_size()) : text_[at];
  }

  // ---- Playing a batch. `visit(call, rows)` after every step and draft, `at_end(request, slot)` for each request.

  template <class Visit, class AtEnd>
  Status play(Engine& engine, const LayoutBatch& batch, Visit&& visit, AtEnd&& at_end) const {
    std::vector<int32_t> slots;
    for (int i = 0; i < batch.num_requests(); ++i) {
      WEFT_ASSIGN_OR_RETURN(slots.emplace_back(), engine.open_sequence());
    }
    for (const BatchStep& step : batch.steps) WEFT_RETURN_IF_ERROR(play_step(engine, slots, step, visit));
    for (size_t i = 0; i < slots.size(); ++i) {
      WEFT_RETURN_IF_ERROR(at_end(i, slots[i]));
    }
    // In another order than they were opened: the next batch gets other slots.
    for (size_t i = 0; i < slots.size(); ++i) engine.close_sequence(slots[i]);
    return {};
  }

  template <class Visit>
  Status play_step(Engine& engine, const std::vector<int32_t>& slots, const BatchStep& step, Visit&& visit) const {
    std::vector<std::vector<int32_t>> tokens(step.parts.size());  // with the one that follows
    std::vector<Engine::Request> requests;
    std::vector<Engine::DraftRequest> drafts;
    std::vector<std::vector<Engine::DraftRequest>> chained(static_cast<size_t>(chain_));  // a row of each request: one draft behind another
    std::vector<int32_t> chained_tokens(step.parts.size() * chained.size());
    int64_t rows = 0;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const BatchStep::Part& part = step.parts[i];
      const int32_t slot = slots[static_cast<size_t>(part.request)];
      const int64_t at = engine.length(slot);
      for (int64_t j = 0; j <= part.tokens; ++j) {
        tokens[i].push_back(token(part.request, at + j, part.keep >= 0 && j >= part.keep));
      }
      const std::span<const int32_t> all(tokens[i]);
      requests.push_back({slot, all.first(all.size() - 1), step.logits});
      drafts.push_back({slot, rows, at, all.subspan(1), step.logits == Logits::kNone ? Logits::kLast : step.logits});
      rows += part.tokens;
      for (size_t n = 0; n < chained.size(); ++n) {
        const int64_t position = at + part.tokens + static_cast<int64_t>(n);
        int32_t& next = chained_tokens[n * step.parts.size() + i];
        next = token(part.request, position + 1, true);
        chained[n].push_back({slot, n == 0 ? rows - 1 : static_cast<int64_t>(i), position, {&next, 1}, Logits::kLast});
      }
    }
    WEFT_RETURN_IF_ERROR(engine.step(requests));
    WEFT_RETURN_IF_ERROR(visit(StepCall{StepCall::Kind::kStep, rows, step.fills}));
    if (drafts_ > 0) {
      WEFT_RETURN_IF_ERROR(engine.draft(drafts, Engine::DraftFrom::kTrunk));
      WEFT_RETURN_IF_ERROR(visit(StepCall{StepCall::Kind::kDraft, rows, step.fills}));
      for (const std::vector<Engine::DraftRequest>& next : chained) {
        WEFT_RETURN_IF_ERROR(engine.draft(next, Engine::DraftFrom::kDraft));
        WEFT_RETURN_IF_ERROR(visit(StepCall{StepCall::Kind::kNextDraft, static_cast<int64_t>(next.size()), false}));
      }
    }
    for (const BatchStep::Part& part : step.parts) {
      if (part.keep < 0 || part.keep == part.tokens) continue;
      const int32_t slot = slots[static_cast<size_t>(part.request)];
      WEFT_RETURN_IF_ERROR(engine.truncate(slot, engine.length(slot) - part.tokens + part.keep));
    }
    return {};
  }

  static Result<StepRecord> record(Engine& engine, const StepCall& call, bool values) {
    StepRecord record{call, {}, {}};
    WEFT_ASSIGN_OR_RETURN(record.ranks, engine.take_trace());
    record.logits = hash_logits(engine, call);
    if (values) record.values = logit_values(engine, call);
    return record;
  }

  bool any_tolerance() const {
    return std::any_of(options_.layouts.begin(), options_.layouts.end(),
                       [&](const Layout& layout) { return tolerance_of(layout, mode_.dtype).has_value(); });
  }

  // ---- Reference

  Status record_reference() {
    start("one rank");
    text_ = Draws(options_.seed, 0).tokens(options_.tokens + 977, model_->vocab_size());
    reference_.clear();
    WEFT_ASSIGN_OR_RETURN(const auto engine, Engine::create(model_, engine_options({})));
    WEFT_RETURN_IF_ERROR(engine->start_trace());
    for (const LayoutBatch& batch : batches_) {
      BatchRecord& want = reference_.emplace_back();
      want.caches.resize(static_cast<size_t>(batch.num_requests()));
      const auto visit = [&](const StepCall& call) -> Status {
        WEFT_ASSIGN_OR_RETURN(want.calls.emplace_back(), record(*engine, call, any_tolerance()));
        return {};
      };
      const auto at_end = [&](size_t request, int32_t slot) -> Status {
        WEFT_ASSIGN_OR_RETURN(auto caches, engine->cache_hashes(slot));
        want.caches[request] = std::move(caches[0]);
        return {};
      };
      WEFT_RETURN_IF_ERROR(play(*engine, batch, visit, at_end));
    }
    return {};
  }

  // ---- One layout

  Status check(const Layout& layout) {
    start(to_string(layout));
    LayoutLine line;
    line.dtype = mode_.dtype;
    line.layout = to_string(layout);
    line.transport = options_.transport;
    line.ranks = layout.mesh.world();
    line.batches = static_cast<int64_t>(batches_.size());
    if (const Status refused = model_->check_layout(layout); !refused.ok()) {
      line.outcome = VerifyLine::Outcome::kSkipped;
      line.detail = refused.message();
      return finish(std::move(line));
    }
    const EngineOptions options = engine_options(layout);
    auto made = options_.make_engine ? options_.make_engine(options) : Engine::create(model_, options);
    if (!made.ok()) return made.status();
    Engine& engine = **made;
    WEFT_RETURN_IF_ERROR(engine.start_trace());
    LogitsError error;
    for (size_t b = 0; b < batches_.size(); ++b) {
      std::string difference;
      WEFT_RETURN_IF_ERROR(compare(engine, layout, b, line, error, difference));
      if (difference.empty()) {
        ++line.batches_passed;
      } else if (line.detail.empty()) {
        line.outcome = VerifyLine::Outcome::kFail;
        line.detail = fmt::format("{}: {}", batches_[b].name, difference);
      }
    }
    if (const auto tolerance = tolerance_of(layout, mode_.dtype); tolerance && line.detail.empty()) {
      line.detail = error.beyond(*tolerance);
      if (!line.detail.empty()) line.outcome = VerifyLine::Outcome::kFail;
    }
    return finish(std::move(line));
  }

  // The batch is played to its end, also behind a difference: the engine goes on to the next one.
  Status compare(Engine& engine, const Layout& layout, size_t number, LayoutLine& line, LogitsError& error,
                 std::string& difference) const {
    const BatchRecord& want = reference_[number];
    const bool fills = fills_graphs(layout);
    const bool tolerance = tolerance_of(layout, mode_.dtype).has_value();
    size_t at = 0;
    WEFT_ASSIGN_OR_RETURN(std::vector<RankReport> before, engine.reports());
    const auto note = [&](std::string text) {
      if (difference.empty()) difference = std::move(text);
    };
    const auto visit = [&](const StepCall& call) -> Status {
      WEFT_ASSIGN_OR_RETURN(const StepRecord found, record(engine, call, tolerance));
      if (tolerance) {
        note(error.add(found, want.calls[at], at));
        line.rows += static_cast<int64_t>(found.values.size());
      } else {
        note(first_difference(found, want.calls[at], at, line.rows));
      }
      ++at;
      WEFT_ASSIGN_OR_RETURN(std::vector<RankReport> after, engine.reports());
      const GraphKind kind = call.kind == StepCall::Kind::kStep ? GraphKind::kTrunk : GraphKind::kDraft;
      const Graph* full = fills && call.fills ? engine.last_graph(kind) : nullptr;
      const std::string text = sent_difference(before, after, full, engine.options().num_threads);
      if (!text.empty()) note(fmt::format("call {} ({} rows): {}", at, call.rows, text));
      ++line.byte_steps;
      line.full_steps += full != nullptr ? 1 : 0;
      before = std::move(after);
      return {};
    };
    const auto at_end = [&](size_t request, int32_t slot) -> Status {
      WEFT_ASSIGN_OR_RETURN(const auto caches, engine.cache_hashes(slot));
      std::set<std::string> seen;
      for (size_t rank = 0; rank < caches.size(); ++rank) {
        if (!holds_caches(layout, static_cast<int>(rank), slot)) continue;
        for (const CacheHashes& cache : caches[rank]) seen.insert(cache.name);
        if (tolerance) continue;
        const std::string text = cache_difference(caches[rank], want.caches[request], line.rows);
        if (!text.empty()) note(fmt::format("request {}, rank {}: {}", request, rank, text));
      }
      for (const CacheHashes& cache : want.caches[request]) {
        if (!seen.contains(cache.name)) note(fmt::format("request {}: no rank has cache {}", request, cache.name));
      }
      return {};
    };
    return play(engine, batches_[number], visit, at_end);
  }

  // ---- Lines

  void start(const std::string& name) {
    start_ = std::chrono::steady_clock::now();
    if (events_.on_start) events_.on_start(fmt::format("{} {}", mode_.dtype == DType::kF32 ? "f32" : "bf16", name));
  }
  Status finish(LayoutLine line) {
    line.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    report_.lines.push_back(std::move(line));
    if (events_.on_line) events_.on_line(report_.lines.back());
    return {};
  }

  std::shared_ptr<const Model> model_;
  const LayoutMatrixOptions& options_;
  const LayoutEvents& events_;
  const int64_t drafts_;
  const int64_t chain_;  // drafts that continue a draft
  NumericMode mode_;
  std::vector<LayoutBatch> batches_;
  int requests_ = 1;
  int64_t longest_ = 1, total_ = 1, largest_step_ = 1;  // of all batches
  std::vector<int32_t> text_;
  std::vector<BatchRecord> reference_;  // by batch
  LayoutReport report_;
  std::chrono::steady_clock::time_point start_;
};

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

}  // namespace

std::vector<Layout> runnable_layouts(const Model& model, int ranks) {
  constexpr OProjChoice kOProjs[] = {OProjChoice::kSharded, OProjChoice::kReplicated, OProjChoice::kStreamed};
  constexpr std::string_view kCombined[] = {"attention", "sequence_parallel", "split", "o_proj", "dcp_mode"};
  std::vector<Layout> all;
  std::set<std::string> seen;
  const auto add = [&](const Layout& layout) {
    if (!model.check_layout(layout).ok()) return false;
    if (seen.insert(to_string(layout)).second) all.push_back(layout);
    return true;
  };
  // One more choice, beside what it needs of these.
  const auto add_choice = [&](const Layout& base, const LayoutChoice& choice, int value) {
    for (const int64_t ep : {int64_t{1}, base.mesh.stage()}) {
      for (const OProjChoice o_proj : kOProjs) {
        Layout layout = base;
        layout.mesh.ep = static_cast<int>(ep);
        layout.o_proj = o_proj;
        choice.set(layout, value);
        if (add(layout)) return;
      }
    }
  };
  const auto add_all_of = [&](const Layout& base) {
    for (const auto split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned}) {
      for (const OProjChoice o_proj : kOProjs) {
        for (const int ep : divisors(static_cast<int>(base.mesh.stage()))) {
          Layout layout = base;
          layout.split = split;
          layout.o_proj = o_proj;
          layout.mesh.ep = ep;
          add(layout);
        }
      }
    }
    for (const LayoutChoice& choice : layout_choices()) {
      if (std::ranges::find(kCombined, choice.key) != std::end(kCombined)) continue;
      for (size_t value = 1; value < choice.values.size(); ++value) add_choice(base, choice, static_cast<int>(value));
    }
    for (const int dcp : divisors(base.mesh.tp)) {
      Layout layout = base;
      layout.mesh.dcp = dcp;
      for (const DcpMode mode : {DcpMode::kRows, DcpMode::kMerge}) {
        layout.dcp_mode = mode;
        add(layout);
      }
    }
  };
  for (const int dp : divisors(ranks)) {
    for (const int pp : divisors(ranks / dp)) {
      for (const int pcp : divisors(ranks / dp / pp)) {
        Layout base;
        base.mesh = {.dp = dp, .pp = pp, .pcp = pcp, .tp = ranks / dp / pp / pcp};
        for (const auto attention : {AttentionChoice::kHeads, AttentionChoice::kDsaCp}) {
          for (const bool sp : {false, true}) {
            base.attention = attention;
            base.sequence_parallel = sp;
            add_all_of(base);
          }
        }
      }
    }
  }
  return all;
}

bool LayoutReport::ok() const {
  return std::none_of(lines.begin(), lines.end(),
                      [](const LayoutLine& line) { return line.outcome == VerifyLine::Outcome::kFail; });
}

Result<LayoutReport> verify_layouts(std::shared_ptr<const Model> model, const LayoutMatrixOptions& options,
                                    const LayoutEvents& events) {
  return Matrix(std::move(model), options, events).run();
}

}  // namespace weft
