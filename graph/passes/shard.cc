#include "graph/passes/shard.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace weft {
namespace {

template <class... T>
bool is_any(const Op& op) {
  return (std::holds_alternative<T>(op) || ...);
}

RowSet without_tp(RowSet set) { return set == RowSet::kTp ? RowSet::kAll : set == RowSet::kPcpTp ? RowSet::kPcp : set; }

bool has_rows(const ValueType& type) { return type.rows == Rows::kTokens || type.rows == Rows::kLogits; }

ShardRule rule_of(const Op& op, TypeSpan in) {
  return std::visit([&](const auto& o) { return o.shard_rule(in); }, op);
}

class Sharder {
 public:
  Sharder(const Graph& graph, const ShardOptions& options)
      : from_(graph), options_(options), to_(graph.name()), placed_(graph.values().size()), made_(graph.values().size()),
        rows_(graph.nodes().size(), RowSet::kAll) {}

  Result<Graph> run() {
    place_weights();
    choose_rows();
    WEFT_RETURN_IF_ERROR(add_values());
    for (size_t n = 0; n < from_.nodes().size(); ++n) WEFT_RETURN_IF_ERROR(add(n));
    for (ValueId id : from_.results()) {
      WEFT_ASSIGN_OR_RETURN(const ValueId whole, convert(id, Placements{}, {}));
      to_.mark_result(whole);
    }
    if (options_.verified) WEFT_RETURN_IF_ERROR(verify(to_, options_.mesh));
    return std::move(to_);
  }

 private:
  // ---- Rows of every node

  RowSet keys() const { return options_.keys.value_or(options_.writers); }

  void place_weights() {
    weights_.resize(from_.values().size());
    for (size_t id = 0; id < weights_.size(); ++id) {
      const Value& value = from_.values()[id];
      if (is_weight(value.role)) weights_[id] = {options_.weight_placement(value), options_.gathered && options_.gathered(value)};
    }
  }

  bool is_gathered(ValueId weight) const { return weights_[static_cast<size_t>(weight)].gathered; }

  bool splits_weight(const Node& node, MeshAxis axis) const {
    for (ValueId id : node.in) {
      if (is_weight(from_.value(id).role) && !is_gathered(id) &&
          on(weights_[static_cast<size_t>(id)].placement, axis).kind == Placement::Kind::kSharded) {
        return true;
      }
    }
    return false;
  }

  // Rows that the node's own nature asks for.
  std::optional<RowSet> fixed_rows(const Node& node) const {
    if (is_any<Compressor>(node.op)) return keys();
    if (!std::visit([](const auto& op) { return op.mutates(); }, node.op).empty()) return options_.writers;
    if (is_any<IndexTopK>(node.op)) return options_.selection.value_or(options_.queries);
    if (is_any<SparseAttention>(node.op) || is_of_heads(node)) return options_.queries;
    if (options_.router && !node.out.empty() && routed_[node.out[0]]) return options_.router;
    if (is_any<Experts>(node.op) && splits_weight(node, MeshAxis::kEp)) return options_.unique;
    if (is_any<Embedding, HcPre, HcPost, HcHead, AddStreams, GatherRows>(node.op) || is_stream(node)) return options_.residual;
    if (is_any<RmsNorm>(node.op)) {
      const auto producer = maker_[node.in[0]];
      if (producer >= 0 && is_any<HcPre, Add, Embedding>(from_.nodes()[producer].op)) return options_.residual;
    }
    return std::nullopt;
  }

  // Every head of an attention's output through a matrix of its own.
  bool is_of_heads(const Node& node) const {
    const Linear* linear = std::get_if<Linear>(&node.op);
    if (linear == nullptr || linear->heads == 0 || linear->heads != linear->groups) return false;
    const int producer = maker_[node.in[0]];
    return producer >= 0 && is_any<SparseAttention>(from_.nodes()[producer].op);
  }

  // A sum that is the residual stream: it is normed, or leads to the logits.
  bool is_stream(const Node& node) const { return is_any<Add>(node.op) && stream_[node.out[0]]; }

  void choose_rows() {
    maker_.assign(from_.values().size(), -1);
    routed_.assign(from_.values().size(), false);
    stream_.assign(from_.values().size(), false);
    for (size_t n = 0; n < from_.nodes().size(); ++n) {
      const Node& node = from_.nodes()[n];
      for (ValueId id : node.out) maker_[id] = static_cast<int>(n);
      if (is_any<MoeRoute>(node.op)) routed_[node.in[0]] = true;
      if (is_any<RmsNorm, GatherRows>(node.op)) stream_[node.in[0]] = true;
    }
    // Backwards: what the consumers need, the least split of it.
    needed_.assign(from_.values().size(), std::nullopt);
    const auto need = [&](ValueId id, RowSet set) {
      std::optional<RowSet>& have = needed_[id];
      have = !have ? set : contains(set, *have) ? set : contains(*have, set) ? *have : RowSet::kAll;
    };
    for (ValueId id : from_.results()) need(id, RowSet::kAll);
    for (size_t n = from_.nodes().size(); n-- > 0;) {
      const Node& node = from_.nodes()[n];
      RowSet rows = RowSet::kAll;
      if (const auto fixed = fixed_rows(node)) {
        rows = *fixed;
      } else {
        std::optional<RowSet> all;
        for (ValueId id : node.out) {
          if (needed_[id]) all = !all || contains(*needed_[id], *all) ? *needed_[id] : *all;
        }
        rows = all.value_or(RowSet::kAll);
      }
      if (splits_weight(node, MeshAxis::kTp)) rows = without_tp(rows);
      rows_[n] = rows;
      // What is appended to a cache is made where the queries are: its rows are narrower than what they are made from.
      const bool local = is_any<AppendRows>(node.op) && contains(rows, options_.queries);
      for (size_t i = 0; i < node.in.size(); ++i) {
        if (!has_rows(from_.value(node.in[i]).type)) continue;
        need(node.in[i], local ? options_.queries : is_key_input(node, i) ? keys() : rows);
      }
    }
    // Forwards: an op without weights takes the rows that it is given. So does the output projection where its weights are
    // whole: its output is narrower than all heads.
    std::vector<bool> after_attention(from_.values().size(), false);
    for (size_t n = 0; n < from_.nodes().size(); ++n) {
      const Node& node = from_.nodes()[n];
      const bool projects = is_any<Linear>(node.op) && after_attention[node.in[0]] && !splits_weight(node, MeshAxis::kTp);
      if (is_any<SparseAttention>(node.op)) after_attention[node.out[0]] = true;
      if (is_stream(node)) continue;
      if (!projects && !is_any<Rope, Quantise, QuantiseGroups, Swiglu, Add, AddPositionBias, Concat>(node.op)) continue;
      after_attention[node.out[0]] = after_attention[node.in[0]];
      for (ValueId id : node.in) {
        if (maker_[id] < 0 || from_.value(id).role != ValueRole::kActivation) continue;
        const RowSet given = rows_[maker_[id]];
        if (given != rows_[n] && contains(rows_[n], given) && !is_any<RopeTable>(from_.nodes()[maker_[id]].op)) rows_[n] = given;
      }
    }
  }

  // ---- Values

  int64_t size(MeshAxis axis) const { return options_.mesh.size(axis); }

  Result<ValueType> local_type(const Value& value, const Placements& placements) const {
    ValueType type = value.type;
    type.placement = placements;
    for (int axis = 0; axis < kNumMeshAxes; ++axis) {
      const Placement& p = placements[axis];
      if (p.kind != Placement::Kind::kSharded) continue;
      int64_t& dim = type.tensor.shape[p.dim];
      const int64_t n = size(static_cast<MeshAxis>(axis));
      if (dim % n != 0) {
        return invalid_argument(fmt::format("'{}' {}: dimension {} is not divisible by {} {}", value.name, to_string(value.type),
                                            p.dim, mesh_axis_name(static_cast<MeshAxis>(axis)), n));
      }
      dim /= n;
    }
    return type;
  }

  Status add_values() {
    for (size_t id = 0; id < from_.values().size(); ++id) {
      const Value& value = from_.values()[id];
      if (value.role == ValueRole::kActivation) continue;
      ValueType type = value.type;
      if (is_weight(value.role)) {
        WEFT_ASSIGN_OR_RETURN(type, local_type(value, weights_[id].placement));
      }
      if (value.role == ValueRole::kState) {
        type.placement = with_row_set({}, options_.writers);
        if (options_.split_entries && options_.split_entries(value)) {
          Placements split;
          on(split, MeshAxis::kDcp) = Placement::sharded(1);
          WEFT_ASSIGN_OR_RETURN(type, local_type(value, split));
          if (options_.writers != RowSet::kAll || options_.queries != RowSet::kAll) {
            return invalid_argument(fmt::format("'{}': entries that dcp ranks hold in turn are read and written by all rows", value.name));
          }
        }
      }
      WEFT_ASSIGN_OR_RETURN(made_[id], to_.add_value(value.name, type, value.role));
      placed_[id].emplace(type.placement, made_[id]);
    }
    return {};
  }

  // ---- Conversions

  int64_t capacity(const ValueType& type, RowSet set) const {
    return type.rows == Rows::kLogits ? type.shape()[0] : options_.capacity[static_cast<size_t>(set)];
  }

  // The value `id` of the old graph, placed so; made once. `region` of the node that needs it.
  Result<ValueId> convert(ValueId id, const Placements& wanted, const std::string& region) {
    if (const auto at = placed_[id].find(wanted); at != placed_[id].end()) return at->second;
    ValueId now = made_[id];
    // Out of the inner axis first, into the outer one first.
    const RowSet target = row_set(wanted);
    if (has_rows(from_.value(id).type)) {  // up to a set that has the rows
      for (RowSet set = row_set(to_.value(now).type.placement); !contains(set, target); set = row_set(to_.value(now).type.placement)) {
        const MeshAxis axis = last_axis(set);
        if (on(wanted, axis).kind == Placement::Kind::kSharded && on(wanted, axis).dim > 0) break;  // heads_to_rows, below
        WEFT_ASSIGN_OR_RETURN(now, move(id, now, axis, Placement::replicated(), region));
      }
    }
    for (MeshAxis axis : {MeshAxis::kTp, MeshAxis::kPcp}) {
      if (on(wanted, axis) == Placement::sharded(0)) continue;
      WEFT_ASSIGN_OR_RETURN(now, move(id, now, axis, on(wanted, axis), region));
    }
    for (MeshAxis axis : {MeshAxis::kPcp, MeshAxis::kTp}) {
      if (on(wanted, axis) != Placement::sharded(0)) continue;
      WEFT_ASSIGN_OR_RETURN(now, move(id, now, axis, on(wanted, axis), region));
    }
    if (to_.value(now).type.placement != wanted) {
      return invalid_argument(fmt::format("'{}' is {}, which cannot become{}", from_.value(id).name,
                                          to_string(to_.value(now).type), to_string(wanted)));
    }
    return now;
  }

  Result<ValueId> move(ValueId id, ValueId now, MeshAxis axis, const Placement& wanted, const std::string& region) {
    const ValueType type = to_.value(now).type;
    const Placement have = on(type.placement, axis);
    if (have == wanted) return now;
    const int64_t n = size(axis);
    const RowSet set = row_set(type.placement);
    const bool into_rows = wanted == Placement::sharded(0);
    const auto deeper = [&] { return axis == MeshAxis::kPcp ? RowSet::kPcp : set == RowSet::kPcp ? RowSet::kPcpTp : RowSet::kTp; };
    if (have.kind == Placement::Kind::kPartial) {
      const DType dtype = from_.value(id).type.dtype();
      if (into_rows) return emit(id, now, ReduceScatter{axis, n, dtype, capacity(type, deeper())}, "reduce_scatter", axis, region);
      WEFT_ASSIGN_OR_RETURN(now, emit(id, now, AllReduce{axis, n, dtype}, "all_reduce", axis, region));
      return move(id, now, axis, wanted, region);
    }
    if (have == Placement::sharded(0) && has_rows(type)) {
      if (wanted == Placement::sharded(1) && type.shape().rank() == 3) {
        return emit(id, now, HeadsToRows{axis, n, capacity(type, parent(set))}, "heads_to_rows", axis, region);
      }
      WEFT_ASSIGN_OR_RETURN(now, emit(id, now, AllGather{axis, n, 0, capacity(type, parent(set))}, "all_gather", axis, region));
      return move(id, now, axis, wanted, region);
    }
    if (have == Placement::sharded(1) && into_rows && has_rows(type) && type.shape().rank() == 2) {
      return emit(id, now, ColumnsToRows{axis, n, capacity(type, deeper())}, "columns_to_rows", axis, region);
    }
    if (have.kind == Placement::Kind::kSharded) {
      WEFT_ASSIGN_OR_RETURN(now, emit(id, now, AllGather{axis, n, have.dim, type.shape()[0]}, "all_gather", axis, region));
      return move(id, now, axis, wanted, region);
    }
    if (into_rows && has_rows(type)) {
      return emit(id, now, SliceRows{axis, n, capacity(type, deeper())}, "slice_rows", axis, region, Stream::kCompute);
    }
    return now;  // convert() says what is wrong
  }

  // What all layers share is moved for all of them, outside of any.
  std::string region_of(ValueId id, const std::string& consumer) const {
    if (is_weight(from_.value(id).role)) return consumer;
    return maker_[id] < 0 || from_.nodes()[static_cast<size_t>(maker_[id])].region.empty() ? "" : consumer;
  }

  // One move of `now`, a form of the value `id`; a move that was made before is not made again.
  Result<ValueId> emit(ValueId id, ValueId now, Op op, std::string_view what, MeshAxis axis, const std::string& consumer,
                       Stream stream = Stream::kComm) {
    const ValueTypes in = {to_.value(now).type};
    WEFT_ASSIGN_OR_RETURN(const auto placements, std::visit([&](const auto& o) -> Result<std::vector<Placements>> {
      if constexpr (requires { o.placements(in); }) return o.placements(in);
      return invalid_argument("not a collective");
    }, op));
    if (const auto at = placed_[id].find(placements[0]); at != placed_[id].end()) return at->second;
    const std::string region = region_of(id, consumer);
    const bool sum = is_any<AllReduce, ReduceScatter>(op);
    std::string name = from_.value(id).name;
    if (!sum || to_.find(name) >= 0) name = fmt::format("{}.{}_{}", name, what, mesh_axis_name(axis));
    for (int copy = 2; to_.find(name) >= 0; ++copy) name = fmt::format("{}.{}_{}.{}", from_.value(id).name, what, mesh_axis_name(axis), copy);
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(std::move(op), {now}, name, region, stream));
    placed_[id].emplace(to_.value(out[0]).type.placement, out[0]);
    return out[0];
  }

  // ---- Nodes

  // The letter that each axis splits this node by: '\0' for none.
  char letter(const Node& node, const ShardRule& rule, MeshAxis axis, RowSet rows) const {
    for (size_t i = 0; i < node.in.size() && i < rule.in.size(); ++i) {
      if (!is_weight(from_.value(node.in[i]).role) || rule.in[i].empty()) continue;
      if (is_gathered(node.in[i])) continue;
      const Placement& p = on(to_.value(made_[node.in[i]]).type.placement, axis);
      if (p.kind == Placement::Kind::kSharded) return rule.in[i][static_cast<size_t>(p.dim)];
    }
    const Placements split = with_row_set({}, rows);
    if (on(split, axis) == Placement::sharded(0)) return kRows;
    // As it comes: heads, or features of an elementwise op.
    if (node.in.empty() || rule.in.empty() || rule.in[0].empty()) return 0;
    const ValueId first = made_[node.in[0]];
    if (first < 0) return 0;
    const Placement& p = on(to_.value(first).type.placement, axis);
    if (p.kind != Placement::Kind::kSharded || p.dim == 0) return 0;
    const char here = rule.in[0][static_cast<size_t>(p.dim)];
    return rule.split.find(here) == std::string::npos ? '\0' : here;
  }

  // The op of one rank of n, where `l` is the letter that is split.
  static Op localise(const Op& op, char l, const ShardRule& rule, int64_t n) {
    if (const Linear* linear = std::get_if<Linear>(&op)) {
      Linear local = *linear;
      if (l == kRows) return local;
      if (rule.partial.find(l) != std::string::npos) {
        local.k_blocks = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(local.k_blocks / n, 1))));
        local.dtype = DType::kF32;
      } else {
        if (local.groups > 1) local.groups /= n;
        if (local.heads > 0) local.heads /= n;
      }
      return local;
    }
    return op;
  }

  Status check_divisible(const Node& node, const std::string& name, char l, const ShardRule& rule, int64_t n) const {
    const Linear* linear = std::get_if<Linear>(&node.op);
    if (linear == nullptr || l == kRows) return {};
    const auto refuse = [&](std::string_view what, int64_t count) {
      return invalid_argument(fmt::format("'{}': {} {} cannot be split over {} ranks", name, count, what, n));
    };
    if (options_.canonical_sums && rule.partial.find(l) != std::string::npos && linear->k_blocks % n != 0) return refuse("canonical blocks", linear->k_blocks);
    if (linear->groups > 1 && linear->groups % n != 0) return refuse("output groups", linear->groups);
    if (linear->heads > 0 && l != 0 && linear->heads % n != 0) return refuse("heads", linear->heads);
    return {};
  }

  Status add(size_t number) {
    const Node& node = from_.nodes()[number];
    const std::string name = node.out.empty() ? std::string(op_name(node.op)) : from_.value(node.out[0]).name;
    if (is_any<Experts>(node.op) && splits_weight(node, MeshAxis::kEp)) return add_expert_parallel(node, name, rows_[number]);
    if (is_any<Experts>(node.op) && splits_weight(node, MeshAxis::kTp)) return add_expert_shares(node, name, rows_[number]);

    const std::vector<ValueType> whole_types = types_of(from_, node.in);
    const ShardRule rule = rule_of(node.op, whole_types);
    const RowSet rows = rows_[number];
    Op op = node.op;
    std::string node_name = name;
    std::vector<Placements> wanted(node.in.size());
    for (MeshAxis axis : {MeshAxis::kPcp, MeshAxis::kTp, MeshAxis::kEp}) {
      if (size(axis) == 1) continue;
      const char l = letter(node, rule, axis, rows);
      if (l == 0) continue;
      for (size_t i = 0; i < node.in.size() && i < rule.in.size(); ++i) {
        const Value& value = from_.value(node.in[i]);
        if (value.role == ValueRole::kState) continue;
        if (l == kRows) {
          if (has_rows(value.type) && takes_rows(node, i)) on(wanted[i], axis) = Placement::sharded(0);
          continue;
        }
        const size_t dim = rule.in[i].find(l);
        if (dim != std::string::npos) on(wanted[i], axis) = Placement::sharded(static_cast<int>(dim));
      }
      WEFT_RETURN_IF_ERROR(check_divisible(node, name, l, rule, size(axis)));
      op = localise(op, l, rule, size(axis));
      if (l != kRows && rule.partial.find(l) != std::string::npos) node_name = name + ".partial";
    }

    std::vector<ValueId> in;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const ValueId id = node.in[i];
      const Value& value = from_.value(id);
      if (is_weight(value.role) && is_gathered(id)) {
        WEFT_ASSIGN_OR_RETURN(const ValueId whole, gather_weight(id, node.region));
        in.push_back(whole);
        continue;
      }
      if (is_weight(value.role) || value.role == ValueRole::kState) {
        in.push_back(made_[id]);
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(const ValueId placed, convert(id, wanted[i], node.region));
      in.push_back(placed);
    }
    WEFT_RETURN_IF_ERROR(share_quantisation(op, node, wanted, in, name));
    if (const IndexTopK* index = std::get_if<IndexTopK>(&op); index != nullptr && has_split_entries(in[2])) {
      return add_split_index(node, *index, std::move(in), name);
    }
    if (const Compressor* compressor = std::get_if<Compressor>(&op); compressor != nullptr && keys() != options_.writers) {
      const MeshAxis axis = last_axis(keys());
      op = SplitCompressor{axis, size(axis), *compressor};
    }
    if (const SparseAttention* attention = std::get_if<SparseAttention>(&op); attention != nullptr && reads_split_entries(*attention, in)) {
      if (options_.merge_partials) return add_merged_attention(node, *attention, in, name);
      WEFT_RETURN_IF_ERROR(fetch_entries(node, *attention, in, name));
    }
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(std::move(op), std::move(in), node_name, node.region, node.stream));
    record(node, out);
    return {};
  }

  // Keys and values of the step's own rows: those of what writes the caches.
  static bool is_key_input(const Node& node, size_t i) {
    if (const SparseAttention* attention = std::get_if<SparseAttention>(&node.op)) {
      return static_cast<int>(i) == attention->inputs(node.in.size()).kv;
    }
    return is_any<RingWrite, AppendRows>(node.op) && i == 0;
  }

  // Whether the rows of input i are those that the op works on.
  bool takes_rows(const Node& node, size_t i) const {
    return !(is_any<SparseAttention>(node.op) && is_key_input(node, i)) || options_.writers == options_.queries;
  }

  Result<ValueId> gather_weight(ValueId id, const std::string& region) {
    ValueId now = made_[id];
    for (int axis = 0; axis < kNumMeshAxes; ++axis) {
      const ValueType type = to_.value(now).type;
      const Placement& p = type.placement[axis];
      if (p.kind != Placement::Kind::kSharded) continue;
      const auto a = static_cast<MeshAxis>(axis);
      const int64_t rows = p.dim == 0 ? type.shape()[0] * size(a) : type.shape()[0];
      WEFT_ASSIGN_OR_RETURN(now, emit(id, now, AllGather{a, size(a), p.dim, rows}, "all_gather", a, region, Stream::kPrefetch));
    }
    return now;
  }

  // A scale of activation quantisation over more inputs than a rank has is shared.
  Status share_quantisation(Op& op, const Node& node, const std::vector<Placements>& wanted, std::vector<ValueId>& in, const std::string& name) {
    Linear* linear = std::get_if<Linear>(&op);
    if (linear != nullptr && linear->act_quant == ActQuant::kInt8PerRow && on(wanted[0], MeshAxis::kTp) == Placement::sharded(1)) {
      WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(RowAbsmax{MeshAxis::kTp, size(MeshAxis::kTp)}, {in[0]},
                                                         name + ".row_absmax", node.region, Stream::kComm));
      in.push_back(out[0]);
      return {};
    }
    if (linear == nullptr || !is_fp8(linear->act_quant) || linear->groups > 1) return {};
    const Shape& x = to_.value(in[0]).type.shape();
    const int64_t width = x.rank() == 3 ? x[1] * x[2] : x[1];
    if (on(wanted[0], MeshAxis::kTp) != Placement::sharded(1) || width % SharedQuantise::kBlock == 0) return {};
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(SharedQuantise{MeshAxis::kTp, size(MeshAxis::kTp), linear->act_quant}, {in[0]},
                                                       name + ".shared_quantise", node.region, Stream::kComm));
    in[0] = out[0];
    linear->act_quant = ActQuant::kNone;
    return {};
  }

  // ---- Entries on the dcp ranks in turn

  bool has_split_entries(ValueId id) const { return on(to_.value(id).type.placement, MeshAxis::kDcp) == Placement::sharded(1); }

  // Every rank scores the entries that it holds; the best of all are the best of their best.
  Status add_split_index(const Node& node, const IndexTopK& index, std::vector<ValueId> in, const std::string& name) {
    const int64_t n = size(MeshAxis::kDcp), rows = to_.value(in[0]).type.shape()[0];
    WEFT_ASSIGN_OR_RETURN(const auto own, to_.add_node(IndexCandidates{n, index}, std::move(in), name + ".candidates", node.region, node.stream));
    WEFT_ASSIGN_OR_RETURN(const auto all, to_.add_node(AllGather{MeshAxis::kDcp, n, 1, rows}, own, name + ".candidates.all_gather_dcp",
                                                       node.region, Stream::kComm));
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(MergeTopK{index.ratio, index.top_k}, all, name, node.region, node.stream));
    record(node, out);
    return {};
  }

  bool reads_split_entries(const SparseAttention& attention, const std::vector<ValueId>& in) const {
    const int entries = attention.inputs(in.size()).entries;
    return entries >= 0 && has_split_entries(in[static_cast<size_t>(entries)]);
  }

  // Every rank attends to the entries that it holds, for the heads of all of them; heads get their results merged.
  Status add_merged_attention(const Node& node, const SparseAttention& attention, std::vector<ValueId> in, const std::string& name) {
    constexpr MeshAxis kDcp = MeshAxis::kDcp;
    const int64_t n = size(kDcp);
    WEFT_ASSIGN_OR_RETURN(const auto heads, to_.add_node(GatherHeads{kDcp, n}, {in[0]}, name + ".heads", node.region, Stream::kComm));
    std::vector<ValueId> merge_in;
    in[0] = heads[0];
    PartialAttention op{n, attention};
    op.attention.has_sink = false;
    if (attention.has_sink) {
      const auto sink = in.begin() + attention.inputs(in.size()).sink;
      merge_in.push_back(*sink);
      in.erase(sink);
    }
    WEFT_ASSIGN_OR_RETURN(const auto partial, to_.add_node(op, std::move(in), name + ".partial", node.region, node.stream));
    merge_in.insert(merge_in.begin(), partial[0]);
    const DType dtype = from_.value(node.out[0]).type.dtype();
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(MergePartials{kDcp, n, dtype}, std::move(merge_in), name, node.region, Stream::kComm));
    record(node, out);
    return {};
  }

  // Attention reads entries of all ranks: those that its rows picked, or that its requests see, come from their owners.
  Status fetch_entries(const Node& node, const SparseAttention& attention, std::vector<ValueId>& in, const std::string& name) {
    const SparseAttention::Inputs at = attention.inputs(in.size());
    ValueId &entries = in[static_cast<size_t>(at.entries)], *picks = at.picks < 0 ? nullptr : &in[static_cast<size_t>(at.picks)];
    const int64_t n = size(MeshAxis::kDcp), rows = to_.value(in[0]).type.shape()[0];
    std::vector<ValueId> from = {entries};
    if (picks != nullptr) from.push_back(*picks);
    FetchEntries fetch{MeshAxis::kDcp, n, attention.ratio, attention.max_context};
    fetch.capacity = fetch.capacity_for(types_of(to_, from), rows);
    WEFT_ASSIGN_OR_RETURN(const auto fetched, to_.add_node(fetch, std::move(from), name + ".entries", node.region, Stream::kComm));
    entries = fetched[0];
    if (picks != nullptr) *picks = fetched[1];
    return {};
  }

  void record(const Node& node, const std::vector<ValueId>& out) {
    for (size_t i = 0; i < out.size(); ++i) {
      made_[node.out[i]] = out[i];
      placed_[node.out[i]].emplace(to_.value(out[i]).type.placement, out[i]);
    }
  }

  Status add_expert_parallel(const Node& node, const std::string& name, RowSet rows) {
    constexpr MeshAxis kEp = MeshAxis::kEp;
    const int64_t n = size(kEp);
    const Experts& experts = std::get<Experts>(node.op);
    const Placements split = with_row_set({}, rows);
    std::vector<ValueId> in;
    for (int i = 0; i < 3; ++i) {
      WEFT_ASSIGN_OR_RETURN(const ValueId placed, convert(node.in[i], split, node.region));
      in.push_back(placed);
    }
    const int64_t local = to_.value(made_[node.in[3]]).type.shape()[0];
    ExpertDispatch dispatch{kEp, n, local};
    dispatch.capacity = dispatch.capacity_for(types_of(to_, in));
    WEFT_ASSIGN_OR_RETURN(const auto sent, to_.add_node(dispatch, in, name + ".dispatch", node.region, Stream::kComm));
    std::vector<ValueId> slot_in = {sent[0], sent[1], sent[2]};
    for (size_t i = 3; i < node.in.size(); ++i) slot_in.push_back(made_[node.in[i]]);
    WEFT_ASSIGN_OR_RETURN(const auto slots, to_.add_node(ExpertSlots{experts}, std::move(slot_in), name + ".slots", node.region,
                                                         node.stream));
    // A slot's output is rounded, unless its weight was multiplied in afterwards.
    const DType dtype = experts.weight_before_w2 ? from_.value(node.in[0]).type.dtype() : DType::kF32;
    WEFT_ASSIGN_OR_RETURN(const auto out, to_.add_node(ExpertCombine{kEp, n, local, dtype}, {slots[0], sent[1], sent[3], in[1]},
                                                       name, node.region, Stream::kComm));
    record(node, out);
    return {};
  }

  // Every rank has some inner features of all experts, then some outputs: no sum crosses ranks.
  Status add_expert_shares(const Node& node, const std::string& name, RowSet rows) {
    constexpr MeshAxis kTp = MeshAxis::kTp;
    const Experts& experts = std::get<Experts>(node.op);
    const bool scaled = experts.scale_rows > 0;
    std::vector<ValueId> up;
    for (int i = 0; i < 3; ++i) {
      WEFT_ASSIGN_OR_RETURN(const ValueId placed, convert(node.in[i], with_row_set({}, rows), node.region));
      up.push_back(placed);
    }
    std::vector<ValueId> down = up;
    for (int i = 3; i < 5; ++i) up.push_back(made_[node.in[i]]);
    for (int i = 6; scaled && i < 8; ++i) up.push_back(made_[node.in[i]]);
    const auto add = [&](Op op, std::vector<ValueId> in, const std::string& what, Stream stream) {
      return to_.add_node(std::move(op), std::move(in), name + what, node.region, stream);
    };
    const auto gather = [&](ValueId part, int64_t dim, const std::string& what) {
      return add(AllGather{kTp, size(kTp), dim, to_.value(part).type.shape()[0]}, {part}, what, Stream::kComm);
    };
    WEFT_ASSIGN_OR_RETURN(const auto share, add(ExpertsUp{experts}, std::move(up), ".up", node.stream));
    WEFT_ASSIGN_OR_RETURN(const auto inner, gather(share[0], 2, ".inner"));
    down[0] = inner[0];
    down.push_back(made_[node.in[5]]);
    if (scaled) down.push_back(made_[node.in[8]]);
    WEFT_ASSIGN_OR_RETURN(const auto columns, add(ExpertsDown{experts}, std::move(down), ".down", node.stream));
    // Whole rows, or (sequence parallel) the rows of each rank at once.
    const RowSet wanted = needed_[node.out[0]].value_or(rows);
    if (wanted == rows || !contains(rows, wanted) || last_axis(wanted) != kTp) {
      WEFT_ASSIGN_OR_RETURN(const auto out, gather(columns[0], 1, ""));
      record(node, out);
      return {};
    }
    const int64_t own = capacity(to_.value(columns[0]).type, wanted);
    WEFT_ASSIGN_OR_RETURN(const auto out, add(ColumnsToRows{kTp, size(kTp), own}, columns, "", Stream::kComm));
    record(node, out);
    return {};
  }

  static constexpr char kRows = '#';

  const Graph& from_;
  const ShardOptions& options_;
  Graph to_;
  struct Less {
    bool operator()(const Placements& a, const Placements& b) const {
      for (size_t i = 0; i < a.size(); ++i) {
        if (a[i].kind != b[i].kind) return a[i].kind < b[i].kind;
        if (a[i].dim != b[i].dim) return a[i].dim < b[i].dim;
      }
      return false;
    }
  };
  struct WeightPlace {
    Placements placement{};
    bool gathered = false;
  };
  std::vector<WeightPlace> weights_;                         // by old value: where the layout has it
  std::vector<std::map<Placements, ValueId, Less>> placed_;  // by old value: its new values by placement
  std::vector<ValueId> made_;                                // by old value: as its node made it
  std::vector<int> maker_;                                   // by old value: node, -1: none
  std::vector<bool> routed_;                                 // by old value: routing is made from it
  std::vector<bool> stream_;                                 // by old value: a norm, or the choice of logit rows, reads it
  std::vector<RowSet> rows_;                                 // by old node
  std::vector<std::optional<RowSet>> needed_;                // by old value: rows that its consumers work on, the least split of them
};

}  // namespace

Result<Graph> shard(const Graph& graph, const ShardOptions& options) {
  if (options.mesh.stage() == 1) return graph;
  return Sharder(graph, options).run();
}

}  // namespace weft
