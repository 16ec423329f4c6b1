// Layouts against one rank, to the bit: the same steps are played by one rank and by the ranks of each layout, and
// compared are
//   * every value of every step whose rows are whole on some rank (logits, draft logits, hidden states, selected
//     indices among them), on every rank that has them,
//   * the caches of every rank at the end of each batch,
//   * bytes sent along each mesh axis with the bytes planned for the rows of the step and the experts that they picked,
//     in every step; and with the sum of work().bytes_sent of the graph in steps that fill its capacity. Left out of
//     that sum: exchanges with experts, which depend on what the router picked.
// Layouts that do not promise the bits of one rank (dcp_mode=merge): logits, by the tolerance of layout_compare.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/verify.h"

namespace weft {

// Layouts of this many ranks that the model's contract takes: all combinations of mesh, attention, sequence_parallel,
// split, o_proj and ep, and every other choice alone on top of each mesh, attention and sequence_parallel, with the
// first ep and o_proj that it is taken with. In a fixed order.
std::vector<Layout> runnable_layouts(const Model& model, int ranks);

struct LayoutMatrixOptions {
  std::vector<Layout> layouts;
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::optional<bool> act_quant = {};  // as --act-quant
  OutputQuant output_quant = OutputQuant::kNone;
  int64_t tokens = 192;                // of the longest prompt
  uint64_t seed = 0;
  int num_threads = 0;                 // of each rank, as EngineOptions
  Isa isa = max_isa();
  std::string transport = "threads";   // what reports call it
  EngineMaker make_engine = {};        // of several ranks; none: threads
};

struct LayoutLine {
  DType dtype = DType::kF32;
  std::string layout, transport;
  int64_t ranks = 1;
  VerifyLine::Outcome outcome = VerifyLine::Outcome::kPass;
  int64_t batches = 0, batches_passed = 0;
  int64_t rows = 0;        // compared, over all values and ranks
  int64_t byte_steps = 0;  // steps whose bytes were compared with their rows' plan
  int64_t full_steps = 0;  // of these, those that fill their graph: compared with its work(), too
  std::string detail;      // kFail: the first difference; kSkipped: why
  double seconds = 0;
};

struct LayoutReport {
  int64_t tokens = 0;
  std::vector<std::string> batches;  // names
  std::vector<LayoutLine> lines;
  bool ok() const;
};

struct LayoutEvents {
  std::function<void(const std::string& name)> on_start = {};
  std::function<void(const LayoutLine&)> on_line = {};
};

// An error (not a line): input, memory, or a job that failed and cannot go on.
Result<LayoutReport> verify_layouts(std::shared_ptr<const Model> model, const LayoutMatrixOptions& options,
                                    const LayoutEvents& events = {});

}  // namespace weft
