// Models that run on ranks that are threads, for tests of what can go wrong between them: each rank is looked at, what
// it computed, on which rows, and what is in its caches.
#pragma once

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "comm/thread_comm.h"
#include "runtime/engine.h"
#include "runtime/test_support.h"

namespace weft {

// Tokens that each sequence appends, step by step.
using Steps = std::vector<std::vector<int64_t>>;

struct Scenario {
  const char* model = "sample/austen-v4";
  DType dtype = DType::kBF16;
  Steps steps = {{37, 6}, {5, 18}, {1, 1}, {1, 2}, {1, 1}};
  bool draft = false;
  std::vector<std::string> watched;                      // values, by their names in the graph of one rank
  std::function<void(std::vector<std::vector<int32_t>>&)> edit;  // the sequences
};

struct Seen {
  ValueType type;
  std::vector<std::byte> bytes;  // valid rows
  bool operator==(const Seen&) const = default;
};

struct RankTrace {
  Status status;
  std::vector<std::vector<float>> logits;         // by step
  std::vector<SavedSequence> caches;              // by sequence, at the end
  std::vector<std::map<std::string, Seen>> seen;  // by step
};

inline RankTrace play_rank(const std::shared_ptr<const Model>& model, const Scenario& scenario, const Layout& layout,
                           Communicator* world) {
  RankTrace trace;
  EngineOptions options;
  options.mode = model->mode(scenario.dtype, std::nullopt);
  options.layout = layout;
  options.num_threads = 1;
  const auto sequences = static_cast<int64_t>(scenario.steps[0].size());
  options.max_sequences = sequences;
  options.max_context = 256;
  options.max_step_tokens = 128;
  options.max_drafts = scenario.draft ? 1 : 0;
  auto made = RankEngine::create(model, options, world);
  if (!made.ok()) return {made.status(), {}, {}, {}};
  RankEngine& engine = **made;
  std::vector<std::vector<int32_t>> texts;
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < sequences; ++i) {
    texts.push_back(some_tokens(200, model->vocab_size(), static_cast<uint32_t>(i) + 1));
    slots.push_back(*engine.open_sequence());
  }
  if (scenario.edit) scenario.edit(texts);
  std::vector<size_t> fed(texts.size());
  for (const auto& counts : scenario.steps) {
    std::map<std::string, Seen>& seen = trace.seen.emplace_back();
    const auto watch = [&](const Value& value, const TensorView& view, std::span<const int32_t>) {
      if (std::find(scenario.watched.begin(), scenario.watched.end(), value.name) == scenario.watched.end()) return;
      const auto* bytes = view.as<std::byte>();
      ValueType type = value.type;
      type.tensor = view.type;
      seen[value.name] = {type, {bytes, bytes + view.type.bytes()}};
    };
    const ValueObserver observer(watch);
    std::vector<StepRequest> requests;
    std::vector<DraftRequest> drafts;
    int64_t row = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto count = static_cast<size_t>(counts[i]);
      if (count == 0) continue;
      const std::span<const int32_t> all(texts[i]);
      requests.push_back({slots[i], all.subspan(fed[i], count), i == 0 ? Logits::kAll : Logits::kLast});
      drafts.push_back({slots[i], row, static_cast<int64_t>(fed[i]), all.subspan(fed[i] + 1, count), Logits::kLast});
      row += counts[i];
      fed[i] += count;
    }
    trace.status = engine.step(requests, &observer);
    if (!trace.status.ok()) return trace;
    std::vector<float>& logits = trace.logits.emplace_back();
    const auto keep = [&](std::span<const float> from) { logits.insert(logits.end(), from.begin(), from.end()); };
    for (int64_t i = 0; i < engine.num_logit_rows(); ++i) keep(engine.logits(i));
    if (!scenario.draft) continue;
    trace.status = engine.draft(drafts, DraftFrom::kTrunk, &observer);
    if (!trace.status.ok()) return trace;
    for (size_t i = 0; i < drafts.size(); ++i) keep(engine.draft_logits(static_cast<int64_t>(i)));
  }
  for (int32_t slot : slots) trace.caches.push_back(engine.save(slot));
  return trace;
}

inline std::vector<RankTrace> play(const Scenario& scenario, const std::string& text) {
  const auto model = load_test_model(scenario.model);
  auto layout = parse_layout(text);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  const auto ranks = static_cast<size_t>(layout->mesh.world());
  std::vector<RankTrace> traces(ranks);
  if (ranks == 1) {
    traces[0] = play_rank(model, scenario, *layout, nullptr);
  } else {
    const RankRun run = run_thread_ranks(static_cast<int>(ranks), {}, [&](Communicator& comm) {
      RankTrace& trace = traces[static_cast<size_t>(comm.rank())];
      trace = play_rank(model, scenario, *layout, &comm);
      return trace.status;
    });
    EXPECT_TRUE(run.status.ok()) << text << ": " << run.status.message();
  }
  for (const RankTrace& trace : traces) EXPECT_TRUE(trace.status.ok()) << text << ": " << trace.status.message();
  return traces;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Logits of every step on every rank.
inline void expect_logits_of_one_rank(const Scenario& scenario, const std::vector<const char*>& layouts) {
  const RankTrace want = play(scenario, "tp1")[0];
  for (const char* layout : layouts) {
    const auto traces = play(scenario, layout);
    for (size_t r = 0; r < traces.size(); ++r) {
      ASSERT_EQ(traces[r].logits.size(), want.logits.size()) << layout;
      for (size_t s = 0; s < want.logits.size(); ++s) {
        EXPECT_TRUE(same_bits(traces[r].logits[s], want.logits[s])) << layout << " rank " << r << " step " << s;
      }
    }
  }
}

inline void expect_caches_of_one_rank(const Scenario& scenario, const std::vector<const char*>& layouts) {
  const RankTrace want = play(scenario, "tp1")[0];
  for (const char* layout : layouts) {
    const auto traces = play(scenario, layout);
    for (size_t r = 0; r < traces.size(); ++r) {
      for (size_t i = 0; i < want.caches.size(); ++i) {
        EXPECT_TRUE(traces[r].caches[i] == want.caches[i]) << layout << " rank " << r << " sequence " << i;
      }
    }
  }
}

// A value whose rows the ranks hold one after another.
inline std::vector<std::byte> rows_of_ranks(const std::vector<RankTrace>& traces, size_t step,
                                            const std::string& name) {
  std::vector<std::byte> all;
  for (const RankTrace& trace : traces) {
    const auto at = trace.seen[step].find(name);
    EXPECT_NE(at, trace.seen[step].end()) << name;
    if (at == trace.seen[step].end()) continue;
    EXPECT_EQ(to_string(at->second.type.placement), " tp:shard(0)") << name;
    all.insert(all.end(), at->second.bytes.begin(), at->second.bytes.end());
  }
  return all;
}

// Watched values, whose rows the ranks hold, in the first `num_steps` steps, by default all.
inline void expect_rows_of_one_rank(const Scenario& scenario, const std::vector<const char*>& layouts,
                                    size_t num_steps = SIZE_MAX) {
  const RankTrace want = play(scenario, "tp1")[0];
  for (const char* layout : layouts) {
    const auto traces = play(scenario, layout);
    for (size_t step = 0; step < std::min(num_steps, scenario.steps.size()); ++step) {
      for (const std::string& name : scenario.watched) {
        EXPECT_TRUE(rows_of_ranks(traces, step, name) == want.seen[step].at(name).bytes)
            << layout << " step " << step << " " << name;
      }
    }
  }
}

inline Graph graph_of(const char* name, const std::string& layout, int64_t tokens,
                      StepPhase phase = StepPhase::kPrefill) {
  const auto model = load_test_model(name);
  GraphOptions options;
  options.mode = model->mode(DType::kF32, false);
  options.shape = {tokens, 1};
  options.cache.num_slots = 2;
  options.cache.num_pages = 4;
  options.cache.max_context = 512;
  auto graph = build_for_layout(*model, GraphKind::kTrunk, options, *parse_layout(layout), phase);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return std::move(*graph);
}

inline const ValueType& type_of(const Graph& graph, const std::string& name) {
  const ValueId id = graph.find(name);
  EXPECT_GE(id, 0) << name;
  return graph.value(std::max(id, 0)).type;
}

}  // namespace weft
