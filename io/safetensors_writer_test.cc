#include "io/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "io/checkpoint.h"
#include "io/test_files.h"

namespace weft {
namespace {

const NamedTensorType kTensors[] = {
    {"odd", {DType::kU8, {3}}},        {"half", {DType::kBF16, {2, 2}}}, {"none", {DType::kF32, {0, 4}}},
    {"ids", {DType::kI64, {2}}},       {"quote\"é", {DType::kF8E4M3, {5}}}, {"scalar", {DType::kF32, {}}},
};

int64_t total_bytes() {
  int64_t bytes = 0;
  for (const NamedTensorType& t : kTensors) bytes += t.type.bytes();
  return bytes;
}

// Written in pieces of any size, read back by name.
TEST(SafetensorsWriter, RoundTrip) {
  std::string data(total_bytes(), '\0');
  std::iota(data.begin(), data.end(), '\1');
  for (size_t piece : {size_t{1}, size_t{7}, data.size()}) {
    TempDir dir;
    const auto path = dir.path() / "m.safetensors";
    {
      const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
      auto writer = SafetensorsWriter::create(path, kTensors, metadata);
      ASSERT_TRUE(writer.ok()) << writer.status().message();
      for (size_t at = 0; at < data.size(); at += piece) {
        ASSERT_TRUE(writer->write(std::as_bytes(std::span(data).subspan(at, std::min(piece, data.size() - at)))).ok());
      }
      EXPECT_FALSE(std::filesystem::exists(path));
      ASSERT_TRUE(writer->finish().ok());
      EXPECT_EQ(writer->file_bytes(), static_cast<int64_t>(std::filesystem::file_size(path)));
    }
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "m.safetensors.tmp"));
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((*file)->metadata()[0].second, "pt");
    const char* expected = data.data();
    for (const NamedTensorType& t : kTensors) {
      const SafetensorsEntry* entry = (*file)->find(t.name);
      ASSERT_NE(entry, nullptr) << t.name;
      EXPECT_EQ(entry->type, t.type);
      EXPECT_EQ(std::memcmp((*file)->data(*entry), expected, t.type.bytes()), 0) << t.name;
      expected += t.type.bytes();
    }
  }
}

TEST(SafetensorsWriter, NothingHalfWrittenRemains) {
  TempDir dir;
  dir.put("m.safetensors", "old");
  {
    auto writer = SafetensorsWriter::create(dir.path() / "m.safetensors", kTensors);
    ASSERT_TRUE(writer.ok());
    SafetensorsWriter moved = std::move(*writer);
    ASSERT_TRUE(moved.write(std::as_bytes(std::span("abc", 3))).ok());
    EXPECT_TRUE(std::filesystem::exists(dir.path() / "m.safetensors.tmp"));
  }
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "m.safetensors.tmp"));
  EXPECT_EQ(std::filesystem::file_size(dir.path() / "m.safetensors"), 3u);
}

TEST(SafetensorsWriter, Errors) {
  struct Case {
    const char* what;
    std::filesystem::path path;
    std::vector<NamedTensorType> tensors;
    const char* message;
  };
  TempDir dir;
  const NamedTensorType a{"a", {DType::kU8, {1}}};
  const Case cases[] = {
      {"twice", dir.path() / "f", {a, a}, "f: tensor 'a': the name is used twice"},
      {"reserved", dir.path() / "f", {{"__metadata__", a.type}}, "tensor '__metadata__'"},
      {"fp4",
       dir.path() / "f",
       {{"a", {DType::kF4E2M1, {2}}}},
       "tensor 'a': F4_E2M1[2] is stored as I8 with half the columns"},
      {"not UTF-8", dir.path() / "f", {{"a\xff", a.type}}, "the name of tensor 0 is not UTF-8"},
      {"no folder", dir.path() / "none" / "f", {a}, "f.tmp: cannot create: No such file or directory"},
  };
  for (const Case& c : cases) {
    const auto writer = SafetensorsWriter::create(c.path, c.tensors);
    ASSERT_FALSE(writer.ok()) << c.what;
    EXPECT_NE(writer.status().message().find(c.message), std::string::npos)
        << c.what << ": " << writer.status().message();
  }
  // The final name is taken by a folder meanwhile: finish fails and cleans up.
  auto writer = SafetensorsWriter::create(dir.path() / "taken", std::vector<NamedTensorType>{a});
  ASSERT_TRUE(writer.ok());
  std::filesystem::create_directories(dir.path() / "taken" / "x");
  ASSERT_TRUE(writer->write(std::as_bytes(std::span("a", 1))).ok());
  const Status status = writer->finish();
  EXPECT_EQ(status.code(), StatusCode::kMachineFailed);
  EXPECT_NE(status.message().find("taken: cannot finish"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "taken.tmp"));
}

TEST(SafetensorsWriter, ShardsAndIndex) {
  TempDir dir;
  dir.put("config.json", "{}");
  std::vector<std::pair<std::string, std::string>> weight_map;
  int64_t total = 0;
  for (int shard = 1; shard <= 2; ++shard) {
    const std::string name = shard_file_name(shard, 2);
    const NamedTensorType tensor{fmt::format("t{}", shard), {DType::kI8, {4}}};
    auto writer = SafetensorsWriter::create(dir.path() / name, std::span(&tensor, 1));
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write(std::as_bytes(std::span("abcd", 4))).ok());
    ASSERT_TRUE(writer->finish().ok());
    weight_map.emplace_back(tensor.name, name);
    total += 4;
  }
  EXPECT_EQ(shard_file_name(3, 46), "model-00003-of-00046.safetensors");
  ASSERT_TRUE(write_safetensors_index(dir.path(), weight_map, total).ok());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->entries().size(), 2u);
  EXPECT_EQ(checkpoint->index_total_size(), 8);
}

}  // namespace
}  // namespace weft
