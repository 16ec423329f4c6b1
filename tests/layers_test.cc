#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tools/check_layers.h"

namespace weft {
namespace {

TEST(Layers, IncludesPointDownwards) {
  const LayersReport report = check_layers(WEFT_SOURCE_DIR);
  EXPECT_GT(report.num_files, 20);
  EXPECT_TRUE(report.complaints.empty()) << fmt::format("{}", fmt::join(report.complaints, "\n"));
}

struct Case {
  const char *what, *path, *text;
  std::vector<std::string> complaints;
};

const Case kCases[] = {
    {"own folder, one below, two below",
     "graph/a.cc",
     "#include \"graph/a.h\"\n#include \"io.h\"\n",
     {"graph/a.cc:2: \"io.h\" does not start with a folder of weft; use <> for others"}},
    {"transitive", "cli/a.cc", "#include \"base/status.h\"\n#include \"io/json.h\"\n", {}},
    {"upwards",
     "kernels/x/x.h",
     "#pragma once\n\n#include \"graph/op.h\"\n",
     {"kernels/x/x.h:3: kernels/ may not include graph/: \"graph/op.h\""}},
    {"sideways", "graph/a.h", "#include \"io/json.h\"", {"graph/a.h:1: graph/ may not include io/: \"io/json.h\""}},
    {"runtime and planner do not know each other",
     "planner/a.h",
     "#include \"runtime/a.h\"",
     {"planner/a.h:1: planner/ may not include runtime/: \"runtime/a.h\""}},
    {"with angle brackets and spaces",
     "base/a.h",
     "  #  include <tensor/dtype.h>",
     {"base/a.h:1: base/ may not include tensor/: \"tensor/dtype.h\""}},
    {"a relative path",
     "io/a.cc",
     "#include \"../graph/a.h\"",
     {"io/a.cc:1: \"../graph/a.h\" does not start with a folder of weft; use <> for others"}},
    {"tests of a folder obey its arrows",
     "tensor/a_test.cc",
     "#include \"io/json.h\"",
     {"tensor/a_test.cc:1: tensor/ may not include io/: \"io/json.h\""}},
    {"tests/ may use all", "tests/a.cc", "#include \"cli/a.h\"\n#include \"planner/a.h\"", {}},
    {"libraries", "base/a.cc", "#include <fmt/format.h>\n#include <sys/mman.h>\n#include <vector>", {}},
    {"no include", "base/a.cc", "// #include \"io/json.h\"\n#define include \"io/json.h\"", {}},
    {"a folder that nobody declared",
     "utils/a.h",
     "",
     {"utils/a.h:1: folder 'utils' is not in the table of tools/check_layers.cc"}},
};

TEST(Layers, CheckItself) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(check_includes(c.path, c.text), c.complaints);
  }
}

TEST(Layers, FindsTheFileInATree) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "weft_layers_test";
  std::filesystem::remove_all(root);
  for (const char* folder : {"base", "io/deep", "build/io", ".hidden"})
    std::filesystem::create_directories(root / folder);
  const auto write = [&](const char* path, const char* text) { std::ofstream(root / path) << text; };
  write("base/good.h", "#include <vector>\n");
  write("io/deep/bad.cc", "#include \"tensor/dtype.h\"\n#include \"models/registry.h\"\n");
  write("io/notes.md", "#include \"models/registry.h\"\n");
  write("build/io/bad.h", "#include \"models/registry.h\"\n");
  write(".hidden/bad.h", "#include \"models/registry.h\"\n");
  const LayersReport report = check_layers(root);
  EXPECT_EQ(report.num_files, 2);
  EXPECT_EQ(report.complaints,
            std::vector<std::string>{"io/deep/bad.cc:2: io/ may not include models/: \"models/registry.h\""});
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace weft
