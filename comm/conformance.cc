#include "comm/conformance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "base/numeric.h"
#include "comm/board.h"
#include "comm/bytes.h"

namespace weft {
namespace {

enum class Sizes { kAll, kSmall };

// Bytes that nothing here computes: a NaN as fp32 and as bf16.
constexpr uint8_t kPoison = 0xff;
constexpr int64_t kTailBytes = 96;

// Valid bytes, and a tail that must keep its poison.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(bytes), data_(bytes + kTailBytes, kPoison) {}
  uint8_t* data() { return data_.data(); }
  float* floats() { return reinterpret_cast<float*>(data_.data()); }
  int64_t bytes() const { return bytes_; }
  bool tail_untouched() const {
    return std::all_of(data_.begin() + bytes_, data_.end(), [](uint8_t byte) { return byte == kPoison; });
  }

 private:
  int64_t bytes_;
  std::vector<uint8_t> data_;
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

// The sum of a group in tree order, level by level: written after the definition, not after the code under test.
float reference_sum(std::span<float> level) {
  while (level.size() > 1) {
    size_t sums = 0;
    for (size_t i = 0; i + 1 < level.size(); i += 2) level[sums++] = level[i] + level[i + 1];
    if (level.size() % 2 != 0) level[sums++] = level.back();
    level = level.first(sums);
  }
  return level.front();
}

class Suite {
 public:
  Suite(Communicator& comm, std::string group, uint64_t seed, ConformanceReport& report)
      : comm_(comm), group_(std::move(group)), seed_(seed), report_(report), P_(comm.size()), r_(comm.rank()) {}

  Status run(Sizes sizes) {
    using List = std::vector<int64_t>;
    const bool all = sizes == Sizes::kAll;
    const int64_t moved_before = comm_.counters().moved_bytes;
    for (const int64_t rows : all ? List{0, 1, 7, 5 * P_, 5 * P_ - 1} : List{0, 1, 3 * P_ - 1}) {
      for (const int64_t row_bytes : all ? List{1, 2, 3, 4, 130, 1000} : List{3, 130}) {
        WEFT_RETURN_IF_ERROR(all_gather(rows, row_bytes));
      }
      for (const int64_t width : all ? List{1, 3, 64, 133} : List{3, 64}) WEFT_RETURN_IF_ERROR(reductions(rows, width));
      for (const int64_t count : {rows, 30 * rows}) WEFT_RETURN_IF_ERROR(all_reduce_max(count));
      for (const int64_t elem_bytes : all ? List{1, 2, 4} : List{2}) {
        WEFT_RETURN_IF_ERROR(heads_and_tokens(rows, 2 * P_ * 3 * elem_bytes));
        WEFT_RETURN_IF_ERROR(group_major_exchange(rows, 2, 5 * elem_bytes));
        WEFT_RETURN_IF_ERROR(columns(rows, 3 * elem_bytes));
      }
      for (const int64_t bytes : {rows, 100 * rows}) WEFT_RETURN_IF_ERROR(broadcasts(bytes));
    }
    for (const int64_t row_bytes : {1, 6, 300}) WEFT_RETURN_IF_ERROR(uneven(row_bytes));
    if (all) {
      // Beyond what MPI sends at once, and some pieces of its pipelines (comm/bytes.h); with many ranks less, for time.
      WEFT_RETURN_IF_ERROR(all_gather(521, 1031));
      WEFT_RETURN_IF_ERROR(reductions(P_ <= 4 ? 521 : 41, 2053));
      WEFT_RETURN_IF_ERROR(heads_and_tokens(257, P_ * 256));
      WEFT_RETURN_IF_ERROR(broadcasts(P_ <= 4 ? 3 << 18 | 1 : 5000));
      WEFT_RETURN_IF_ERROR(point_to_point(1 << 17));
    }
    for (const int64_t bytes : {0, 1, 1000}) WEFT_RETURN_IF_ERROR(point_to_point(bytes));
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{3 * P_ - 1}}) WEFT_RETURN_IF_ERROR(started(rows, 130));
    if (all) WEFT_RETURN_IF_ERROR(started(P_, 1 << 16));  // beyond what MPI sends at once
    for (int i = 0; i < 20; ++i) WEFT_RETURN_IF_ERROR(comm_.barrier("barrier"));
    return moved_equals_counted(comm_.counters().moved_bytes - moved_before);
  }

 private:
  // A float of rank s, element i: all bits of the mantissa used, so that the order of a sum shows.
  float value(int s, int64_t i) const {
    const uint64_t bits =
        mix(mix(seed_ + call_) + static_cast<uint64_t>(s) * 0x10001 + static_cast<uint64_t>(i) * 0x3779b9);
    return static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-29f;
  }
  uint8_t byte(int s, int64_t i) const {
    return static_cast<uint8_t>(mix(seed_ + call_ + static_cast<uint64_t>(s) * 977 + static_cast<uint64_t>(i) * 131) >>
                                40);
  }
  void fill(Guarded& buffer, int s, int64_t first = 0) {
    for (int64_t i = 0; i < buffer.bytes(); ++i) buffer.data()[i] = byte(s, first + i);
  }
  void fill_floats(Guarded& buffer) {
    for (int64_t i = 0; i < buffer.bytes() / 4; ++i) {
      const float x = value(r_, i);
      std::memcpy(buffer.data() + 4 * i, &x, 4);
    }
  }

  void expect(bool holds, std::string_view what) {
    ++report_.checks;
    if (!holds && report_.failures.size() < 20) {
      report_.failures.push_back(fmt::format("rank {}/{} of {}, seed {}: {}", r_, P_, group_, seed_, what));
    }
  }
  // Counters of one call: bytes by the formula; `moved` is what all ranks together must move for it.
  void expect_counted(const CommCounters& before, CommKind kind, int64_t bytes, int64_t moved, std::string_view what) {
    const CommCounters::Kind &now = comm_.counters().of(kind), &then = before.of(kind);
    expect(now.calls == then.calls + 1, fmt::format("{}: counted {} calls", what, now.calls - then.calls));
    expect(now.bytes_sent - then.bytes_sent == bytes,
           fmt::format("{}: counted {} bytes sent, formula {}", what, now.bytes_sent - then.bytes_sent, bytes));
    moved_ += moved;
  }
  Status moved_equals_counted(int64_t own) {
    std::vector<int64_t> all(P_);
    WEFT_RETURN_IF_ERROR(comm_.all_gather("moved", {.src = &own, .dst = all.data(), .rows = P_, .row_bytes = 8}));
    const int64_t total = std::accumulate(all.begin(), all.end(), int64_t{0});
    expect(total == moved_, fmt::format("the ranks moved {} bytes, formulas without padding {}", total, moved_));
    return {};
  }

  Status all_gather(int64_t rows, int64_t row_bytes) {
    ++call_;
    const std::string what = fmt::format("all_gather {} rows of {} bytes", rows, row_bytes);
    const int64_t first = first_row_of_rank(P_, rows, r_) * row_bytes;
    Guarded src(first_row_of_rank(P_, rows, r_ + 1) * row_bytes - first), dst(rows * row_bytes),
        in_place(rows * row_bytes);
    fill(src, 0, first);
    std::memcpy(in_place.data() + first, src.data(), src.bytes());
    const CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(
        comm_.all_gather(what, {.src = src.data(), .dst = dst.data(), .rows = rows, .row_bytes = row_bytes}));
    expect_counted(before, CommKind::kAllGather, all_gather_bytes(P_, rows, row_bytes), (P_ - 1) * rows * row_bytes,
                   what);
    WEFT_RETURN_IF_ERROR(comm_.all_gather(
        what, {.src = in_place.data() + first, .dst = in_place.data(), .rows = rows, .row_bytes = row_bytes}));
    moved_ += (P_ - 1) * rows * row_bytes;
    bool equal = true;
    for (int64_t i = 0; i < dst.bytes(); ++i) equal &= dst.data()[i] == byte(0, i) && in_place.data()[i] == byte(0, i);
    expect(equal, what + ": wrong bytes");
    expect(dst.tail_untouched() && in_place.tail_untouched(), what + ": tail written");
    return {};
  }

  // What dst must hold for element i of the whole value.
  bool is_sum(Guarded& dst, DType dtype, int64_t at, int64_t i) {
    std::array<float, kMaxRanks> partials;
    for (int s = 0; s < P_; ++s) partials[s] = value(s, i);
    const float sum = reference_sum({partials.data(), static_cast<size_t>(P_)});
    if (dtype == DType::kF32) return std::memcmp(dst.data() + 4 * at, &sum, 4) == 0;
    const bf16 cast = to_bf16(sum);
    return std::memcmp(dst.data() + 2 * at, &cast, 2) == 0;
  }

  Status reductions(int64_t rows, int64_t width) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ++call_;
      const int64_t elem = dtype_bits(dtype) / 8;
      const std::string what = fmt::format("{} rows of {} floats to {}", rows, width, dtype_name(dtype));
      const int64_t first = first_row_of_rank(P_, rows, r_), own = first_row_of_rank(P_, rows, r_ + 1) - first;
      Guarded src(rows * width * 4), part(own * width * elem), all(rows * width * elem);
      fill_floats(src);
      ReduceArgs args{.src = src.floats(), .dst = part.data(), .dst_dtype = dtype, .rows = rows, .width = width};
      CommCounters before = comm_.counters();
      WEFT_RETURN_IF_ERROR(comm_.reduce_scatter(what, args));
      const int64_t partial_bytes = (P_ - 1) * rows * width * 4;
      expect_counted(before, CommKind::kReduceScatter, reduce_scatter_bytes(P_, rows, width), partial_bytes, what);
      args.dst = all.data();
      before = comm_.counters();
      WEFT_RETURN_IF_ERROR(comm_.all_reduce(what, args));
      expect_counted(before, CommKind::kAllReduce, all_reduce_bytes(P_, rows, width, elem),
                     partial_bytes + (P_ - 1) * rows * width * elem, what);
      expect(all_reduce_bytes(P_, rows, width, elem) == (P_ - 1) * rows_per_rank(P_, rows) * width * (4 + elem),
             what + ": all_reduce counts (P-1) * ceil(T/P) * W * (4 + b)");
      bool all_right = true,
           part_right = std::memcmp(part.data(), all.data() + first * width * elem, part.bytes()) == 0;
      for (int64_t i = 0; i < rows * width; ++i) all_right &= is_sum(all, dtype, i, i);
      expect(all_right, "all_reduce " + what + ": wrong bits");
      expect(part_right, "reduce_scatter " + what + ": not the bits of all_reduce");
      expect(part.tail_untouched() && all.tail_untouched(), what + ": tail written");
      expect(src.tail_untouched() && (rows * width == 0 || src.floats()[0] == value(r_, 0)), what + ": src written");
    }
    return {};
  }

  // Row counts that differ, with a rank that has none.
  Status uneven(int64_t row_bytes) {
    std::vector<int64_t> counts(P_);
    for (int s = 0; s < P_; ++s) counts[s] = (s * 5 + 3) % 7 == 1 || s == 1 ? 0 : (s * 5 + 3) % 7;
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + r_, int64_t{0});
    ++call_;
    const std::string what = fmt::format("uneven rows of {} bytes", row_bytes);
    Guarded src(counts[r_] * row_bytes), dst(rows * row_bytes);
    fill(src, 0, first * row_bytes);
    CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(
        comm_.all_gather_v(what, {.src = src.data(), .dst = dst.data(), .rows = rows, .row_bytes = row_bytes}, counts));
    expect_counted(before, CommKind::kAllGatherV, all_gather_v_bytes(P_, counts[r_], row_bytes),
                   (P_ - 1) * rows * row_bytes, what);
    bool equal = true;
    for (int64_t i = 0; i < dst.bytes(); ++i) equal &= dst.data()[i] == byte(0, i);
    expect(equal, "all_gather_v: wrong bytes");
    expect(dst.tail_untouched(), "all_gather_v: tail written");

    Guarded partial(rows * row_bytes * 4), sums(counts[r_] * row_bytes * 2);
    fill_floats(partial);
    before = comm_.counters();
    WEFT_RETURN_IF_ERROR(comm_.reduce_scatter_v(
        what,
        {.src = partial.floats(), .dst = sums.data(), .dst_dtype = DType::kBF16, .rows = rows, .width = row_bytes},
        counts));
    expect_counted(before, CommKind::kReduceScatterV, reduce_scatter_v_bytes(counts, counts[r_], row_bytes),
                   (P_ - 1) * rows * row_bytes * 4, what);
    bool right = true;
    for (int64_t i = 0; i < counts[r_] * row_bytes; ++i) right &= is_sum(sums, DType::kBF16, i, first * row_bytes + i);
    expect(right, "reduce_scatter_v: wrong bits");
    expect(sums.tail_untouched(), "reduce_scatter_v: tail written");
    return uneven_exchange(row_bytes);
  }

  // Rank s sends (s + 2p) % 5 pieces to rank p; the receiver spreads them with gaps.
  Status uneven_exchange(int64_t piece) {
    ++call_;
    const auto pieces = [](int s, int p) { return int64_t{(s + 2 * p) % 5}; };
    const int64_t gap = piece + 8;
    std::vector<Guarded> out, in;
    std::vector<Blocks> send, recv;
    std::vector<int64_t> to_peer;
    int64_t moved = 0;
    for (int p = 0; p < P_; ++p) {
      fill(out.emplace_back(pieces(r_, p) * piece), r_ * P_ + p);
      in.emplace_back(pieces(p, r_) * gap);
      for (int s = 0; s < P_; ++s) moved += s == p ? 0 : pieces(s, p) * piece;
      to_peer.push_back(out.back().bytes());
    }
    for (int p = 0; p < P_; ++p) {
      send.push_back(contiguous_block(out[p].data(), out[p].bytes()));
      recv.push_back({reinterpret_cast<std::byte*>(in[p].data()), gap, pieces(p, r_), piece});
    }
    const CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(comm_.all_to_all_v("uneven", send, recv));
    expect_counted(before, CommKind::kAllToAllV, all_to_all_v_bytes(to_peer, r_), moved, "all_to_all_v");
    bool equal = true, gaps_kept = true;
    for (int p = 0; p < P_; ++p) {
      for (int64_t i = 0; i < in[p].bytes(); ++i) {
        const int64_t at = i % gap;
        if (at < piece)
          equal &= in[p].data()[i] == byte(p * P_ + r_, i / gap * piece + at);
        else
          gaps_kept &= in[p].data()[i] == kPoison;
      }
      gaps_kept &= in[p].tail_untouched();
    }
    expect(equal, "all_to_all_v: wrong bytes");
    expect(gaps_kept, "all_to_all_v: bytes between the pieces, or tail, written");
    return {};
  }

  Status all_reduce_max(int64_t count) {
    ++call_;
    const std::string what = fmt::format("all_reduce_max {} floats", count);
    Guarded src(count * 4), dst(count * 4);
    fill_floats(src);
    // Element 1 is NaN on the last rank, element 2 negative everywhere.
    if (count > 1 && r_ == P_ - 1) src.floats()[1] = std::numeric_limits<float>::quiet_NaN();
    if (count > 2) src.floats()[2] = -1.0f - static_cast<float>(r_);
    const CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(comm_.all_reduce_max(what, src.floats(), dst.floats(), count));
    expect_counted(before, CommKind::kAllReduceMax, all_reduce_max_bytes(P_, count), P_ * (P_ - 1) * count * 4, what);
    bool right = true;
    for (int64_t i = 0; i < count; ++i) {
      float largest = value(0, i);
      for (int s = 1; s < P_; ++s) largest = std::max(largest, value(s, i));
      if (i == 1)
        right &= std::isnan(dst.floats()[i]);
      else
        right &= dst.floats()[i] == (i == 2 ? -1.0f : largest);
    }
    expect(right, what + ": wrong");
    expect(dst.tail_untouched(), what + ": tail written");
    return {};
  }

  // X_s[j] has bytes byte(s, j * row + i). There and back; and the slice of each rank on the way.
  Status heads_and_tokens(int64_t local_rows, int64_t row_bytes) {
    ++call_;
    const std::string what = fmt::format("heads to tokens, {} rows of {} bytes", local_rows, row_bytes);
    const int64_t slice = row_bytes / P_;
    Guarded src(local_rows * row_bytes), there(P_ * local_rows * slice), back(local_rows * row_bytes);
    fill(src, r_);
    const CommCounters before = comm_.counters();
    const int64_t per_peer = local_rows * slice, moved = P_ * (P_ - 1) * per_peer;
    WEFT_RETURN_IF_ERROR(comm_.all_to_all(what, heads_to_tokens(src.data(), there.data(), P_, local_rows, row_bytes)));
    expect_counted(before, CommKind::kAllToAll, all_to_all_bytes(P_, per_peer), moved, what);
    WEFT_RETURN_IF_ERROR(comm_.all_to_all(what, tokens_to_heads(there.data(), back.data(), P_, local_rows, row_bytes)));
    moved_ += moved;
    bool right = true;
    for (int s = 0; s < P_; ++s) {
      for (int64_t j = 0; j < local_rows; ++j) {
        for (int64_t i = 0; i < slice; ++i) {
          right &= there.data()[(s * local_rows + j) * slice + i] == byte(s, j * row_bytes + r_ * slice + i);
        }
      }
    }
    expect(right, what + ": wrong bytes");
    expect(std::memcmp(src.data(), back.data(), src.bytes()) == 0, what + ": the way back differs");
    expect(there.tail_untouched() && back.tail_untouched(), what + ": tail written");
    return {};
  }

  // sharding.md 2.2: slabs at the run-time stride, groups at the capacity's; rows behind the valid ones keep their
  // bytes.
  Status group_major_exchange(int64_t local_rows, int64_t groups_per_rank, int64_t row_bytes) {
    ++call_;
    const std::string what = fmt::format("group-major, {} rows of {} bytes", local_rows, row_bytes);
    const GroupMajor layout{.groups_per_rank = groups_per_rank,
                            .local_rows = local_rows,
                            .src_group_rows = local_rows + 3,
                            .dst_group_rows = P_ * (local_rows + 3),
                            .row_bytes = row_bytes};
    const int64_t groups = groups_per_rank * P_;
    Guarded src(groups * layout.src_group_rows * row_bytes), dst(groups_per_rank * layout.dst_group_rows * row_bytes);
    fill(src, r_);
    const CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(comm_.all_to_all(what, group_major(src.data(), dst.data(), layout)));
    const int64_t per_peer = groups_per_rank * local_rows * row_bytes;
    expect_counted(before, CommKind::kAllToAll, all_to_all_bytes(P_, per_peer), P_ * (P_ - 1) * per_peer, what);
    bool right = true, kept = dst.tail_untouched();
    for (int64_t lg = 0; lg < groups_per_rank; ++lg) {
      for (int64_t row = 0; row < layout.dst_group_rows; ++row) {
        for (int64_t i = 0; i < row_bytes; ++i) {
          const uint8_t got = dst.data()[(lg * layout.dst_group_rows + row) * row_bytes + i];
          if (row >= P_ * local_rows) {
            kept &= got == kPoison;
            continue;
          }
          const int64_t s = row / local_rows, j = row % local_rows, g = r_ * groups_per_rank + lg;
          right &= got == byte(static_cast<int>(s), (g * layout.src_group_rows + j) * row_bytes + i);
        }
      }
    }
    expect(right, what + ": wrong bytes");
    expect(kept, what + ": tail of a group written");
    return {};
  }

  Status columns(int64_t rows, int64_t slice) {
    ++call_;
    const std::string what = fmt::format("columns, {} rows of {} bytes", rows, slice);
    Guarded src(rows * slice), dst(rows * slice * P_);
    fill(src, r_);
    const CommCounters before = comm_.counters();
    WEFT_RETURN_IF_ERROR(comm_.all_to_all(what, gather_columns(src.data(), dst.data(), P_, rows, slice)));
    expect_counted(before, CommKind::kAllToAll, all_to_all_bytes(P_, rows * slice), P_ * (P_ - 1) * rows * slice, what);
    bool right = dst.tail_untouched();
    for (int64_t i = 0; i < dst.bytes(); ++i) {
      const int64_t row = i / (slice * P_), column = i % (slice * P_);
      right &= dst.data()[i] == byte(static_cast<int>(column / slice), row * slice + column % slice);
    }
    expect(right, what + ": wrong bytes");
    return {};
  }

  Status broadcasts(int64_t bytes) {
    for (const int root : {0, P_ - 1}) {
      ++call_;
      const std::string what = fmt::format("broadcast {} bytes from {}", bytes, root);
      Guarded data(bytes);
      if (r_ == root) fill(data, root);
      const CommCounters before = comm_.counters();
      WEFT_RETURN_IF_ERROR(comm_.broadcast(what, data.data(), bytes, root));
      expect_counted(before, CommKind::kBroadcast, broadcast_bytes(P_, r_, root, bytes), (P_ - 1) * bytes, what);
      bool right = data.tail_untouched();
      for (int64_t i = 0; i < bytes; ++i) right &= data.data()[i] == byte(root, i);
      expect(right, what + ": wrong bytes");
    }
    return {};
  }

  // Two collectives that go on while others run, waited for in the order of their start; one in place of another's
  // kind.
  Status started(int64_t rows, int64_t row_bytes) {
    ++call_;
    const std::string what = fmt::format("started with {} rows of {} bytes", rows, row_bytes);
    const int64_t first = first_row_of_rank(P_, rows, r_) * row_bytes, slice = row_bytes;
    Guarded src(first_row_of_rank(P_, rows, r_ + 1) * row_bytes - first), dst(rows * row_bytes), part(rows * slice),
        columns(rows * P_ * slice);
    fill(src, 0, first);
    fill(part, r_ + 1);
    CommCounters before = comm_.counters();
    WEFT_ASSIGN_OR_RETURN(
        const auto gather,
        comm_.start_all_gather(what, {.src = src.data(), .dst = dst.data(), .rows = rows, .row_bytes = row_bytes}));
    expect_counted(before, CommKind::kAllGather, all_gather_bytes(P_, rows, row_bytes), (P_ - 1) * rows * row_bytes,
                   what);
    before = comm_.counters();
    WEFT_ASSIGN_OR_RETURN(const auto exchange,
                          comm_.start_all_to_all(what, gather_columns(part.data(), columns.data(), P_, rows, slice)));
    expect_counted(before, CommKind::kAllToAll, all_to_all_bytes(P_, rows * slice), P_ * (P_ - 1) * rows * slice, what);
    comm_.progress();
    const Guarded kept = dst;  // of the same call and bytes as what is under way
    Guarded own = src, same = kept;
    WEFT_RETURN_IF_ERROR(
        comm_.all_gather(what, {.src = own.data(), .dst = same.data(), .rows = rows, .row_bytes = row_bytes}));
    moved_ += (P_ - 1) * rows * row_bytes;
    WEFT_RETURN_IF_ERROR(comm_.barrier("between"));
    comm_.progress();
    WEFT_RETURN_IF_ERROR(comm_.wait(gather));
    WEFT_RETURN_IF_ERROR(comm_.wait(exchange));
    bool equal = true;
    for (int64_t i = 0; i < dst.bytes(); ++i) equal &= dst.data()[i] == byte(0, i) && same.data()[i] == byte(0, i);
    for (int64_t i = 0; i < columns.bytes(); ++i) {
      const int64_t t = i / (P_ * slice), s = i / slice % P_;
      equal &= columns.data()[i] == byte(static_cast<int>(s) + 1, t * slice + i % slice);
    }
    expect(equal, what + ": wrong bytes");
    expect(dst.tail_untouched() && columns.tail_untouched() && same.tail_untouched(), what + ": tail written");
    return {};
  }

  // Three messages to the next rank, three from the one before, all under way at once, waited for in another order; one
  // side in pieces.
  Status point_to_point(int64_t bytes) {
    if (P_ == 1) return {};
    ++call_;
    const int next = (r_ + 1) % P_, previous = (r_ + P_ - 1) % P_;
    constexpr int kMessages = 3;
    std::vector<Guarded> out, in;
    std::vector<Communicator::Request> sends, receives;
    for (int m = 0; m < kMessages; ++m) fill(out.emplace_back(bytes), r_, m * 1'000'003);
    for (int m = 0; m < kMessages; ++m) in.emplace_back(2 * bytes);
    const CommCounters before = comm_.counters();
    for (int m = 0; m < kMessages; ++m) {
      const std::string name = fmt::format("message {}", m);
      WEFT_ASSIGN_OR_RETURN(sends.emplace_back(), comm_.start_send(name, next, contiguous_block(out[m].data(), bytes)));
      const Blocks every_second{reinterpret_cast<std::byte*>(in[m].data()), 2, bytes, 1};
      WEFT_ASSIGN_OR_RETURN(receives.emplace_back(), comm_.start_recv(name, previous, every_second));
    }
    for (const int m : {2, 0, 1}) WEFT_RETURN_IF_ERROR(comm_.wait(receives[m]));
    for (const int m : {1, 2, 0}) WEFT_RETURN_IF_ERROR(comm_.wait(sends[m]));
    const CommCounters::Kind sent = comm_.counters().of(CommKind::kSend), then = before.of(CommKind::kSend);
    expect(sent.calls - then.calls == kMessages && sent.bytes_sent - then.bytes_sent == kMessages * bytes,
           "send: wrong counters");
    moved_ += P_ * kMessages * bytes;
    bool right = true;
    for (int m = 0; m < kMessages; ++m) {
      for (int64_t i = 0; i < bytes; ++i) {
        right &= in[m].data()[2 * i] == byte(previous, m * 1'000'003 + i) && in[m].data()[2 * i + 1] == kPoison;
      }
      right &= in[m].tail_untouched();
    }
    expect(right, fmt::format("messages of {} bytes: wrong bytes", bytes));
    return {};
  }

  Communicator& comm_;
  std::string group_;
  uint64_t seed_;
  ConformanceReport& report_;
  const int P_, r_;
  uint64_t call_ = 0;
  int64_t moved_ = 0;
};

// The rank lists of one way to divide the world, of which this rank takes its own.
std::vector<std::vector<std::vector<int>>> divisions(int P) {
  std::vector<int> all(P), evens, odds;
  std::iota(all.begin(), all.end(), 0);
  for (const int r : all) (r % 2 == 0 ? evens : odds).push_back(r);
  const std::vector<int> reversed(all.rbegin(), all.rend());
  const std::vector<int> low(all.begin(), all.begin() + (P + 1) / 2), high(all.begin() + (P + 1) / 2, all.end());
  return {{reversed}, {evens, odds}, {low, high}};
}

Status run_all(Communicator& world, uint64_t seed, ConformanceReport& report) {
  WEFT_RETURN_IF_ERROR(Suite(world, "the world", seed, report).run(Sizes::kAll));
  for (const auto& division : divisions(world.size())) {
    for (const std::vector<int>& ranks : division) {
      if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) continue;
      WEFT_ASSIGN_OR_RETURN(const auto group, world.subgroup(ranks));
      const std::string name = fmt::format("group {}", fmt::join(ranks, ","));
      WEFT_RETURN_IF_ERROR(Suite(*group, name, seed, report).run(Sizes::kSmall));
      // A group of a group: its ranks are counted in the group.
      const std::vector<int> first = {0};
      if (group->rank() == 0) {
        WEFT_ASSIGN_OR_RETURN(const auto alone, group->subgroup(first));
        WEFT_RETURN_IF_ERROR(alone->barrier("alone"));
      }
    }
  }
  return world.barrier("end");
}

}  // namespace

ConformanceReport run_conformance(Communicator& world, uint64_t seed) {
  ConformanceReport report;
  if (const Status status = run_all(world, seed, report); !status.ok()) report.failures.push_back(status.message());
  return report;
}

}  // namespace weft
