// What work() says against what a run of the op does.
//
// Bytes: an input counts as read, row by row, if putting other numbers there changes what the op gives; a cache counts as
// written where a run changes it. The shapes and steps are those at which a cost that depends on data reaches what work()
// says: distinct tokens and experts, every request at the end of its context.
// Flops: a plain loop over the op's formula, with numbers that count. Sums of products and element-wise arithmetic count;
// left out are what is done once per row or per key beside a vector of them (a norm's square root, the softmax of a key),
// and ops that only select, look up or round.
#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <random>

#include "graph/op_samples.h"
#include "graph/test_support.h"

namespace weft {
namespace {

int64_t row_bytes(const ValueType& type) {
  const int64_t rows =
      type.shape().rank() > 1 ? type.shape()[0] * (type.shape().rank() > 2 ? type.shape()[1] : 1) : type.shape()[0];
  return type.tensor.bytes() / std::max<int64_t>(rows, 1);
}

// One run: an op, its inputs with contents, and the step.
struct Case {
  const char* what = "";
  Op op;
  std::vector<HostTensor> in;
  StepBatch batch;
  std::vector<std::vector<int32_t>> pages;  // batch.pages
  // Fills bytes [begin, begin + count) of an input with other valid contents; none: numbers.
  std::function<void(HostTensor&, size_t input, int64_t begin, int64_t count, uint64_t seed)> refill;
  bool at_the_end = false;    // every row is the last one of a longest context: what work() assumes without segments
  std::vector<int64_t> unit;  // bytes that are looked at together, by input; 0 or missing: a row
};

constexpr uint64_t kFirstRefill = 1000;  // seeds below: the contents of the first run

// Any bytes are numbers in the 8-bit formats but the NaN codes; integers stay small and valid by `refill` of the case.
void fill_numbers(HostTensor& tensor, int64_t begin, int64_t count, uint64_t seed) {
  // Small ones reach functions where they are not flat yet, large ones win selections.
  const float scale = seed < kFirstRefill ? 0.5F : std::array{0.25F, 1.0F, 4.0F, 32.0F}[seed % 4];
  const DType dtype = tensor.type().dtype();
  if (dtype == DType::kF32 || dtype == DType::kBF16) {
    const int64_t element = dtype_bits(dtype) / 8;
    for (int64_t i = begin / element; i < (begin + count) / element; ++i) {
      tensor.set(i, scale * number_of({static_cast<int64_t>(seed), i}));
    }
    return;
  }
  for (int64_t i = begin; i < begin + count; ++i) {
    const auto bits = static_cast<uint8_t>(mix_bits(seed * 1'000'003 + static_cast<uint64_t>(i)));
    // E8M0 scales near 1, E4M3 without its NaN; FP4 pairs and integers of 8 bits have no code to avoid.
    const uint8_t safe = dtype == DType::kF8E8M0   ? static_cast<uint8_t>(124 + bits % 7)
                         : dtype == DType::kF8E4M3 ? static_cast<uint8_t>(bits & 0xbf)
                                                   : bits;
    tensor.as<uint8_t>()[i] = safe;
  }
}

struct RunResult {
  std::vector<std::vector<uint8_t>> outputs, states;
};

std::vector<int> mutated(const Op& op) {
  return std::visit([](const auto& o) { return o.mutates(); }, op);
}

RunResult run(const Case& c, std::vector<HostTensor>& in, ThreadPool& pool) {
  std::vector<const HostTensor*> pointers;
  for (const HostTensor& tensor : in) pointers.push_back(&tensor);
  RunResult result;
  for (const HostTensor& out : run_op(c.op, pointers, {c.batch, pool, Isa::kScalar}))
    result.outputs.push_back(out.copy_bytes());
  for (const int state : mutated(c.op)) result.states.push_back(in[static_cast<size_t>(state)].copy_bytes());
  return result;
}

HostTensor copy(const HostTensor& from) {
  HostTensor to(from.type());
  std::memcpy(to.bytes().data(), from.bytes().data(), static_cast<size_t>(from.type().tensor.bytes()));
  return to;
}

std::vector<HostTensor> copy(const std::vector<HostTensor>& from) {
  std::vector<HostTensor> to;
  for (const HostTensor& tensor : from) to.push_back(copy(tensor));
  return to;
}

struct Traffic {
  int64_t read = 0, written = 0;
  std::string by_input;  // "16 of 16, 8 of 32": where a difference comes from
};

Traffic measure(const Case& c, ThreadPool& pool) {
  constexpr int kTries = 64;
  Traffic traffic;
  std::vector<HostTensor> first_in = copy(c.in);
  const RunResult first = run(c, first_in, pool);
  for (const auto& output : first.outputs) traffic.written += static_cast<int64_t>(output.size());

  // What the run wrote into caches, row by row.
  const std::vector<int> states = mutated(c.op);
  std::vector<std::vector<char>> wrote(states.size());
  for (size_t s = 0; s < states.size(); ++s) {
    const HostTensor& before = c.in[static_cast<size_t>(states[s])];
    const std::vector<uint8_t> bytes = before.copy_bytes();
    const auto row = static_cast<size_t>(row_bytes(before.type()));
    wrote[s].assign(bytes.size(), 0);
    for (size_t at = 0; at < bytes.size(); at += row) {
      if (std::memcmp(bytes.data() + at, first.states[s].data() + at, row) == 0) continue;
      std::fill_n(wrote[s].begin() + static_cast<int64_t>(at), row, 1);
      traffic.written += static_cast<int64_t>(row);
    }
  }

  const auto differs = [&](const RunResult& other) {
    if (other.outputs != first.outputs) return true;
    for (size_t s = 0; s < states.size(); ++s) {
      for (size_t i = 0; i < wrote[s].size(); ++i) {
        if (wrote[s][i] != 0 && other.states[s][i] != first.states[s][i]) return true;
      }
    }
    return false;
  };
  for (size_t i = 0; i < c.in.size(); ++i) {
    const int64_t total = c.in[i].type().tensor.bytes(), read_before = traffic.read;
    const int64_t unit = i < c.unit.size() && c.unit[i] > 0 ? c.unit[i] : row_bytes(c.in[i].type());
    for (int64_t begin = 0; begin < total; begin += unit) {
      for (int attempt = 0; attempt < kTries; ++attempt) {
        std::vector<HostTensor> in = copy(c.in);
        const uint64_t seed =
            kFirstRefill + (static_cast<uint64_t>(begin) * 31 + i) * kTries + static_cast<uint64_t>(attempt);
        if (c.refill) {
          c.refill(in[i], i, begin, unit, seed);
        } else {
          fill_numbers(in[i], begin, unit, seed);
        }
        if (!differs(run(c, in, pool))) continue;
        traffic.read += unit;
        break;
      }
    }
    traffic.by_input += fmt::format(" {} of {},", traffic.read - read_before, total);
  }
  return traffic;
}

// ---- Flops

// Adds up the arithmetic that is done with it.
struct Counter {
  double flops = 0;
  void multiply_add(int64_t times) { flops += 2.0 * static_cast<double>(times); }
  void each(int64_t elements, int operations) { flops += static_cast<double>(elements) * operations; }
};

struct CountFlops {
  const std::vector<ValueType>& in;
  const std::vector<ValueType>& out;
  const StepBatch& batch;
  Counter n;

  int64_t dim(size_t input, int d) const { return in[input].shape()[d]; }
  int64_t elements(size_t input) const { return in[input].shape().num_elements(); }

  void operator()(const Embedding&) {}
  void operator()(const RopeTable&) {}
  void operator()(const Quantise&) {}
  void operator()(const GatherRows&) {}
  void operator()(const RingWrite&) {}
  void operator()(const AppendRows&) {}
  void operator()(const Concat&) {}
  void operator()(const MoeRoute&) {}
  void operator()(const RmsNorm&) {
    const int64_t normed = in.size() == 2 ? in[0].shape().num_rows() * dim(1, 0) : elements(0);
    for (int64_t i = 0; i < normed; ++i) {
      n.multiply_add(1);  // sum of squares
      n.each(1, 2);       // times the factor, times the weight
    }
  }
  void operator()(const LayerNorm&) {
    for (int64_t i = 0; i < elements(0); ++i) {
      n.each(1, 2);       // sum, minus the mean
      n.multiply_add(1);  // sum of squares
      n.each(1, 1);       // times the factor
      n.multiply_add(1);  // times the weight, plus the bias
    }
  }
  void operator()(const Linear& op) {
    // Each output of each row (or stream) is a dot product over the inputs of its group.
    const int64_t outputs = out[0].shape().num_elements() - dim(0, 0) * op.groups * op.rest;
    for (int64_t i = 0; i < outputs; ++i) n.multiply_add(dim(1, 1));
  }
  void operator()(const Rope&) {
    const int64_t heads = elements(0) / in[0].shape().back(), pairs = dim(1, 1);
    for (int64_t i = 0; i < heads * pairs; ++i) n.each(1, 6);  // a c - b s, a s + b c
  }
  void pre(int64_t mixes) {
    const int64_t rows = dim(0, 0), streams = dim(0, 1), hidden = dim(0, 2);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t m = 0; m < mixes; ++m) n.multiply_add(streams * hidden);
      n.multiply_add(streams * hidden);  // sum of squares
      n.multiply_add(streams * hidden);  // the mix of the streams
    }
  }
  void operator()(const HcPre&) { pre((2 + dim(0, 1)) * dim(0, 1)); }
  void operator()(const HcHead&) { pre(dim(0, 1)); }
  void operator()(const HcPost&) {
    const int64_t rows = dim(1, 0), streams = dim(1, 1), hidden = dim(1, 2);
    for (int64_t i = 0; i < rows * streams * hidden; ++i) n.multiply_add(streams + 1);
  }
  void operator()(const Swiglu&) { n.each(elements(0), 4); }  // u g / (1 + exp(-g))
  void operator()(const Add&) { n.each(elements(0), 1); }
  void operator()(const AddStreams&) { n.each(elements(1), 1); }
  void operator()(const AddPositionBias&) { n.each(elements(0), 1); }
  void operator()(const Experts&) {
    const int64_t picks = dim(1, 0) * dim(1, 1), inner = dim(3, 1), hidden = dim(3, 2);
    for (int64_t p = 0; p < picks; ++p) {
      for (int64_t i = 0; i < inner; ++i) {
        n.multiply_add(hidden);  // w1
        n.multiply_add(hidden);  // w3
      }
      for (int64_t d = 0; d < hidden; ++d) n.multiply_add(inner);  // w2
    }
  }
  void operator()(const ExpertsUp&) {
    for (int64_t i = 0; i < dim(1, 0) * dim(1, 1) * 2 * dim(3, 1); ++i) n.multiply_add(dim(3, 2));
  }
  void operator()(const ExpertsDown&) {
    for (int64_t i = 0; i < dim(1, 0) * dim(1, 1) * dim(3, 1); ++i) n.multiply_add(dim(3, 2));
  }
  void operator()(const Compressor& op) {
    const int64_t width = dim(2, 0), slots = dim(0, 1) / width * op.ratio;
    for (int64_t entry = 0; entry < dim(0, 0) / op.ratio; ++entry) {
      for (int64_t i = 0; i < slots * width; ++i) {
        n.each(1, 2);       // s - max, added to the sum
        n.multiply_add(1);  // k times its weight
      }
    }
  }
  // f(position) for every row.
  template <class F>
  void each_row(F f) const {
    for (const Segment& segment : batch.segments) {
      for (int64_t j = 0; j < segment.len; ++j) f(segment.first_position() + j);
    }
  }
  void operator()(const IndexTopK& op) {
    each_row([&](int64_t position) {
      const int64_t entries = (position + 1) / op.ratio;
      if (entries <= op.top_k) return;  // all are picked, none is scored
      for (int64_t i = 0; i < entries * dim(0, 1); ++i) n.multiply_add(dim(0, 2));
    });
  }
  void operator()(const SparseAttention& op) {
    const int at = op.inputs(in.size()).picks;
    each_row([&](int64_t position) {
      int64_t keys = std::min(position + 1, op.window);
      if (op.ratio > 0) keys += std::min((position + 1) / op.ratio, at >= 0 ? dim(static_cast<size_t>(at), 1) : position + 1);
      for (int64_t i = 0; i < dim(0, 1) * keys; ++i) {
        n.multiply_add(dim(0, 2));          // score
        n.multiply_add(out[0].shape()[2]);  // values
      }
    });
  }
};

template <class T>
concept Counted = requires(CountFlops count, const T& op) {
  count(op);
};

// ---- Cases

HostTensor tensor_of(const ValueType& type, uint64_t seed) {
  HostTensor tensor(type);
  if (type.dtype() == DType::kI32 || type.dtype() == DType::kI64) {
    std::memset(tensor.bytes().data(), 0, static_cast<size_t>(type.tensor.bytes()));
  } else {
    fill_numbers(tensor, 0, type.tensor.bytes(), seed);
  }
  return tensor;
}

void set_ints(HostTensor& tensor, const std::vector<int64_t>& values) {
  ASSERT_EQ(tensor.count(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.type().dtype() == DType::kI32) {
      tensor.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    } else {
      tensor.as<int64_t>()[i] = values[i];
    }
  }
}

// One request with a row per token, from position 0.
void one_request(Case& c, int64_t tokens) {
  c.batch.segments = {{0, 0, tokens, tokens}};
  for (int64_t t = 0; t < tokens; ++t) {
    c.batch.tokens.push_back(static_cast<int32_t>(t));
    c.batch.positions.push_back(static_cast<int32_t>(t));
  }
}

// A request per row, each at the last position of a context of `context` tokens, with pages of its own.
void full_requests(Case& c, int64_t tokens, int64_t context, int64_t pages_each) {
  c.at_the_end = true;
  for (int64_t t = 0; t < tokens; ++t) {
    c.batch.segments.push_back({static_cast<int32_t>(t), t, 1, context});
    c.batch.tokens.push_back(static_cast<int32_t>(t));
    c.batch.positions.push_back(static_cast<int32_t>(context - 1));
    auto& pages = c.pages.emplace_back();
    for (int64_t p = 0; p < pages_each; ++p) pages.push_back(static_cast<int32_t>(t * pages_each + p));
  }
}

// One request of `tokens` rows after `before` positions: rows see in part what others see.
void later_rows(Case& c, int64_t before, int64_t tokens, int64_t pages) {
  c.batch.segments = {{0, 0, tokens, before + tokens}};
  for (int64_t t = 0; t < tokens; ++t) {
    c.batch.tokens.push_back(static_cast<int32_t>(t));
    c.batch.positions.push_back(static_cast<int32_t>(before + t));
  }
  auto& list = c.pages.emplace_back();
  for (int64_t p = 0; p < pages; ++p) list.push_back(static_cast<int32_t>(p));
}

ValueType tokens_type(DType dtype, Shape shape) { return {{dtype, shape}, Rows::kTokens}; }
ValueType fixed_type(DType dtype, Shape shape) { return {{dtype, shape}}; }

// The samples of ops without caches, as they are. Integers: distinct tokens; experts by turns, ascending in a row.
std::optional<Case> sample_case(const OpSample& sample) {
  Case c;
  c.op = sample.op;
  int64_t tokens = 0;
  for (const ValueType& type : sample.in) {
    if (type.rows == Rows::kTokens) tokens = type.shape()[0];
    c.in.push_back(tensor_of(type, c.in.size() + 1));
  }
  one_request(c, tokens);
  const auto turns = [](int64_t rows, int64_t k, int64_t experts, int64_t shift) {
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<int64_t> row;
      for (int64_t j = 0; j < k; ++j) row.push_back((t * k + j + shift) % experts);
      std::sort(row.begin(), row.end());
      ids.insert(ids.end(), row.begin(), row.end());
    }
    return ids;
  };
  const auto refill_integers = [](size_t input, std::vector<int64_t> values, HostTensor& tensor, size_t which,
                                  int64_t begin, int64_t count, uint64_t seed) {
    if (which == input) {
      set_ints(tensor, values);
    } else {
      fill_numbers(tensor, begin, count, seed);
    }
  };
  if (std::holds_alternative<HcPre>(c.op) || std::holds_alternative<HcHead>(c.op)) {
    if (c.in[0].shape()[1] == 1) return std::nullopt;  // the mixing matrix of one stream is 1, whatever the weights
  } else if (auto* op = std::get_if<GatherRows>(&c.op)) {
    op->capacity = std::min(op->capacity, tokens);
    for (int64_t i = 0; i < op->capacity; ++i) c.batch.logit_rows.push_back(static_cast<int32_t>(i));
  } else if (std::holds_alternative<Embedding>(c.op)) {
    c.in[1] =
        tensor_of(fixed_type(c.in[1].type().dtype(), {tokens + 2, c.in[1].shape()[1]}), 2);  // a row for each token
    std::vector<int64_t> ids, others;
    for (int64_t t = 0; t < tokens; ++t) {
      ids.push_back(t);
      others.push_back(t + 2);
    }
    set_ints(c.in[0], ids);
    c.unit = {c.in[0].type().tensor.bytes(), 0};
    c.refill = [=](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      refill_integers(0, others, tensor, which, begin, count, seed);
    };
  } else if (auto* linear = std::get_if<Linear>(&c.op); linear != nullptr && linear->act_quant == ActQuant::kInt8Static) {
    c.in[4].set(0, 0.01F);
    c.in[4].set(1, 1);
    c.in[4].set(2, 3);
    c.refill = [](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      if (which == 3) {
        tensor.as<int32_t>()[begin / 4] = static_cast<int32_t>(seed % 100'000 + 1);
      } else if (which == 4) {
        tensor.set(begin / 4, static_cast<float>(seed % 50 + 1));
      } else {
        fill_numbers(tensor, begin, count, seed);
      }
    };
  } else if (linear != nullptr && c.in[0].type().dtype() == DType::kI8) {
    // Any bytes are codes, and a scale but for the one with its exponent.
    const auto fill_codes = [bytes = c.in[0].shape()[2]](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      fill_numbers(tensor, begin, count, seed);
      for (int64_t i = begin; which == 0 && i < begin + count; ++i) {
        if (i % bytes == bytes - 1) tensor.as<uint8_t>()[i] = static_cast<uint8_t>(0x3d + seed % 3);
      }
    };
    fill_codes(c.in[0], 0, 0, c.in[0].type().tensor.bytes(), 1);
    c.refill = fill_codes;
  } else if (std::holds_alternative<RopeTable>(c.op)) {
    c.refill = [](HostTensor& tensor, size_t, int64_t begin, int64_t, uint64_t seed) {
      tensor.as<int32_t>()[begin / 4] = static_cast<int32_t>(seed % 1000 + 1);
    };
  } else if (std::holds_alternative<AddPositionBias>(c.op)) {
    const int64_t period = std::min(c.in[1].shape()[0], tokens);  // each row of the bias is met
    c.in[1] = tensor_of(fixed_type(DType::kF32, {period, c.in[1].shape()[1]}), 2);
    std::vector<int64_t> positions, others;
    for (int64_t t = 0; t < tokens; ++t) {
      positions.push_back(t);
      others.push_back(t + 1);
    }
    set_ints(c.in[2], positions);
    if (period == 1) return std::nullopt;  // then the positions do not matter
    c.unit = {0, 0, c.in[2].type().tensor.bytes()};
    c.refill = [=](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      refill_integers(2, others, tensor, which, begin, count, seed);
    };
  } else if (auto* route = std::get_if<MoeRoute>(&c.op); route != nullptr && route->by == RouteBy::kToken) {
    const int64_t experts = c.in[0].shape()[1], k = route->top_k;
    if (k == experts) return std::nullopt;  // every expert is picked, whatever the table says
    c.in[1] = tensor_of(fixed_type(DType::kI64, {tokens, k}), 2);
    set_ints(c.in[1], turns(tokens, k, experts, 0));
    std::vector<int64_t> ids(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) ids[static_cast<size_t>(t)] = t;
    set_ints(c.in[2], ids);
    std::rotate(ids.begin(), ids.begin() + 1, ids.end());
    if (tokens == 1) return std::nullopt;  // one token has no other
    c.unit = {0, 0, c.in[2].type().tensor.bytes()};
    const int64_t table_row = row_bytes(c.in[1].type());
    c.refill = [=](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      if (which == 1) {
        const std::vector<int64_t> row =
            turns(1, k, experts, static_cast<int64_t>(seed % static_cast<uint64_t>(experts)));
        std::copy(row.begin(), row.end(), tensor.as<int64_t>() + begin / table_row * k);
      } else {
        refill_integers(2, ids, tensor, which, begin, count, seed);
      }
    };
  } else if (std::holds_alternative<Experts>(c.op) || std::holds_alternative<ExpertsUp>(c.op) ||
             std::holds_alternative<ExpertsDown>(c.op)) {
    const int64_t experts = c.in[3].shape()[0], k = c.in[1].shape()[1];
    set_ints(c.in[1], turns(tokens, k, experts, 0));
    if (k == experts) return std::nullopt;  // no other choice of experts
    c.unit = {0, c.in[1].type().tensor.bytes(), 0};
    for (size_t i = 3; i < c.in.size(); ++i) c.unit.push_back(c.in[i].type().tensor.bytes() / experts);
    const std::vector<int64_t> others = turns(tokens, k, experts, 1);
    c.refill = [=](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      refill_integers(1, others, tensor, which, begin, count, seed);
    };
  } else if (!mutated(c.op).empty() || std::holds_alternative<IndexTopK>(c.op) ||
             std::holds_alternative<SparseAttention>(c.op)) {
    return std::nullopt;  // cache_cases()
  }
  return c;
}

std::vector<Case> cache_cases() {
  constexpr int64_t kTokens = 3, kHeads = 2, kDim = 8, kWindow = 4, kRatio = 2, kContext = 24, kPageRows = 4;
  constexpr int64_t kEntries = kContext / kRatio, kPagesEach = kEntries / kPageRows, kTopK = 5;
  std::vector<Case> cases;
  const auto add = [&](const char* what, Op op, const std::vector<ValueType>& types) -> Case& {
    Case& c = cases.emplace_back();
    c.what = what;
    c.op = std::move(op);
    for (const ValueType& type : types) c.in.push_back(tensor_of(type, c.in.size() + 1));
    return c;
  };
  for (const DType a : {DType::kF32, DType::kBF16}) {
    const ValueType q = tokens_type(a, {kTokens, kHeads, kDim}), row = tokens_type(a, {kTokens, kDim});
    const ValueType ring = fixed_type(a, {kTokens, kWindow, kDim}), sink = fixed_type(DType::kF32, {kHeads});
    const ValueType entries = fixed_type(a, {kTokens * kPagesEach, kPageRows, kDim});

    full_requests(add("a ring that has room for the step", RingWrite{}, {row, ring}), kTokens, kContext, 0);
    full_requests(add("window only", SparseAttention{kWindow, 0, 0.5, 0}, {q, row, sink, ring}), kTokens, kContext, 0);
    full_requests(
        add("window and all entries", SparseAttention{kWindow, kRatio, 0.5, kContext}, {q, row, sink, ring, entries}),
        kTokens, kContext, kPagesEach);

    Case& picks = add("window and picked entries", SparseAttention{kWindow, kRatio, 0.5, kContext},
                      {q, row, sink, ring, entries, tokens_type(DType::kI32, {kTokens, kTopK})});
    full_requests(picks, kTokens, kContext, kPagesEach);
    std::vector<int64_t> ids, others;
    for (int64_t i = 0; i < kTokens * kTopK; ++i) {
      ids.push_back(2 * (i % kTopK));
      others.push_back(2 * (i % kTopK) + 1);
    }
    set_ints(picks.in[5], ids);
    picks.unit = {0, 0, 0, 0, 0, picks.in[5].type().tensor.bytes()};
    picks.refill = [others](HostTensor& tensor, size_t which, int64_t begin, int64_t count, uint64_t seed) {
      if (which == 5) {
        set_ints(tensor, others);
      } else {
        fill_numbers(tensor, begin, count, seed);
      }
    };

    const ValueType keys = fixed_type(a, {kTokens * 2 * kPagesEach, kPageRows, kDim});
    full_requests(add("all tokens, no sink, narrow values", SparseAttention{0, 1, 0.5, kContext, false, 5}, {q, keys}), kTokens,
                  kContext, 2 * kPagesEach);
    Case& append = add("appended rows", AppendRows{3}, {tokens_type(a, {kTokens, kDim + 3}), keys});
    full_requests(append, kTokens, kContext, 2 * kPagesEach);
    append.unit = {dtype_bits(a) / 8};

    Case& index = add("index over a full context", IndexTopK{kRatio, kTopK, 0.5, kContext},
                      {q, tokens_type(a, {kTokens, kHeads}), entries});
    full_requests(index, kTokens, kContext, kPagesEach);
    for (int64_t i = 0; i < kTokens * kHeads; ++i) index.in[1].set(i, 1);  // no head that only takes away

    // The first row's window is not full yet at 1; at 9 one row sees kTopK entries, the others more.
    for (const int64_t before : {int64_t{1}, int64_t{9}}) {
      later_rows(add("rows of one request, window only", SparseAttention{kWindow, 0, 0.5, 0}, {q, row, sink, ring}), before,
                 kTokens, 0);
      later_rows(add("rows of one request, window and all entries", SparseAttention{kWindow, kRatio, 0.5, kContext},
                     {q, row, sink, ring, entries}),
                 before, kTokens, kPagesEach);
      Case& rows = add("index over rows of one request", IndexTopK{kRatio, kTopK, 0.5, kContext},
                       {q, tokens_type(a, {kTokens, kHeads}), entries});
      later_rows(rows, before, kTokens, kPagesEach);
      for (int64_t i = 0; i < kTokens * kHeads; ++i) rows.in[1].set(i, 1);
    }
    for (const bool overlap : {false, true}) {
      constexpr int64_t kPrompt = 8;
      const int64_t width = overlap ? 2 * kDim : kDim;
      const ValueType pool = tokens_type(DType::kF32, {kPrompt, width});
      Compressor op;
      op.ratio = kRatio;
      op.rope = {10000, 4, {}};
      Case& c = add(overlap ? "prompt, overlapping groups" : "prompt, groups", op,
                    {pool, pool, fixed_type(DType::kBF16, {kDim}), fixed_type(DType::kF32, {1, kPrompt, 2 * width}),
                     fixed_type(a, {1, kPrompt / kRatio, kDim})});
      one_request(c, kPrompt);
      c.pages = {{0}};
    }
  }
  for (Case& c : cases) c.batch.pages = c.pages;
  return cases;
}

void expect_work(Case& c) {
  c.batch.pages = c.pages;
  std::vector<ValueType> types;
  for (const HostTensor& tensor : c.in) types.push_back(tensor.type());
  std::string inputs;
  for (const ValueType& type : types) inputs += " " + to_string(type);
  SCOPED_TRACE(fmt::format("{} {}:{}", op_name(c.op), c.what, inputs));
  const auto out = std::visit([&](const auto& o) { return o.infer(types); }, c.op);
  ASSERT_TRUE(out.ok()) << out.status().message();
  const WorkEnv env{.num_threads = 1, .segments = c.batch.segments};
  const Work work = std::visit([&](const auto& o) { return o.work(types, *out, env); }, c.op);
  if (c.at_the_end) {
    EXPECT_EQ(work, std::visit([&](const auto& o) { return o.work(types, *out, {1}); }, c.op));
  }
  ThreadPool pool(1);
  const Traffic traffic = measure(c, pool);
  EXPECT_EQ(work.bytes_read - work.bytes_repeated, traffic.read) << "read by input:" << traffic.by_input;
  EXPECT_EQ(work.bytes_written, traffic.written);
  EXPECT_EQ(work.bytes_sent, 0);
  CountFlops count{types, *out, c.batch, {}};
  std::visit(
      [&]<class T>(const T& op) {
        if constexpr (Counted<T>) count(op);
      },
      c.op);
  EXPECT_EQ(work.flops, count.n.flops);
}

// Ops that need a group of ranks are measured where there is one.
bool runs_alone(const Op& op) {
  return std::visit([]<class T>(const T&) { return Counted<T>; }, op);
}

TEST(Work, IsWhatARunDoes) {
  std::vector<int> seen(std::variant_size_v<Op>, 0);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    for (const OpSample& sample : op_samples(random)) {
      if (!runs_alone(sample.op)) continue;
      std::optional<Case> c = sample_case(sample);
      if (!c) continue;
      ++seen[c->op.index()];
      expect_work(*c);
    }
  }
  for (Case& c : cache_cases()) {
    ++seen[c.op.index()];
    expect_work(c);
  }
  std::mt19937_64 random(1);
  for (const OpSample& sample : op_samples(random)) {
    if (!runs_alone(sample.op)) continue;
    EXPECT_GT(seen[sample.op.index()], 0) << op_name(sample.op) << " was not measured";
  }
}

}  // namespace
}  // namespace weft
