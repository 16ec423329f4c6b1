// The closed set of ops. Nothing else switches over op kinds: std::visit, or std::get_if in a pass.
#pragma once

#include <variant>

#include "graph/ops/attention.h"
#include "graph/ops/collective.h"
#include "graph/ops/dcp.h"
#include "graph/ops/dcp_merge.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/hyper_connection_op.h"
#include "graph/ops/layer_norm_op.h"
#include "graph/ops/linear_op.h"
#include "graph/ops/moe.h"
#include "graph/ops/quantise_op.h"
#include "graph/ops/rms_norm_op.h"
#include "graph/ops/rope_op.h"
#include "graph/ops/split_compressor.h"

namespace weft {

using Op = std::variant<Embedding, RmsNorm, LayerNorm, Linear, RopeTable, Rope, Quantise, QuantiseGroups, HcPre, HcPost, HcHead, Swiglu, Add, AddStreams,
                        AddPositionBias, Concat, GatherRows, MoeRoute, Experts, ExpertsUp, ExpertsDown, ExpertSlots, RingWrite, AppendRows, Compressor, IndexTopK, SparseAttention, AllReduce,
                        ReduceScatter, AllGather, SliceRows, HeadsToRows, ColumnsToRows, SharedQuantise, RowAbsmax, ExpertDispatch, ExpertCombine, FetchEntries,
                        IndexCandidates, MergeTopK, GatherHeads, PartialAttention, MergePartials, SplitCompressor>;

template <class>
inline constexpr bool each_satisfies_op_spec = false;
template <class... T>
inline constexpr bool each_satisfies_op_spec<std::variant<T...>> = (OpSpec<T> && ...);
static_assert(each_satisfies_op_spec<Op>);

inline std::string_view op_name(const Op& op) {
  return std::visit([](const auto& o) -> std::string_view { return o.kName; }, op);
}

}  // namespace weft
