#include "planner/plan_steps.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/int_math.h"
#include "planner/expert_load.h"

namespace weft {
namespace {

std::string_view without_region(std::string_view name, std::string_view region) {
  if (!region.empty() && region.starts_with("layers.") && name.size() > region.size() && name.starts_with(region) &&
      name[region.size()] == '.') {
    return name.substr(region.size() + 1);
  }
  return name;
}

void add(OpCost& sum, const OpCost& cost, double times) {
  if (cost.seconds > sum.seconds / std::max(times, 1.0) || sum.seconds == 0) {  // bound and source of the largest
    sum.bound = cost.bound;
    sum.source = cost.source;
  }
  sum.seconds += times * cost.seconds;
  sum.compute_s += times * cost.compute_s;
  sum.memory_s += times * cost.memory_s;
  sum.network_s += times * cost.network_s;
  sum.launch_s += times * cost.launch_s;
  sum.matrix_term_s += times * cost.matrix_term_s;
  sum.vector_term_s += times * cost.vector_term_s;
  sum.memory_term_s += times * cost.memory_term_s;
  sum.flops += times * cost.flops;
  sum.bytes += times * cost.bytes;
  sum.bytes_sent += times * cost.bytes_sent;
  sum.unverified |= cost.unverified;
}

// A micro-batch, `times` times.
void repeat(StagePlan& stage, int64_t times) {
  const auto n = static_cast<double>(times);
  for (double* seconds : {&stage.compute_s, &stage.memory_s, &stage.network_s, &stage.launch_s}) *seconds *= n;
  for (double& seconds : stage.source_s) seconds *= n;
  for (PlanOp& op : stage.ops) {
    op.calls *= times;
    OpCost whole;
    add(whole, op.cost, n);
    op.cost = whole;
  }
  for (TrafficLine& line : stage.traffic) {
    line.calls *= times;
    line.bytes_sent *= times;
  }
}

void sort_ops(std::vector<PlanOp>& ops) {
  std::stable_sort(ops.begin(), ops.end(),
                   [](const PlanOp& a, const PlanOp& b) { return a.cost.seconds > b.cost.seconds; });
}

}  // namespace

StepPlanner::StepPlanner(const Setup& setup)
    : request_(setup.request),
      options_(setup.options),
      setting_(setup.setting),
      layout_(setup.setting.layout),
      mesh_(setup.mesh),
      cost_(setup.cost),
      begins_(setup.begins),
      ledger_(setup.ledger),
      store_(setup.store) {
  std::vector<GroupShapes> shapes;
  for (size_t stage = 0; stage < setup.like.size(); ++stage) {
    MeshCoordinate at;
    at.pp = static_cast<int>(stage);
    shapes.push_back(cost_ == nullptr ? GroupShapes() : group_shapes(mesh_.rank(at)));
    size_t first = 0;
    while (setup.like[first] != setup.like[stage] || shapes[first] != shapes[stage]) ++first;
    like_.push_back(static_cast<int>(first));
  }
}

int StepPlanner::like(int stage) const { return like_[static_cast<size_t>(stage)]; }

// Draft layers are in the last stage.
bool StepPlanner::runs(const WorkStep& work, int stage) const {
  return work.kind == GraphKind::kTrunk || stage + 1 == layout_.mesh.pp;
}

RankContext StepPlanner::context_of(int rank) const {
  RankContext context;
  context.rank = rank;
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    context.size[static_cast<size_t>(axis)] = mesh_.size(static_cast<MeshAxis>(axis));
    context.index[static_cast<size_t>(axis)] = mesh_.index(static_cast<MeshAxis>(axis), rank);
  }
  return context;
}

Routing StepPlanner::routing() const {
  Routing routing = request_.routing;
  routing.expert_ranks = layout_.mesh.ep;
  return routing;
}

StepPlanner::GroupShapes StepPlanner::group_shapes(int rank) const {
  GroupShapes groups;
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    groups[static_cast<size_t>(axis)] =
        group_shape(mesh_.group(static_cast<MeshAxis>(axis), rank), *request_.device, request_.local_ranks);
  }
  return groups;
}

double StepPlanner::working_set(int stage) const {
  const RankLedger& ledger = ledger_[static_cast<size_t>(stage)];
  return static_cast<double>(ledger.weight_bytes + ledger.cache_bytes + ledger.arena_bytes) * request_.local_ranks;
}

// The rank of a stage whose queries look furthest back: the first or the last one of the groups that split them.
Result<StepPlanner::Place> StepPlanner::slowest_rank(const WorkStep& step, int stage) const {
  const RowSetOptions split = row_set_options(layout_, step.phase);
  const auto queries = query_split(layout_, step.phase);
  Place best;
  int64_t most = -1;
  for (const bool last : {false, true}) {
    MeshCoordinate at;
    at.pp = stage;
    if (last) at.tp = layout_.mesh.tp - 1, at.pcp = layout_.mesh.pcp - 1;
    Place place{mesh_.rank(at), {}};
    WEFT_ASSIGN_OR_RETURN(place.rows, make_row_sets(step.batch, split, context_of(place.rank)));
    int64_t load = 0;
    if (queries) {
      const RowSet set = queries->axis == MeshAxis::kTp ? RowSet::kTp : RowSet::kPcp;
      for (const int32_t row : place.rows.of(Rows::kTokens, set).rows)
        load += 1 + step.batch.positions[static_cast<size_t>(row)];
    }
    if (load > most) {
      most = load;
      best = std::move(place);
    }
    if (!queries) break;
  }
  return best;
}

// What the graph does; plans that differ in nothing that it sees have the same times.
Result<StepTimes> StepPlanner::graph_times(const WorkStep& work, int stage) {
  if (options_.ops || options_.timeline || !cost_) return make_stage(work, stage);
  const std::string key = time_key(work, stage);
  if (auto known = store_.times.find(key)) return std::move(*known);
  WEFT_ASSIGN_OR_RETURN(StepTimes made, make_stage(work, stage));
  store_.times.keep(key, made);
  return made;
}

std::string StepPlanner::time_key(const WorkStep& work, int stage) const {
  const Layout layout = phase_layout(layout_, work.phase);
  const DeviceProfile& device = *request_.device;
  const bool cached = device.cache_bytes && working_set(stage) <= device.cache_bytes->value;
  std::string key = fmt::format("{}|{} {} {} {} {}", to_string(layout), static_cast<int>(work.kind),
                                static_cast<int>(work.phase), stage, work.group_logits(), cached);
  // Requests that follow each other with as many rows and tokens are one item.
  int64_t same = 0;
  const std::vector<Segment>& segments = work.batch.segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    ++same;
    if (i + 1 < segments.size() && segments[i + 1].len == segments[i].len &&
        segments[i + 1].kv_end == segments[i].kv_end)
      continue;
    key += fmt::format("|{} x {} {}", std::exchange(same, 0), segments[i].len, segments[i].kv_end);
  }
  return key;
}

Result<StepTimes> StepPlanner::make_stage(const WorkStep& work, int stage) {
  const PlanRequest& r = request_;
  StepTimes times;
  StagePlan& out = times.stage;
  WEFT_ASSIGN_OR_RETURN(const Place place, slowest_rank(work, stage));
  StepKey key{work.kind, work.phase, work.group_rows(), std::max<int64_t>(work.group_logits(), 1), stage, {}};
  for (size_t set = 1; set < kNumRowSets; ++set) {  // of flat splits all ranks have the graph of the fullest
    const RowSplit& split = place.rows.tokens[set];
    if (!split.counts.empty() && !split.flat) key.rows_of_set[set] = std::max<int64_t>(split.size(), 1);
  }
  constexpr auto kPcp = static_cast<size_t>(RowSet::kPcp), kPcpTp = static_cast<size_t>(RowSet::kPcpTp);
  if (key.rows_of_set[kPcp] > 0) key.rows_of_set[kPcpTp] = ceil_div(key.rows_of_set[kPcp], int64_t{layout_.mesh.tp});
  WEFT_ASSIGN_OR_RETURN(const StepStore::Lease lease, store_.graphs.get(setting_, key));
  const StepGraph& step = lease->step();
  out.rank = place.rank;
  WorkEnv traffic_env{r.threads};
  traffic_env.routing = routing();
  const RankContext ranks = context_of(place.rank);
  const StepOnRank on_rank{work.batch, place.rows, ranks};
  out.traffic = traffic_of(step, traffic_env, r.engine.get(), &on_rank);
  for (const std::string& name : step.sent)
    times.sent_bytes.push_back(step.graph.value(step.graph.find(name)).type.tensor.bytes());
  if (cost_ && runs(work, stage)) WEFT_RETURN_IF_ERROR(cost_nodes(work, place, step, times));
  return times;
}

// Layers that are equal in the graph are not in the costs of measured picks.
bool StepPlanner::measured(const Node& node) const {
  return request_.expert_shares != nullptr && computes_experts(node.op) && layer_of_region(node.region) >= 0;
}

// Of a node of a layer that stands for others: the mean over all layers of its kind in this stage, each with the
// busiest rank's share of its own picks. What the layers of a kind add up to is then what each by itself would.
Result<OpCost> StepPlanner::node_cost(const Graph& graph, const Node& node, int stage, const CostEnv& env) const {
  if (!measured(node)) return cost_->cost(graph, node, env);
  const Model& model = *request_.model;
  const std::string kind = model.layer_kind(layer_of_region(node.region));
  OpCost all, mean;
  double layers = 0;
  for (int64_t l = begins_[static_cast<size_t>(stage)]; l < begins_[static_cast<size_t>(stage) + 1]; ++l) {
    const auto shares = request_.expert_shares->find(l);
    if (shares == request_.expert_shares->end() || model.layer_kind(l) != kind) continue;
    CostEnv of_layer = env;
    of_layer.routing.kind = Routing::Kind::kMeasured;
    of_layer.routing.shares = &shares->second;
    WEFT_ASSIGN_OR_RETURN(const OpCost cost, cost_->cost(graph, node, of_layer));
    add(all, cost, 1);
    ++layers;
  }
  if (layers == 0) return cost_->cost(graph, node, env);
  add(mean, all, 1 / layers);
  return mean;
}

Status StepPlanner::cost_nodes(const WorkStep& work, const Place& place, const StepGraph& graph_of_step,
                               StepTimes& times_of_step) {
  const PlanRequest& r = request_;
  const StepGraph* step = &graph_of_step;
  StagePlan& out = times_of_step.stage;
  CostEnv env;
  env.threads = r.threads;
  env.local_ranks = r.local_ranks;
  env.launch = r.eager ? LaunchMode::kEager : LaunchMode::kGraph;
  env.routing = routing();
  env.batch = &work.batch;
  env.row_sets = &place.rows;
  env.groups = group_shapes(place.rank);
  env.engine = r.engine.get();
  env.working_set_bytes = working_set(step->key.stage);

  const auto& nodes = step->graph.nodes();
  std::vector<OpCost> costs(nodes.size());
  std::map<std::pair<std::string_view, std::string_view>, size_t> by_name;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    // Nothing is computed for logits that nobody wants.
    const ValueRole first = node.out.empty() ? ValueRole::kActivation : step->graph.value(node.out[0]).role;
    if (first == ValueRole::kActivation && !node.out.empty() && work.group_logits() == 0 &&
        step->graph.value(node.out[0]).type.rows == Rows::kLogits) {
      continue;
    }
    if (const auto alike = static_cast<size_t>(step->alike[n]); alike != n && !measured(node)) {
      costs[n] = costs[alike];
    } else {
      WEFT_ASSIGN_OR_RETURN(costs[n], node_cost(step->graph, node, step->key.stage, env));
    }
    const auto times = static_cast<double>(step->node_repeat[n]);
    out.compute_s += times * costs[n].compute_s;
    out.memory_s += times * costs[n].memory_s;
    out.network_s += times * costs[n].network_s;
    out.launch_s += times * costs[n].launch_s;
    out.source_s[static_cast<size_t>(costs[n].source)] += times * costs[n].seconds;
    times_of_step.unverified |= costs[n].unverified;
    if (!options_.ops) continue;
    const std::string_view name =
        node.out.empty() ? op_name(node.op) : without_region(step->graph.value(node.out[0]).name, node.region);
    const auto [at, fresh] = by_name.emplace(std::pair(name, op_name(node.op)), out.ops.size());
    if (fresh) out.ops.push_back({std::string(name), std::string(op_name(node.op)), node.stream, 0, {}});
    PlanOp& op = out.ops[at->second];
    op.calls += step->node_repeat[n];
    add(op.cost, costs[n], times);
  }
  const TimelineOptions how{!r.device->is_cpu(), options_.timeline};
  out.timeline = schedule(*step, costs, how);
  out.seconds = out.timeline.makespan_s;
  out.exposed_s = out.timeline.exposed_s;
  return {};
}

Result<CollectiveCost> StepPlanner::message_cost(const TrafficLine& line, int rank) const {
  if (cost_ == nullptr || line.bytes_sent == 0) return CollectiveCost();
  const auto bytes = static_cast<double>(line.bytes_sent);
  const std::vector<int> members = mesh_.group(line.axis, rank);
  if (line.op == "send") {
    const int here = mesh_.index(line.axis, rank);
    return cost_->transfer(rank, members[static_cast<size_t>(here) + 1], bytes, request_.local_ranks);
  }
  const GroupShape group = group_shape(members, *request_.device, request_.local_ranks);
  if (line.op == "broadcast") return collective_cost(*request_.device, CollectiveKind::kBroadcast, group, bytes);
  const auto size = static_cast<double>(line.group_size);
  return collective_cost(*request_.device, CollectiveKind::kAllGather, group, bytes * size / (size - 1));
}

// Seconds of one micro-batch; the stage is one of the whole step.
Result<double> StepPlanner::send_values(std::span<const int64_t> sent_bytes, int64_t micro_batches, StagePlan& stage) {
  double all = 0;
  for (TrafficLine line : send_traffic(sent_bytes, layout_)) {
    WEFT_ASSIGN_OR_RETURN(CollectiveCost cost, message_cost(line, stage.rank));
    all += cost.seconds;
    line.calls *= micro_batches;
    line.bytes_sent *= micro_batches;
    cost.seconds *= static_cast<double>(micro_batches);
    add_message(stage, line, "values for the next stage", cost);
  }
  return all;
}

// All ranks take part at once when the last stage is done, first along the stages, then along the data-parallel groups.
Result<double> StepPlanner::share_logits(const WorkStep& work, std::vector<StagePlan>& stages) {
  if (!request_.engine->shares_logits) return 0.0;
  std::vector<std::vector<TrafficLine>> lines;
  std::map<std::string, CollectiveCost> slowest;
  for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
    lines.push_back(logit_traffic(stage, layout_, work.logits, request_.model->vocab_size()));
    for (const TrafficLine& line : lines.back()) {
      WEFT_ASSIGN_OR_RETURN(const CollectiveCost cost, message_cost(line, stages[static_cast<size_t>(stage)].rank));
      if (cost.seconds > slowest[line.op].seconds) slowest[line.op] = cost;
    }
  }
  double all = 0;
  for (const auto& [op, cost] : slowest) all += cost.seconds;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const TrafficLine& line : lines[stage]) {
      add_message(stages[stage], line, line.axis == MeshAxis::kPp ? "logits for all stages" : "logits for all groups",
                  slowest[line.op]);
    }
  }
  return all;
}

// What the runtime sends, as a line among the ops.
void StepPlanner::add_message(StagePlan& stage, const TrafficLine& line, std::string_view name,
                              const CollectiveCost& cost) {
  stage.traffic.push_back(line);
  stage.network_s += cost.seconds;
  stage.source_s[static_cast<size_t>(CostSource::kRoofline)] += cost.seconds;
  unverified_ |= cost.unverified;
  if (!options_.ops || cost.seconds == 0) return;
  PlanOp op{std::string(name), line.op, Stream::kComm, line.calls, {}};
  op.cost.seconds = op.cost.network_s = cost.seconds;
  op.cost.bound = Bound::kNetwork;
  op.cost.bytes_sent = static_cast<double>(line.bytes_sent);
  op.cost.unverified = cost.unverified;
  stage.ops.push_back(std::move(op));
}

Result<StepPlan> StepPlanner::plan(const WorkStep& work) {
  StepPlan step;
  step.name = work.name;
  step.rows = work.rows;
  step.requests = work.requests;
  step.context = work.context;
  step.times = work.times;
  step.micro_batches = work.micro_batches;
  double sum = 0, most = 0;
  std::vector<StepTimes> known;  // by stage; of those that are like others the first alone
  for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
    known.emplace_back();
    if (like(stage) == stage) {
      WEFT_ASSIGN_OR_RETURN(known.back(), graph_times(work, stage));
      unverified_ |= known.back().unverified;
      repeat(known.back().stage, work.micro_batches);
    }
    const StepTimes& times = known[static_cast<size_t>(like(stage))];
    StagePlan made = times.stage;
    made.rank += (stage - like(stage)) * layout_.mesh.pcp * layout_.mesh.tp;
    WEFT_ASSIGN_OR_RETURN(made.hand_over_s, send_values(times.sent_bytes, work.micro_batches, made));
    sum += made.seconds + made.hand_over_s;
    most = std::max(most, made.seconds + made.hand_over_s);
    step.stages.push_back(std::move(made));
  }
  WEFT_ASSIGN_OR_RETURN(step.logits_s, share_logits(work, step.stages));
  for (StagePlan& stage : step.stages) sort_ops(stage.ops);
  // The first micro-batch goes through all stages, the others follow at the pace of the slowest.
  step.seconds = sum + static_cast<double>(work.micro_batches - 1) * most + step.logits_s;
  if (layout_.mesh.pp > 1) step.bubble = pipeline_bubble(layout_.mesh.pp, work.micro_batches);
  return step;
}

}  // namespace weft
