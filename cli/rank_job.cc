#include "cli/rank_job.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/shown_text.h"
#include "cli/model_options.h"
#include "runtime/value_trace.h"

namespace weft {
namespace {

constexpr int kExitMachine = 3;
constexpr const char* kCallName = "command line of rank 0";

enum class JobCommand : int32_t { kEngine, kCalibrate, kEnd };

// The first of these variables that is set, as a number; -1: none.
int environment_number(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return -1;
}

int environment_size() { return environment_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

bool started_by_mpirun() {
  return std::any_of(std::begin(kMpiEnvironment), std::end(kMpiEnvironment),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

void print_failure(const Status& status) {
  std::fputs(fmt::format("weft: {}\n", shown(status.message(), kMessageBytes)).c_str(), stderr);
}

// Loading is waited for without bound: the disk may be slow.
class Loading {
 public:
  explicit Loading(Communicator& world) : world_(world) { world_.begin_idle(); }
  ~Loading() { world_.end_idle(); }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  Communicator& world_;
};

}  // namespace

bool RankJob::is_first_process() { return environment_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) <= 0; }

Result<std::unique_ptr<RankJob>> RankJob::join() {
  if (!started_by_mpirun()) return std::unique_ptr<RankJob>();
  const int expected = environment_size();
  if (!mpi_available()) {
    if (expected == 1) return std::unique_ptr<RankJob>();
    return Status(StatusCode::kInvalidArgument, fmt::format("{} processes were started by mpirun, but {}", expected,
                                                            MpiWorld::start({}).status().message()));
  }
  MpiOptions options;
  options.print = print_failure;
  options.exit_code = kExitMachine;
  WEFT_ASSIGN_OR_RETURN(auto world, MpiWorld::start(options));
  std::unique_ptr<RankJob> job(new RankJob(std::move(world)));
  if (expected > 1 && job->size() == 1) {
    return invalid_argument(
        fmt::format("mpirun started {} processes that do not see each other: it belongs to another MPI than the one "
                    "that weft was built with",
                    expected));
  }
  WEFT_RETURN_IF_ERROR(job->look_around());
  if (job->rank() == 0) job->world_->world().begin_idle();
  return job;
}

Status RankJob::look_around() {
  struct Place {
    uint64_t host, cores;
  };
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const std::vector<int> cores = usable_cores();
  const Place here{hash_bytes(std::as_bytes(std::span(name.data(), std::strlen(name.data())))),
                   hash_bytes(std::as_bytes(std::span(cores)))};
  Communicator& world = world_->world();
  std::vector<Place> places(static_cast<size_t>(world.size()));
  WEFT_RETURN_IF_ERROR(world.all_gather("hosts and cores", {&here, places.data(), world.size(), sizeof(Place)}));
  local_ranks_ = core_sharers_ = 0;
  for (int r = 0; r < world.size(); ++r) {
    const Place& place = places[static_cast<size_t>(r)];
    if (place.host != here.host) continue;
    if (r < world.rank()) ++local_rank_;
    ++local_ranks_;
    if (place.cores == here.cores) ++core_sharers_;
  }
  return {};
}

// mpirun may have given every process cores of its own, or left all to all.
EngineOptions RankJob::local(const EngineOptions& options) const {
  EngineOptions own = options;
  own.local_ranks = local_ranks_;
  own.local_rank = local_rank_;
  if (own.num_threads == 0) own.num_threads = std::max(static_cast<int>(usable_cores().size()) / core_sharers_, 1);
  return own;
}

Result<std::unique_ptr<Engine>> RankJob::create_engine(const std::string& model_dir, bool allow_unknown_config,
                                                       std::shared_ptr<const Model> model,
                                                       const EngineOptions& options) {
  WEFT_RETURN_IF_ERROR(model->check_layout(options.layout));
  WEFT_RETURN_IF_ERROR(model->check_mode(options.mode));
  Communicator& world = world_->world();
  MessageWriter message;
  message.put(JobCommand::kEngine).put_text(model_dir).put(allow_unknown_config).put(options);
  world.end_idle();
  WEFT_RETURN_IF_ERROR(send_message(world, kCallName, message.bytes()));
  return Engine::create(std::move(model), local(options), &world);
}

Result<CollectiveTimes> RankJob::measure_collectives() {
  Communicator& world = world_->world();
  MessageWriter message;
  message.put(JobCommand::kCalibrate);
  world.end_idle();
  WEFT_RETURN_IF_ERROR(send_message(world, kCallName, message.bytes()));
  const Result<CollectiveTimes> times = weft::measure_collectives(world);
  world.begin_idle();
  return times;
}

int RankJob::finish(int code) {
  Communicator& world = world_->world();
  Status status = world.failure();
  if (status.ok()) {
    MessageWriter message;
    message.put(JobCommand::kEnd).put(code);
    world.end_idle();
    status = send_message(world, kCallName, message.bytes());
  }
  if (status.ok()) status = world_->finish();
  if (!status.ok()) world_->end_job(status);
  return code;
}

int RankJob::follow() {
  Result<int> code = machine_failed("");
  try {
    code = follow_commands();
  } catch (const std::bad_alloc&) {
    code = machine_failed("out of memory");
  } catch (const std::exception& error) {
    code = machine_failed(fmt::format("internal error: {}", error.what()));
  }
  const Status status = code.ok() ? world_->finish() : code.status();
  if (!status.ok()) world_->end_job(status);
  return *code;
}

Result<int> RankJob::follow_commands() {
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const auto bytes, receive_message(world_->world(), kCallName));
    MessageReader command(bytes);
    const auto what = command.get<JobCommand>();
    if (what == JobCommand::kEnd) return command.get<int>();
    if (what == JobCommand::kCalibrate) {
      WEFT_RETURN_IF_ERROR(weft::measure_collectives(world_->world()).status());
      continue;
    }
    const std::string dir = command.get_text();
    const bool allow_unknown_config = command.get<bool>();
    if (model_ == nullptr || dir != model_dir_ || allow_unknown_config != allow_unknown_config_) {
      const Loading loading(world_->world());
      WEFT_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(dir, allow_unknown_config));
      model_ = std::move(loaded.model);
      model_dir_ = dir;
      allow_unknown_config_ = allow_unknown_config;
    }
    WEFT_RETURN_IF_ERROR(weft::follow(model_, local(command.get<EngineOptions>()), world_->world()));
  }
}

}  // namespace weft
