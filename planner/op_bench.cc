#include "planner/op_bench.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/int_math.h"
#include "base/numeric.h"
#include "kernels/machine_bench/bench_runner.h"

namespace weft {
namespace {

constexpr int64_t kStoreBytes = int64_t{160} << 20;  // several times a last-level cache of 32 MB
constexpr int64_t kStays = int64_t{6} << 20;         // of one rank, in a cache of its size
constexpr int64_t kPage = 4096;

// All ranks come here before any goes on.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void wait() {
    const int round = round_.load();
    if (here_.fetch_add(1) + 1 == ranks_) {
      here_.store(0);
      round_.fetch_add(1);
      return;
    }
    while (round_.load() == round) std::this_thread::yield();
  }

 private:
  int ranks_;
  std::atomic<int> here_{0}, round_{0};
};

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a failure only costs speed
}

bool is_integer(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

// The values of a case in the memory of one rank.
class RankCase {
 public:
  RankCase(const OpCase& test, std::vector<ValueType> out_types, ThreadPool& pool, Isa isa, bool cached, int rank)
      : test_(test), out_types_(std::move(out_types)), pool_(pool), isa_(isa), cached_(cached), rank_(rank) {}

  Status allocate(const std::map<DType, Buffer>& stores) {
    for (size_t i = 0; i < test_.in.size(); ++i) {
      const TensorType& type = test_.in[i].tensor;
      TensorView view{type, nullptr, {}};
      const bool stored = i < test_.stored.size() && test_.stored[i] != 0;
      const Buffer* store = is_integer(type.dtype) ? nullptr : &stores.at(type.dtype);
      if (stored && store != nullptr && type.bytes() < store->size() / 2) {
        moving_.push_back({i, store, 0, 0});
      } else {
        WEFT_ASSIGN_OR_RETURN(Buffer own, Buffer::allocate(std::max<int64_t>(type.bytes(), kPage)));
        fill(own, type, i, store);
        view.data = own.data();
        buffers_.push_back(std::move(own));
      }
      in_.push_back(view);
    }
    for (const ValueType& type : out_types_) {
      WEFT_ASSIGN_OR_RETURN(Buffer own, Buffer::allocate(std::max<int64_t>(type.tensor.bytes(), kPage)));
      out_.push_back({type.tensor, own.data(), {}});
      buffers_.push_back(std::move(own));
    }
    const Work work =
        std::visit([&](const auto& op) { return op.work(test_.in, out_types_, {pool_.size()}); }, test_.op);
    WEFT_ASSIGN_OR_RETURN(scratch_, Buffer::allocate(std::max<int64_t>(work.scratch_bytes, kPage)));
    batch_.segments = test_.segments;
    int64_t rows = 0;
    for (const Segment& s : batch_.segments) rows += s.len;
    if (batch_.segments.empty()) {
      rows = test_.in[0].shape()[0];
      batch_.segments = {{0, 0, rows, rows}};
    }
    batch_.tokens.assign(static_cast<size_t>(rows), 0);
    batch_.positions.assign(static_cast<size_t>(rows), 0);
    batch_.logit_rows.assign(1, 0);
    batch_.pages = test_.pages;
    // Ranks and inputs begin in different places.
    for (size_t i = 0; i < moving_.size(); ++i) {
      const int64_t places = 8, place = (rank_ + 3 * static_cast<int64_t>(i)) % places;
      moving_[i].at = moving_[i].first = place * (moving_[i].store->size() / places / kPage * kPage);
    }
    for (const auto& [input, rounding] : test_.normal) fill_normal(in_[input], rounding);
    return {};
  }

  Status run() {
    for (Moving& m : moving_) {
      const int64_t bytes = align_up(in_[m.input].type.bytes(), kPage);
      // What stays in the last-level cache is not what the last call left in the nearest one: a step reads all of it in turn.
      const int64_t first = cached_ ? std::min(m.first, m.store->size() - bytes) : 0;
      const int64_t end = cached_ ? std::min(first + std::max(bytes, kStays), m.store->size()) : m.store->size();
      if (m.at + bytes > end) m.at = first;
      in_[m.input].data = m.store->data() + m.at;
      m.at += bytes;
    }
    RunContext ctx{in_, out_, {scratch_.data(), static_cast<size_t>(scratch_.size())}, batch_, pool_, isa_};
    return std::visit([&](const auto& op) { return op.run(ctx); }, test_.op);
  }

 private:
  struct Moving {
    size_t input;
    const Buffer* store;
    int64_t at, first;
  };

  void fill(const Buffer& own, const TensorType& type, size_t input, const Buffer* store) {
    const auto given = test_.integers.find(input);
    if (given != test_.integers.end()) {
      std::memcpy(own.data(), given->second.data(), given->second.size() * sizeof(int32_t));
    } else if (store != nullptr) {
      for (int64_t at = 0; at < type.bytes(); at += store->size()) {
        std::memcpy(own.data() + at, store->data(), static_cast<size_t>(std::min(store->size(), type.bytes() - at)));
      }
    }
  }

  // The same few thousand vectors again and again.
  void fill_normal(const TensorView& x, const std::optional<Quantise>& rounding) const {
    WEFT_CHECK(x.dtype() == DType::kBF16, "normal numbers are BF16");
    constexpr int64_t kDifferent = 1024;
    const int64_t width = x.shape().back(), vectors = x.shape().num_elements() / width,
                  different = std::min(vectors, kDifferent);
    std::mt19937 random(static_cast<unsigned>(width));
    std::normal_distribution<float> normal;
    auto* const numbers = x.as<bf16>();
    for (int64_t e = 0; e < different * width; ++e) numbers[e] = to_bf16(normal(random));
    if (rounding.has_value()) rounding->apply(numbers, DType::kBF16, different, width, isa_);
    for (int64_t v = different; v < vectors; ++v)
      std::memcpy(numbers + v * width, numbers + v % different * width, static_cast<size_t>(width) * sizeof(bf16));
  }

  const OpCase& test_;
  std::vector<ValueType> out_types_;
  ThreadPool& pool_;
  Isa isa_;
  bool cached_;
  int rank_;
  std::vector<Buffer> buffers_;
  Buffer scratch_;
  std::vector<TensorView> in_, out_;
  std::vector<Moving> moving_;
  StepBatch batch_;
};

}  // namespace

OpBench::~OpBench() = default;

Result<std::unique_ptr<OpBench>> OpBench::make(int ranks, int threads, Isa isa) {
  const std::vector<int> cpus = usable_cores();
  if (ranks * threads > static_cast<int>(cpus.size())) {
    return invalid_argument(fmt::format("{} ranks of {} threads on {} cores", ranks, threads, cpus.size()));
  }
  auto bench = std::unique_ptr<OpBench>(new OpBench());
  bench->isa_ = isa;
  bench->cpus_ = cpus;
  for (int r = 0; r < ranks; ++r) {
    const auto first = cpus.begin() + r * threads;
    bench->pools_.push_back(std::make_unique<ThreadPool>(threads, std::vector<int>(first, first + threads)));
  }
  return bench;
}

Result<const Buffer*> OpBench::store(DType dtype) {
  const auto found = stores_.find(dtype);
  if (found != stores_.end()) return &found->second;
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(kStoreBytes));
  const FillPattern pattern = dtype == DType::kF8E8M0 ? FillPattern::kScale : fill_pattern(dtype);
  fill(buffer.data(), buffer.size(), pattern, *pools_[0]);
  return &stores_.emplace(dtype, std::move(buffer)).first->second;
}

Result<double> OpBench::measure_in_turn(const std::vector<const OpCase*>& tests, bool cached, double seconds) {
  constexpr int kSamples = 2;
  std::vector<std::vector<std::unique_ptr<RankCase>>> cases(static_cast<size_t>(ranks()));
  for (const OpCase* test : tests) {
    WEFT_ASSIGN_OR_RETURN(const ValueTypes out,
                          std::visit([&](const auto& op) { return op.infer(test->in); }, test->op));
    for (const ValueType& type : test->in) {
      if (!is_integer(type.dtype())) WEFT_RETURN_IF_ERROR(store(type.dtype()).status());
    }
    for (int r = 0; r < ranks(); ++r) {
      auto& of_rank = cases[static_cast<size_t>(r)];
      of_rank.push_back(std::make_unique<RankCase>(*test, out, *pools_[static_cast<size_t>(r)], isa_, cached, r));
      WEFT_RETURN_IF_ERROR(of_rank.back()->allocate(stores_));
    }
  }
  Meeting meeting(ranks());
  std::atomic<int64_t> calls{1};
  std::vector<std::vector<double>> times(static_cast<size_t>(ranks()));
  std::mutex mutex;
  Status failed;
  const auto rank = [&](int r) {
    const auto& mine = cases[static_cast<size_t>(r)];
    const auto run = [&](int64_t n) {
      const auto start = Clock::now();
      for (int64_t i = 0; i < n; ++i) {
        for (const auto& test : mine) {
          if (const Status status = test->run(); !status.ok()) {
            std::lock_guard lock(mutex);
            failed = status;
          }
        }
      }
      return seconds_since(start) / static_cast<double>(n);
    };
    run(1);  // pages of the outputs
    meeting.wait();
    const double once = run(1);
    if (r == 0)
      calls = std::clamp<int64_t>(static_cast<int64_t>(seconds / kSamples / std::max(once, 1e-7)), 1, 1 << 16);
    for (int sample = 0; sample < kSamples; ++sample) {
      meeting.wait();
      times[static_cast<size_t>(r)].push_back(run(calls));
    }
  };
  // Each on its own core: next to a worker that spins it would stand still.
  std::vector<std::thread> callers;
  for (int r = 0; r < ranks(); ++r) {
    callers.emplace_back([&, r] {
      pin_to(cpus_[static_cast<size_t>(r * threads())]);
      rank(r);
    });
  }
  for (std::thread& caller : callers) caller.join();
  if (!failed.ok()) return failed;
  double sum = 0;
  for (std::vector<double>& of_rank : times) {
    std::sort(of_rank.begin(), of_rank.end());
    sum += of_rank.front();
  }
  return sum / ranks();
}

}  // namespace weft
