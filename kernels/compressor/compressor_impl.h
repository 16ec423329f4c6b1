// Declarations that the sources of this folder share.
#pragma once

#include "kernels/compressor/compressor.h"

namespace weft {

void compressor_pool_avx2(const CompressorPoolArgs& args);
void compressor_pool_avx512(const CompressorPoolArgs& args);

}  // namespace weft
