#include "base/cpu.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Cpu, NamesParseBack) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vbmi, Isa::kAvx512Bf16}) {
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  }
  EXPECT_EQ(parse_isa("sse9"), std::nullopt);
}

TEST(Cpu, Machine) {
  EXPECT_FALSE(usable_cores().empty());
  EXPECT_GT(available_memory_bytes(), 0);
}

}  // namespace
}  // namespace weft
