#include "io/text_file.h"

#include <gtest/gtest.h>

#include "io/safetensors_writer.h"
#include "io/test_files.h"

namespace weft {
namespace {

TEST(TextFile, ReadsAllBytes) {
  TempDir dir;
  const std::string text = std::string(200'000, 'x') + std::string("\0\n", 2);
  ASSERT_TRUE(write_file(dir.path() / "a.txt", text).ok());
  const auto read = read_text_file(dir.path() / "a.txt");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, text);
}

TEST(TextFile, Errors) {
  EXPECT_EQ(read_text_file("/").status().message(), "/: cannot be read: Is a directory");
  EXPECT_EQ(read_text_file("/nonexistent").status().message(),
            "/nonexistent: cannot be read: No such file or directory");
  EXPECT_EQ(read_text_file("/").status().code(), StatusCode::kInvalidArgument);
}

// A device or a folder is never replaced by a file.
TEST(TextFile, OutputMustBeARegularFile) {
  TempDir dir;
  std::filesystem::create_directory(dir.path() / "folder");
  std::filesystem::create_symlink("/dev/null", dir.path() / "device");
  const NamedTensorType tensor[] = {{"t", {DType::kF32, {1}}}};
  for (const char* name : {"folder", "device"}) {
    const auto path = dir.path() / name;
    const std::string message = path.string() + ": exists and is not a regular file";
    EXPECT_EQ(write_file(path, "text").message(), message);
    EXPECT_EQ(SafetensorsWriter::create(path, tensor).status().message(), message);
    EXPECT_FALSE(std::filesystem::exists(path.string() + ".tmp"));
  }
}

}  // namespace
}  // namespace weft
