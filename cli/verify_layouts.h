// `weft verify --layouts`: the matrix of layouts, as a table.
#pragma once

#include <optional>

#include "cli/model_options.h"
#include "runtime/layout_matrix.h"

namespace weft {

struct LayoutMatrixArgs {
  std::optional<std::string> layouts;   // "all", or texts between commas; none: no matrix
  std::vector<int64_t> ranks;        // empty: those of the layouts; with "all": 2 and 4, under mpirun its processes
  std::vector<std::string> transports;  // empty: mpi under mpirun, else threads
};

// Adds the lines of the table to what `options` say of types, tokens and threads.
Status run_layout_matrix(const ModelArgs& model, const LayoutMatrixArgs& args, LayoutMatrixOptions options,
                         Console& console);

std::string_view outcome_name(VerifyLine::Outcome outcome);

}  // namespace weft
