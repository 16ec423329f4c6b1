#include "io/checkpoint.h"

#include <gtest/gtest.h>

#include <functional>

#include "io/safetensors_writer.h"
#include "io/test_files.h"

namespace weft {
namespace {

// One U8[2] tensor per name.
std::string shard_image(std::initializer_list<const char*> names) {
  std::string header = "{";
  int64_t offset = 0;
  for (const char* name : names) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}})", offset == 0 ? "" : ",", name,
                          offset, offset + 2);
    offset += 2;
  }
  return safetensors_image(header + "}", offset);
}

void put_index(const TempDir& dir, const std::string& weight_map) {
  dir.put("model.safetensors.index.json", R"({"metadata":{"total_size":6},"weight_map":)" + weight_map + "}");
}

TEST(Checkpoint, SingleFile) {
  TempDir dir;
  dir.put("config.json", R"({"model_type":"x"})");
  dir.put("model.safetensors", shard_image({"a", "b"}));
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->contents(), Checkpoint::Contents::kTensors);
  EXPECT_EQ(checkpoint->config()["model_type"], "x");
  EXPECT_EQ(checkpoint->entries().size(), 2u);
  ASSERT_NE(checkpoint->find("b"), nullptr);
  EXPECT_EQ(checkpoint->find("b")->data, checkpoint->find("a")->data + 2);
  EXPECT_EQ(checkpoint->find("c"), nullptr);
  EXPECT_FALSE(checkpoint->index_total_size());
}

TEST(Checkpoint, Shards) {
  TempDir dir;
  dir.put("config.json", "{}");
  dir.put("s1.safetensors", shard_image({"a", "b"}));
  dir.put("s2.safetensors", shard_image({"c"}));
  dir.put("other.safetensors", "not of this model");
  put_index(dir, R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})");
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->files().size(), 2u);
  EXPECT_EQ(checkpoint->index_total_size(), 6);
  const Checkpoint moved = std::move(*checkpoint);  // names and data stay where they are
  ASSERT_NE(moved.find("c"), nullptr);
  EXPECT_EQ(moved.find("c")->file, 1);
  EXPECT_EQ(moved.find("c")->data[0], std::byte{0});
}

TEST(Checkpoint, HeadersOnly) {
  TempDir dir;
  dir.put("config.json", "{}");
  auto checkpoint = Checkpoint::open_headers_only(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->contents(), Checkpoint::Contents::kConfigOnly);
  EXPECT_TRUE(checkpoint->names().empty());

  put_index(dir, R"({"a":"s1.safetensors","c":"s2.safetensors"})");
  checkpoint = Checkpoint::open_headers_only(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->contents(), Checkpoint::Contents::kNames);
  EXPECT_EQ(checkpoint->names().size(), 2u);
  EXPECT_TRUE(checkpoint->has_name("c"));
  EXPECT_TRUE(checkpoint->entries().empty());
  EXPECT_EQ(checkpoint->find("c"), nullptr);

  dir.put("s1.safetensors", shard_image({"a"}));
  EXPECT_NE(
      Checkpoint::open_headers_only(dir.path()).status().message().find("s2.safetensors is missing (1 of 2 shards"),
      std::string::npos);
}

TEST(Checkpoint, Malformed) {
  struct Case { const char* what; std::function<void(const TempDir&)> fill; const char* message; };
  const char* both = R"({"a":"s1.safetensors","b":"s2.safetensors"})";
  const auto shards = [](const TempDir& d, std::initializer_list<const char*> s1,
                         std::initializer_list<const char*> s2) {
    d.put("s1.safetensors", shard_image(s1));
    d.put("s2.safetensors", shard_image(s2));
  };
  const Case cases[] = {
      {"nothing", [](const TempDir&) {}, ": no weights; expected model.safetensors or model.safetensors.index.json"},
      {"all shards missing", [&](const TempDir& d) { put_index(d, both); },
       "s1.safetensors is missing (2 of 2 shards are)"},
      {"in the index, not in the shard",
       [&](const TempDir& d) {
         put_index(d, both);
         shards(d, {"a"}, {});
       },
       "s2.safetensors: tensor 'b' is in the index but not in this shard"},
      {"in the shard, not in the index",
       [&](const TempDir& d) {
         put_index(d, both);
         shards(d, {"a", "z"}, {"b"});
       },
       "s1.safetensors: tensor 'z' is in this shard but not in the index"},
      {"in two shards",
       [&](const TempDir& d) {
         put_index(d, both);
         shards(d, {"a"}, {"b", "a"});
       },
       "s2.safetensors: tensor 'a' is in this shard but the index places it in s1.safetensors"},
      {"path", [](const TempDir& d) { put_index(d, R"({"a":"../s1.safetensors"})"); },
       "tensor 'a': shard '../s1.safetensors' is not a plain file name"},
      {"absolute path", [](const TempDir& d) { put_index(d, R"({"a":"/etc/passwd"})"); }, "is not a plain file name"},
      {"dots", [](const TempDir& d) { put_index(d, R"({"a":".."})"); }, "shard '..' is not a plain file name"},
      {"nul", [](const TempDir& d) { put_index(d, R"({"a":"s1\u0000"})"); }, "is not a plain file name"},
      {"shard is a number", [](const TempDir& d) { put_index(d, R"({"a":1})"); },
       "tensor 'a': expected a shard name, found an integer"},
      {"no weight_map", [](const TempDir& d) { d.put("model.safetensors.index.json", "{}"); }, "weight_map is missing"},
      {"tensor twice in the index", [](const TempDir& d) { put_index(d, R"({"a":"s1","a":"s2"})"); },
       "key 'a' appears twice"},
      {"stray single file",
       [&](const TempDir& d) {
         put_index(d, both);
         shards(d, {"a"}, {"b"});
         d.put("model.safetensors", shard_image({"a"}));
       },
       "model.safetensors lies beside it and is not one of its shards"},
      {"truncated shard",
       [&](const TempDir& d) {
         put_index(d, both);
         shards(d, {"a"}, {"b"});
         std::filesystem::resize_file(d.path() / "s2.safetensors",
                                      std::filesystem::file_size(d.path() / "s2.safetensors") - 1);
       },
       "s2.safetensors: tensor 'b': data_offsets [0, 2) lie outside the 1 bytes of data; is the file truncated?"},
  };
  for (const Case& c : cases) {
    TempDir dir;
    dir.put("config.json", "{}");
    c.fill(dir);
    const auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_FALSE(checkpoint.ok()) << c.what;
    EXPECT_NE(checkpoint.status().message().find(c.message), std::string::npos)
        << c.what << ": " << checkpoint.status().message();
  }
  TempDir dir;
  EXPECT_NE(Checkpoint::open(dir.path()).status().message().find("config.json: cannot open"), std::string::npos);
  EXPECT_NE(Checkpoint::open(dir.path() / "x").status().message().find("x: not a folder with a model"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
