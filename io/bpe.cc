#include "io/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace weft {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();  // ids are not negative, so no pair has this key
// Up to here looking through all pairs for the best one is faster than a heap (words are mostly 2 to 10 bytes).
constexpr size_t kShortPiece = 48;

constexpr size_t kRememberedPieces = 8192;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Fibonacci hashing: the high bits of the product are well mixed.
size_t hash_slot(uint64_t key, size_t slots) { return (key * 0x9e3779b97f4a7c15u) >> (64 - std::countr_zero(slots)); }

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_tokens, size_t expected) : byte_tokens_(byte_tokens) {
  slots_.assign(std::bit_ceil(std::max<size_t>(16, 2 * expected)), Slot{kEmpty, {}});
}

void BpeMerges::add(int32_t left, int32_t right, int32_t result) {
  WEFT_CHECK(left >= 0 && right >= 0 && result >= 0 && next_rank_ < kNoRank);
  if (2 * (count_ + 1) > slots_.size()) grow();
  const uint64_t key = pair_key(left, right);
  size_t slot = hash_slot(key, slots_.size());
  while (slots_[slot].pair != kEmpty && slots_[slot].pair != key) slot = (slot + 1) & (slots_.size() - 1);
  count_ += slots_[slot].pair == kEmpty;
  slots_[slot] = {key, {next_rank_++, result}};
}

void BpeMerges::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{kEmpty, {}});
  old.swap(slots_);
  for (const Slot& entry : old) {
    if (entry.pair == kEmpty) continue;
    size_t slot = hash_slot(entry.pair, slots_.size());
    while (slots_[slot].pair != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = entry;
  }
}

BpeMerges::Merge BpeMerges::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t slot = hash_slot(key, slots_.size());
  while (true) {
    const Slot& entry = slots_[slot];
    if (entry.pair == key) return entry.merge;
    if (entry.pair == kEmpty) return {kNoRank, -1};
    slot = (slot + 1) & (slots_.size() - 1);
  }
}

void BpeMerges::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_tokens_[static_cast<uint8_t>(piece[0])]);
  } else if (piece.size() <= Scratch::kMaxPiece && !scratch.remembered.empty()) {
    encode_remembered(piece, scratch, out);
  } else if (piece.size() <= kShortPiece) {
    encode_short(piece, scratch, out);
  } else {
    encode_long(piece, scratch, out);
  }
}

BpeMerges::Scratch::Scratch(bool remember_pieces) : remembered(remember_pieces ? kRememberedPieces : 0) {}

void BpeMerges::encode_remembered(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  uint64_t key[2] = {0, 0};
  std::memcpy(key, piece.data(), piece.size());
  reinterpret_cast<char*>(key)[sizeof(key) - 1] = static_cast<char>(piece.size());
  const size_t slot = hash_slot(key[0] ^ (key[1] * 0xff51afd7ed558ccdu), scratch.remembered.size());
  Scratch::Remembered& entry = scratch.remembered[slot];
  if (entry.piece[0] == key[0] && entry.piece[1] == key[1]) {
    out.insert(out.end(), entry.tokens, entry.tokens + entry.count);
    return;
  }
  const size_t before = out.size();
  encode_short(piece, scratch, out);
  const size_t count = out.size() - before;
  if (count > Scratch::kMaxTokens) return;
  std::memcpy(entry.piece, key, sizeof(key));
  entry.count = static_cast<int32_t>(count);
  std::copy_n(out.end() - static_cast<std::ptrdiff_t>(count), count, entry.tokens);
}

void BpeMerges::encode_short(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  auto& symbols = scratch.symbols;
  symbols.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) symbols[i].token = byte_tokens_[static_cast<uint8_t>(piece[i])];
  const auto look_up = [&](size_t i) {
    const Merge merge = find(symbols[i].token, symbols[i + 1].token);
    symbols[i].rank = merge.rank;
    symbols[i].result = merge.result;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) look_up(i);
  symbols.back().rank = kNoRank;
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < symbols.size(); ++i) {
      if (symbols[i].rank < symbols[best].rank) best = i;
    }
    if (symbols[best].rank == kNoRank) break;
    symbols[best].token = symbols[best].result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best > 0) look_up(best - 1);
    if (best + 1 < symbols.size()) {
      look_up(best);
    } else {
      symbols[best].rank = kNoRank;
    }
  }
  for (const auto& symbol : symbols) out.push_back(symbol.token);
}

// A heap of candidates; one whose symbols have changed since is skipped when it comes up.
void BpeMerges::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  WEFT_CHECK(piece.size() < static_cast<size_t>(kNoRank), "a piece of {} bytes", piece.size());
  constexpr int32_t kEnd = -1, kGone = -2;
  const int32_t count = static_cast<int32_t>(piece.size());
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  nodes.resize(piece.size());
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    nodes[static_cast<size_t>(i)] = {byte_tokens_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1,
                                     i + 1 < count ? i + 1 : kEnd};
  }
  const auto node = [&](int32_t i) -> Scratch::Node& { return nodes[static_cast<size_t>(i)]; };
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto consider = [&](int32_t i) {
    if (i == kEnd || node(i).next == kEnd) return false;
    const int32_t left = node(i).token, right = node(node(i).next).token;
    const Merge merge = find(left, right);
    if (merge.rank == kNoRank) return false;
    heap.push_back({merge.rank, i, left, right, merge.result});
    return true;
  };
  for (int32_t i = 0; i < count; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Node& left = node(top.position);
    if (left.token != top.left || left.next == kEnd || node(left.next).token != top.right) continue;
    Scratch::Node& right = node(left.next);
    left.token = top.result;
    left.next = right.next;
    right.token = kGone;
    if (left.next != kEnd) node(left.next).previous = top.position;
    if (consider(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
    if (consider(top.position)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (int32_t i = 0; i != kEnd; i = node(i).next) out.push_back(node(i).token);
}

}  // namespace weft
