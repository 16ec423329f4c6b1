// What `weft inspect` tells about a model. Every family fills the same form; counts and bytes come from its weights
// table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft {

struct ModelSummary {
  struct Share {
    std::string name;  // "routed experts", "F8_E4M3"
    int64_t tensors = 0;
    int64_t bytes = 0;
  };

  std::string title;                                        // "DeepSeek-V4"
  std::vector<std::pair<std::string, int64_t>> layers;      // layers of each kind, in the words of the family
  std::vector<std::pair<std::string, int64_t>> dimensions;  // published field names, in reading order

  int64_t parameters_main = 0;  // without draft layers
  int64_t parameters_mtp = 0;   // draft layers
  int64_t parameters_active =
      0;  // per token: the main model without the embedding table and the experts that are not picked
  int64_t tensors = 0;
  int64_t bytes_main = 0, bytes_mtp = 0;
  int64_t bytes_per_decoded_token = 0;  // of weights, read to decode one token alone
  std::vector<Share> by_component;      // draft layers are one component; sums to bytes()
  std::vector<Share> by_dtype;          // sums to bytes()

  std::vector<std::string> notes;  // what is unusual, a line each

  int64_t parameters() const { return parameters_main + parameters_mtp; }
  int64_t bytes() const { return bytes_main + bytes_mtp; }
};

}  // namespace weft
