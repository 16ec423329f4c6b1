// What the tests of ops share: tensors in guarded memory that start poisoned, and one way to run an op as the executor does.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/numeric.h"
#include "graph/op.h"

namespace weft {

// Bytes C0 7F ...: NaN as F32 and as BF16, 2143322048 as I32.
inline constexpr uint16_t kPoison = 0x7fc0;

inline uint64_t mix_bits(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A number in [-2, 2) that belongs to the keys: inputs that need no table.
inline float number_of(std::initializer_list<int64_t> keys) {
  uint64_t hash = 0;
  for (int64_t key : keys) hash = mix_bits(hash ^ static_cast<uint64_t>(key));
  return static_cast<float>(static_cast<double>(hash >> 40) / (1 << 22) - 2);
}

// Memory on a 64-byte boundary with poisoned guard zones on both sides.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t size) : size_(size), storage_(new std::byte[size + 2 * kGuard + 64]) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.get());
    data_ = storage_.get() + kGuard + (64 - address % 64) % 64;
    poison(-kGuard, size + 2 * kGuard);
  }
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  bool guards_intact() const { return poisoned(-kGuard, kGuard) && poisoned(size_ + size_ % 2, kGuard - 2); }
  bool poisoned(int64_t begin, int64_t count) const {
    for (int64_t i = begin; i + 1 < begin + count; i += 2) {
      if (std::memcmp(data_ + i, &kPoison, 2) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 256;
  void poison(int64_t begin, int64_t count) {
    for (int64_t i = begin; i + 1 < begin + count; i += 2) std::memcpy(data_ + i, &kPoison, 2);
  }
  int64_t size_;
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_;
};

// A value of the type; the first dimension of kTokens and kLogits values is the number of valid rows.
class HostTensor {
 public:
  explicit HostTensor(ValueType type, int64_t capacity = 0) : type_(type), bytes_(bytes_with_rows(type, capacity)) {}
  HostTensor(DType dtype, Shape shape, Rows rows = Rows::kStatic) : HostTensor(ValueType{{dtype, shape}, rows}) {}

  const ValueType& type() const { return type_; }
  const Shape& shape() const { return type_.shape(); }
  TensorView view() const { return {type_.tensor, bytes_.data(), {}}; }
  const GuardedBytes& bytes() const { return bytes_; }
  int64_t count() const { return shape().num_elements(); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(bytes_.data());
  }
  float get(int64_t i) const { return type_.dtype() == DType::kF32 ? as<float>()[i] : to_float(as<bf16>()[i]); }
  void set(int64_t i, float value) {
    if (type_.dtype() == DType::kF32) {
      as<float>()[i] = value;
    } else {
      as<bf16>()[i] = to_bf16(value);
    }
  }
  // Numbers of the seed, times `scale`.
  HostTensor& fill(int64_t seed, float scale = 1) {
    for (int64_t i = 0; i < count(); ++i) set(i, scale * number_of({seed, i}));
    return *this;
  }
  std::vector<uint8_t> copy_bytes() const {
    const auto* begin = reinterpret_cast<const uint8_t*>(bytes_.data());
    return {begin, begin + type_.tensor.bytes()};
  }

 private:
  static int64_t bytes_with_rows(const ValueType& type, int64_t capacity) {
    TensorType tensor = type.tensor;
    if (capacity > 0) tensor.shape[0] = capacity;
    return tensor.bytes();
  }
  ValueType type_;
  GuardedBytes bytes_;
};

struct OpEnv {
  const StepBatch& batch;
  ThreadPool& pool;
  Isa isa = max_isa();
  bool finite = true;  // outputs are; else nobody can tell them from what was not written
};

// Runs the op on `in`, whose kTokens values hold the valid rows; types have room for a few rows more, as in a step that does
// not fill its capacity. Checks: outputs are written in their valid rows and nowhere else, the scratch is not exceeded, inputs
// change only where mutates() says so. Returns the outputs with their valid rows.
inline std::vector<HostTensor> run_op(const Op& op, const std::vector<const HostTensor*>& in, const OpEnv& env,
                                      Status* status = nullptr) {
  constexpr int64_t kSpareRows = 3;
  const std::string name(op_name(op));
  ValueTypes types;
  std::vector<TensorView> in_views, out_views;
  std::vector<std::vector<uint8_t>> before;
  for (const HostTensor* tensor : in) {
    types.push_back(tensor->type());
    if (tensor->type().rows != Rows::kStatic) types.back().tensor.shape[0] += kSpareRows;
    in_views.push_back(tensor->view());
    before.push_back(tensor->copy_bytes());
  }
  const auto out_types = std::visit([&](const auto& o) { return o.infer(types); }, op);
  EXPECT_TRUE(out_types.ok()) << out_types.status().message();
  std::vector<HostTensor> out;
  if (!out_types.ok()) return out;
  for (ValueType type : *out_types) {
    const int64_t capacity = type.shape()[0];
    if (type.rows == Rows::kTokens) type.tensor.shape[0] = env.batch.num_tokens();
    if (type.rows == Rows::kLogits) type.tensor.shape[0] = static_cast<int64_t>(env.batch.logit_rows.size());
    out.emplace_back(type, capacity);
    out_views.push_back(out.back().view());
  }
  const Work work = std::visit([&](const auto& o) { return o.work(types, *out_types, {env.pool.size()}); }, op);
  const GuardedBytes scratch(work.scratch_bytes);
  RunContext ctx{in_views,  out_views, {scratch.data(), static_cast<size_t>(scratch.size())},
                 env.batch, env.pool,  env.isa};
  const Status result = std::visit([&](const auto& o) { return o.run(ctx); }, op);
  if (status != nullptr) {
    *status = result;
  } else {
    EXPECT_TRUE(result.ok()) << name << ": " << result.message();
  }
  EXPECT_TRUE(scratch.guards_intact()) << name << " wrote beyond its scratch of " << scratch.size() << " bytes";
  const std::vector<int> mutates = std::visit([](const auto& o) { return o.mutates(); }, op);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(in[i]->bytes().guards_intact()) << name << " wrote beyond input " << i;
    if (std::find(mutates.begin(), mutates.end(), static_cast<int>(i)) != mutates.end()) continue;
    EXPECT_EQ(in[i]->copy_bytes(), before[i]) << name << " changed its input " << i;
  }
  for (size_t i = 0; i < out.size() && result.ok(); ++i) {
    const int64_t used = out[i].type().tensor.bytes();
    EXPECT_TRUE(out[i].bytes().guards_intact()) << name << " wrote beyond output " << i;
    EXPECT_TRUE(out[i].bytes().poisoned(used, out[i].bytes().size() - used))
        << name << " wrote rows that are not valid";
    for (int64_t e = 0; e < out[i].count() && env.finite; ++e) {
      const DType dtype = out[i].type().dtype();
      const bool written = dtype == DType::kI32  ? out[i].as<int32_t>()[e] != 0x7fc07fc0
                           : dtype == DType::kI8 ? !out[i].bytes().poisoned(e / 8 * 8, std::min<int64_t>(8, used - e / 8 * 8))
                                                 : std::isfinite(out[i].get(e));
      if (!written) {
        ADD_FAILURE() << name << ": element " << e << " of output " << i << " is not written, or not a finite number";
        break;
      }
    }
  }
  return out;
}

// Requests of these lengths, from position 0 each.
inline StepBatch batch_of(const std::vector<int64_t>& lengths, std::vector<int32_t> logit_rows = {}) {
  StepBatch batch;
  for (size_t i = 0; i < lengths.size(); ++i) {
    batch.segments.push_back({static_cast<int32_t>(i), batch.num_tokens(), lengths[i], lengths[i]});
    batch.tokens.resize(batch.tokens.size() + static_cast<size_t>(lengths[i]));
  }
  batch.positions.resize(batch.tokens.size());
  batch.logit_rows = std::move(logit_rows);
  return batch;
}

}  // namespace weft
