// The program under mpirun: `ctest -L mpi`.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "comm/mpi_comm.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";

struct Output {
  int code = -1;
  std::string out, messages;  // stdout; lines of stderr that are ours
  int num_messages = 0;
  double seconds = 0;
};

std::string read(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

class CliMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_mpi_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // the libraries keep memory until the process ends
  }
  void TearDown() override { std::system(("rm -r " + folder_).c_str()); }

  Output run(const std::string& command) {
    const auto start = Clock::now();
    const int status = std::system(fmt::format("{} </dev/null >{}/out 2>{}/err", command, folder_, folder_).c_str());
    Output output;
    output.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    output.out = read(folder_ + "/out");
    std::ifstream err(folder_ + "/err");
    for (std::string line; std::getline(err, line);) {
      if (!line.starts_with("weft: ")) continue;
      output.messages += line + "\n";
      ++output.num_messages;
    }
    return output;
  }

  // More processes than cores, and root (containers): OpenMPI must be told that both are meant.
  std::string mpirun(int ranks, const std::string& args) {
    static const std::string version = [&] {
      std::system(fmt::format("{} --version >{}/out 2>&1", WEFT_MPIEXEC, folder_).c_str());
      return read(folder_ + "/out");
    }();
    const bool open_mpi = version.find("MPICH") == version.npos && version.find("HYDRA") == version.npos;
    return fmt::format("timeout -k 1 60 {} {} -n {} '{}' {}", WEFT_MPIEXEC,
                       open_mpi ? "--oversubscribe --allow-run-as-root" : "", ranks, WEFT_PROGRAM, args);
  }

  std::string folder_;
};

TEST_F(CliMpi, TwoProcessesGiveTheTextOfOne) {
  const std::string args = fmt::format("run '{}' -p 'It is a truth' --max-tokens 16 --temperature 0 --mtp 1", kSample);
  const Output want = run(fmt::format("env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE '{}' {}", WEFT_PROGRAM, args));
  ASSERT_EQ(want.code, 0) << want.messages;
  for (const char* layout : {"tp2", "tp2+sp+ep2", "tp2+dsa_cp"}) {
    const Output got = run(mpirun(2, fmt::format("{} --layout {}", args, layout)));
    EXPECT_EQ(got.code, 0) << layout << "\n" << got.messages << read(folder_ + "/err");
    EXPECT_EQ(got.out, want.out) << layout;
    EXPECT_EQ(got.num_messages, 0) << got.messages;
  }
}

TEST_F(CliMpi, MatrixOverBothTransports) {
  const Output got = run(mpirun(
      2, fmt::format(
             "verify '{}' --layouts tp2dcp2,pcp2+compressor=split --dtype bf16 --tokens 20 --transport threads,mpi",
             kSample)));
  EXPECT_EQ(got.code, 0) << got.out << got.messages;
  EXPECT_NE(got.out.find("4 passed, 0 failed, 0 skipped"), std::string::npos) << got.out;
}

// Latents, a selection that layers share, and all queries on every rank.
TEST_F(CliMpi, LayoutsOfLatentsHaveTheBitsOfOneRank) {
  const Output got = run(
      mpirun(2, fmt::format("verify '{}/testdata/golden/glm_moe_dsa/glm52_mtp_f32' --layouts tp2+dsa_cp+sp+ep2,"
                            "tp2+dsa_cp+sp+o_proj=replicated+queries=full,pp2,tp2+dsa_cp+owned --dtype f32 --tokens 20",
                            WEFT_SOURCE_DIR)));
  EXPECT_EQ(got.code, 0) << got.out << got.messages;
  EXPECT_NE(got.out.find("4 passed, 0 failed, 0 skipped"), std::string::npos) << got.out;
}

TEST_F(CliMpi, OneProcessPrints) {
  const Output got = run(mpirun(2, "--version"));
  EXPECT_EQ(got.code, 0);
  EXPECT_TRUE(got.out.starts_with("weft ")) << got.out;
  EXPECT_EQ(got.out.find('\n') + 1, got.out.size()) << got.out;
}

TEST_F(CliMpi, BadUseIsOneMessageAndExitCodeTwoOfAllProcesses) {
  struct Case {
    const char* args;
    const char* message;
  };
  const Case cases[] = {
      {"run @S -p x",
       "layout tp1 has 1 rank, but mpirun started 2 processes: use mpirun -n 1, or a --layout of 2 ranks"},
      {"run @S -p x --layout tp4", "layout tp4 has 4 ranks, but mpirun started 2 processes"},
      {"run @S -p x --layout tp2+gate=k_sharded", "layout "},
      {"run @S -p x --layout tp2 --transport threads", "--transport threads: mpirun started 2 processes"},
      {"run @S/nothing -p x --layout tp2", "nothing"},
      {"run @S --layout tp2", "nothing to do"},
      {"calibrate", "into the profile of --profile, which is missing"},
      {"calibrate --profile nothing.json", "nothing.json"},
      {"frobnicate", "'frobnicate' is not a command"},
      {"verify @S --layouts tp2 --transport threads", "--transport threads: mpirun started 2 processes"},
      {"verify @S --layout tp2 --transport threads", "--transport threads: mpirun started 2 processes"},
      {"calibrate --profile nothing.json --ranks 4",
       "--ranks has no effect: under mpirun only collectives are measured"},
  };
  for (const Case& c : cases) {
    std::string args = c.args;
    if (const size_t at = args.find("@S"); at != args.npos) args.replace(at, 2, kSample);
    const Output output = run(mpirun(2, args));
    EXPECT_EQ(output.code, 2) << c.args << "\n" << read(folder_ + "/err");
    EXPECT_EQ(output.num_messages, 1) << c.args << "\n" << output.messages;
    EXPECT_NE(output.messages.find(c.message), std::string::npos) << c.args << "\n" << output.messages;
    EXPECT_EQ(output.out, "") << c.args;
  }
}

TEST_F(CliMpi, LayoutsOfOtherNumbersOfRanksAreSkippedWithTheReason) {
  const Output some = run(mpirun(2, fmt::format("verify '{}' --layouts tp2,pp4 --dtype bf16 --tokens 20", kSample)));
  EXPECT_EQ(some.code, 0) << some.out << some.messages;
  EXPECT_NE(some.out.find("1 passed, 0 failed, 1 skipped"), std::string::npos) << some.out;
  EXPECT_NE(some.out.find("4 ranks, but mpirun started 2 processes"), std::string::npos) << some.out;
  const Output none =
      run(mpirun(2, fmt::format("verify '{}' --layouts all --ranks 4 --dtype bf16 --tokens 20", kSample)));
  EXPECT_EQ(none.code, 1) << none.out << none.messages;
  EXPECT_NE(none.messages.find("nothing was compared"), std::string::npos) << none.messages;
}

TEST_F(CliMpi, CalibrateMeasuresCollectivesBetweenProcesses) {
  const std::string out = folder_ + "/mpi.json";
  const Output measured =
      run(mpirun(2, fmt::format("calibrate --profile '{}/devices/epyc-9654.json' --out '{}'", WEFT_SOURCE_DIR, out)));
  ASSERT_EQ(measured.code, 0) << read(folder_ + "/err");
  EXPECT_NE(read(out).find("ranks as processes of one MPI job"), std::string::npos);
  const Output plan = run(fmt::format("'{}' plan '{}' --device '{}' --layout tp2 --local-ranks 2 --prompt 16 --gen 1",
                                      WEFT_PROGRAM, kSample, out));
  EXPECT_EQ(plan.code, 0) << read(folder_ + "/err");
}

class CliMpiSignal : public CliMpi {
 protected:
  // Runs two ranks and sends `signal` to one of them once their text has so many bytes (0: 5 s after its start).
  // `input`: a command whose output they read. A shell in front of the program
  // writes its id, which becomes the program's.
  struct Signalled {
    Output output;
    double seconds = 0;  // from the signal to the end of mpirun
  };
  Signalled run_and_signal(const std::string& input, const std::string& args, size_t bytes, int victim, int signal) {
    const std::string program = fmt::format("{}/program", folder_);
    std::ofstream(program) << fmt::format(
        "#!/bin/sh\necho $$ >{}/pid.${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\nexec '{}' \"$@\"\n", folder_, WEFT_PROGRAM);
    EXPECT_EQ(std::system(("chmod +x " + program).c_str()), 0);
    std::string command = mpirun(2, args);
    command.replace(command.find("'" WEFT_PROGRAM "'"), std::string("'" WEFT_PROGRAM "'").size(), program);
    std::system(fmt::format("rm -f {}/out {}/pid.*", folder_, folder_).c_str());  // of the job before
    Clock::time_point sent;
    std::thread killer([&] {
      const std::string file = fmt::format("{}/pid.{}", folder_, victim);
      const auto give_up = Clock::now() + std::chrono::seconds(30);
      while (read(folder_ + "/out").size() < bytes && Clock::now() < give_up)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (bytes == 0) {
        while (read(file).empty() && Clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::this_thread::sleep_for(std::chrono::seconds(5));
      }
      sent = Clock::now();
      if (const int pid = std::atoi(read(file).c_str()); pid > 0) kill(pid, signal);
    });
    Signalled signalled;
    signalled.output = run(input.empty() ? command : fmt::format("bash -c \"{} < <({})\"", command, input));
    signalled.seconds = std::chrono::duration<double>(Clock::now() - sent).count();
    killer.join();
    return signalled;
  }

  static std::string endless(const char* layout) {
    return fmt::format(
        "run '{}' -p 'It is a truth' --max-tokens 100000 --ignore-eos --temperature 0 --ctx 200000 --layout {}",
        kSample, layout);
  }
};

TEST_F(CliMpiSignal, AKilledProcessEndsAllWithOneMessage) {
  for (const int victim : {0, 1}) {
    const auto [output, seconds] = run_and_signal("", endless("tp2"), 20, victim, SIGKILL);  // the first words are out
    EXPECT_NE(output.code, 0);
    EXPECT_LT(seconds, 5 + 1) << read(folder_ + "/err");  // mpirun clears up
    EXPECT_EQ(output.num_messages, 1) << read(folder_ + "/err");
    EXPECT_NE(output.messages.find(fmt::format("rank {}", victim)), std::string::npos) << output.messages;
  }
}

// Wherever it is stopped: inside a step, between two of them, or while it waits for its user.
TEST_F(CliMpiSignal, AStoppedProcessEndsAllWithOneMessage) {
  struct Case {
    const char* input;
    std::string args;
    size_t bytes;
    int victim;
  };
  const Case cases[] = {
      {"", endless("tp2"), 20, 0},
      {"", endless("tp2"), 33, 0},
      {"", endless("tp2"), 20, 1},
      {"sleep 30", fmt::format("run '{}' --chat --ctx 256 --layout tp2", kSample), 0, 0},
  };
  for (const Case& c : cases) {
    const auto [output, seconds] = run_and_signal(c.input, c.args, c.bytes, c.victim, SIGSTOP);
    EXPECT_NE(output.code, 0) << c.args;
    EXPECT_LT(seconds, 5 + 2) << c.args << read(folder_ + "/err");
    EXPECT_EQ(output.num_messages, 1) << c.args << read(folder_ + "/err");
    EXPECT_NE(output.messages.find(fmt::format("rank {}/2, ", c.victim)), std::string::npos) << output.messages;
    EXPECT_NE(output.messages.find(" waits for it in "), std::string::npos) << output.messages;
  }
}

}  // namespace
}  // namespace weft
