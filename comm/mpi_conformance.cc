// One process of the conformance suite over MPI:
//
//   mpirun -n 4 mpi_conformance [--headers]              every collective; exit 0 if all is right
//   mpirun -n 3 mpi_conformance [--headers] --fault NAME   a case of fault_cases(); exit 0 if it ends without a fault
//
// Prints failures to stderr, a fault as one line that starts with "weft: ".
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "comm/conformance.h"
#include "comm/mpi_comm.h"

namespace weft {
namespace {

constexpr int kFailed = 3;

void print_fault(const Status& status) { std::fputs(("weft: " + status.message() + "\n").c_str(), stderr); }

int run_suite(MpiWorld& job) {
  const uint64_t seed = 29 + job.world().size();
  const ConformanceReport report = run_conformance(job.world(), seed);
  for (const std::string& failure : report.failures) std::fprintf(stderr, "%s\n", failure.c_str());
  int64_t failures = static_cast<int64_t>(report.failures.size());
  if (job.world().rank() == 0) {
    std::printf("%d ranks: %lld checks on rank 0\n", job.world().size(), static_cast<long long>(report.checks));
  }
  if (const Status status = job.finish(); !status.ok()) job.end_job(status);
  return failures == 0 ? 0 : 1;
}

int run_fault(MpiWorld& job, const FaultCase& fault) {
  Status status = fault.body(job.world());
  if (status.ok()) status = job.finish();
  if (!status.ok()) job.end_job(status);
  return 0;
}

int run(int argc, char** argv) {
  MpiOptions options;
  options.print = print_fault;
  options.exit_code = kFailed;
  const FaultCase* fault = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--headers") {
      options.headers = MpiOptions::Headers::kAlways;
    } else if (argument == "--fault" && i + 1 < argc) {
      ++i;
      for (const FaultCase& one : fault_cases()) {
        if (std::strcmp(one.name, argv[i]) == 0) fault = &one;
      }
      if (fault == nullptr) return std::fprintf(stderr, "no fault is called %s\n", argv[i]), 2;
      options.comm = fault->options;
    } else {
      return std::fprintf(stderr, "unknown argument %s\n", argv[i]), 2;
    }
  }
  auto job = MpiWorld::start(options);
  if (!job.ok()) return print_fault(job.status()), kFailed;
  return fault == nullptr ? run_suite(**job) : run_fault(**job, *fault);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run(argc, argv); }
