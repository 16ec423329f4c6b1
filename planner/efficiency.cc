#include "planner/efficiency.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace weft {
namespace {

// Names of the ops by their place in the variant.
template <size_t... I>
constexpr std::array<std::string_view, sizeof...(I)> names_of_ops(std::index_sequence<I...>) {
  return {std::variant_alternative_t<I, Op>::kName...};
}

constexpr size_t kOps = std::variant_size_v<Op>;
constexpr std::array<std::string_view, kOps> kOpNames = names_of_ops(std::make_index_sequence<kOps>());

}  // namespace

bool can_have_table(std::string_view op) {
  return op == "matrix" || op == "vector" || op == "memory" ||
         std::find(kOpNames.begin(), kOpNames.end(), op) != kOpNames.end();
}

ShapePoint shape_point(const Work& work, TypeSpan in, TypeSpan out) {
  ShapePoint point = {work.rows, work.columns, work.depth, work.count, 0, 0};
  const TypeSpan shaped = out.empty() ? in : out;
  if (work.rows != 0 || shaped.empty()) return point;
  const Shape& shape = shaped[0].shape();
  point[0] = static_cast<double>(shape.rank() == 0 ? 1 : shape[0]);
  point[1] = point[0] == 0 ? 0 : static_cast<double>(shape.num_elements()) / point[0];
  return point;
}

EfficiencyGrid::EfficiencyGrid(const EfficiencyTable& table) : table_(table) {
  for (const EfficiencyTable::Axis& axis : table.axes) {
    Axis grid_axis;
    grid_axis.feature =
        static_cast<size_t>(std::find(kTableAxes.begin(), kTableAxes.end(), axis.name) - kTableAxes.begin());
    WEFT_CHECK(grid_axis.feature < kTableAxes.size(), "axis '{}'", axis.name);
    for (const double value : axis.values) grid_axis.logs.push_back(std::log(value));
    axes_.push_back(std::move(grid_axis));
  }
  for (const double value : table.values) logs_.push_back(std::log(value));
}

TableValue EfficiencyGrid::at(const ShapePoint& point) const {
  constexpr double kOnPoint = 0.05;  // relative distance that still counts as the measured shape
  constexpr double kNear = 1.3863;   // log 4: how far from the edge a held value counts as an interpolation
  TableValue result{1, TableMatch::kMeasured};
  const auto worse = [&](TableMatch match) { result.match = std::max(result.match, match); };
  // Corners of the cell and their weights: one axis after the other splits every corner in two.
  std::array<std::pair<size_t, double>, 1 << kTableAxes.size()> corners;
  corners[0] = {0, 1};
  size_t num_corners = 1;
  for (const Axis& axis : axes_) {
    const double x = std::log(std::max(point[axis.feature], 1e-300));
    const size_t n = axis.logs.size();
    const size_t above =
        static_cast<size_t>(std::lower_bound(axis.logs.begin(), axis.logs.end(), x) - axis.logs.begin());
    size_t low = 0;
    double weight = 0;  // of low + 1
    if (above == 0 || above == n) {
      low = above == 0 ? 0 : n - 1;
      const double distance = std::abs(x - axis.logs[low]);
      if (distance > kOnPoint) worse(distance < kNear ? TableMatch::kInterpolated : TableMatch::kHeld);
    } else {
      low = above - 1;
      weight = (x - axis.logs[low]) / (axis.logs[above] - axis.logs[low]);
      if (std::min(x - axis.logs[low], axis.logs[above] - x) > kOnPoint) worse(TableMatch::kInterpolated);
    }
    const size_t before = num_corners;
    for (size_t c = 0; c < before; ++c) {
      const auto [index, share] = corners[c];
      corners[c] = {index * n + low, share * (1 - weight)};
      if (weight > 0) corners[num_corners++] = {index * n + low + 1, share * weight};
    }
  }
  double log_value = 0;
  for (size_t c = 0; c < num_corners; ++c) log_value += corners[c].second * logs_[corners[c].first];
  result.value = std::exp(log_value);
  return result;
}

EfficiencySet::EfficiencySet(const std::vector<EfficiencyTable>& tables) {
  for (const EfficiencyTable& table : tables) {
    const auto op = static_cast<size_t>(std::find(kOpNames.begin(), kOpNames.end(), table.op) - kOpNames.begin());
    if (op < kOps) by_op_[op].push_back(grids_.size());
    grids_.emplace_back(table);
  }
}

EfficiencySet::Found EfficiencySet::find(const Op& op, const TableKey& key) const {
  Found best;
  std::tuple<int, int, int> best_score;
  for (const size_t i : by_op_[op.index()]) {
    const EfficiencyTable& table = grids_[i].table();
    const auto distance = [](int wanted, int has) { return has == 0 || wanted == has ? 0 : std::abs(wanted - has); };
    const int dtypes = (table.weight.empty() || table.weight == key.weight ? 0 : 2) +
                       (table.activation.empty() || table.activation == key.activation ? 0 : 1);
    const std::tuple score(dtypes, distance(key.ranks, table.ranks) + distance(key.threads, table.threads),
                           table.cached == key.cached ? 0 : 1);
    if (best.grid != nullptr && score >= best_score) continue;
    best = {&grids_[i], dtypes == 0};
    best_score = score;
  }
  return best;
}

const EfficiencyGrid* EfficiencySet::find_class(std::string_view name) const {
  for (const EfficiencyGrid& grid : grids_) {
    if (grid.table().op == name) return &grid;
  }
  return nullptr;
}

}  // namespace weft
