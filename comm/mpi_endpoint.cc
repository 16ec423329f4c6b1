#include "comm/mpi_endpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "comm/bytes.h"
#include "comm/tree_sum.h"

namespace weft {
namespace {

// Tags of point-to-point messages and of headers; those of collectives lie above and depend on the whole call, so that
// ranks in different calls never take each other's data.
constexpr int kTagP2pHeader = 1, kTagP2pData = 2, kTagHeader = 3, kTagForm = 4;
constexpr int kFirstTag = 16;
constexpr int kTags = 16000;  // two each; MPI promises tags up to 32767
// Of collectives that are started and waited for later: other calls of the group go on beside them. Those that share a
// tag are started in the same order everywhere, which is the order in which MPI matches them.
constexpr int kFirstStartedTag = kFirstTag + 2 * kTags, kStartedTags = 700;

// MPI counts in int. Longer pieces are described by a type of this many bytes.
constexpr int64_t kLongPiece = int64_t{1} << 30;
constexpr int64_t kUnit = int64_t{1} << 20;

constexpr int64_t kBroadcastSegment = int64_t{1} << 18;

// A type of `bytes` bytes, any number.
MPI_Datatype piece_type(int64_t bytes) {
  MPI_Datatype type;
  if (bytes < kLongPiece) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
    return type;
  }
  MPI_Datatype unit, units;
  MPI_Type_contiguous(static_cast<int>(kUnit), MPI_BYTE, &unit);
  MPI_Type_contiguous(static_cast<int>(bytes / kUnit), unit, &units);
  const int lengths[] = {1, static_cast<int>(bytes % kUnit)};
  const MPI_Aint offsets[] = {0, static_cast<MPI_Aint>(bytes / kUnit * kUnit)};
  const MPI_Datatype types[] = {units, MPI_BYTE};
  MPI_Type_create_struct(2, lengths, offsets, types, &type);
  MPI_Type_free(&unit);
  MPI_Type_free(&units);
  return type;
}

// What MPI is told about a block.
struct Described {
  explicit Described(const Blocks& blocks) : base(blocks.base) {
    const int64_t total = blocks.total_bytes();
    if (blocks.contiguous() && total < kLongPiece) {
      count = static_cast<int>(total);
      return;
    }
    MPI_Datatype piece = piece_type(blocks.contiguous() ? total : blocks.bytes);
    MPI_Type_create_hvector(blocks.contiguous() ? 1 : static_cast<int>(blocks.count), 1, blocks.stride, piece, &type);
    MPI_Type_free(&piece);
    MPI_Type_commit(&type);
    count = 1;
  }
  ~Described() {
    if (type != MPI_BYTE) MPI_Type_free(&type);  // MPI keeps it for transfers under way
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  void* base;
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
};

}  // namespace

Status mpi_error(const char* what, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return machine_failed(fmt::format("{}: {}", what, text));
}

void MpiComm::complete(OpRecord& op) {
  op.group = id_;
  op.members = set_;
  op.step = board_.slot(me_).step.load(std::memory_order_relaxed);
}

Status MpiComm::open(OpRecord& op) {
  if (board_.failed()) return board_.failure();
  complete(op);
  op.sequence = sequence_++;
  board_.begin_op(me_, op);
  WEFT_RETURN_IF_ERROR(board_.compare_calls(me_, op));
  if (job_.headers && size() > 1) WEFT_RETURN_IF_ERROR(compare_headers(op));
  return {};
}

int MpiComm::tag(const OpRecord& op, Phase phase) {
  const uint64_t hash = hash_bytes(&op.call_hash, sizeof(op.call_hash), static_cast<uint64_t>(op.sequence));
  if (phase == Phase::kStarted) return kFirstStartedTag + static_cast<int>(hash % kStartedTags);
  return kFirstTag + 2 * static_cast<int>(hash % kTags) + (phase == Phase::kSecond ? 1 : 0);
}

Status MpiComm::close() {
  board_.end_op(me_);
  return {};
}

Status MpiComm::compare_headers(const OpRecord& op) {
  std::vector<OpRecord> headers(size());
  Transfers transfers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) post_recv(transfers, peer, contiguous_block(&headers[peer], sizeof(OpRecord)), kTagHeader);
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) post_send(transfers, peer, contiguous_block(&op, sizeof(OpRecord)), kTagHeader);
  }
  WEFT_RETURN_IF_ERROR(finish(op, transfers));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && headers[peer].call_hash != op.call_hash) {
      return board_.mismatch(me_, op, members()[peer], headers[peer]);
    }
  }
  return {};
}

void MpiComm::post_send(Transfers& transfers, int peer, const Blocks& data, int tag) {
  const Described described(data);
  MPI_Isend(described.base, described.count, described.type, peer, tag, comm_, &transfers.requests.emplace_back());
  transfers.peers.push_back(peer);
  transfers.expected.push_back(-1);
}

void MpiComm::post_recv(Transfers& transfers, int peer, const Blocks& data, int tag) {
  const Described described(data);
  MPI_Irecv(described.base, described.count, described.type, peer, tag, comm_, &transfers.requests.emplace_back());
  transfers.peers.push_back(peer);
  transfers.expected.push_back(data.total_bytes());
}

// Waits for all, without ever blocking inside MPI.
Status MpiComm::finish(const OpRecord& op, Transfers& transfers) {
  const int count = static_cast<int>(transfers.requests.size());
  std::vector<MPI_Status> statuses(count);
  Wait wait(board_, me_, op);
  while (true) {
    int done = 0;
    const int error = MPI_Testall(count, transfers.requests.data(), &done, statuses.data());
    if (error != MPI_SUCCESS) {
      if (error == MPI_ERR_IN_STATUS) return transfer_fault(op, transfers, statuses);
      return board_.abort(me_, mpi_error("MPI_Testall", error));
    }
    if (done != 0) break;
    if (!wait.pause()) continue;
    RankSet missing;
    for (int i = 0; i < count; ++i) {
      int complete = 1;
      if (transfers.requests[i] != MPI_REQUEST_NULL) {
        MPI_Request_get_status(transfers.requests[i], &complete, MPI_STATUS_IGNORE);
      }
      if (complete == 0) missing.add(members()[transfers.peers[i]]);
    }
    WEFT_RETURN_IF_ERROR(wait.poll(missing));
  }
  for (int i = 0; i < count; ++i) {
    if (transfers.expected[i] < 0) continue;
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&statuses[i], MPI_BYTE, &bytes);
    if (bytes != transfers.expected[i]) {
      return board_.fail(
          StatusCode::kMachineFailed,
          fmt::format("{}: rank {} sends {} bytes to this rank, which expects {}", board_.where(me_),
                      members()[transfers.peers[i]], static_cast<int64_t>(bytes), transfers.expected[i]));
    }
  }
  transfers.clear();
  return {};
}

Status MpiComm::transfer_fault(const OpRecord& op, const Transfers& transfers, std::span<const MPI_Status> statuses) {
  for (size_t i = 0; i < statuses.size(); ++i) {
    const int error = statuses[i].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    int error_class = error;
    MPI_Error_class(error, &error_class);
    const int peer = members()[transfers.peers[i]];
    if (error_class == MPI_ERR_TRUNCATE) {
      return board_.fail(StatusCode::kMachineFailed,
                         fmt::format("{}: rank {} sends more bytes to this rank than the {} that it expects",
                                     board_.where(me_), peer, transfers.expected[i]));
    }
    return board_.abort(me_, mpi_error(fmt::format("transfer with rank {}", peer).c_str(), error));
  }
  return board_.abort(me_, machine_failed(describe(op) + ": MPI reports an error without a transfer"));
}

void MpiComm::post_exchange(const OpRecord& op, Phase phase, std::span<const Blocks> send, std::span<const Blocks> recv,
                            Transfers& transfers) {
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    post_recv(transfers, peer, recv[peer], tag(op, phase));
  }
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + size() - i) % size();
    post_send(transfers, peer, send[peer], tag(op, phase));
    counters_.moved_bytes += send[peer].total_bytes();
  }
  const Blocks& own = send[rank()];
  if (own.base != recv[rank()].base) copy_blocks(own, recv[rank()]);
}

Status MpiComm::run_exchange(const OpRecord& op, Phase phase, std::span<const Blocks> send,
                             std::span<const Blocks> recv) {
  Transfers transfers;
  post_exchange(op, phase, send, recv, transfers);
  return finish(op, transfers);
}

Status MpiComm::do_exchange(OpRecord& op, std::span<const Blocks> send, std::span<const Blocks> recv) {
  WEFT_RETURN_IF_ERROR(open(op));
  WEFT_RETURN_IF_ERROR(run_exchange(op, Phase::kFirst, send, recv));
  return close();
}

// Partials travel in chunks: while one is added the next is under way, and the buffer does not grow with the rows.
Status MpiComm::sum_own_rows(const OpRecord& op, const Reduction& reduction, std::byte* dst) {
  constexpr int64_t kChunk = kMpiReduceChunkBytes / kPartialBytes;
  const int call_tag = tag(op, Phase::kFirst);
  const auto first = [&](int r) { return reduction.first_rows[r] * reduction.width; };
  const auto count = [&](int r) { return first(r + 1) - first(r); };
  const int64_t own = count(rank());
  const int64_t elem_bytes = dtype_bits(reduction.dst_dtype) / 8;
  if (size() > 1) partials_.resize(mpi_reduce_buffer_bytes(size()) / kPartialBytes);

  const auto buffer = [&](int64_t chunk, int peer) {
    const int slot = static_cast<int>(chunk % 2) * (size() - 1) + (peer < rank() ? peer : peer - 1);
    return partials_.data() + slot * kChunk;
  };
  const int64_t chunks = (own + kChunk - 1) / kChunk;
  std::array<Transfers, 2> incoming;
  const auto receive_chunk = [&](int64_t chunk) {
    if (chunk >= chunks) return;
    const int64_t n = std::min(kChunk, own - chunk * kChunk);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      post_recv(incoming[chunk % 2], peer, contiguous_block(buffer(chunk, peer), n * kPartialBytes), call_tag);
    }
  };

  receive_chunk(0);
  Transfers outgoing;
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    const float* rows = reduction.src + first(peer);
    for (int64_t at = 0; at < count(peer); at += kChunk) {
      const int64_t n = std::min(kChunk, count(peer) - at);
      post_send(outgoing, peer, contiguous_block(rows + at, n * kPartialBytes), call_tag);
      counters_.moved_bytes += n * kPartialBytes;
    }
  }
  std::vector<const float*> sources(size());
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    receive_chunk(chunk + 1);
    WEFT_RETURN_IF_ERROR(finish(op, incoming[chunk % 2]));
    const int64_t at = chunk * kChunk;
    for (int peer = 0; peer < size(); ++peer) {
      sources[peer] = peer == rank() ? reduction.src + first(peer) + at : buffer(chunk, peer);
    }
    tree_sum(sources, std::min(kChunk, own - at), dst + at * elem_bytes, reduction.dst_dtype);
  }
  return finish(op, outgoing);
}

Status MpiComm::do_reduce_scatter(OpRecord& op, const Reduction& reduction) {
  WEFT_RETURN_IF_ERROR(open(op));
  WEFT_RETURN_IF_ERROR(sum_own_rows(op, reduction, static_cast<std::byte*>(reduction.dst)));
  return close();
}

Status MpiComm::do_all_reduce(OpRecord& op, const Reduction& reduction) {
  WEFT_RETURN_IF_ERROR(open(op));
  auto* dst = static_cast<std::byte*>(reduction.dst);
  const int64_t row_bytes = reduction.width * dtype_bits(reduction.dst_dtype) / 8;
  gather_recv_.resize(size());
  for (int r = 0; r < size(); ++r) {
    const int64_t first = reduction.first_rows[r], rows = reduction.first_rows[r + 1] - first;
    gather_recv_[r] = contiguous_block(dst + first * row_bytes, rows * row_bytes);
  }
  WEFT_RETURN_IF_ERROR(sum_own_rows(op, reduction, gather_recv_[rank()].base));
  gather_send_.assign(size(), gather_recv_[rank()]);
  WEFT_RETURN_IF_ERROR(run_exchange(op, Phase::kSecond, gather_send_, gather_recv_));
  return close();
}

Status MpiComm::do_all_reduce_max(OpRecord& op, const float* src, float* dst, int64_t count) {
  WEFT_RETURN_IF_ERROR(open(op));
  std::vector<float> all(size() * count);
  gather_send_.assign(size(), contiguous_block(src, count * 4));
  gather_recv_.resize(size());
  std::vector<const float*> sources(size());
  for (int r = 0; r < size(); ++r) {
    sources[r] = all.data() + r * count;
    gather_recv_[r] = contiguous_block(sources[r], count * 4);
  }
  WEFT_RETURN_IF_ERROR(run_exchange(op, Phase::kFirst, gather_send_, gather_recv_));
  max_of(sources, count, dst);
  return close();
}

Status MpiComm::do_broadcast(OpRecord& op, const Blocks& data, int root) {
  WEFT_RETURN_IF_ERROR(open(op));
  const int distance = (rank() - root + size()) % size();
  const int before = (rank() + size() - 1) % size(), behind = (rank() + 1) % size();
  const int64_t total = data.total_bytes();
  const auto segment = [&](int64_t at) {
    return contiguous_block(data.base + at, std::min(kBroadcastSegment, total - at));
  };
  // At least one segment, also of nothing: a call without bytes is compared, too.
  const int64_t segments = std::max<int64_t>(1, (total + kBroadcastSegment - 1) / kBroadcastSegment);
  std::vector<Transfers> incoming(distance > 0 ? segments : 0);
  for (size_t i = 0; i < incoming.size(); ++i) {
    post_recv(incoming[i], before, segment(static_cast<int64_t>(i) * kBroadcastSegment), tag(op, Phase::kFirst));
  }
  Transfers outgoing;
  for (int64_t i = 0; i < segments; ++i) {
    if (distance > 0) WEFT_RETURN_IF_ERROR(finish(op, incoming[i]));
    if (distance == size() - 1) continue;
    const Blocks part = segment(i * kBroadcastSegment);
    post_send(outgoing, behind, part, tag(op, Phase::kFirst));
    counters_.moved_bytes += part.total_bytes();
  }
  WEFT_RETURN_IF_ERROR(finish(op, outgoing));
  return close();
}

// Dissemination: after round k a rank knows of the 2^k ranks before it.
Status MpiComm::do_barrier(OpRecord& op) {
  WEFT_RETURN_IF_ERROR(open(op));
  for (int distance = 1; distance < size(); distance *= 2) {
    Transfers transfers;
    post_recv(transfers, (rank() + size() - distance) % size(), {}, tag(op, Phase::kFirst));
    post_send(transfers, (rank() + distance) % size(), {}, tag(op, Phase::kFirst));
    WEFT_RETURN_IF_ERROR(finish(op, transfers));
  }
  return close();
}

// A header goes ahead of every message: the receiver learns what it gets, and the two need not agree beforehand.
Result<Communicator::Request> MpiComm::do_start(OpRecord& op, int peer, const Blocks& data) {
  if (board_.failed()) return board_.failure();
  complete(op);
  auto pending = std::make_unique<Pending>();
  pending->op = op;
  pending->peer = peer;
  const Blocks header = contiguous_block(&pending->header, sizeof(OpRecord));
  if (op.comm_kind() == CommKind::kSend) {
    pending->header = op;
    post_send(pending->transfers, peer, header, kTagP2pHeader);
    post_send(pending->transfers, peer, data, kTagP2pData);
    counters_.moved_bytes += data.total_bytes();
  } else {
    post_recv(pending->transfers, peer, header, kTagP2pHeader);
    post_recv(pending->transfers, peer, data, kTagP2pData);
  }
  board_.slot(me_).pair_bytes.fetch_add(data.total_bytes());
  const Request request{next_request_++};
  pending_.emplace(request.id, std::move(pending));
  return request;
}

// Calls are compared as far as that needs no waiting; headers between hosts when it is waited for, at the same place on
// every rank.
Result<Communicator::Request> MpiComm::do_start_exchange(OpRecord& op, std::span<const Blocks> send,
                                                         std::span<const Blocks> recv) {
  if (board_.failed()) return board_.failure();
  complete(op);
  op.sequence = sequence_++;
  board_.begin_op(me_, op);
  WEFT_RETURN_IF_ERROR(board_.compare_calls(me_, op));
  auto pending = std::make_unique<Pending>();
  pending->op = op;
  pending->collective = true;
  post_exchange(op, Phase::kStarted, send, recv, pending->transfers);
  WEFT_RETURN_IF_ERROR(close());
  const Request request{next_request_++};
  pending_.emplace(request.id, std::move(pending));
  return request;
}

// MPI moves data of any transfer while one is asked about. The answer is left for wait().
void MpiComm::progress() {
  for (const auto& [id, pending] : pending_) {
    for (const MPI_Request& request : pending->transfers.requests) {
      int complete = 0;
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Request_get_status(request, &complete, MPI_STATUS_IGNORE);
      if (complete == 0) return;
    }
  }
}

Status MpiComm::do_wait(Request request) {
  const auto found = pending_.find(request.id);
  WEFT_CHECK(found != pending_.end(), "wait for request {}, which is none", request.id);
  Pending& pending = *found->second;
  board_.begin_op(me_, pending.op);
  if (pending.collective) {
    if (job_.headers && size() > 1) WEFT_RETURN_IF_ERROR(compare_headers(pending.op));
    WEFT_RETURN_IF_ERROR(finish(pending.op, pending.transfers));
    pending_.erase(found);
    return close();
  }
  if (pending.op.comm_kind() == CommKind::kRecv) {
    // The header first and alone: it explains whatever is wrong with the data.
    Transfers header;
    header.requests.assign(1, pending.transfers.requests.front());
    header.peers.assign(1, pending.peer);
    header.expected.assign(1, sizeof(OpRecord));
    pending.transfers.requests.erase(pending.transfers.requests.begin());
    pending.transfers.peers.erase(pending.transfers.peers.begin());
    pending.transfers.expected.erase(pending.transfers.expected.begin());
    WEFT_RETURN_IF_ERROR(finish(pending.op, header));
    if (pending.header.call_hash != pending.op.call_hash) {
      return board_.mismatch(members()[pending.peer], pending.header, me_, pending.op);
    }
  }
  WEFT_RETURN_IF_ERROR(finish(pending.op, pending.transfers));
  board_.slot(me_).pair_bytes.fetch_sub(pending.op.row_bytes);
  pending_.erase(found);
  return close();
}

Result<std::unique_ptr<Communicator>> MpiComm::subgroup(std::span<const int> ranks) {
  std::vector<int> world_ranks;
  int own = -1;
  for (const int r : ranks) {
    WEFT_CHECK(r >= 0 && r < size(), "rank {} of a group of {}", r, size());
    if (r == rank()) own = static_cast<int>(world_ranks.size());
    world_ranks.push_back(members()[r]);
  }
  WEFT_CHECK(own >= 0, "rank {} is not in its own subgroup", rank());
  if (board_.failed()) return board_.failure();
  OpRecord op = make_op(CommKind::kSubgroup, fmt::format("ranks {}", fmt::join(world_ranks, ",")), 0, 0);
  complete(op);
  board_.begin_op(me_, op);
  // MPI_Comm_create_group blocks, so all members must be known to be here. The name of the call makes the tag.
  Transfers transfers;
  std::vector<uint64_t> hashes(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != rank()) post_recv(transfers, ranks[i], contiguous_block(&hashes[i], sizeof(uint64_t)), kTagForm);
  }
  for (const int peer : ranks) {
    if (peer != rank()) post_send(transfers, peer, contiguous_block(&op.call_hash, sizeof(op.call_hash)), kTagForm);
  }
  WEFT_RETURN_IF_ERROR(finish(op, transfers));
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank() || hashes[i] == op.call_hash) continue;
    return board_.abort(me_, machine_failed(fmt::format("rank {} forms another group", world_ranks[i])));
  }
  MPI_Group all, group;
  MPI_Comm comm;
  MPI_Comm_group(comm_, &all);
  MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group);
  const int error = MPI_Comm_create_group(comm_, group, kTagForm, &comm);
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  if (error != MPI_SUCCESS) return board_.abort(me_, mpi_error("MPI_Comm_create_group", error));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  board_.end_op(me_);
  ++counters_.of(CommKind::kSubgroup).calls;
  const int64_t facts[] = {static_cast<int64_t>(id_), subgroups_[world_ranks]++};
  const uint64_t id =
      hash_bytes(world_ranks.data(), world_ranks.size() * sizeof(int), hash_bytes(facts, sizeof(facts)));
  return std::unique_ptr<Communicator>(std::make_unique<MpiComm>(job_, comm, id, own, std::move(world_ranks)));
}

}  // namespace weft
