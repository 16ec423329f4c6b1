#pragma once

namespace weft {

// Along what a weight may be split over ranks (dimension of the split in brackets).
enum class WeightSplit {
  kWhole,         // a copy on every rank
  kHeads,         // by query heads [0]
  kOutputGroups,  // first output projection, by groups of heads [0]
  kOutputInputs,  // (last) output projection, by its inputs [1]
  kVocabulary,    // by vocabulary rows [0]
  kDenseInner,    // feed-forward of a dense layer, by inner features [0]
  kDenseInputs,   // ... the projection back, by its inputs [1]
  kSharedInner,   // shared expert, by inner features [0]
  kSharedInputs,  // ... the projection back, by its inputs [1]
  kExperts,       // stacked routed experts, by expert [0] or by their rows [1]
  kExpertScales,  // their scales, by expert [0]; whole where the experts are split by rows
};

}  // namespace weft
