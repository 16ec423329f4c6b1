// Starts mpi_conformance under mpirun: the suite on several process counts, and every fault. Under `ctest -L mpi`.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/conformance.h"

namespace weft {
namespace {

struct Output {
  std::string text;
  int exit_code = -1;
  double seconds = 0;                   // until the end
  double message_seconds = 0;           // until the last message of ours
  std::vector<std::string> weft_lines;  // our own messages, those of mpirun left out
};

Output run(const std::string& command) {
  Output output;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  std::string line;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
    line += buffer.data();
    if (line.back() != '\n') continue;
    if (line.starts_with("weft: ")) {
      output.weft_lines.push_back(line.substr(6, line.size() - 7));
      output.message_seconds = passed();
    }
    output.text += line;
    line.clear();
  }
  const int status = pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  output.seconds = passed();
  return output;
}

// More processes than cores, and root (containers): OpenMPI must be told that both are meant.
std::string mpirun(int ranks, const std::string& arguments) {
  static const bool open_mpi = run(std::string(WEFT_MPIEXEC) + " --version").text.find("MPICH") == std::string::npos &&
                               run(std::string(WEFT_MPIEXEC) + " --version").text.find("HYDRA") == std::string::npos;
  return fmt::format("timeout -k 1 60 {} {} -n {} {} {}", WEFT_MPIEXEC,
                     open_mpi ? "--oversubscribe --allow-run-as-root" : "", ranks, WEFT_MPI_CONFORMANCE, arguments);
}

TEST(Mpi, Conformance) {
  // The libraries keep memory until the process ends.
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  for (const char* arguments : {"", "--headers"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      const Output output = run(mpirun(ranks, arguments));
      EXPECT_EQ(output.exit_code, 0) << ranks << " ranks " << arguments << "\n" << output.text;
      EXPECT_NE(output.text.find(fmt::format("{} ranks: ", ranks)), std::string::npos) << output.text;
    }
  }
}

class MpiFault : public testing::TestWithParam<FaultCase> {};

TEST_P(MpiFault, EndsAllRanksInTimeWithOneMessage) {
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  const FaultCase& fault = GetParam();
  const Output output = run(mpirun(fault.num_ranks, fmt::format("--fault {}", fault.name)));
  if (fault.expect.empty()) {
    EXPECT_EQ(output.exit_code, 0) << output.text;
    EXPECT_TRUE(output.weft_lines.empty()) << output.text;
    return;
  }
  EXPECT_NE(output.exit_code, 0);
  // The start of mpirun is in the one, and its clearing up, which can take seconds after all ranks are gone, in the
  // other.
  EXPECT_LT(output.message_seconds, 5 + 1) << output.text;
  EXPECT_LT(output.seconds, 15) << output.text;
  ASSERT_EQ(output.weft_lines.size(), 1u) << output.text;
  EXPECT_EQ(missing_text(output.weft_lines[0], fault.expect), "") << output.text;
}

std::vector<FaultCase> mpi_faults() {
  std::vector<FaultCase> faults;
  for (const FaultCase& fault : fault_cases()) {
    if (fault.where != FaultCase::Where::kThreads) faults.push_back(fault);
  }
  return faults;
}

INSTANTIATE_TEST_SUITE_P(All, MpiFault, testing::ValuesIn(mpi_faults()),
                         [](const auto& fault) { return std::string(fault.param.name); });

}  // namespace
}  // namespace weft
