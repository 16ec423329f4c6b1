// How a kernel lists its variants and one of them is chosen.
//
// Every kernel has a table of variants, best first, the scalar reference last. Tests and benchmarks loop over the table.
#pragma once

#include <span>
#include <string_view>

#include "base/check.h"
#include "base/cpu.h"

namespace weft {

template <class Function>
struct KernelVariant {
  std::string_view name;
  Isa isa;
  Function* run;
};

// The first variant whose level is at most `isa`. The scalar reference runs everywhere, so there is always one.
template <class Function>
Function* pick_variant(std::span<const KernelVariant<Function>> variants, Isa isa) {
  for (const auto& variant : variants) {
    if (variant.isa <= isa) return variant.run;
  }
  WEFT_CHECK(false, "no variant for isa {}", isa_name(isa));
}

}  // namespace weft
