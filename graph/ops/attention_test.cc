// The caches of attention: whatever the cut into steps, the batch, the pages and the drafts that were forgotten again, every
// token gets the bits of its sequence processed at once; and that is what deepseek_v4.md 2.5 and 2.6, or without a window
// glm_moe_dsa.md 2.6 and 2.7, say, computed here over the whole sequence in double.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "graph/cache_spec.h"
#include "graph/test_support.h"

namespace weft {
namespace {

struct Layer {
  const char* name;
  int64_t window, ratio;
  bool overlap, indexed;
  int64_t top_k;
  DType dtype;
  bool quantised;
  int64_t value_width = 0;

  // Keys are appended as they are; no window, no sink.
  bool latent() const { return window == 0; }
  int64_t value_dim() const;
};

constexpr int64_t kHeads = 3, kDim = 16, kIndexHeads = 2, kIndexDim = 8, kRotaryDims = 4;
constexpr int64_t kDraftRows = 3, kPageTokens = 24, kMaxContext = 150, kNumSlots = 3;
constexpr double kEps = 1e-6, kScale = 0.25, kWeightScale = 0.5;

int64_t Layer::value_dim() const { return value_width > 0 ? value_width : kDim; }

const Layer kLayers[] = {
    {"window only", 5, 0, false, false, 0, DType::kF32, false},
    {"window only, bf16", 5, 0, false, false, 0, DType::kBF16, false},
    {"window of one token", 1, 0, false, false, 0, DType::kF32, false},
    {"overlapping groups, picks", 6, 4, true, true, 3, DType::kF32, false},
    {"overlapping groups, picks, quantised", 6, 4, true, true, 3, DType::kF32, true},
    {"overlapping groups, picks, bf16, quantised", 6, 4, true, true, 3, DType::kBF16, true},
    {"more picks than entries", 6, 4, true, true, 64, DType::kF32, false},
    {"groups alone, all entries", 12, 12, false, false, 0, DType::kF32, false},
    {"groups alone, all entries, bf16, quantised", 12, 12, false, false, 0, DType::kBF16, true},
    {"groups alone, window shorter than a group", 3, 8, false, false, 0, DType::kF32, true},
    {"overlapping groups, all entries", 70, 2, true, false, 0, DType::kF32, false},
    {"groups of one token", 4, 1, false, true, 5, DType::kF32, false},
    {"latent, picks", 0, 1, false, true, 5, DType::kF32, false, 12},
    {"latent, picks, bf16", 0, 1, false, true, 40, DType::kBF16, false, 16},
    {"latent, all entries", 0, 1, false, false, 0, DType::kF32, false, 0},
};

enum Kind {
  kQuery,
  kKv,
  kCandidate,
  kGate,
  kIndexCandidate,
  kIndexGate,
  kIndexQuery,
  kHeadWeight,
  kSink,
  kNorm,
  kIndexNorm
};

RopeParameters rope() { return {10000, kRotaryDims, {}}; }

Quantise main_quantise() { return {QuantFormat::kFp8, 0, kDim - kRotaryDims, 4, false}; }
Quantise index_quantise() { return {QuantFormat::kFp4, 0, kIndexDim, 4, true}; }

int64_t candidate_width(const Layer& layer, bool index) { return (layer.overlap ? 2 : 1) * (index ? kIndexDim : kDim); }

// Rows of one request in a step. The last `wrong` rows get other inputs than the sequence has: drafts that will be forgotten.
struct StepRows {
  int64_t slot, sequence, first, len, wrong;
};

struct TokenResult {
  std::vector<float> out;
  std::vector<int32_t> picks;
  bool operator==(const TokenResult&) const = default;
};

using Results = std::map<std::pair<int64_t, int64_t>, TokenResult>;  // by sequence and position

// The caches of a layer and the ops that use them, in the order of a step.
class Engine {
 public:
  Engine(const Layer& layer, int threads, Isa isa, uint64_t seed)
      : layer_(layer),
        pool_(threads),
        isa_(isa),
        sink_(DType::kF32, {kHeads}),
        norm_(DType::kF32, {kDim}),
        index_norm_(DType::kF32, {kIndexDim}),
        window_(
            cache({"", CacheKind::kRing, 1, std::max<int64_t>(1, layer.window - 1 + kDraftRows), layer.dtype, kDim})) {
    for (int64_t h = 0; h < kHeads; ++h) sink_.set(h, number_of({kSink, h}));
    for (int64_t d = 0; d < kDim; ++d) norm_.set(d, number_of({kNorm, d}));
    for (int64_t d = 0; d < kIndexDim; ++d) index_norm_.set(d, number_of({kIndexNorm, d}));
    if (layer.ratio > 0) {
      // Exactly the rows that are needed and the drafts: one row less must be too few.
      const int64_t rows = std::max<int64_t>(1, (layer.overlap ? 2 : 1) * layer.ratio - 1 + kDraftRows);
      for (bool index : {false, true}) {
        if (index && !layer.indexed) continue;
        if (!layer.latent()) {
          states_.push_back(cache({"", CacheKind::kRing, 1, rows, DType::kF32, 2 * candidate_width(layer, index)}));
        }
        entries_.push_back(cache({"", CacheKind::kAppend, layer.ratio, 0, layer.dtype, index ? kIndexDim : kDim}));
      }
    }
    free_pages_.resize(capacity().num_pages);
    std::iota(free_pages_.begin(), free_pages_.end(), 0);
    std::shuffle(free_pages_.begin(), free_pages_.end(), std::mt19937_64(seed));
    pages_.resize(kNumSlots);
    batch_.pages = pages_;
  }

  // The pages of a request that is over can be anybody's.
  void release(int64_t slot) {
    auto& pages = pages_[slot];
    free_pages_.insert(free_pages_.begin(), pages.begin(), pages.end());
    pages.clear();
  }

  // Results of all rows but the wrong ones.
  void step(const std::vector<StepRows>& rows, Results& results) {
    batch_.segments.clear();
    batch_.positions.clear();
    for (const StepRows& r : rows) {
      const auto row0 = static_cast<int64_t>(batch_.positions.size());
      batch_.segments.push_back({static_cast<int32_t>(r.slot), row0, r.len, r.first + r.len});
      for (int64_t j = 0; j < r.len; ++j) batch_.positions.push_back(static_cast<int32_t>(r.first + j));
      auto& pages = pages_[r.slot];
      while (static_cast<int64_t>(pages.size()) * kPageTokens < r.first + r.len) {
        pages.push_back(free_pages_.back());
        free_pages_.pop_back();
      }
    }
    batch_.tokens.assign(batch_.positions.size(), 0);
    const OpEnv env{batch_, pool_, isa_};

    const HostTensor q = rows_of(rows, kQuery, layer_.dtype, {0, kHeads, kDim});
    const HostTensor kv = rows_of(rows, kKv, layer_.dtype, {0, kDim});
    for (size_t index = 0; index < states_.size(); ++index) {
      const int64_t w = candidate_width(layer_, index == 1);
      const HostTensor k = rows_of(rows, index == 1 ? kIndexCandidate : kCandidate, DType::kF32, {0, w});
      const HostTensor s = rows_of(rows, index == 1 ? kIndexGate : kGate, DType::kF32, {0, w});
      const Compressor op{layer_.ratio, kEps, rope(), layer_.quantised,
                          index == 1 ? index_quantise() : main_quantise()};
      run_op(op, {&k, &s, index == 1 ? &index_norm_ : &norm_, &states_[index], &entries_[index]}, env);
    }
    if (layer_.latent()) append(rows, kv, env);
    std::vector<HostTensor> picks;
    if (layer_.indexed) {
      const HostTensor iq = rows_of(rows, kIndexQuery, layer_.dtype, {0, kIndexHeads, kIndexDim});
      const HostTensor w = rows_of(rows, kHeadWeight, layer_.dtype, {0, kIndexHeads});
      picks = run_op(IndexTopK{layer_.ratio, layer_.top_k, kWeightScale, kMaxContext}, {&iq, &w, &entries_[1]}, env);
    }
    std::vector<const HostTensor*> in = {&q};
    if (!layer_.latent()) in.insert(in.end(), {&kv, &sink_, &window_});
    if (layer_.ratio > 0) in.push_back(&entries_[0]);
    if (layer_.indexed) in.push_back(&picks[0]);
    const SparseAttention core{layer_.window, layer_.ratio, kScale, kMaxContext, !layer_.latent(), layer_.value_width};
    const auto out = run_op(core, in, env);
    if (!layer_.latent()) run_op(RingWrite{}, {&kv, &window_}, env);
    const int64_t width = kHeads * layer_.value_dim();

    int64_t row = 0;
    for (const StepRows& r : rows) {
      for (int64_t j = 0; j < r.len; ++j, ++row) {
        if (j >= r.len - r.wrong) continue;
        TokenResult result;
        for (int64_t i = 0; i < width; ++i) result.out.push_back(out[0].get(row * width + i));
        for (int64_t i = 0; layer_.indexed && i < layer_.top_k; ++i) {
          result.picks.push_back(picks[0].as<int32_t>()[row * layer_.top_k + i]);
        }
        results[{r.sequence, r.first + j}] = std::move(result);
      }
    }
  }

 private:
  static CacheCapacity capacity() {
    CacheCapacity capacity;
    capacity.num_slots = kNumSlots;
    capacity.page_tokens = kPageTokens;
    capacity.num_pages = kNumSlots * (kMaxContext + kPageTokens - 1) / kPageTokens + kNumSlots;
    return capacity;
  }
  static HostTensor cache(const CacheSpec& spec) { return HostTensor(ValueType{cache_type(spec, capacity())}); }

  // Keys and index keys come side by side, as one row.
  void append(const std::vector<StepRows>& rows, const HostTensor& kv, const OpEnv& env) {
    const HostTensor index_keys = rows_of(rows, kIndexCandidate, layer_.dtype, {0, kIndexDim});
    const auto both = run_op(Concat{}, {&kv, &index_keys}, env);
    for (size_t index = 0; index < entries_.size(); ++index) {
      run_op(AppendRows{index == 0 ? 0 : kDim}, {&both[0], &entries_[index]}, env);
    }
  }

  HostTensor rows_of(const std::vector<StepRows>& rows, Kind kind, DType dtype, Shape shape) const {
    shape[0] = static_cast<int64_t>(batch_.positions.size());
    HostTensor tensor(dtype, shape, weft::Rows::kTokens);
    const int64_t width = tensor.count() / shape[0];
    int64_t i = 0;
    for (const StepRows& r : rows) {
      for (int64_t j = 0; j < r.len; ++j) {
        const int64_t sequence = j >= r.len - r.wrong ? 1000 + r.sequence : r.sequence;
        for (int64_t c = 0; c < width; ++c, ++i) tensor.set(i, number_of({kind, sequence, r.first + j, c}));
      }
    }
    return tensor;
  }

  const Layer layer_;
  ThreadPool pool_;
  const Isa isa_;
  HostTensor sink_, norm_, index_norm_, window_;
  std::vector<HostTensor> states_, entries_;  // main, index
  std::vector<int32_t> free_pages_;
  std::vector<std::vector<int32_t>> pages_;  // by slot
  StepBatch batch_;
};

Results at_once(const Layer& layer, const std::vector<int64_t>& lengths, int threads, Isa isa) {
  Results results;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Engine engine(layer, threads, isa, i);
    engine.step({{1, static_cast<int64_t>(i), 0, lengths[i], 0}}, results);
  }
  return results;
}

// ---- The formulas of the reference, over a whole sequence, in double

using Vector = std::vector<double>;

Vector inputs(Kind kind, int64_t sequence, int64_t position, int64_t width) {
  Vector v;
  for (int64_t c = 0; c < width; ++c) v.push_back(number_of({kind, sequence, position, c}));
  return v;
}

double power_of_two_at_least(double x) { return std::exp2(std::ceil(std::log2(x))); }

// Entry g of the compressor (2.5.5), of the indexer's (2.6) if `index`.
Vector plain_entry(const Layer& layer, int64_t sequence, int64_t g, bool index) {
  const int64_t d = index ? kIndexDim : kDim, w = candidate_width(layer, index);
  Vector u;
  for (int64_t c = 0; c < d; ++c) {
    Vector k, s;
    const auto add_token = [&](int64_t t, int64_t column) {
      k.push_back(inputs(index ? kIndexCandidate : kCandidate, sequence, t, w)[column]);
      s.push_back(inputs(index ? kIndexGate : kGate, sequence, t, w)[column]);
    };
    if (layer.overlap) {
      for (int64_t t = (g - 1) * layer.ratio; t < g * layer.ratio; ++t) {
        if (t >= 0) add_token(t, c);
      }
    }
    for (int64_t t = g * layer.ratio; t < (g + 1) * layer.ratio; ++t) add_token(t, layer.overlap ? d + c : c);
    double sum = 0, weighted = 0;
    for (size_t n = 0; n < k.size(); ++n) {
      sum += std::exp(s[n]);
      weighted += std::exp(s[n]) * k[n];
    }
    u.push_back(weighted / sum);
  }
  double squares = 0;
  for (double x : u) squares += x * x;
  for (int64_t c = 0; c < d; ++c) {
    u[c] *= number_of({index ? kIndexNorm : kNorm, c}) / std::sqrt(squares / static_cast<double>(d) + kEps);
  }
  for (int64_t i = 0; i < kRotaryDims / 2; ++i) {
    double &a = u[d - kRotaryDims + 2 * i], &b = u[d - kRotaryDims + 2 * i + 1];
    const double phi =
        static_cast<double>(g * layer.ratio) * std::pow(10000, -2.0 * static_cast<double>(i) / kRotaryDims);
    const double re = a * std::cos(phi) - b * std::sin(phi), im = a * std::sin(phi) + b * std::cos(phi);
    a = re;
    b = im;
  }
  if (!layer.quantised) return u;
  if (index) {  // Walsh-Hadamard in Sylvester order: entry (i, j) is the parity of i & j
    Vector rotated(d, 0);
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        rotated[i] += (__builtin_popcountll(i & j) % 2 == 0 ? u[j] : -u[j]) / std::sqrt(static_cast<double>(d));
      }
    }
    u = rotated;
  }
  for (int64_t begin = 0; begin < (index ? kIndexDim : kDim - kRotaryDims); begin += 4) {
    double amax = index ? 6 * std::exp2(-126) : 1e-4;
    for (int64_t i = begin; i < begin + 4; ++i) amax = std::max(amax, std::abs(u[i]));
    const double scale = power_of_two_at_least(amax / (index ? 6 : 448));
    for (int64_t i = begin; i < begin + 4; ++i) {
      const auto x = static_cast<float>(u[i] / scale);
      u[i] = scale * (index ? e2m1_to_float(float_to_e2m1(x)) : e4m3_to_float(float_to_e4m3(x)));
    }
  }
  return u;
}

Results plain(const Layer& layer, int64_t sequence, int64_t length) {
  std::vector<Vector> entries, keys;
  for (int64_t g = 0; layer.ratio > 0 && g < length / layer.ratio; ++g) {
    if (layer.latent()) {
      entries.push_back(inputs(kKv, sequence, g, kDim));
      keys.push_back(inputs(kIndexCandidate, sequence, g, kIndexDim));
      continue;
    }
    entries.push_back(plain_entry(layer, sequence, g, false));
    if (layer.indexed) keys.push_back(plain_entry(layer, sequence, g, true));
  }
  Results results;
  for (int64_t t = 0; t < length; ++t) {
    TokenResult& result = results[{sequence, t}];
    const int64_t visible = layer.ratio == 0 ? 0 : (t + 1) / layer.ratio;
    std::vector<int32_t> picks(visible);
    std::iota(picks.begin(), picks.end(), 0);
    if (layer.indexed) {
      const Vector iq = inputs(kIndexQuery, sequence, t, kIndexHeads * kIndexDim),
                   w = inputs(kHeadWeight, sequence, t, kIndexHeads);
      Vector scores(visible, 0);
      for (int64_t g = 0; g < visible; ++g) {
        for (int64_t h = 0; h < kIndexHeads; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < kIndexDim; ++d) dot += iq[h * kIndexDim + d] * keys[g][d];
          scores[g] += w[h] * kWeightScale * std::max(dot, 0.0);
        }
      }
      std::stable_sort(picks.begin(), picks.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
      picks.resize(std::min(visible, layer.top_k));
      std::sort(picks.begin(), picks.end());
      result.picks = picks;
      result.picks.resize(layer.top_k, -1);
    }
    std::vector<Vector> columns;
    for (int64_t p = std::max<int64_t>(0, t - layer.window + 1); p <= t; ++p) {
      columns.push_back(inputs(kKv, sequence, p, kDim));
    }
    for (int32_t g : picks) columns.push_back(entries[g]);
    const Vector q = inputs(kQuery, sequence, t, kHeads * kDim);
    for (int64_t h = 0; h < kHeads; ++h) {
      double den = layer.latent() ? 0 : std::exp(number_of({kSink, h}));
      Vector sum(layer.value_dim(), 0);
      for (const Vector& column : columns) {
        double z = 0;
        for (int64_t d = 0; d < kDim; ++d) z += q[h * kDim + d] * column[d];
        const double p = std::exp(z * kScale);
        den += p;
        for (int64_t d = 0; d < layer.value_dim(); ++d) sum[d] += p * column[d];
      }
      for (int64_t d = 0; d < layer.value_dim(); ++d) result.out.push_back(static_cast<float>(sum[d] / den));
    }
  }
  return results;
}

// ---- Tests

std::string first_difference(const Results& found, const Results& expected, double tolerance) {
  for (const auto& [key, e] : expected) {
    const std::string where = fmt::format("sequence {} position {}", key.first, key.second);
    const auto at = found.find(key);
    if (at == found.end()) return where + ": no result";
    if (at->second.picks != e.picks) return where + ": other picks";
    for (size_t i = 0; i < e.out.size(); ++i) {
      if (!(std::abs(static_cast<double>(at->second.out[i]) - e.out[i]) <= tolerance)) {
        return fmt::format("{}: element {} is {}, expected {}", where, i, at->second.out[i], e.out[i]);
      }
    }
  }
  return found.size() == expected.size() ? "" : "results that were not expected";
}

const std::vector<int64_t> kLengths = {1, 3, 4, 47, 50, 91, 128};

TEST(AttentionOps, WholeSequenceIsTheFormula) {
  for (const Layer& layer : kLayers) {
    if (layer.dtype != DType::kF32) continue;
    Results expected;
    for (size_t i = 0; i < kLengths.size(); ++i) expected.merge(plain(layer, static_cast<int64_t>(i), kLengths[i]));
    EXPECT_EQ(first_difference(at_once(layer, kLengths, 1, Isa::kScalar), expected, 2e-5), "") << layer.name;
  }
}

TEST(AttentionOps, ThreadsAndVariantsGiveTheSameBits) {
  for (const Layer& layer : kLayers) {
    const Results expected = at_once(layer, kLengths, 1, Isa::kScalar);
    EXPECT_EQ(first_difference(at_once(layer, kLengths, 2, max_isa()), expected, 0), "") << layer.name;
  }
}

// Chunks of one size, one request.
TEST(AttentionOps, EveryChunkSizeGivesTheSameBits) {
  for (const Layer& layer : kLayers) {
    const int64_t length = 91;
    const Results expected = at_once(layer, {length}, 1, max_isa());
    for (int64_t chunk : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 24, 25, 90}) {
      Engine engine(layer, 1, max_isa(), chunk);
      Results results;
      for (int64_t first = 0; first < length; first += chunk) {
        engine.step({{2, 0, first, std::min(chunk, length - first), 0}}, results);
      }
      EXPECT_EQ(first_difference(results, expected, 0), "") << layer.name << ", chunks of " << chunk;
    }
  }
}

// Several requests at a time in random order and chunks, drafts that are forgotten, slots and pages used again.
TEST(AttentionOps, AnyScheduleGivesTheSameBits) {
  for (const Layer& layer : kLayers) {
    const Results expected = at_once(layer, kLengths, 1, max_isa());
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::mt19937_64 random(seed);
      Engine engine(layer, seed % 3 == 0 ? 2 : 1, max_isa(), seed);
      Results results;
      struct Running {
        int64_t sequence = -1, done = 0;
      };
      std::vector<Running> slots(kNumSlots);
      std::vector<int64_t> waiting(kLengths.size());
      std::iota(waiting.begin(), waiting.end(), 0);
      std::shuffle(waiting.begin(), waiting.end(), random);
      while (results.size() < expected.size()) {
        std::vector<StepRows> rows;
        for (int64_t slot = 0; slot < kNumSlots; ++slot) {
          Running& running = slots[slot];
          if (running.sequence < 0 && !waiting.empty()) {
            running = {waiting.back(), 0};
            waiting.pop_back();
          }
          if (running.sequence < 0 || random() % 4 == 0) continue;
          const int64_t longest = random() % 4 == 0 ? 60 : random() % 2 == 0 ? 9 : 1;
          const int64_t left = kLengths[running.sequence] - running.done;
          const int64_t good = std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % longest));
          const int64_t wrong = random() % 2 == 0 ? static_cast<int64_t>(random() % (kDraftRows + 1)) : 0;
          rows.push_back({slot, running.sequence, running.done, good + wrong, wrong});
          running.done += good;
        }
        if (rows.empty()) continue;
        std::shuffle(rows.begin(), rows.end(), random);
        engine.step(rows, results);
        for (int64_t slot = 0; slot < kNumSlots; ++slot) {
          if (slots[slot].sequence < 0 || slots[slot].done < kLengths[slots[slot].sequence]) continue;
          slots[slot] = {};
          engine.release(slot);
        }
      }
      EXPECT_EQ(first_difference(results, expected, 0), "") << layer.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace weft
