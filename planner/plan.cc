#include "planner/plan.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/int_math.h"
#include "planner/engine_layout.h"
#include "planner/plan_store.h"
#include "planner/workload.h"

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
  sum.unverified = sum.unverified || cost.unverified;
}

class Planner {
 public:
  Planner(const PlanRequest& request, const PlanOptions& options)
      : options_(options), own_store_(options.store == nullptr ? std::make_unique<PlanStore>() : nullptr),
        store_(options.store == nullptr ? *own_store_ : *options.store) {
    plan_.request = request;
  }

  Result<Plan> run() {
    const auto start = std::chrono::steady_clock::now();
    const PlanRequest& r = plan_.request;
    WEFT_ASSIGN_OR_RETURN(layout_, engine_layout(*r.engine, *r.model, r.layout));
    if (layout_ != r.layout) {
      plan_.notes.push_back(fmt::format("{} plans {} as {}: sequence parallelism on a model with DSA", r.engine->name, to_string(r.layout), to_string(layout_)));
      plan_.request.layout = layout_;
    }
    WEFT_RETURN_IF_ERROR(r.engine->executor_limits ? r.model->check_layout(layout_) : check_layout(layout_));
    WEFT_RETURN_IF_ERROR(r.model->check_mode(r.mode));
    WEFT_RETURN_IF_ERROR(check_request(r));
    WEFT_ASSIGN_OR_RETURN(mesh_, Mesh::create(layout_.mesh));
    plan_.ranks = layout_.mesh.world();
    plan_.devices = ceil_div(plan_.ranks, int64_t{r.local_ranks});
    workload_ = make_workload(r);
    setting_.model = r.model.get();
    setting_.mode = r.mode;
    setting_.layout = layout_;
    setting_.cache = cache_capacity(layout_, workload_.sizes);
    setting_.threads = r.threads;
    setting_.canonical_sums = r.engine->executor_limits;
    WEFT_RETURN_IF_ERROR(find_like_stages());
    WEFT_RETURN_IF_ERROR(memory());
    if (options_.fitting_only && !plan_.fits) {
      marks();
      return std::move(plan_);
    }
    if (options_.times) {
      WEFT_ASSIGN_OR_RETURN(CostModel model, CostModel::create(*r.device));
      cost_ = std::move(model);
    }
    WEFT_RETURN_IF_ERROR(steps());
    if (options_.times) serve();
    if (options_.max_batch) WEFT_RETURN_IF_ERROR(max_batch());
    marks();
    plan_.planning_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(plan_);
  }

 private:
  // ---- Pipeline stages that are alike in all but the numbers of their layers are looked at once.

  std::string kind_of_stage(int stage, std::span<const int64_t> begins) const {
    const int64_t stages = layout_.mesh.pp;
    // The first one has the embedding, the last one the head; the last but one ends the chain that broadcasts logits.
    std::string kind = fmt::format("{}{}{}", stage == 0, stage + 1 == stages, stage + 2 == stages);
    for (int64_t l = begins[static_cast<size_t>(stage)]; l < begins[static_cast<size_t>(stage) + 1]; ++l) {
      kind += fmt::format("|{}", plan_.request.model->layer_kind(l));
    }
    return kind;
  }
  // The first stage that is like this one.
  int like(int stage) const { return like_[static_cast<size_t>(stage)]; }
  Status find_like_stages() {
    WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> begins, stage_begins(*plan_.request.model, layout_.mesh.pp));
    begins.push_back(plan_.request.model->num_layers());
    std::map<std::string, int> first;
    for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
      like_.push_back(first.emplace(kind_of_stage(stage, begins), stage).first->second);
    }
    return {};
  }

  // ---- Memory

  Result<RankLedger> ledger(int stage) {
    if (like(stage) != stage) {
      RankLedger same = plan_.ledger[static_cast<size_t>(like(stage))];
      same.stage = stage;
      return same;
    }
    WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const StageHoldings> held, holdings(stage));
    std::vector<StepMemory> steps;
    for (StepKey key : workload_.shapes) {
      key.stage = stage;
      WEFT_ASSIGN_OR_RETURN(steps.emplace_back(), store_.graphs.memory(setting_, key));
    }
    return make_ledger(plan_.request, setting_, stage, *held, steps);
  }

  // Weights and caches of all kinds of steps of a stage.
  Result<std::shared_ptr<const StageHoldings>> holdings(int stage) {
    std::vector<StepKey> kinds;
    for (const StepKey& shape : workload_.shapes) {
      const auto same = [&](const StepKey& k) { return k.kind == shape.kind && k.phase == shape.phase; };
      if (std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back({shape.kind, shape.phase, 1, 1, stage, {}});
    }
    const size_t run = kinds.size();
    // Caches of draft layers are there, whether or not drafts are made; they are in the last stage.
    const bool unused = plan_.request.drafts == 0 && plan_.request.model->num_draft_layers() > 0 && stage + 1 == layout_.mesh.pp;
    if (unused) kinds.push_back({GraphKind::kDraft, StepPhase::kDecode, 1, 1, stage, {}});
    const LedgerDetail detail = options_.ops ? LedgerDetail::kTensors : LedgerDetail::kComponents;
    std::string name = fmt::format("{}|{} {} {} {}", to_string(layout_), static_cast<int>(detail), stage, setting_.cache.draft_rows, setting_.cache.max_context);
    for (const StepKey& key : kinds) name += fmt::format("|{} {}", static_cast<int>(key.kind), static_cast<int>(key.phase));
    if (auto known = store_.holdings.find(name)) return *known;
    std::vector<StepStore::Lease> leases;
    std::vector<const StepGraph*> steps;
    for (const StepKey& key : kinds) {
      WEFT_ASSIGN_OR_RETURN(leases.emplace_back(), store_.graphs.any_size(setting_, key));
      steps.push_back(&leases.back()->step());
    }
    const std::span<const StepGraph* const> all(steps);
    auto made = std::make_shared<const StageHoldings>(stage_holdings(plan_.request, setting_, all.first(run), all.subspan(run), detail));
    store_.holdings.keep(name, made);
    return made;
  }

  Status memory() {
    for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
      WEFT_ASSIGN_OR_RETURN(RankLedger made, ledger(stage));
      plan_.ledger.push_back(std::move(made));
      if (plan_.ledger.back().total() > plan_.ledger[static_cast<size_t>(plan_.worst_stage)].total()) plan_.worst_stage = stage;
    }
    const DeviceProfile& device = *plan_.request.device;
    const auto& bytes = device.visible_bytes ? device.visible_bytes : device.nominal_bytes;
    if (!bytes) {
      plan_.notes.push_back(fmt::format("{}: the profile does not say how much memory it has", device.name));
      plan_.fits = true;
      return {};
    }
    if (!device.visible_bytes) plan_.notes.push_back(fmt::format("{}: memory of the data sheet; what software may use is less", device.name));
    plan_.capacity_bytes = static_cast<int64_t>(bytes->value);
    plan_.fits = plan_.needed_bytes() <= plan_.capacity_bytes;
    return {};
  }

  // Caches grow with the requests, steps too; weights do not.
  Status max_batch() {
    if (plan_.capacity_bytes == 0) return {};
    const PlanRequest& r = plan_.request;
    int64_t most = -1;
    for (const RankLedger& stage : plan_.ledger) {
      const double per_request = static_cast<double>(stage.cache_bytes_per_request) +
                                 stage.cache_bytes_per_token * static_cast<double>(r.context() + setting_.cache.page_tokens);
      const double free = static_cast<double>(plan_.capacity_bytes / r.local_ranks - (stage.total() - stage.cache_bytes));
      const int64_t here = free <= 0 ? 0 : per_request <= 0 ? r.batch : static_cast<int64_t>(free / per_request) * layout_.mesh.dp;
      most = most < 0 ? here : std::min(most, here);
    }
    plan_.max_batch = std::max<int64_t>(most, 0);
    return {};
  }

  // ---- Times

  RankContext context_of(int rank) const {
    RankContext context;
    context.rank = rank;
    for (int axis = 0; axis < kNumMeshAxes; ++axis) {
      context.size[static_cast<size_t>(axis)] = mesh_->size(static_cast<MeshAxis>(axis));
      context.index[static_cast<size_t>(axis)] = mesh_->index(static_cast<MeshAxis>(axis), rank);
    }
    return context;
  }

  // The rank of a stage whose queries look furthest back: the first or the last one of the groups that split them.
  struct Place {
    int rank = 0;
    RowSets rows;
  };
  Result<Place> slowest_rank(const WorkStep& step, int stage) {
    const RowSetOptions split = row_set_options(layout_, step.phase);
    const auto queries = query_split(layout_, step.phase);
    Place best;
    int64_t most = -1;
    for (const bool last : {false, true}) {
      MeshCoordinate at;
      at.pp = stage;
      if (last) at.tp = layout_.mesh.tp - 1, at.pcp = layout_.mesh.pcp - 1;
      Place place{mesh_->rank(at), {}};
      WEFT_ASSIGN_OR_RETURN(place.rows, make_row_sets(step.batch, split, context_of(place.rank)));
      int64_t load = 0;
      if (queries) {
        const RowSet set = queries->axis == MeshAxis::kTp ? RowSet::kTp : RowSet::kPcp;
        for (const int32_t row : place.rows.of(Rows::kTokens, set).rows) load += 1 + step.batch.positions[static_cast<size_t>(row)];
      }
      if (load > most) {
        most = load;
        best = std::move(place);
      }
      if (!queries) break;
    }
    return best;
  }

  Result<StagePlan> cost_stage(const WorkStep& work, int stage) {
    WEFT_ASSIGN_OR_RETURN(StepTimes times, graph_times(work, stage));
    unverified_ = unverified_ || times.unverified;
    StagePlan out = std::move(times.stage);
    std::vector<TrafficLine> more = engine_traffic(times.sent_bytes, stage, layout_, work.group_logits(), plan_.request.model->vocab_size());
    if (cost_ && runs(work, stage)) {
      const GroupShapes groups = group_shapes(out.rank);
      for (const TrafficLine& line : more) {
        WEFT_ASSIGN_OR_RETURN(const double seconds, engine_seconds(line, groups, out.rank));
        out.hand_over_s += seconds;
      }
    }
    out.traffic.insert(out.traffic.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    return out;
  }

  // Draft layers are in the last stage.
  bool runs(const WorkStep& work, int stage) const { return work.kind == GraphKind::kTrunk || stage + 1 == layout_.mesh.pp; }

  // What the graph does; plans that differ in nothing that it sees have the same times.
  Result<StepTimes> graph_times(const WorkStep& work, int stage) {
    if (options_.ops || options_.timeline || !cost_) return make_stage(work, stage);
    const std::string key = time_key(work, stage);
    if (auto known = store_.times.find(key)) return std::move(*known);
    WEFT_ASSIGN_OR_RETURN(StepTimes made, make_stage(work, stage));
    store_.times.keep(key, made);
    return made;
  }

  std::string time_key(const WorkStep& work, int stage) const {
    const Layout layout = phase_layout(layout_, work.phase);
    const DeviceProfile& device = *plan_.request.device;
    const bool cached = device.cache_bytes && working_set(stage) <= device.cache_bytes->value;
    std::string key = fmt::format("{}|{} {} {} {} {}", to_string(layout), static_cast<int>(work.kind), static_cast<int>(work.phase), stage,
                                  work.group_logits(), cached);
    // Requests that follow each other with as many rows and tokens are one item.
    int64_t same = 0;
    const std::vector<Segment>& segments = work.batch.segments;
    for (size_t i = 0; i < segments.size(); ++i) {
      ++same;
      if (i + 1 < segments.size() && segments[i + 1].len == segments[i].len && segments[i + 1].kv_end == segments[i].kv_end) continue;
      key += fmt::format("|{} x {} {}", std::exchange(same, 0), segments[i].len, segments[i].kv_end);
    }
    return key;
  }

  double working_set(int stage) const {
    const RankLedger& ledger = plan_.ledger[static_cast<size_t>(stage)];
    return static_cast<double>(ledger.weight_bytes + ledger.cache_bytes + ledger.arena_bytes) * plan_.request.local_ranks;
  }

  Result<StepTimes> make_stage(const WorkStep& work, int stage) {
    const PlanRequest& r = plan_.request;
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
    for (const std::string& name : step.sent) times.sent_bytes.push_back(step.graph.value(step.graph.find(name)).type.tensor.bytes());
    if (cost_ && runs(work, stage)) WEFT_RETURN_IF_ERROR(cost_nodes(work, place, step, times));
    return times;
  }

  Routing routing() const {
    Routing routing = plan_.request.routing;
    routing.expert_ranks = layout_.mesh.ep;
    return routing;
  }

  using GroupShapes = std::array<GroupShape, kNumMeshAxes>;
  GroupShapes group_shapes(int rank) const {
    GroupShapes groups;
    for (int axis = 0; axis < kNumMeshAxes; ++axis) {
      groups[static_cast<size_t>(axis)] = group_shape(mesh_->group(static_cast<MeshAxis>(axis), rank), *plan_.request.device, plan_.request.local_ranks);
    }
    return groups;
  }

  Status cost_nodes(const WorkStep& work, const Place& place, const StepGraph& graph_of_step, StepTimes& times_of_step) {
    const PlanRequest& r = plan_.request;
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
      if (const auto alike = static_cast<size_t>(step->alike[n]); alike != n) {
        costs[n] = costs[alike];
      } else {
        WEFT_ASSIGN_OR_RETURN(costs[n], cost_->cost(step->graph, node, env));
      }
      const auto times = static_cast<double>(step->node_repeat[n]);
      out.compute_s += times * costs[n].compute_s;
      out.memory_s += times * costs[n].memory_s;
      out.network_s += times * costs[n].network_s;
      out.launch_s += times * costs[n].launch_s;
      out.source_s[static_cast<size_t>(costs[n].source)] += times * costs[n].seconds;
      times_of_step.unverified = times_of_step.unverified || costs[n].unverified;
      if (!options_.ops) continue;
      const std::string_view name = node.out.empty() ? op_name(node.op) : without_region(step->graph.value(node.out[0]).name, node.region);
      const auto [at, fresh] = by_name.emplace(std::pair(name, op_name(node.op)), out.ops.size());
      if (fresh) out.ops.push_back({std::string(name), std::string(op_name(node.op)), node.stream, 0, {}});
      PlanOp& op = out.ops[at->second];
      op.calls += step->node_repeat[n];
      add(op.cost, costs[n], times);
    }
    std::stable_sort(out.ops.begin(), out.ops.end(), [](const PlanOp& a, const PlanOp& b) { return a.cost.seconds > b.cost.seconds; });
    const TimelineOptions how{!r.device->is_cpu(), options_.timeline};
    out.timeline = schedule(*step, costs, how);
    out.seconds = out.timeline.makespan_s;
    out.exposed_s = out.timeline.exposed_s;
    return {};
  }

  Result<double> engine_seconds(const TrafficLine& line, const GroupShapes& groups, int rank) const {
    if (line.bytes_sent == 0) return 0.0;
    const auto bytes = static_cast<double>(line.bytes_sent);
    if (line.op == "send") {
      const std::vector<int> stages = mesh_->group(MeshAxis::kPp, rank);
      const int here = mesh_->index(MeshAxis::kPp, rank);
      WEFT_ASSIGN_OR_RETURN(const CollectiveCost cost, cost_->transfer(rank, stages[static_cast<size_t>(here) + 1], bytes, plan_.request.local_ranks));
      return cost.seconds;
    }
    const bool broadcast = line.op == "broadcast";
    const double moved = broadcast ? bytes : bytes * static_cast<double>(line.group_size) / static_cast<double>(line.group_size - 1);
    WEFT_ASSIGN_OR_RETURN(const CollectiveCost cost, collective_cost(cost_->device(), broadcast ? CollectiveKind::kBroadcast : CollectiveKind::kAllGather,
                                                                     groups[static_cast<size_t>(line.axis)], moved));
    return cost.seconds;
  }

  Result<StepPlan> cost_step(const WorkStep& work) {
    StepPlan step;
    step.name = work.name;
    step.rows = work.rows;
    step.requests = static_cast<int64_t>(work.batch.segments.size()) * layout_.mesh.dp;
    step.context = work.context;
    step.times = work.times;
    step.micro_batches = work.micro_batches;
    double sum = 0, most = 0;
    for (int stage = 0; stage < layout_.mesh.pp; ++stage) {
      StagePlan made;
      if (like(stage) == stage) {
        WEFT_ASSIGN_OR_RETURN(made, cost_stage(work, stage));
      } else {
        made = step.stages[static_cast<size_t>(like(stage))];
        made.rank += (stage - like(stage)) * layout_.mesh.pcp * layout_.mesh.tp;
      }
      const double seconds = made.seconds + made.hand_over_s;
      sum += seconds;
      most = std::max(most, seconds);
      step.stages.push_back(std::move(made));
    }
    // The first micro-batch goes through all stages, the others follow at the pace of the slowest.
    step.seconds = sum + static_cast<double>(work.micro_batches - 1) * most;
    if (layout_.mesh.pp > 1) step.bubble = pipeline_bubble(layout_.mesh.pp, work.micro_batches);
    return step;
  }

  Status steps() {
    for (const WorkStep& work : workload_.prefill) {
      WEFT_ASSIGN_OR_RETURN(plan_.prefill.emplace_back(), cost_step(work));
    }
    for (const WorkStep& work : workload_.prefill_drafts) {
      WEFT_ASSIGN_OR_RETURN(plan_.prefill_drafts.emplace_back(), cost_step(work));
    }
    for (const auto* steps : {&plan_.prefill, &plan_.prefill_drafts}) {
      for (const StepPlan& step : *steps) plan_.prefill_all_s += step.seconds * static_cast<double>(step.times);
    }
    if (workload_.decode.rows > 0) {
      WEFT_ASSIGN_OR_RETURN(plan_.decode, cost_step(workload_.decode));
      plan_.decode_step_s = plan_.decode.seconds;
    }
    for (const WorkStep& work : workload_.drafts) {
      const bool same = !plan_.drafts.empty() && plan_.drafts.back().rows == work.rows;
      if (same) {
        ++plan_.drafts.back().times;
      } else {
        WEFT_ASSIGN_OR_RETURN(plan_.drafts.emplace_back(), cost_step(work));
      }
      plan_.decode_step_s += plan_.drafts.back().seconds;
    }
    plan_.tokens_per_step = tokens_per_step(plan_.request.drafts, plan_.request.acceptance);
    return {};
  }

  void serve() {
    const PlanRequest& r = plan_.request;
    ServiceInput input;
    input.batch = r.batch;
    input.gen = r.gen;
    input.prompt = r.prompt;
    input.cached = r.cached;
    input.devices = plan_.devices;
    input.prefill_all_s = plan_.prefill_all_s;
    input.waves = workload_.waves;
    input.prefill_first_s = plan_.prefill_all_s / static_cast<double>(std::max<int64_t>(workload_.waves, 1));
    input.decode_step_s = plan_.decode_step_s;
    input.tokens_per_step = plan_.tokens_per_step;
    plan_.service = service(input);
    plan_.has_times = true;
  }

  void marks() {
    if (unverified_ || !options_.times) {
      for (const std::string& figure : plan_.request.device->unverified) {
        if (!options_.times && !figure.starts_with("memory.")) continue;
        plan_.unverified.push_back(fmt::format("{}: {}", plan_.request.device->name, figure));
      }
    }
    for (const RankLedger& stage : plan_.ledger) {
      for (const LedgerLine& line : stage.lines) {
        if (!line.unverified) continue;
        std::string text = fmt::format("{}: {}", plan_.request.engine->name, line.what);
        if (std::find(plan_.unverified.begin(), plan_.unverified.end(), text) == plan_.unverified.end()) plan_.unverified.push_back(std::move(text));
      }
    }
  }

  const PlanOptions& options_;
  Layout layout_;
  const std::unique_ptr<PlanStore> own_store_;
  PlanStore& store_;
  Plan plan_;
  std::optional<Mesh> mesh_;
  Workload workload_;
  StepSetting setting_;
  std::vector<int> like_;  // by stage
  std::optional<CostModel> cost_;
  bool unverified_ = false;
};

}  // namespace

Result<Plan> make_plan(const PlanRequest& request, const PlanOptions& options) { return Planner(request, options).run(); }

}  // namespace weft
