#include "io/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace weft {
namespace {

using Pair = std::pair<int32_t, int32_t>;
using Table = std::map<Pair, std::pair<int32_t, int32_t>>;  // pair -> rank, result

// The definition: join the lowest-ranked, leftmost pair until there is none.
std::vector<int32_t> naive(const Table& table, std::vector<int32_t> tokens) {
  while (true) {
    size_t best = tokens.size();
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto it = table.find({tokens[i], tokens[i + 1]});
      if (it == table.end()) continue;
      if (best == tokens.size() || it->second.first < table.at({tokens[best], tokens[best + 1]}).first) best = i;
    }
    if (best == tokens.size()) return tokens;
    tokens[best] = table.at({tokens[best], tokens[best + 1]}).second;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Random merges over four letters: long chains, ties, pairs that compete. Short and long pieces take different paths.
TEST(BpeMerges, EqualsTheDefinition) {
  std::array<int32_t, 256> bytes{};
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<int32_t>(255 - i);
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 rng(seed);
    BpeMerges merges(bytes, 0);  // grows
    Table table;
    std::map<int32_t, std::string> text;
    std::map<std::string, int32_t> ids;
    for (char c : {'a', 'b', 'c', 'd'}) {
      text[bytes[static_cast<uint8_t>(c)]] = c;
      ids[std::string(1, c)] = bytes[static_cast<uint8_t>(c)];
    }
    std::vector<int32_t> known;
    for (const auto& [id, unused] : text) known.push_back(id);
    for (int32_t rank = 0; rank < 120; ++rank) {
      const int32_t left = known[rng() % known.size()], right = known[rng() % known.size()];
      const std::string joined = text[left] + text[right];
      if (joined.size() > 24) {
        --rank;
        continue;
      }
      // The same text is the same token, as in a vocabulary.
      const auto [it, fresh] = ids.emplace(joined, 300 + rank);
      if (fresh) {
        text[it->second] = joined;
        known.push_back(it->second);
      }
      merges.add(left, right, it->second);
      table[{left, right}] = {rank, it->second};
    }
    BpeMerges::Scratch scratch, remembering(/*remember_pieces=*/true);
    for (size_t length : {1, 2, 3, 7, 8, 15, 16, 20, 47, 48, 49, 50, 200, 600}) {
      std::string piece;
      const unsigned letters = 1 + rng() % 4;
      while (piece.size() < length) piece += static_cast<char>('a' + rng() % letters);
      std::vector<int32_t> start, out;
      for (char c : piece) start.push_back(bytes[static_cast<uint8_t>(c)]);
      for (int again = 0; again < 2; ++again) {
        out.clear();
        merges.encode(piece, scratch, out);
        EXPECT_EQ(out, naive(table, start)) << "seed " << seed << " " << piece;
        std::vector<int32_t> remembered;
        merges.encode(piece, remembering, remembered);
        EXPECT_EQ(remembered, out) << "seed " << seed << " " << piece;
      }
    }
  }
}

TEST(BpeMerges, LastRankOfAPairCounts) {
  std::array<int32_t, 256> bytes{};
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<int32_t>(i);
  BpeMerges merges(bytes, 3);
  merges.add('a', 'b', 300);
  merges.add('b', 'c', 301);
  merges.add('a', 'b', 300);
  BpeMerges::Scratch scratch;
  std::vector<int32_t> out;
  merges.encode("abc", scratch, out);
  EXPECT_EQ(out, (std::vector<int32_t>{'a', 301}));
}

}  // namespace
}  // namespace weft
