#include "runtime/layout_batches.h"

#include <algorithm>
#include <map>

#include "runtime/draws.h"

namespace weft {
namespace {

using Part = BatchStep::Part;

// requests 0 .. n - 1, each with length(i) tokens.
template <class F>
BatchStep each(int n, Logits logits, F&& length) {
  BatchStep step{{}, logits};
  for (int i = 0; i < n; ++i) step.parts.push_back({i, length(i)});
  return step;
}

template <class F>
void for_requests(const LayoutBatch& batch, F&& visit) {
  std::map<int, std::pair<int64_t, int64_t>> length;  // now, longest
  for (const BatchStep& step : batch.steps) {
    for (const Part& part : step.parts) {
      auto& [now, longest] = length[part.request];
      longest = std::max(longest, now + part.tokens);
      now += part.keep < 0 ? part.tokens : part.keep;
    }
  }
  for (const auto& [request, lengths] : length) visit(request, lengths.second);
}

LayoutBatch mixed(int64_t tokens, uint64_t seed) {
  constexpr int kSequences = 5, kSteps = 6, kMaxRows = 40;
  LayoutBatch batch{"random mix", {}};
  Draws draws(seed, 1);
  std::vector<int64_t> left(kSequences, tokens);
  for (int s = 0; s < kSteps; ++s) {
    BatchStep step;
    for (int i = 0; i < kSequences; ++i) {
      // One in three decodes, one in six stands still.
      const int64_t dice = draws.below(6);
      const int64_t count = std::min(left[static_cast<size_t>(i)], dice == 0  ? 0
                                                                   : dice < 3 ? 1
                                                                              : 1 + draws.below(kMaxRows));
      if (count > 0) step.parts.push_back({i, count});
      left[static_cast<size_t>(i)] -= count;
    }
    if (step.parts.empty()) step.parts.push_back({0, 1});
    for (size_t i = step.parts.size(); i > 1; --i) {
      std::swap(step.parts[i - 1], step.parts[static_cast<size_t>(draws.below(static_cast<int64_t>(i)))]);
    }
    step.logits = s % 2 == 0 ? Logits::kAll : Logits::kLast;
    batch.steps.push_back(std::move(step));
  }
  return batch;
}

}  // namespace

int LayoutBatch::num_requests() const {
  int last = 0;
  for_requests(*this, [&](int request, int64_t) { last = std::max(last, request); });
  return last + 1;
}

int64_t LayoutBatch::longest() const {
  int64_t longest = 0;
  for_requests(*this, [&](int, int64_t length) { longest = std::max(longest, length); });
  return longest;
}

int64_t LayoutBatch::total() const {
  int64_t total = 0;
  for_requests(*this, [&](int, int64_t length) { total += length; });
  return total;
}

int64_t LayoutBatch::largest_step() const {
  int64_t largest = 0;
  for (const BatchStep& step : steps) {
    int64_t rows = 0;
    for (const Part& part : step.parts) rows += part.tokens;
    largest = std::max(largest, rows);
  }
  return largest;
}

std::vector<LayoutBatch> layout_batches(int64_t tokens, int64_t drafts, uint64_t seed) {
  const auto scaled = [&](int64_t n) { return std::clamp<int64_t>(n, 1, tokens); };
  std::vector<LayoutBatch> all;
  all.push_back({"one prompt", {{{{0, tokens}}}}});
  {
    LayoutBatch& b = all.emplace_back(LayoutBatch{"9 decode rows", {}});
    b.steps.push_back(each(9, Logits::kNone, [&](int i) { return scaled(12 + i); }));
    for (int s = 0; s < 3; ++s) b.steps.push_back(each(9, Logits::kLast, [](int) { return 1; }));
  }
  all.push_back({"9 tiny prompts", {each(9, Logits::kLast, [&](int i) { return scaled(1 + i); })}});
  all.push_back({"uneven, one with a prefix",
                 {{{{1, scaled(20)}}, Logits::kNone}, {{{0, scaled(10)}, {1, scaled(5)}, {2, scaled(7)}}}}});
  {
    constexpr int kRequests = 17, kRows = 4;
    LayoutBatch& b = all.emplace_back(LayoutBatch{"17 requests x 4 rows, some taken back", {}});
    b.steps.push_back(each(kRequests, Logits::kNone, [&](int i) { return scaled(3 + i % 9); }));
    for (int s = 0; s < 2; ++s) {
      BatchStep step = each(kRequests, Logits::kAll, [](int) { return kRows; });
      for (int i = 0; i < kRequests; ++i) {
        step.parts[static_cast<size_t>(i)].keep = kRows - std::min<int64_t>((i + s) % kRows, drafts);
      }
      b.steps.push_back(std::move(step));
    }
  }
  all.push_back({"decode beside a chunk and a tiny prompt",
                 {{{{0, scaled(512)}}, Logits::kNone},
                  {{{1, scaled(64)}}, Logits::kNone},
                  {{{0, 1}, {1, scaled(12)}, {2, scaled(2)}}},
                  {{{2, 1}, {0, 1}, {1, 1}}, Logits::kLast}}});
  all.push_back({"chunks",
                 {{{{0, scaled(80)}}, Logits::kLast},
                  {{{0, scaled(20)}}},
                  {{{1, scaled(145)}}},
                  {{{2, scaled(2)}}},
                  {{{0, 1}}}}});
  all.push_back(mixed(tokens, seed));
  {
    constexpr int kRequests = 8;
    LayoutBatch& b = all.emplace_back(LayoutBatch{"full steps", {}});
    b.steps.push_back({{{0, 64}}, Logits::kAll, true});
    BatchStep prompts = each(kRequests, Logits::kAll, [](int) { return 8; });
    prompts.fills = true;
    b.steps.push_back(prompts);
    BatchStep decode = each(kRequests, Logits::kAll, [](int) { return 1; });
    decode.fills = true;
    b.steps.push_back(decode);
  }
  return all;
}

}  // namespace weft
