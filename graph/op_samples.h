// A valid example of every op with random attributes, for the tests that must hold for all ops alike.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weft {

struct OpSample {
  Op op;
  ValueTypes in;
};

// At least one of every kind.
inline std::vector<OpSample> op_samples(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  const auto number = [&] { return std::uniform_real_distribution<double>(1e-9, 3)(random); };
  const auto flag = [&] { return random() % 2 == 0; };
  const DType a = flag() ? DType::kF32 : DType::kBF16;
  const int64_t t = pick(1, 6), d = 4 * pick(1, 6), heads = pick(1, 4), hd = 16, streams = pick(1, 4),
                experts = 4 * pick(1, 3);
  const auto tokens = [&](DType dtype, Shape shape) { return ValueType{{dtype, shape}, Rows::kTokens}; };
  const auto fixed = [](DType dtype, Shape shape) { return ValueType{{dtype, shape}}; };
  const RopeParameters rope{number() * 1e4, 2 * pick(1, 4), {number(), number(), number(), pick(0, 1 << 20)}};
  const DType f32 = DType::kF32, i32 = DType::kI32;

  const int64_t groups = pick(1, 3), k_blocks = int64_t{1} << pick(0, 4), n = groups * pick(1, 5),
                k = 4 * k_blocks * pick(1, 2);
  const int64_t top_k = pick(1, 4), n_group = 1 << pick(0, 2), inner = 2 * pick(1, 9), inner4 = 4 * pick(1, 4);
  const bool overlap = flag();
  const int64_t ratio = pick(1, 6), w = overlap ? 2 * hd : hd, page = pick(1, 5), slots = pick(1, 3),
                window = pick(1, 7);
  const Quantise quantise{flag() ? QuantFormat::kFp8 : QuantFormat::kFp4, pick(0, 4), pick(5, hd), pick(1, 9), flag()};
  const auto scales = [&](int64_t rows, int64_t cols) { return Shape{experts, (rows + 2) / 3, (cols + 4) / 5}; };
  const ValueType x = tokens(a, {t, d}), stacked = fixed(DType::kF8E4M3, {experts, inner, d}),
                  stacked2 = fixed(DType::kF8E4M3, {experts, d, inner}), pool = tokens(f32, {t, w}),
                  cache = fixed(a, {slots, page, hd});
  std::vector<OpSample> samples = {
      {Embedding{flag() ? 0 : streams, a}, {tokens(i32, {t}), fixed(DType::kBF16, {pick(1, 9), d})}},
      {RmsNorm{number(), NormRounding::kOnce}, {x, fixed(f32, {d})}},
      {RmsNorm{number(), NormRounding::kOnce}, {x, fixed(DType::kBF16, {d - 1})}},
      {RmsNorm{number(), NormRounding::kEachStep}, {x}},
      {LayerNorm{number()}, {x, fixed(f32, {d}), fixed(f32, {d})}},
      {Linear{f32, ActQuant::kNone, groups, k_blocks, flag() ? 0 : groups, 0, 0},
       {tokens(a, {t, groups * k}), fixed(DType::kBF16, {n, k})}},
      {Linear{a, ActQuant::kInt8PerRow, groups, k_blocks, 0, 1, k + pick(0, 2)},
       {tokens(a, {t, groups * k}), fixed(DType::kI8, {n, k}), fixed(f32, {n, 1})}},
      {Linear{a, ActQuant::kInt8Static, groups, k_blocks, 0, 1, k},
       {tokens(a, {t, groups * k}), fixed(DType::kI8, {n, k}), fixed(f32, {n, 1}), fixed(i32, {n}), fixed(f32, {3})}},
      {Linear{a, ActQuant::kFp8Block128, groups, k_blocks, 0, 3, 7},
       {tokens(a, {t, groups * k}), fixed(DType::kF4E2M1, {n, k}), fixed(DType::kF8E8M0, {(n + 2) / 3, (k + 6) / 7})}},
      {Linear{a, ActQuant::kNone, heads, 1, heads, 0, 0, 3}, {tokens(a, {t, heads, d + 3}), fixed(f32, {5 * heads, d})}},
      {RopeTable{rope}, {tokens(i32, {t})}},
      {Rope{flag() ? RopeDirection::kForward : RopeDirection::kInverse,
            flag() ? RopePairs::kInterleaved : RopePairs::kHalfSplit, flag() ? RopePlace::kLast : RopePlace::kFirst},
       {tokens(a, {t, heads, hd}), tokens(f32, {t, rope.rotary_dims / 2, 2})}},
      {quantise, {tokens(a, {t, heads, hd})}},
      {QuantiseGroups{heads}, {tokens(a, {t, heads * groups, hd})}},
      {Linear{.dtype = a, .groups = groups}, {tokens(DType::kI8, {t, groups, k + QuantiseGroups::kScaleBytes}), fixed(DType::kBF16, {n, k})}},
      {HcPre{pick(0, 30), number(), number()},
       {tokens(a, {t, streams, d}), fixed(f32, {(2 + streams) * streams, streams * d}),
        fixed(f32, {(2 + streams) * streams}), fixed(f32, {3})}},
      {HcPost{}, {x, tokens(a, {t, streams, d}), tokens(f32, {t, streams + streams * streams})}},
      {HcHead{number(), number()},
       {tokens(a, {t, streams, d}), fixed(f32, {streams, streams * d}), fixed(f32, {streams}), fixed(f32, {1})}},
      {Swiglu{number()}, {x, x}},
      {Add{}, {tokens(f32, {t, d}), x}},
      {AddStreams{}, {x, tokens(a, {t, streams, d})}},
      {AddPositionBias{}, {tokens(f32, {t, d}), fixed(f32, {ratio, d}), tokens(i32, {t})}},
      {Concat{}, {x, tokens(a, {t, 3})}},
      {GatherRows{pick(0, 5)}, {x}},
      {MoeRoute{RouteBy::kScore, 1, static_cast<ScoringFunc>(random() % 3), n_group, pick(1, n_group), flag(), number(),
                number()},
       {tokens(f32, {t, experts}), fixed(f32, {experts})}},
      {MoeRoute{RouteBy::kToken, top_k, ScoringFunc::kSqrtSoftplus, 1, 1, flag(), number(), number()},
       {tokens(f32, {t, experts}), fixed(DType::kI64, {pick(1, 9), top_k}), tokens(i32, {t})}},
      {Experts{ActQuant::kFp8Block128, number(), flag(), 3, 5},
       {x, tokens(i32, {t, top_k}), tokens(f32, {t, top_k}), stacked, stacked, stacked2, fixed(f32, scales(inner, d)),
        fixed(f32, scales(inner, d)), fixed(f32, scales(d, inner))}},
      {Experts{ActQuant::kInt8PerRow, number(), false, 1, inner4 + d},
       {x, tokens(i32, {t, top_k}), tokens(f32, {t, top_k}), fixed(DType::kI8, {experts, inner4, d}),
        fixed(DType::kI8, {experts, inner4, d}), fixed(DType::kI8, {experts, d, inner4}), fixed(f32, {experts, inner4, 1}),
        fixed(f32, {experts, inner4, 1}), fixed(f32, {experts, d, 1})}},
      {ExpertsUp{Experts{ActQuant::kNone, number(), flag(), 3, 5}},
       {x, tokens(i32, {t, top_k}), tokens(f32, {t, top_k}), stacked, stacked, fixed(f32, scales(inner, d)), fixed(f32, scales(inner, d))}},
      {ExpertsDown{Experts{ActQuant::kFp8Block128, number(), flag(), 3, 5}},
       {tokens(a, {t, top_k, inner}), tokens(i32, {t, top_k}), tokens(f32, {t, top_k}), stacked2, fixed(f32, scales(d, inner))}},
      {RingWrite{}, {tokens(a, {t, hd}), cache}},
      {AppendRows{pick(0, 3)}, {tokens(a, {t, hd + 3}), cache}},
      {Compressor{ratio, number(), rope, flag(), quantise},
       {pool, pool, fixed(DType::kBF16, {hd}), fixed(f32, {slots, 2 * ratio + pick(0, 3), 2 * w}), cache}},
      {IndexTopK{ratio, top_k, number(), pick(1, 1000)}, {tokens(a, {t, heads, hd}), tokens(a, {t, heads}), cache}},
      {SparseAttention{window, 0, number(), 0},
       {tokens(a, {t, heads, hd}), tokens(a, {t, hd}), fixed(f32, {heads}), fixed(a, {slots, window, hd})}},
      {SparseAttention{window, ratio, number(), pick(1, 1000)},
       {tokens(a, {t, heads, hd}), tokens(a, {t, hd}), fixed(f32, {heads}), fixed(a, {slots, window, hd}), cache,
        tokens(i32, {t, top_k})}},
      {SparseAttention{0, 1, number(), pick(1, 1000), false, pick(1, hd)},
       {tokens(a, {t, heads, hd}), cache, tokens(i32, {t, top_k})}},
  };
  // Between ranks.
  const auto lies = [](ValueType type, MeshAxis axis, Placement placement) {
    type.placement[static_cast<size_t>(axis)] = placement;
    return type;
  };
  const auto received = [](DType dtype, Shape shape) { return ValueType{{dtype, shape}, Rows::kReceived}; };
  const MeshAxis axis = flag() ? MeshAxis::kTp : MeshAxis::kPcp;
  const int64_t size = pick(2, 4), room = pick(1, 9), all = size * t;
  const ValueType partial = lies(tokens(f32, {t, d}), axis, Placement::partial());
  const std::vector<OpSample> between = {
      {AllReduce{axis, size, a}, {partial}},
      {ReduceScatter{axis, size, a, room}, {partial}},
      {AllGather{axis, size, 0, room}, {lies(x, axis, Placement::sharded(0))}},
      {AllGather{axis, size, 1, t}, {lies(x, axis, Placement::sharded(1))}},
      {AllGather{axis, size, 0, size * experts}, {lies(stacked, axis, Placement::sharded(0))}},
      {SliceRows{axis, size, room}, {x}},
      {HeadsToRows{axis, size, room}, {lies(tokens(a, {t, size * heads, hd}), axis, Placement::sharded(0))}},
      {ColumnsToRows{axis, size, room}, {lies(x, axis, Placement::sharded(1))}},
      {SharedQuantise{axis, size, flag() ? ActQuant::kFp8Block128 : ActQuant::kFp8Block128AnyScale}, {lies(x, axis, Placement::sharded(1))}},
      {RowAbsmax{axis, size}, {lies(x, axis, Placement::sharded(1))}},
      {ExpertDispatch{MeshAxis::kEp, size, pick(1, 3), all}, {x, tokens(i32, {t, top_k}), tokens(f32, {t, top_k})}},
      {ExpertSlots{Experts{ActQuant::kNone, number(), flag(), 3, 5}},
       {received(a, {all, d}), received(i32, {all, top_k}), received(f32, {all, top_k}), stacked, stacked, stacked2,
        fixed(f32, scales(inner, d)), fixed(f32, scales(inner, d)), fixed(f32, scales(d, inner))}},
      {ExpertCombine{MeshAxis::kEp, size, pick(1, 3), a},
       {received(f32, {all, top_k, d}), received(i32, {all, top_k}), fixed(i32, {size}), tokens(i32, {t, top_k})}},
      {FetchEntries{MeshAxis::kDcp, size, ratio, pick(1, 1000), room}, {lies(cache, MeshAxis::kDcp, Placement::sharded(1))}},
      {FetchEntries{MeshAxis::kDcp, size, ratio, pick(1, 1000), room},
       {lies(cache, MeshAxis::kDcp, Placement::sharded(1)), tokens(i32, {t, top_k})}},
      {IndexCandidates{size, {ratio, top_k, number(), pick(1, 1000)}},
       {tokens(a, {t, heads, hd}), tokens(a, {t, heads}), lies(cache, MeshAxis::kDcp, Placement::sharded(1))}},
      {MergeTopK{ratio, top_k}, {tokens(i32, {t, size * top_k, 2})}},
      {GatherHeads{MeshAxis::kDcp, size}, {lies(tokens(a, {t, heads, hd}), MeshAxis::kTp, Placement::sharded(1))}},
      {PartialAttention{size, {window, ratio, number(), pick(1, 1000), false}},
       {lies(tokens(a, {t, size * heads, hd}), MeshAxis::kTp, Placement::sharded(1)), tokens(a, {t, hd}), fixed(a, {slots, window, hd}),
        lies(cache, MeshAxis::kDcp, Placement::sharded(1)), tokens(i32, {t, top_k})}},
      {MergePartials{MeshAxis::kDcp, size, a},
       {lies(lies(tokens(f32, {t, size * heads, hd + 1}), MeshAxis::kTp, Placement::sharded(1)), MeshAxis::kDcp, Placement::partial()),
        lies(fixed(f32, {heads}), MeshAxis::kTp, Placement::sharded(0))}},
      {SplitCompressor{axis, size, {ratio, number(), rope, flag(), quantise}},
       {lies(pool, axis, Placement::sharded(0)), lies(pool, axis, Placement::sharded(0)), fixed(DType::kBF16, {hd}),
        fixed(f32, {slots, 2 * ratio + pick(0, 3), 2 * w}), cache}},
  };
  samples.insert(samples.end(), between.begin(), between.end());
  return samples;
}

// The sample's op on new values of the sample's types. Names start with `prefix`; what the op changes is a state.
inline Result<std::vector<ValueId>> add_sample(Graph& graph, const OpSample& sample, const std::string& prefix,
                                               const std::string& region = "", Stream stream = Stream::kCompute) {
  const std::vector<int> mutates = std::visit([](const auto& op) { return op.mutates(); }, sample.op);
  std::vector<ValueId> in;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    const bool state = std::find(mutates.begin(), mutates.end(), static_cast<int>(i)) != mutates.end();
    const ValueRole role = state                                ? ValueRole::kState
                           : sample.in[i].rows != Rows::kStatic ? ValueRole::kInput
                                                                : ValueRole::kWeight;
    WEFT_ASSIGN_OR_RETURN(const ValueId id, graph.add_value(prefix + ".in" + std::to_string(i), sample.in[i], role));
    in.push_back(id);
  }
  return graph.add_node(sample.op, in, prefix, region, stream);
}

}  // namespace weft
