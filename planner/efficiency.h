// Look-up in the efficiency tables of a device: which table speaks about an op, and what it says at a shape.
#pragma once

#include <array>

#include "graph/op.h"
#include "planner/device_profile.h"

namespace weft {

// By axis of kTableAxes.
using ShapePoint = std::array<double, kTableAxes.size()>;

// Where an op with this work and these types stands on the axes.
ShapePoint shape_point(const Work& work, TypeSpan in, TypeSpan out);

enum class TableMatch { kMeasured, kInterpolated, kHeld };  // on a point, between points, or beyond the grid

struct TableValue {
  double value = 1;
  TableMatch match = TableMatch::kHeld;
};

// A table with the logarithms that interpolation needs.
// Whether an efficiency table can be of it: an op, or a class of ops ("matrix", "vector", "memory").
bool can_have_table(std::string_view op);

class EfficiencyGrid {
 public:
  explicit EfficiencyGrid(const EfficiencyTable& table);

  const EfficiencyTable& table() const { return table_; }
  TableValue at(const ShapePoint& point) const;

 private:
  struct Axis {
    size_t feature = 0;
    std::vector<double> logs;
  };
  EfficiencyTable table_;
  std::vector<Axis> axes_;
  std::vector<double> logs_;
};

// What decides which of an op's tables is taken.
struct TableKey {
  std::string_view weight, activation;
  int ranks = 1, threads = 1;
  bool cached = false;
};

class EfficiencySet {
 public:
  explicit EfficiencySet(const std::vector<EfficiencyTable>& tables);

  // Tables of this op; exact: its dtypes are those that were asked for, not those of another table of the op. Null: none.
  struct Found {
    const EfficiencyGrid* grid = nullptr;
    bool exact = false;
  };
  Found find(const Op& op, const TableKey& key) const;
  // Of a class: "matrix", "vector", "memory", "collective".
  const EfficiencyGrid* find_class(std::string_view name) const;

 private:
  std::vector<EfficiencyGrid> grids_;
  std::array<std::vector<size_t>, std::variant_size_v<Op>> by_op_;
};

}  // namespace weft
