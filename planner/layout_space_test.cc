// The layouts of a search: all that are legal, each split once.
#include "planner/layout_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/test_support.h"

namespace weft {
namespace {

std::set<std::string> texts_of(const std::vector<Layout>& layouts) {
  std::set<std::string> texts;
  for (const Layout& layout : layouts)
    EXPECT_TRUE(texts.insert(to_string(layout)).second) << to_string(layout) << " is there twice";
  return texts;
}

// Every value of every field, whatever the enumeration thinks of it.
std::set<std::string> brute_force(const Model& model, int devices, bool executor_limits) {
  std::set<std::string> texts;
  const auto each = [&](Layout& layout) {
    // A number whose digits in mixed radix are the choices.
    constexpr int kRadix[] = {2, 2, 4, 3, 2, 2, 4, 2, 2, 3, 2, 2, 2, 2};
    int total = 1;
    for (const int radix : kRadix) total *= radix;
    for (int number = 0; number < total; ++number) {
      int rest = number, digit[std::size(kRadix)];
      for (size_t i = 0; i < std::size(kRadix); ++i) digit[i] = rest % kRadix[i], rest /= kRadix[i];
      layout.attention = static_cast<AttentionChoice>(digit[0]);
      layout.sequence_parallel = digit[1] != 0;
      layout.split = static_cast<TokenSplit>(digit[2]);
      layout.o_proj = static_cast<OProjChoice>(digit[3]);
      layout.lm_head = static_cast<WeightChoice>(digit[4]);
      layout.shared = static_cast<WeightChoice>(digit[5]);
      layout.gate = static_cast<GateChoice>(digit[6]);
      layout.router = static_cast<RouterChoice>(digit[7]);
      layout.dcp_mode = static_cast<DcpMode>(digit[8]);
      layout.ple = static_cast<PleChoice>(digit[9]);
      layout.ple_tier = static_cast<PleTier>(digit[10]);
      layout.prefetch = digit[11] != 0;
      layout.moe = static_cast<MoeChoice>(digit[12]);
      layout.compressor = static_cast<CompressorChoice>(digit[13]);
      if ((executor_limits ? model.check_layout(layout) : check_layout(layout)).ok()) texts.insert(to_string(layout));
    }
  };
  for (int dp = 1; dp <= devices; ++dp) {
    for (int pp = 1; pp <= devices; ++pp) {
      for (int pcp = 1; pcp <= devices; ++pcp) {
        for (int tp = 1; tp <= devices; ++tp) {
          if (dp * pp * pcp * tp != devices) continue;
          for (int dcp = 1; dcp <= tp; ++dcp) {
            for (int ep = 1; ep <= devices; ++ep) {
              Layout layout;
              layout.mesh = {dp, pp, pcp, tp, dcp, ep};
              if (check_mesh(layout.mesh).ok()) each(layout);
            }
          }
        }
      }
    }
  }
  return texts;
}

TEST(LayoutSpace, IsEveryLegalLayout) {
  const auto model = load_test_model("sample/austen-v4");
  for (const int devices : {1, 2}) {
    LayoutSpaceOptions options;
    options.breadth = SpaceBreadth::kAll;
    const LayoutSpace space = enumerate_layouts(*model, devices, options);
    EXPECT_EQ(texts_of(space.layouts), brute_force(*model, devices, true)) << devices << " devices";
    for (const Layout& layout : space.layouts) EXPECT_EQ(layout.mesh.world(), devices);
  }
}

TEST(LayoutSpace, UsualIsPartOfAllAndOtherEnginesTakeMore) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutSpaceOptions all;
  all.breadth = SpaceBreadth::kAll;
  for (const int devices : {2, 3}) {
    const auto usual = texts_of(enumerate_layouts(*model, devices).layouts),
               every = texts_of(enumerate_layouts(*model, devices, all).layouts);
    EXPECT_TRUE(std::includes(every.begin(), every.end(), usual.begin(), usual.end())) << devices;
    EXPECT_LT(usual.size(), every.size()) << devices;
    LayoutSpaceOptions foreign;
    foreign.executor_limits = false;
    const auto other = texts_of(enumerate_layouts(*model, devices, foreign).layouts);
    EXPECT_TRUE(std::includes(other.begin(), other.end(), usual.begin(), usual.end())) << devices;
  }
  // Two output groups: weft refuses tp4, another engine may not.
  LayoutSpaceOptions foreign;
  foreign.executor_limits = false;
  EXPECT_FALSE(texts_of(enumerate_layouts(*model, 4).layouts).contains("tp4"));
  EXPECT_TRUE(texts_of(enumerate_layouts(*model, 4, foreign).layouts).contains("tp4"));
}

TEST(LayoutSpace, RefusalsAreCountedByRule) {
  const auto model = load_test_model("sample/austen-v4");
  const LayoutSpace space = enumerate_layouts(*model, 4);
  ASSERT_FALSE(space.refused.empty());
  int64_t before = space.refused[0].count;
  bool groups = false;
  for (const RefusedLayouts& refused : space.refused) {
    EXPECT_LE(refused.count, before);
    before = refused.count;
    const auto example = parse_layout(refused.example);
    const Status status = example.ok() ? model->check_layout(*example) : example.status();
    EXPECT_FALSE(status.ok()) << refused.example;
    EXPECT_NE(status.message().find(refused.rule), std::string::npos) << status.message();
    groups = groups || refused.rule.starts_with("o_groups 2 is not divisible by tp 4");
  }
  EXPECT_TRUE(groups);
}

TEST(LayoutSpace, InstancesAreNoCopiesSideBySide) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutSpaceOptions options;
  options.one_instance = true;
  const auto all = texts_of(enumerate_layouts(*model, 4).layouts);
  const auto one = texts_of(enumerate_layouts(*model, 4, options).layouts);
  EXPECT_TRUE(all.contains("dp4"));
  EXPECT_FALSE(one.contains("dp4"));
  EXPECT_FALSE(one.contains("dp2tp2+ep2"));
  EXPECT_TRUE(one.contains("ep4"));  // groups that share experts
  EXPECT_TRUE(one.contains("dp2tp2+ep4"));
}

}  // namespace
}  // namespace weft
