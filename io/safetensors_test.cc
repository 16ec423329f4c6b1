#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "io/test_files.h"

namespace weft {
namespace {

std::span<const std::byte> bytes_of(const std::string& image) { return std::as_bytes(std::span(image)); }

// One row per malformation; the header is followed by `data` zero bytes.
TEST(Safetensors, Malformed) {
  struct Case { const char* what; std::string header; size_t data; const char* message; };
  const Case cases[] = {
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "f: tensor 'b': data_offsets [2, 6) overlap 'a', which ends at 4"},
      {"gap",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
       10, "f: tensor 'b': a gap of 2 bytes before its data at 6"},
      {"gap at the start", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5,
       "f: tensor 'a': a gap of 1 bytes"},
      {"rest", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 9,
       "f: 5 bytes of data after the last tensor belong to none"},
      {"outside", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3,
       "f: tensor 'a': data_offsets [0, 4) lie outside the 3 bytes of data; is the file truncated?"},
      {"reversed", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4,
       "f: tensor 'a': data_offsets end 0 < begin 4"},
      {"size", R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20,
       "f: tensor 'a': F32[2,3] needs 24 bytes but data_offsets covers 20"},
      {"dtype", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8, "tensor 'a': unknown dtype 'F64'"},
      {"fp4 as a file dtype", R"({"a":{"dtype":"F4_E2M1","shape":[2],"data_offsets":[0,1]}})", 1,
       "tensor 'a': unknown dtype 'F4_E2M1'"},
      {"rank", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
       "tensor 'a': more than 5 numbers in 'shape'"},
      {"huge shape", R"({"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}})", 0,
       "tensor 'a': shape [4611686018427387904,8] is too large"},
      {"huge number", R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0,
       "tensor 'a': number too large"},
      {"huge offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})", 1,
       "lie outside the 1 bytes of data"},
      {"negative", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}})", 0,
       "tensor 'a': 'shape' cannot be a negative number"},
      {"fraction", R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,0]}})", 0,
       "tensor 'a': 'shape' cannot be a fraction"},
      {"tensor twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "f: tensor 'a': appears twice in the header"},
      {"field twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "tensor 'a': key 'dtype' appears twice"},
      {"field missing", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a': 'shape' is missing"},
      {"field unknown", R"({"a":{"dtype":"U8","shape":[1],"strides":[1],"data_offsets":[0,1]}})", 1,
       "tensor 'a': unknown key 'strides'"},
      {"three offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "tensor 'a': data_offsets needs two numbers"},
      {"nested list", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1,
       "tensor 'a': 'shape' cannot be a list"},
      {"tensor is text", R"({"a":"x"})", 0, "tensor 'a': expected an object, found a string"},
      {"root is a list", R"([])", 0, "f: header: byte 1: expected an object, found a list"},
      {"bad UTF-8", "{\"a\xff\":{}}", 0,
       "f: header: byte 4: syntax error while parsing object key - invalid string: ill-formed UTF-8"},
      {"bad JSON", R"({"a":)", 0, "f: header: byte 6: syntax error"},
      {"metadata value", R"({"__metadata__":{"k":1}})", 0, "__metadata__: 'k' cannot be a number"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__: appears twice"},
      {"metadata key twice", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "__metadata__: key 'k' appears twice"},
      {"deep", R"({"a":)" + std::string(100000, '['), 0, "tensor 'a': expected an object, found a list"},
  };
  for (const Case& c : cases) {
    const std::string image = safetensors_image(c.header, c.data);
    const auto header = parse_safetensors_header(bytes_of(image), image.size(), "f");
    ASSERT_FALSE(header.ok()) << c.what;
    EXPECT_NE(header.status().message().find(c.message), std::string::npos)
        << c.what << ": " << header.status().message();
  }
}

TEST(Safetensors, MalformedSizeField) {
  struct Case { const char* what; std::string image; const char* message; };
  const std::string good = safetensors_image(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  std::string beyond = good, huge = good;
  beyond[1] = 1;
  huge[3] = 7;
  const Case cases[] = {
      {"empty", "", "f: 0 bytes are too few"},
      {"seven bytes", good.substr(0, 7), "f: 7 bytes are too few"},
      {"cut in the header", good.substr(0, 30), "the header claims 53 bytes but the file has 30; is it truncated?"},
      {"beyond the file", beyond, "the header claims 309 bytes but the file has 65"},
      {"over 100 MB", huge, "more than the allowed 100000000"},
      {"all ones", std::string(16, '\xff'), "the header claims 18446744073709551615 bytes, more than the allowed"},
  };
  for (const Case& c : cases) {
    const auto header = parse_safetensors_header(bytes_of(c.image), c.image.size(), "f");
    ASSERT_FALSE(header.ok()) << c.what;
    EXPECT_NE(header.status().message().find(c.message), std::string::npos)
        << c.what << ": " << header.status().message();
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse_safetensors_header(bytes_of(good).first(size), size, "f").ok()) << size;
  }
  EXPECT_TRUE(parse_safetensors_header(bytes_of(good), good.size(), "f").ok());
}

TEST(Safetensors, EveryDtypeAndOrder) {
  // Tensors out of file order, an empty one, a scalar, metadata, padding after the JSON.
  const std::string header =
      R"({"u8":{"dtype":"U8","shape":[3],"data_offsets":[28,31]},"__metadata__":{"format":"pt","k":""},)"
      R"("i64":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"f32":{"shape":[1,2],"data_offsets":[8,16],"dtype":"F32"},)"
      R"("i32":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},"f16":{"dtype":"F16","shape":[1],"data_offsets":[20,22]},)"
      R"("bf16":{"dtype":"BF16","shape":[3],"data_offsets":[22,28]},"none":{"dtype":"F32","shape":[4,0],"data_offsets":[31,31]},)"
      R"("e4m3":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[31,32]},"e8m0":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[32,33]},)"
      R"("i8":{"dtype":"I8","shape":[1],"data_offsets":[33,34]},"bool":{"dtype":"BOOL","shape":[1],"data_offsets":[34,35]}})";
  TempDir dir;
  const size_t padding = 8 - header.size() % 8;
  std::string image = safetensors_image(header + std::string(padding, ' '), 35);
  image[image.size() - 35 + 28] = 77;
  const auto file = SafetensorsFile::open(dir.put("m.safetensors", image));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->entries().size(), 11u);
  EXPECT_EQ((*file)->entries().front().name, "i64");
  const SafetensorsEntry* u8 = (*file)->find("u8");
  ASSERT_NE(u8, nullptr);
  EXPECT_EQ(*(*file)->data(*u8), std::byte{77});
  EXPECT_EQ(to_string((*file)->view(*u8).type), "U8[3]");
  EXPECT_EQ(to_string((*file)->find("none")->type), "F32[4,0]");
  EXPECT_EQ((*file)->find("missing"), nullptr);
  ASSERT_EQ((*file)->metadata().size(), 2u);
  EXPECT_EQ((*file)->metadata()[0].second, "pt");
}

// The format promises no alignment, and the reference library reads such files at every offset.
TEST(Safetensors, UnalignedTensorsAreRead) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"empty":{"dtype":"F32","shape":[0],"data_offsets":[3,3]},)"
      R"("i64":{"dtype":"I64","shape":[2],"data_offsets":[3,19]},"bf16":{"dtype":"BF16","shape":[1],"data_offsets":[19,21]},)"
      R"("f32":{"dtype":"F32","shape":[1],"data_offsets":[21,25]}})";
  const int64_t integers[] = {7, -9};
  const float number = 1.5F;
  const uint16_t bits = 0x3fc0;
  TempDir dir;
  int copied = 0;
  for (size_t padding = 0; padding < sizeof(int64_t); ++padding) {
    std::string image = safetensors_image(header + std::string(padding, ' '), 25);
    std::byte* data = reinterpret_cast<std::byte*>(image.data()) + image.size() - 25;
    std::memcpy(data, "abc", 3);
    std::memcpy(data + 3, integers, sizeof(integers));
    std::memcpy(data + 19, &bits, sizeof(bits));
    std::memcpy(data + 21, &number, sizeof(number));
    const auto file = SafetensorsFile::open(dir.put("m.safetensors", image));
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (const SafetensorsEntry& entry : (*file)->entries()) {
      if (entry.type.bytes() == 0) continue;
      const auto address = reinterpret_cast<uintptr_t>((*file)->data(entry));
      EXPECT_EQ(address % static_cast<uintptr_t>(dtype_bits(entry.type.dtype) / 8), 0u) << entry.name << " " << padding;
    }
    const auto view = [&](const char* name) { return (*file)->view(*(*file)->find(name)); };
    EXPECT_EQ(std::memcmp(view("a").as<uint8_t>(), "abc", 3), 0);
    EXPECT_EQ(view("i64").as<int64_t>()[0], 7) << padding;
    EXPECT_EQ(view("i64").as<int64_t>()[1], -9) << padding;
    EXPECT_EQ(view("f32").as<float>()[0], 1.5F) << padding;
    EXPECT_EQ(std::memcmp(view("bf16").data, &bits, sizeof(bits)), 0) << padding;
    copied += (*file)->copied_bytes() > 0 ? 1 : 0;
  }
  EXPECT_GT(copied, 4);
}

TEST(Safetensors, NoTensors) {
  const std::string image = safetensors_image("{}", 0);
  EXPECT_TRUE(parse_safetensors_header(bytes_of(image), image.size(), "f").ok());
}

// A release has about 70,000 tensors; the bound is generous for sanitizer builds.
TEST(Safetensors, ManyTensors) {
  std::string header = "{";
  constexpr int kTensors = 70000;
  for (int i = 0; i < kTensors; ++i) {
    header +=
        fmt::format(R"({}"layers.{}.ffn.experts.{}.w1.weight":{{"dtype":"I8","shape":[1,2],"data_offsets":[{},{}]}})",
                    i == 0 ? "" : ",", i / 1000, i % 1000, 2 * i, 2 * i + 2);
  }
  const std::string image = safetensors_image(header + "}", 2 * kTensors);
  const auto start = std::chrono::steady_clock::now();
  const auto parsed = parse_safetensors_header(bytes_of(image), image.size(), "f");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->entries.size(), static_cast<size_t>(kTensors));
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1e3));
  EXPECT_LT(seconds.count(), 5.0);
}

}  // namespace
}  // namespace weft
