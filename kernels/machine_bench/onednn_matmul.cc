#include "kernels/machine_bench/onednn_matmul.h"

#ifdef WEFT_HAVE_ONEDNN_HEADERS

#include <dlfcn.h>
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <vector>

namespace weft {
namespace {

// The functions of the C interface that are used, found by name. Headers and library must be of one major version.
struct OneDnn {
  void* handle = nullptr;
  decltype(&dnnl_set_max_cpu_isa) set_max_cpu_isa;
  decltype(&dnnl_engine_create) engine_create;
  decltype(&dnnl_engine_destroy) engine_destroy;
  decltype(&dnnl_stream_create) stream_create;
  decltype(&dnnl_stream_wait) stream_wait;
  decltype(&dnnl_stream_destroy) stream_destroy;
  decltype(&dnnl_memory_desc_init_by_tag) memory_desc_init_by_tag;
  decltype(&dnnl_matmul_desc_init) matmul_desc_init;
  decltype(&dnnl_primitive_desc_create) primitive_desc_create;
  decltype(&dnnl_primitive_desc_destroy) primitive_desc_destroy;
  decltype(&dnnl_primitive_desc_query_md) primitive_desc_query_md;
  decltype(&dnnl_reorder_primitive_desc_create) reorder_primitive_desc_create;
  decltype(&dnnl_primitive_create) primitive_create;
  decltype(&dnnl_primitive_execute) primitive_execute;
  decltype(&dnnl_primitive_destroy) primitive_destroy;
  decltype(&dnnl_memory_create) memory_create;
  decltype(&dnnl_memory_destroy) memory_destroy;
  void (*omp_set_num_threads)(int);
};

template <class F>
bool find(void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(handle, name));
  return function != nullptr;
}

Result<OneDnn> load_onednn() {
  const std::string name = fmt::format("libdnnl.so.{}", DNNL_VERSION_MAJOR);
  OneDnn d{};
  d.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: its threads stay
  if (d.handle == nullptr) return machine_failed(fmt::format("{} is not installed", name));
  void* h = d.handle;
  const bool complete =
      find(h, "dnnl_set_max_cpu_isa", d.set_max_cpu_isa) && find(h, "dnnl_engine_create", d.engine_create) &&
      find(h, "dnnl_engine_destroy", d.engine_destroy) && find(h, "dnnl_stream_create", d.stream_create) &&
      find(h, "dnnl_stream_wait", d.stream_wait) && find(h, "dnnl_stream_destroy", d.stream_destroy) &&
      find(h, "dnnl_memory_desc_init_by_tag", d.memory_desc_init_by_tag) &&
      find(h, "dnnl_matmul_desc_init", d.matmul_desc_init) &&
      find(h, "dnnl_primitive_desc_create", d.primitive_desc_create) &&
      find(h, "dnnl_primitive_desc_destroy", d.primitive_desc_destroy) &&
      find(h, "dnnl_primitive_desc_query_md", d.primitive_desc_query_md) &&
      find(h, "dnnl_reorder_primitive_desc_create", d.reorder_primitive_desc_create) &&
      find(h, "dnnl_primitive_create", d.primitive_create) && find(h, "dnnl_primitive_execute", d.primitive_execute) &&
      find(h, "dnnl_primitive_destroy", d.primitive_destroy) && find(h, "dnnl_memory_create", d.memory_create) &&
      find(h, "dnnl_memory_destroy", d.memory_destroy) && find(h, "omp_set_num_threads", d.omp_set_num_threads);
  if (!complete) return machine_failed(fmt::format("{} lacks a function of its interface, or OpenMP", name));
  return d;
}

class Matmul final : public OneDnnMatmul {
 public:
  explicit Matmul(const OneDnn& onednn) : d_(onednn) {}
  ~Matmul() override {
    if (matmul_ != nullptr) d_.primitive_destroy(matmul_);
    for (dnnl_memory_t memory : memories_) d_.memory_destroy(memory);
    if (stream_ != nullptr) d_.stream_destroy(stream_);
    if (engine_ != nullptr) d_.engine_destroy(engine_);
  }

  // False if oneDNN refuses any step.
  bool prepare(const float* x, const float* w, float* y, int64_t m, int64_t n, int64_t k) {
    const dnnl_dims_t x_dims = {m, k}, w_dims = {k, n}, y_dims = {m, n};
    dnnl_memory_desc_t x_md, w_md, w_plain, y_md;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = nullptr, reorder_pd = nullptr;
    dnnl_primitive_t reorder = nullptr;
    dnnl_memory_t w_stored = nullptr, w_packed = nullptr;
    bool good = d_.engine_create(&engine_, dnnl_cpu, 0) == dnnl_success &&
                d_.stream_create(&stream_, engine_, dnnl_stream_default_flags) == dnnl_success &&
                d_.memory_desc_init_by_tag(&x_md, 2, x_dims, dnnl_f32, dnnl_ab) == dnnl_success &&
                d_.memory_desc_init_by_tag(&w_md, 2, w_dims, dnnl_f32, dnnl_format_tag_any) == dnnl_success &&
                d_.memory_desc_init_by_tag(&w_plain, 2, w_dims, dnnl_f32, dnnl_ba) == dnnl_success &&
                d_.memory_desc_init_by_tag(&y_md, 2, y_dims, dnnl_f32, dnnl_ab) == dnnl_success &&
                d_.matmul_desc_init(&desc, &x_md, &w_md, nullptr, &y_md) == dnnl_success &&
                d_.primitive_desc_create(&pd, &desc, nullptr, engine_, nullptr) == dnnl_success &&
                d_.primitive_create(&matmul_, pd) == dnnl_success;
    good = good && memory(&x_md, const_cast<float*>(x), x_) && memory(&y_md, y, y_) &&
           memory(&w_plain, const_cast<float*>(w), w_stored) &&
           memory(d_.primitive_desc_query_md(pd, dnnl_query_weights_md, 0), DNNL_MEMORY_ALLOCATE, w_packed);
    good = good &&
           d_.reorder_primitive_desc_create(&reorder_pd, &w_plain, engine_,
                                            d_.primitive_desc_query_md(pd, dnnl_query_weights_md, 0), engine_,
                                            nullptr) == dnnl_success &&
           d_.primitive_create(&reorder, reorder_pd) == dnnl_success;
    if (good) {
      const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, w_stored}, {DNNL_ARG_TO, w_packed}};
      good = d_.primitive_execute(reorder, stream_, 2, args) == dnnl_success && d_.stream_wait(stream_) == dnnl_success;
    }
    w_ = w_packed;
    if (reorder != nullptr) d_.primitive_destroy(reorder);
    if (reorder_pd != nullptr) d_.primitive_desc_destroy(reorder_pd);
    if (pd != nullptr) d_.primitive_desc_destroy(pd);
    return good;
  }

  void run() override {
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, w_}, {DNNL_ARG_DST, y_}};
    WEFT_CHECK(d_.primitive_execute(matmul_, stream_, 3, args) == dnnl_success, "oneDNN matmul");
    WEFT_CHECK(d_.stream_wait(stream_) == dnnl_success, "oneDNN stream");
  }

 private:
  bool memory(const dnnl_memory_desc_t* md, void* data, dnnl_memory_t& result) {
    if (md == nullptr || d_.memory_create(&result, md, engine_, data) != dnnl_success) return false;
    memories_.push_back(result);
    return true;
  }

  OneDnn d_;
  dnnl_engine_t engine_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  dnnl_primitive_t matmul_ = nullptr;
  dnnl_memory_t x_ = nullptr, w_ = nullptr, y_ = nullptr;
  std::vector<dnnl_memory_t> memories_;
};

}  // namespace

Result<std::unique_ptr<OneDnnMatmul>> make_onednn_matmul(const float* x, const float* w, float* y, int64_t m, int64_t n,
                                                         int64_t k, int threads, Isa isa) {
  WEFT_ASSIGN_OR_RETURN(const OneDnn onednn, load_onednn());
  // Fails after the first use, when the level is fixed already: by this very call, since one process has one --isa.
  if (isa < Isa::kAvx512) static_cast<void>(onednn.set_max_cpu_isa(dnnl_cpu_isa_avx2));
  onednn.omp_set_num_threads(threads);
  auto matmul = std::make_unique<Matmul>(onednn);
  if (!matmul->prepare(x, w, y, m, n, k)) return machine_failed("oneDNN refuses the matmul");
  return std::unique_ptr<OneDnnMatmul>(std::move(matmul));
}

}  // namespace weft

#else

namespace weft {

Result<std::unique_ptr<OneDnnMatmul>> make_onednn_matmul(const float*, const float*, float*, int64_t, int64_t, int64_t,
                                                         int, Isa) {
  return machine_failed("built without the headers of oneDNN (Debian: libdnnl-dev)");
}

}  // namespace weft

#endif
