#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tensor/buffer.h"

namespace weft {
namespace {

TEST(Tensor, BytesAndText) {
  struct Case { TensorType type; int64_t bytes; const char* text; };
  const Case cases[] = {
      {{DType::kF32, {2, 3}}, 24, "F32[2,3]"},
      {{DType::kBF16, {4096, 64, 512}}, 268435456, "BF16[4096,64,512]"},
      {{DType::kF4E2M1, {3, 32}}, 48, "F4_E2M1[3,32]"},
      {{DType::kI64, {}}, 8, "I64[]"},
      {{DType::kF8E8M0, {0, 7}}, 0, "F8_E8M0[0,7]"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.type.bytes(), c.bytes);
    EXPECT_EQ(to_string(c.type), c.text);
  }
}

TEST(Tensor, DtypeNamesParseBack) {
  for (auto name : {"F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "F4_E2M1", "I8", "U8", "I32", "I64", "BOOL"}) {
    ASSERT_TRUE(parse_dtype(name));
    EXPECT_EQ(dtype_name(*parse_dtype(name)), name);
  }
  EXPECT_FALSE(parse_dtype("F64"));
}

TEST(Buffer, ZeroedAndMovable) {
  auto buffer = Buffer::allocate(1 << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data()[12345], std::byte{0});
  Buffer other = std::move(*buffer);
  EXPECT_EQ(other.size(), 1 << 20);
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST(MappedFile, Errors) {
  EXPECT_NE(MappedFile::open("/nonexistent/x").status().message().find("/nonexistent/x: cannot open"),
            std::string::npos);
  EXPECT_NE(MappedFile::open("/tmp").status().message().find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace weft
