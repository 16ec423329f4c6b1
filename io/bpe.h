// Byte-pair merging on token ids.
//
// The bytes of a piece start as one token each; of all neighbouring pairs that a merge joins, the one with the lowest
// rank (the leftmost of equals) is joined, until no pair is left. O(n log n) for a piece of n bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

class BpeMerges {
 public:
  // byte_tokens: the token of each byte. expected: number of merges to come.
  BpeMerges(const std::array<int32_t, 256>& byte_tokens, size_t expected);

  // Merges come in the order of their ranks. A pair that comes twice counts with its last rank.
  void add(int32_t left, int32_t right, int32_t result);

  // Reused between calls, so that short pieces allocate nothing. Texts repeat their words: with `remember_pieces` the
  // tokens of short pieces are kept (about 0.3 MB, worth it from some 10 KB of text on). One BpeMerges per Scratch.
  struct Scratch {
    static constexpr size_t kMaxPiece = 15, kMaxTokens = 5;
    struct Remembered {
      uint64_t piece[2] = {0, 0};  // the bytes, zeros, and the length in the last byte; length 0: a free place
      int32_t count = 0;
      int32_t tokens[kMaxTokens] = {};
    };

    explicit Scratch(bool remember_pieces = false);

    std::vector<Remembered> remembered;  // by hash; a power of two, or empty

    struct Symbol {
      int32_t token, rank, result;  // rank and result of the pair with the next symbol; kNoRank: none
    };
    struct Node {
      int32_t token, previous, next;
    };
    struct Candidate {
      int32_t rank, position, left, right, result;
    };
    std::vector<Symbol> symbols;
    std::vector<Node> nodes;
    std::vector<Candidate> heap;
  };

  // Appends the tokens of `piece`.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank, result;
  };
  struct Slot {
    uint64_t pair;
    Merge merge;
  };

  Merge find(int32_t left, int32_t right) const;
  void grow();
  void encode_remembered(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_short(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_tokens_;
  std::vector<Slot> slots_;  // open addressing, a power of two
  size_t count_ = 0;
  int32_t next_rank_ = 0;
};

}  // namespace weft
