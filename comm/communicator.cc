#include "comm/communicator.h"

#include <fmt/format.h>

#include "comm/board.h"
#include "comm/bytes.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, kNumCommKinds> kKindNames = {
    "all_gather",     "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_reduce",
    "all_reduce_max", "all_to_all",   "all_to_all_v",   "broadcast",        "barrier",
    "send",           "recv",         "subgroup",
};

uint64_t hash_counts(std::span<const int64_t> counts) { return hash_bytes(counts.data(), counts.size_bytes()); }

int64_t elem_bytes(DType dtype) { return dtype_bits(dtype) / 8; }

}  // namespace

std::string_view comm_kind_name(CommKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

int64_t CommCounters::bytes_sent() const {
  int64_t total = 0;
  for (const Kind& kind : kinds) total += kind.bytes_sent;
  return total;
}

void Communicator::count(CommKind kind, int64_t bytes_sent) {
  CommCounters::Kind& counter = counters_.of(kind);
  ++counter.calls;
  counter.bytes_sent += bytes_sent;
}

void Communicator::split_flat(int64_t rows) {
  first_rows_.resize(members_.size() + 1);
  for (int r = 0; r <= size(); ++r) first_rows_[r] = first_row_of_rank(size(), rows, r);
}

void Communicator::split_counts(std::span<const int64_t> counts) {
  WEFT_CHECK(counts.size() == members_.size(), "{} counts for {} ranks", counts.size(), members_.size());
  first_rows_.assign(1, 0);
  for (const int64_t count : counts) {
    WEFT_CHECK(count >= 0, "{} rows", count);
    first_rows_.push_back(first_rows_.back() + count);
  }
}

// send_ and recv_: the rows of first_rows_, each rank's from its own buffer.
void Communicator::gather_blocks(const GatherArgs& args) {
  WEFT_CHECK(args.rows == first_rows_.back() && args.row_bytes >= 0, "{} rows of {} bytes, the ranks have {}",
             args.rows, args.row_bytes, first_rows_.back());
  const auto block = [&](const void* data, int r) {
    return contiguous_block(data, (first_rows_[r + 1] - first_rows_[r]) * args.row_bytes);
  };
  send_.assign(members_.size(), block(args.src, rank_));
  recv_.resize(members_.size());
  for (int r = 0; r < size(); ++r) {
    recv_[r] = block(static_cast<std::byte*>(args.dst) + first_rows_[r] * args.row_bytes, r);
  }
}

void Communicator::exchange_blocks(const Exchange& exchange) {
  WEFT_CHECK(exchange.send.first.total_bytes() == exchange.recv.first.total_bytes(),
             "sends {} bytes to each rank, receives {}", exchange.send.first.total_bytes(),
             exchange.recv.first.total_bytes());
  send_.resize(members_.size());
  recv_.resize(members_.size());
  for (int peer = 0; peer < size(); ++peer) {
    send_[peer] = exchange.send.of(peer);
    recv_[peer] = exchange.recv.of(peer);
  }
}

Status Communicator::all_gather(std::string_view name, const GatherArgs& args) {
  OpRecord op = make_op(CommKind::kAllGather, name, args.rows, args.row_bytes);
  split_flat(args.rows);
  gather_blocks(args);
  WEFT_RETURN_IF_ERROR(do_exchange(op, send_, recv_));
  count(CommKind::kAllGather, all_gather_bytes(size(), args.rows, args.row_bytes));
  return {};
}

Status Communicator::all_gather_v(std::string_view name, const GatherArgs& args, std::span<const int64_t> counts) {
  OpRecord op = make_op(CommKind::kAllGatherV, name, args.rows, args.row_bytes, DType::kU8, -1, hash_counts(counts));
  split_counts(counts);
  gather_blocks(args);
  WEFT_RETURN_IF_ERROR(do_exchange(op, send_, recv_));
  count(CommKind::kAllGatherV, all_gather_v_bytes(size(), counts[rank_], args.row_bytes));
  return {};
}

Communicator::Reduction Communicator::reduction(const ReduceArgs& args) {
  WEFT_CHECK(args.dst_dtype == DType::kF32 || args.dst_dtype == DType::kBF16, "sum to {}", dtype_name(args.dst_dtype));
  WEFT_CHECK(args.rows == first_rows_.back() && args.width >= 0, "{} rows of {} floats, the ranks have {}", args.rows,
             args.width, first_rows_.back());
  return {args.src, args.dst, args.dst_dtype, args.width, first_rows_};
}

Status Communicator::reduce_scatter(std::string_view name, const ReduceArgs& args) {
  OpRecord op = make_op(CommKind::kReduceScatter, name, args.rows, args.width * kPartialBytes, args.dst_dtype);
  split_flat(args.rows);
  WEFT_RETURN_IF_ERROR(do_reduce_scatter(op, reduction(args)));
  count(CommKind::kReduceScatter, reduce_scatter_bytes(size(), args.rows, args.width));
  return {};
}

Status Communicator::reduce_scatter_v(std::string_view name, const ReduceArgs& args, std::span<const int64_t> counts) {
  OpRecord op = make_op(CommKind::kReduceScatterV, name, args.rows, args.width * kPartialBytes, args.dst_dtype, -1,
                        hash_counts(counts));
  split_counts(counts);
  WEFT_RETURN_IF_ERROR(do_reduce_scatter(op, reduction(args)));
  count(CommKind::kReduceScatterV, reduce_scatter_v_bytes(counts, counts[rank_], args.width));
  return {};
}

Status Communicator::all_reduce(std::string_view name, const ReduceArgs& args) {
  OpRecord op = make_op(CommKind::kAllReduce, name, args.rows, args.width * kPartialBytes, args.dst_dtype);
  split_flat(args.rows);
  WEFT_RETURN_IF_ERROR(do_all_reduce(op, reduction(args)));
  count(CommKind::kAllReduce, all_reduce_bytes(size(), args.rows, args.width, elem_bytes(args.dst_dtype)));
  return {};
}

Status Communicator::all_reduce_max(std::string_view name, const float* src, float* dst, int64_t elements) {
  WEFT_CHECK(elements >= 0, "{} floats", elements);
  OpRecord op = make_op(CommKind::kAllReduceMax, name, elements, 4, DType::kF32);
  WEFT_RETURN_IF_ERROR(do_all_reduce_max(op, src, dst, elements));
  count(CommKind::kAllReduceMax, all_reduce_max_bytes(size(), elements));
  return {};
}

Status Communicator::all_to_all(std::string_view name, const Exchange& exchange) {
  const int64_t bytes = exchange.send.first.total_bytes();
  OpRecord op = make_op(CommKind::kAllToAll, name, 1, bytes);
  exchange_blocks(exchange);
  WEFT_RETURN_IF_ERROR(do_exchange(op, send_, recv_));
  count(CommKind::kAllToAll, all_to_all_bytes(size(), bytes));
  return {};
}

Status Communicator::all_to_all_v(std::string_view name, std::span<const Blocks> send, std::span<const Blocks> recv) {
  WEFT_CHECK(send.size() == members_.size() && recv.size() == members_.size(), "{} and {} blocks for {} ranks",
             send.size(), recv.size(), members_.size());
  WEFT_CHECK(send[rank_].total_bytes() == recv[rank_].total_bytes(), "own block of {} and {} bytes",
             send[rank_].total_bytes(), recv[rank_].total_bytes());
  OpRecord op = make_op(CommKind::kAllToAllV, name, 0, 0);
  WEFT_RETURN_IF_ERROR(do_exchange(op, send, recv));
  std::vector<int64_t> bytes_to_peer;
  for (const Blocks& blocks : send) bytes_to_peer.push_back(blocks.total_bytes());
  count(CommKind::kAllToAllV, all_to_all_v_bytes(bytes_to_peer, rank_));
  return {};
}

Status Communicator::broadcast(std::string_view name, void* data, int64_t bytes, int root) {
  WEFT_CHECK(root >= 0 && root < size() && bytes >= 0, "{} bytes from rank {} of {}", bytes, root, size());
  OpRecord op = make_op(CommKind::kBroadcast, name, 1, bytes, DType::kU8, root);
  WEFT_RETURN_IF_ERROR(do_broadcast(op, contiguous_block(data, bytes), root));
  count(CommKind::kBroadcast, broadcast_bytes(size(), rank_, root, bytes));
  return {};
}

Status Communicator::barrier(std::string_view name) {
  OpRecord op = make_op(CommKind::kBarrier, name, 0, 0);
  WEFT_RETURN_IF_ERROR(do_barrier(op));
  count(CommKind::kBarrier, 0);
  return {};
}

Result<Communicator::Request> Communicator::start_send(std::string_view name, int to, const Blocks& data) {
  WEFT_CHECK(to >= 0 && to < size() && to != rank_, "rank {} of {} sends to {}", rank_, size(), to);
  OpRecord op = make_op(CommKind::kSend, name, 1, data.total_bytes(), DType::kU8, members_[to]);
  WEFT_ASSIGN_OR_RETURN(Request request, do_start(op, to, data));
  count(CommKind::kSend, data.total_bytes());
  return request;
}

Result<Communicator::Request> Communicator::start_recv(std::string_view name, int from, const Blocks& data) {
  WEFT_CHECK(from >= 0 && from < size() && from != rank_, "rank {} of {} receives from {}", rank_, size(), from);
  OpRecord op = make_op(CommKind::kRecv, name, 1, data.total_bytes(), DType::kU8, members_[from]);
  WEFT_ASSIGN_OR_RETURN(Request request, do_start(op, from, data));
  count(CommKind::kRecv, 0);
  return request;
}

Result<Communicator::Request> Communicator::start_all_gather(std::string_view name, const GatherArgs& args) {
  OpRecord op = make_op(CommKind::kAllGather, name, args.rows, args.row_bytes);
  split_flat(args.rows);
  gather_blocks(args);
  WEFT_ASSIGN_OR_RETURN(const Request request, do_start_exchange(op, send_, recv_));
  count(CommKind::kAllGather, all_gather_bytes(size(), args.rows, args.row_bytes));
  return request;
}

Result<Communicator::Request> Communicator::start_all_to_all(std::string_view name, const Exchange& exchange) {
  const int64_t bytes = exchange.send.first.total_bytes();
  OpRecord op = make_op(CommKind::kAllToAll, name, 1, bytes);
  exchange_blocks(exchange);
  WEFT_ASSIGN_OR_RETURN(const Request request, do_start_exchange(op, send_, recv_));
  count(CommKind::kAllToAll, all_to_all_bytes(size(), bytes));
  return request;
}

Status Communicator::wait(Request request) { return do_wait(request); }

Status Communicator::send(std::string_view name, int to, const Blocks& data) {
  WEFT_ASSIGN_OR_RETURN(const Request request, start_send(name, to, data));
  return wait(request);
}

Status Communicator::recv(std::string_view name, int from, const Blocks& data) {
  WEFT_ASSIGN_OR_RETURN(const Request request, start_recv(name, from, data));
  return wait(request);
}

}  // namespace weft
