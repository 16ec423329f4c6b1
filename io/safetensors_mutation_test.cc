// The header parser on seeded mutations of valid files: it must neither crash nor accept a tensor outside the file.
#include <gtest/gtest.h>

#include <random>

#include "io/safetensors.h"
#include "io/test_files.h"

namespace weft {
namespace {

std::string mutate(std::string image, const std::vector<std::string>& all, std::mt19937_64& rng) {
  const auto below = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  for (size_t rounds = 1 + below(4); rounds > 0 && !image.empty(); --rounds) {
    const size_t at = below(image.size());
    switch (below(8)) {
      case 0: image[at] = static_cast<char>(rng()); break;
      case 1: image[at] ^= static_cast<char>(1 << below(8)); break;
      case 2: image.erase(at, 1 + below(8)); break;
      case 3: image.insert(at, 1 + below(4), "0123456789[]{},:\"\\ \xff"[below(20)]); break;
      case 4: image.resize(at); break;
      case 5: image.insert(at, image.substr(below(image.size()), 1 + below(60))); break;
      case 6: {  // a number becomes another
        const size_t digit = image.find_first_of("0123456789", at);
        if (digit != image.npos) image[digit] = static_cast<char>('0' + below(10));
        break;
      }
      default: {  // the tail of another file
        const std::string& other = all[below(all.size())];
        image = image.substr(0, at) + other.substr(std::min(at, other.size()));
      }
    }
  }
  return image;
}

TEST(Safetensors, Mutations) {
  const std::vector<std::string> valid = {
      safetensors_image(
          R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}   )",
          32),
      safetensors_image(
          R"({"__metadata__":{"format":"pt"},"x.y":{"dtype":"F8_E4M3","shape":[8,2],"data_offsets":[0,16]},"x.z":{"dtype":"F8_E8M0","shape":[1,1],"data_offsets":[16,17]}})",
          17),
      safetensors_image("{}", 0),
      safetensors_image(
          R"({"\u00e9":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"BOOL","shape":[0],"data_offsets":[8,8]}}       )",
          8),
  };
  constexpr uint64_t kSeed = 20260811;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 rng(kSeed);
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string image = mutate(valid[rng() % valid.size()], valid, rng);
    const auto header = parse_safetensors_header(std::as_bytes(std::span(image)), image.size(), "f");
    if (!header.ok()) {
      EXPECT_FALSE(header.status().message().empty());
      continue;
    }
    ++accepted;
    int64_t covered = header->data_offset;
    for (const SafetensorsEntry& entry : header->entries) {
      EXPECT_EQ(entry.offset, covered) << i;
      covered += entry.type.bytes();
    }
    EXPECT_EQ(covered, static_cast<int64_t>(image.size())) << i;
  }
  EXPECT_GT(accepted, 10);    // the mutations are not so wild that only the first check is reached
  EXPECT_LT(accepted, 1500);
}

}  // namespace
}  // namespace weft
