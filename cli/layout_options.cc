#include "cli/layout_options.h"

#include <fmt/format.h>

#include "cli/number_options.h"
#include "cli/rank_job.h"
#include "comm/communicator.h"

namespace weft {

void add_rank_options(CLI::App& app, RankArgs& args) {
  const char* group = "Ranks";
  app.add_option("--layout", args.layout,
                 "how the model is split over ranks: tp2, tp2+sp, tp2+dsa_cp, pcp2, tp2pcp2+ep4, ... (docs/layouts.md)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--ranks", args.ranks, "number of ranks; default: what the layout says")
      ->check(whole_number(1, kMaxRanks))
      ->group(group);
  add_transport_option(app, args)->group(group);
}

CLI::Option* add_transport_option(CLI::App& app, RankArgs& args) {
  return app
      .add_option("--transport", args.transport,
                  "ranks are threads of this process, or the processes that mpirun started; default: mpi under mpirun, "
                  "else threads")
      ->check(one_of({"threads", "mpi"}));
}

Result<bool> RankArgs::over_mpi(const RankJob* job) const {
  if (transport == "mpi" && job == nullptr) {
    if (!mpi_available()) return MpiWorld::start({}).status();
    return invalid_argument(
        "--transport mpi: the ranks are processes that mpirun starts: mpirun -n RANKS weft ... (as threads of one "
        "process: "
        "--transport threads)");
  }
  if (job == nullptr || (transport == "threads" && job->size() == 1)) return false;
  if (transport == "threads") {
    return invalid_argument(
        fmt::format("--transport threads: mpirun started {} processes, of which one would do all the work; start weft "
                    "without mpirun, or "
                    "leave --transport out",
                    job->size()));
  }
  return true;
}

Result<Layout> RankArgs::resolve(const RankJob* job) const {
  WEFT_ASSIGN_OR_RETURN(const bool mpi, over_mpi(job));
  std::optional<int64_t> devices;
  if (ranks > 0) devices = ranks;
  const Result<Layout> parsed = parse_layout(layout, devices);
  if (!parsed.ok()) {
    return Status(parsed.status().code(),
                  fmt::format("--layout{}: {}", devices ? " with --ranks" : "", parsed.status().message()));
  }
  const int64_t world = parsed->mesh.world();
  if (devices && world != *devices) {
    return invalid_argument(fmt::format("--ranks {}: layout {} has {} ranks", ranks, to_string(*parsed), world));
  }
  if (mpi && world != job->size()) {
    return invalid_argument(
        fmt::format("layout {} has {} rank{}, but mpirun started {} process{}: use mpirun -n {}, or a --layout "
                    "of {} ranks",
                    to_string(*parsed), world, world == 1 ? "" : "s", job->size(), job->size() == 1 ? "" : "es", world,
                    job->size()));
  }
  if (world > kMaxRanks) {
    return invalid_argument(
        fmt::format("layout {} has {} ranks; weft runs on {} at most", to_string(*parsed), world, kMaxRanks));
  }
  return parsed;
}

}  // namespace weft
