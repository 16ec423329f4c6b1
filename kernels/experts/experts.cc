#include "kernels/experts/experts.h"

#include <algorithm>
#include <numeric>

#include "base/int_math.h"
#include "kernels/experts/experts_internal.h"

// Rows are sorted by expert; experts are taken in ascending order, in batches of so many slots that the scratch stays
// bounded. A thread owns columns of the inner activations, then columns of y, and walks all experts of the batch for
// them: additions to an element of y happen in ascending expert id without any lock.
namespace weft {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kBatchSlots = 1024;   // or all rows, since one expert may get them all
constexpr int64_t kWidestPanel = 32;
constexpr int64_t kDotColumns = 128;    // columns of a task of dot products: long enough runs of memory
constexpr int64_t kInlineWork = 96 << 10;  // multiply-adds that are done before other threads would help

int64_t aligned(int64_t bytes) { return align_up(bytes, kAlign); }

// Where everything lies in the scratch.
struct Scratch {
  int64_t batch_slots, panel, temporary;  // floats of the last two, of one thread
  int64_t order, first, x, rows, a, a_rows, panels, temporaries, bytes;

  Scratch(ExpertsPart part, int64_t num_rows, int64_t hidden, int64_t inner, int64_t top_k, int64_t num_experts,
          int num_threads) {
    const int64_t slots = num_rows * top_k;
    const bool up = part != ExpertsPart::kDown, down = part != ExpertsPart::kUp;
    const int64_t hidden_steps = pack_layout(hidden, 1).steps(), inner_steps = pack_layout(inner, 1).steps();
    batch_slots = std::min(slots, std::max(num_rows, kBatchSlots));
    panel = std::max(up ? hidden_steps : 0, down ? inner_steps : 0) * kWidestPanel;
    temporary = std::max(num_rows * kWidestPanel, kMostDotRows * kDotColumns);
    int64_t end = 0;
    const auto take = [&](int64_t size) {
      const int64_t begin = end;
      end += aligned(size);
      return begin;
    };
    order = take(slots * 4);
    first = take((num_experts + 1) * 4);
    x = take(up ? num_rows * hidden * kFloat : 0);
    rows = take(up ? batch_slots * hidden_steps * kFloat : 0);
    a = take(batch_slots * inner * kFloat);
    a_rows = take(down ? batch_slots * inner_steps * kFloat : 0);
    panels = take(num_threads * panel * kFloat);
    temporaries = take(num_threads * temporary * kFloat);
    bytes = end;
  }
};

// A linear layer of the experts: how its input lies, and what computes it.
struct Side {
  Side(const LinearKernels& kernels, ActQuant act_quant, int64_t features, DType weight)
      : linear(kernels_for(kernels, act_quant)),
        max_dot_rows(linear.max_dot_rows(weight)),
        width(elements_of_row(linear, features)),
        layout(pack_layout(linear, features, 1)) {}

  // One row to elements; x and out may be the same F32 row.
  void convert(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) const {
    if (linear.quantise_row != nullptr) {
      linear.quantise_row(x, dtype, k, {}, out);
    } else {
      linear.convert_row(x, dtype, k, act_quant, out);
    }
  }

  const LinearKernels& linear;
  int64_t max_dot_rows;
  int64_t width;  // elements of a row
  PackLayout layout;
};

class Call {
 public:
  Call(const ExpertsKernels& kernels, const ExpertsArgs& args, ThreadPool& pool)
      : kernels_(kernels),
        args_(args),
        pool_(pool),
        num_experts_(static_cast<int64_t>(std::max(args.w1.size(), args.w2.size()))),
        scratch_(args.part, args.num_rows, args.hidden, args.inner, args.top_k, num_experts_, pool.size()),
        up_(*kernels.up, args.act_quant, args.hidden, (args.w1.empty() ? args.w2 : args.w1)[0].dtype),
        down_(*kernels.down, args.act_quant, args.inner, (args.w2.empty() ? args.w1 : args.w2)[0].dtype),
        order_(at<int32_t>(scratch_.order)),
        first_(at<int32_t>(scratch_.first)),
        x_(at<float>(scratch_.x)),
        rows_(at<float>(scratch_.rows)),
        a_(at<float>(scratch_.a)),
        a_rows_(at<float>(scratch_.a_rows)) {}

  void run() {
    sort_slots();
    if (computes_y()) clear_y();
    if (computes_a()) convert_x();
    if (args_.part == ExpertsPart::kUp) clear_unused_a();
    for (int64_t begin = 0; begin < num_experts_;) {
      const int64_t end = batch_end(begin);
      if (first_[end] > first_[begin]) run_batch(begin, end);
      begin = end;
    }
  }

 private:
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(args_.scratch + offset);
  }

  bool computes_a() const { return args_.part != ExpertsPart::kDown; }
  bool computes_y() const { return args_.part != ExpertsPart::kUp; }
  int64_t rows_of(int64_t e) const { return first_[e + 1] - first_[e]; }
  bool by_dot(const Side& side, int64_t e) const { return rows_of(e) <= side.max_dot_rows; }
  int64_t token(int64_t i) const { return order_[i] / args_.top_k; }
  std::byte* a_of(int64_t slot) const {
    return static_cast<std::byte*>(args_.a) + slot * args_.inner * dtype_bits(args_.x_dtype) / 8;
  }
  float* y_of(int64_t i) const { return args_.y + (args_.per_slot ? order_[i] : token(i)) * args_.hidden; }

  void clear_y() {
    const int64_t rows = args_.num_rows * (args_.per_slot ? args_.top_k : 1);
    const int64_t grain = std::max<int64_t>(kInlineWork / args_.hidden, 1);
    pool_.parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
      std::fill(args_.y + begin * args_.hidden, args_.y + end * args_.hidden, 0.0f);
    });
  }

  void clear_unused_a() {
    for (int64_t s = 0; s < args_.num_rows * args_.top_k; ++s) {
      if (args_.expert[s] < 0) std::fill(a_of(s), a_of(s + 1), std::byte{0});
    }
  }

  // order: slots by expert, in ascending order within an expert; first[e]: where those of expert e begin.
  void sort_slots() {
    const int64_t slots = args_.num_rows * args_.top_k;
    std::fill(first_, first_ + num_experts_ + 1, 0);
    for (int64_t s = 0; s < slots; ++s) {
      const int32_t e = args_.expert[s];
      WEFT_CHECK(e < num_experts_, "expert {} of {}", e, num_experts_);
      if (e >= 0) ++first_[e];
    }
    std::exclusive_scan(first_, first_ + num_experts_ + 1, first_, 0);
    for (int64_t s = 0; s < slots; ++s) {
      if (args_.expert[s] >= 0) order_[first_[args_.expert[s]]++] = static_cast<int32_t>(s);
    }
    std::copy_backward(first_, first_ + num_experts_, first_ + num_experts_ + 1);  // each had moved to the next one
    first_[0] = 0;
  }

  void convert_x() {
    const int64_t row_bytes = args_.hidden * dtype_bits(args_.x_dtype) / 8;
    const int64_t grain = args_.num_rows * args_.hidden <= kInlineWork ? std::max<int64_t>(args_.num_rows, 1) : 1;
    pool_.parallel_for(args_.num_rows, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        up_.convert(static_cast<const std::byte*>(args_.x) + t * row_bytes, args_.x_dtype, args_.hidden, args_.act_quant,
                    x_ + t * up_.width);
      }
    });
  }

  int64_t batch_end(int64_t begin) const {
    int64_t end = begin + 1;
    while (end < num_experts_ && first_[end + 1] - first_[begin] <= scratch_.batch_slots) ++end;
    return end;
  }

  // Columns of a task: a multiple of the widest panel that gives every thread several tasks.
  int64_t task_columns(int64_t columns, int64_t tasks_each) const {
    constexpr int64_t kTasksPerThread = 8;
    int64_t width = kDotColumns;
    while (width > kWidestPanel && columns / width * tasks_each < kTasksPerThread * pool_.size()) width /= 2;
    return width;
  }

  // parallel_for, or one call if the multiply-adds of it all are few.
  void for_tasks(int64_t tasks, int64_t work, ThreadPool::Body body) {
    pool_.parallel_for(tasks, work <= kInlineWork ? tasks : 1, body);
  }

  void run_batch(int64_t e0, int64_t e1) {
    const int64_t slots = first_[e1] - first_[e0], work = slots * args_.hidden * args_.inner;
    int64_t active = 0;
    for (int64_t e = e0; e < e1; ++e) active += rows_of(e) > 0 ? 1 : 0;

    if (computes_a()) run_up(e0, e1, work, active);
    if (computes_y()) run_down(e0, e1, work);
  }

  void run_up(int64_t e0, int64_t e1, int64_t work, int64_t active) {
    for_tasks(e1 - e0, work / args_.inner, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t e = e0 + begin; e < e0 + end; ++e) gather_x(e, e0, worker);
    });
    const int64_t gate_columns = task_columns(args_.inner, active);
    const int64_t gate_tasks = (args_.inner + gate_columns - 1) / gate_columns;
    for_tasks((e1 - e0) * gate_tasks, 2 * work, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task % gate_tasks * gate_columns;
        gate_up(e0 + task / gate_tasks, e0, n, std::min(gate_columns, args_.inner - n), worker);
      }
    });
  }

  void run_down(int64_t e0, int64_t e1, int64_t work) {
    for_tasks(e1 - e0, work / args_.hidden, [&](int64_t begin, int64_t end, int) {
      for (int64_t e = e0 + begin; e < e0 + end; ++e) prepare_a(e, e0);
    });
    const int64_t down_columns = task_columns(args_.hidden, 1);
    for_tasks((args_.hidden + down_columns - 1) / down_columns, work, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task * down_columns;
        for (int64_t e = e0; e < e1; ++e) down(e, e0, n, std::min(down_columns, args_.hidden - n), worker);
      }
    });
  }

  // Rows of x of an expert: packed tiles, or plain rows for dot products.
  void gather_x(int64_t e, int64_t e0, int worker) {
    const int64_t rows = rows_of(e), first = first_[e], steps = up_.layout.steps(), width = up_.width;
    float* out = rows_ + (first - first_[e0]) * steps;
    if (by_dot(up_, e)) {
      if (rows == 1) return;  // read where it is
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(x_ + token(first + r) * width, width, out + r * width);
      }
      return;
    }
    const RowTiles tiles = row_tiles(rows, up_.linear.tile_rows);
    float* gathered = panel(worker);
    for (int64_t i = 0; i < tiles.count; ++i) {
      for (int64_t r = 0; r < tiles.size(i); ++r) {
        std::copy_n(x_ + token(first + tiles.begin(i) + r) * width, width, gathered + r * width);
      }
      up_.linear.pack_rows(gathered, width, tiles.size(i), up_.layout, out + tiles.begin(i) * steps);
    }
  }

  // The same for the inner activations, in place or packed: rows of fp32 become rows of elements with the same stride.
  void prepare_a(int64_t e, int64_t e0) {
    const int64_t rows = rows_of(e), first = first_[e] - first_[e0], steps = down_.layout.steps(), inner = args_.inner;
    float* a = a_ + first * inner;
    if (args_.part == ExpertsPart::kDown) {
      for (int64_t r = 0; r < rows; ++r) {
        down_.convert(a_of(order_[first_[e] + r]), args_.x_dtype, inner, args_.act_quant, a + r * inner);
      }
    } else if (args_.act_quant != ActQuant::kNone || down_.linear.element_features > 1) {
      for (int64_t r = 0; r < rows; ++r) {
        down_.convert(a + r * inner, DType::kF32, inner, args_.act_quant, a + r * inner);
      }
    }
    if (by_dot(down_, e)) return;
    const RowTiles tiles = row_tiles(rows, down_.linear.tile_rows);
    for (int64_t i = 0; i < tiles.count; ++i) {
      down_.linear.pack_rows(a + tiles.begin(i) * inner, inner, tiles.size(i), down_.layout,
                             a_rows_ + (first + tiles.begin(i)) * steps);
    }
  }

  // out[r, 0..count) = columns [n, n + count) of rows * w for the rows of expert e.
  void multiply(const Side& side, const WeightMatrix& w, int64_t n, int64_t count, const float* packed, int64_t rows,
                int worker, const Output& out) {
    const PackLayout& layout = side.layout;
    const int64_t width = panel_width(side.linear, layout, count);
    side.linear.pack_weights(w, n, count, width, layout, panel(worker));
    const RowTiles tiles = row_tiles(rows, side.linear.tile_rows);
    for (int64_t i = 0; i < tiles.count; ++i) {
      const Output tile_out{static_cast<float*>(out.y) + tiles.begin(i) * out.stride, DType::kF32, out.stride};
      side.linear.tile(packed + tiles.begin(i) * layout.steps(), tiles.size(i), panel(worker), width, count, layout, tile_out);
    }
  }

  void gate_up(int64_t e, int64_t e0, int64_t n0, int64_t columns, int worker) {
    const int64_t rows = rows_of(e), first = first_[e];
    if (rows == 0) return;
    const WeightMatrix &w1 = args_.w1[static_cast<size_t>(e)], &w3 = args_.w3[static_cast<size_t>(e)];
    float* a = a_ + (first - first_[e0]) * args_.inner;
    float* up = temporary(worker);
    const auto combine = [&](int64_t n, int64_t count, int64_t up_stride) {
      for (int64_t r = 0; r < rows; ++r) {
        float* gate = a + r * args_.inner + n;
        const int64_t slot = order_[first + r];
        kernels_.gate({gate, up + r * up_stride, gate, count, args_.weight[slot], args_.swiglu_limit,
                       args_.x_dtype == DType::kBF16, args_.weight_before_w2});
        if (args_.part == ExpertsPart::kUp) {
          store_rounded(gate, count, args_.x_dtype, a_of(slot) + n * dtype_bits(args_.x_dtype) / 8);
        }
      }
    };
    const float* packed = rows_ + (first - first_[e0]) * up_.layout.steps();
    if (by_dot(up_, e)) {
      const float* x = rows == 1 ? x_ + token(first) * up_.width : packed;
      up_.linear.dot(w1, n0, n0 + columns, x, up_.width, rows, 1, {a + n0, DType::kF32, args_.inner});
      up_.linear.dot(w3, n0, n0 + columns, x, up_.width, rows, 1, {up, DType::kF32, columns});
      combine(n0, columns, columns);
      return;
    }
    const int64_t width = panel_width(up_.linear, up_.layout, columns);
    for (int64_t n = n0; n < n0 + columns; n += width) {
      const int64_t count = std::min(width, n0 + columns - n);
      multiply(up_, w1, n, count, packed, rows, worker, {a + n, DType::kF32, args_.inner});
      multiply(up_, w3, n, count, packed, rows, worker, {up, DType::kF32, width});
      combine(n, count, width);
    }
  }

  void down(int64_t e, int64_t e0, int64_t n0, int64_t columns, int worker) {
    const int64_t rows = rows_of(e), first = first_[e];
    if (rows == 0) return;
    const WeightMatrix& w2 = args_.w2[static_cast<size_t>(e)];
    float* o = temporary(worker);
    const auto accumulate = [&](int64_t n, int64_t count, int64_t stride) {
      for (int64_t r = 0; r < rows; ++r) {
        kernels_.add({o + r * stride, y_of(first + r) + n, count,
                      args_.weight[order_[first + r]], args_.x_dtype == DType::kBF16, !args_.weight_before_w2});
      }
    };
    if (by_dot(down_, e)) {
      const float* a = a_ + (first - first_[e0]) * args_.inner;
      down_.linear.dot(w2, n0, n0 + columns, a, args_.inner, rows, 1, {o, DType::kF32, columns});
      accumulate(n0, columns, columns);
      return;
    }
    const float* packed = a_rows_ + (first - first_[e0]) * down_.layout.steps();
    const int64_t width = panel_width(down_.linear, down_.layout, columns);
    for (int64_t n = n0; n < n0 + columns; n += width) {
      const int64_t count = std::min(width, n0 + columns - n);
      multiply(down_, w2, n, count, packed, rows, worker, {o, DType::kF32, width});
      accumulate(n, count, width);
    }
  }

  float* panel(int worker) const { return at<float>(scratch_.panels) + worker * scratch_.panel; }
  float* temporary(int worker) const { return at<float>(scratch_.temporaries) + worker * scratch_.temporary; }

  const ExpertsKernels& kernels_;
  const ExpertsArgs& args_;
  ThreadPool& pool_;
  int64_t num_experts_;
  Scratch scratch_;
  Side up_, down_;
  int32_t *order_, *first_;
  float *x_, *rows_, *a_, *a_rows_;
};

void run_bf16(const ExpertsArgs& args, ThreadPool& pool) {
  ExpertsKernels kernels = kExpertsKernels_avx512_vbmi;
  const ExpertsPairs pairs = experts_pairs(args);
  if (!args.w1.empty()) kernels.up = &bf16_kernels(pairs.up, args.w1[0].dtype);
  if (!args.w2.empty()) kernels.down = &bf16_kernels(pairs.down, args.w2[0].dtype);
  experts_with(kernels, args, pool);
}

template <const ExpertsKernels& kKernels>
void run(const ExpertsArgs& args, ThreadPool& pool) {
  experts_with(kKernels, args, pool);
}

constexpr KernelVariant<ExpertsFn> kVariants[] = {
    {"avx512_bf16", Isa::kAvx512Bf16, run_bf16},
    {"avx512_vbmi", Isa::kAvx512Vbmi, run<kExpertsKernels_avx512_vbmi>},
    {"avx512", Isa::kAvx512, run<kExpertsKernels_avx512>},
    {"avx2", Isa::kAvx2, run<kExpertsKernels_avx2>},
    {"ref", Isa::kScalar, experts_ref},
};

}  // namespace

ExpertsPairs experts_pairs(const ExpertsArgs& args) {
  const auto pairs = [&](std::span<const WeightMatrix> w) {
    return w.empty() ? Bf16Pairs::kNone : bf16_pairs(w[0], args.x_dtype, args.act_quant, 1);
  };
  const Bf16Pairs up = pairs(args.w1);
  return {up == pairs(args.w3) ? up : Bf16Pairs::kNone, pairs(args.w2)};
}

void experts_with(const ExpertsKernels& kernels, const ExpertsArgs& args, ThreadPool& pool) {
  if (args.num_rows == 0) return;
  const bool up = args.part != ExpertsPart::kDown, down = args.part != ExpertsPart::kUp;
  WEFT_CHECK(args.w1.size() == args.w3.size() && up == !args.w1.empty() && down == !args.w2.empty());
  WEFT_CHECK(!up || !down || args.w1.size() == args.w2.size());
  WEFT_CHECK(args.act_quant != ActQuant::kInt8Static, "experts have no static quantisation");
  for (const auto& weights : {args.w1, args.w3, args.w2}) {
    WEFT_CHECK(weights.empty() || !is_int8(args.act_quant) || takes_int8(weights[0]));
  }
  Call(kernels, args, pool).run();
}

int64_t experts_scratch_bytes(ExpertsPart part, int64_t num_rows, int64_t hidden, int64_t inner, int64_t top_k,
                              int64_t num_experts, int num_threads) {
  const int64_t reference = 2 * (row_floats_ref(hidden) + row_floats_ref(inner)) * kFloat;
  return std::max(reference, Scratch(part, num_rows, hidden, inner, top_k, num_experts, num_threads).bytes);
}

std::span<const KernelVariant<ExpertsFn>> experts_variants() { return kVariants; }

}  // namespace weft
