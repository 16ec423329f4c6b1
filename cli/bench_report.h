// Tables of `weft bench`, as Markdown.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_model.h"
#include "io/chat.h"
#include "kernels/machine_bench/machine_bench.h"

namespace weft {

// Columns of equal width; the first row is the head. Numbers stand at the right.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

// The share of the machine's limit that binds this test: prefill the f32 FMA peak, decode the read bandwidth; 0 without
// limits.
double share_of_limit(const BenchResult& result, const MachineLimits& machine);

// "28.1 to 31.4", in GB/s.
std::string spread_text(const std::vector<double>& bytes_per_s);

OrderedJson machine_json(const MachineLimits& machine);
std::string machine_text(const MachineLimits& machine);
OrderedJson bench_json(const BenchResult& result, const MachineLimits& machine);
// The kinds of ops, the longest first, and under each its nodes by name; seconds of each rank, of all repetitions.
std::string op_table(const BenchResult& result);
OrderedJson kernel_json(const KernelBenchResult& result);
std::string kernel_table(const std::vector<KernelBenchResult>& results);

}  // namespace weft
