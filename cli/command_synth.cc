// weft synth: random checkpoints.

#include "base/clock.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_location.h"
#include "models/synth.h"

namespace weft {
namespace {

class SynthCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("CONFIG", config_, "model folder, config file, or name of a shipped config")->required();
    app.add_option("OUT", out_, "folder to make")->required();
    add_number_list(app, "--layers", plan_.layers, 0,
                    "layers of CONFIG to keep, as 0,2,3, with their kinds; default: all");
    app.add_flag("--mtp", plan_.mtp, "keep the draft (MTP) layers");
    app.add_option("--hidden", plan_.hidden_size, "hidden_size; default: of CONFIG")->check(whole_number(1));
    app.add_option("--experts", plan_.experts, "n_routed_experts; default: of CONFIG")->check(whole_number(1));
    app.add_option("--vocab", plan_.vocab_size, "vocab_size; default: of CONFIG")->check(whole_number(1));
    app.add_option("--seed", seed_, "other seed, other weights")
        ->check(whole_number(0, kMaxSeed))
        ->capture_default_str();
    app.add_option("--threads", threads_, "default: one for each physical core")->check(whole_number(1, kMaxThreads));
  }

  Status run(Console& console) override {
    WEFT_ASSIGN_OR_RETURN(const auto checkpoint, open_location(config_));
    plan_.int8 = checkpoint->quant_description().has_value();
    WEFT_ASSIGN_OR_RETURN(const SynthPlan plan, plan_synth(checkpoint->config(), checkpoint->config_name(), plan_));
    const auto total = static_cast<double>(plan.bytes());
    const std::vector<int> cores = usable_cores();
    ThreadPool pool(threads_ > 0 ? threads_ : static_cast<int>(std::max<size_t>(cores.size(), 1)));
    const InterruptGuard interrupt;
    const auto start = Clock::now();
    const auto progress = [&](int64_t bytes) -> Status {
      console.progress(fmt::format("writing {}: {} of {}, {:.0f} MB/s", out_, bytes_text(static_cast<double>(bytes)),
                                   bytes_text(total),
                                   static_cast<double>(bytes) / kMega / std::max(seconds_since(start), 1e-3)));
      return interrupt.pending() ? cancelled(fmt::format("stopped; {} was not made", out_)) : Status();
    };
    SynthWrite write{.seed = seed_, .copies = text_files(*checkpoint), .on_progress = progress};
    WEFT_RETURN_IF_ERROR(write_synth(plan, out_, write, pool));
    const double seconds = seconds_since(start), rate = total / kMega / std::max(seconds, 1e-3);
    if (console.json) {
      console.print_json(nlohmann::ordered_json{{"out", out_},
                                                {"tensors", plan.tensors.size()},
                                                {"bytes", plan.bytes()},
                                                {"seed", seed_},
                                                {"seconds", seconds},
                                                {"mb_per_s", rate}});
    } else {
      console.print(fmt::format("{}: {} tensors, {} in {:.1f} s, {:.0f} MB/s\n", out_, plan.tensors.size(),
                                bytes_text(total), seconds, rate));
    }
    return {};
  }

 private:
  static constexpr double kMega = 1e6;

  // Tokenizer files fit as long as the vocabulary is the same.
  std::vector<std::filesystem::path> text_files(const Checkpoint& checkpoint) const {
    std::vector<std::filesystem::path> files;
    if (plan_.vocab_size || !std::filesystem::is_directory(config_)) return files;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      if (std::filesystem::exists(checkpoint.dir() / name)) files.push_back(checkpoint.dir() / name);
    }
    return files;
  }

  std::string config_, out_;
  SynthOptions plan_;
  uint64_t seed_ = 0;
  int threads_ = 0;
};

}  // namespace

CommandEntry synth_command() {
  return make_command<SynthCommand>("synth", "writes a random checkpoint in the official format",
                                    "  weft synth deepseek-v4-flash OUT --layers 0,2,3\n"
                                    "  weft synth deepseek-v4-pro OUT --layers 2,3 --experts 64 --vocab 4096 --mtp\n"
                                    "  weft synth MODEL_DIR/config.json OUT --seed 7\n");
}

}  // namespace weft
