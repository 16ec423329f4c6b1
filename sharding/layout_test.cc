#include "sharding/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace weft {
namespace {

struct TextCase {
  const char* text;
  Layout layout;
};

const TextCase kCanonical[] = {
    {"tp1", {}},
    {"tp4", {.mesh = {.tp = 4}}},
    {"tp4+sp", {.mesh = {.tp = 4}, .sequence_parallel = true}},
    {"tp4+dsa_cp", {.mesh = {.tp = 4}, .attention = AttentionChoice::kDsaCp}},
    {"tp4+dsa_cp+sp", {.mesh = {.tp = 4}, .attention = AttentionChoice::kDsaCp, .sequence_parallel = true}},
    {"tp2pcp2", {.mesh = {.pcp = 2, .tp = 2}}},
    {"pcp2+split=zigzag", {.mesh = {.pcp = 2}, .split = TokenSplit::kZigzag}},
    {"ep4", {.mesh = {.dp = 4, .ep = 4}}},
    {"dp2tp4+ep8", {.mesh = {.dp = 2, .tp = 4, .ep = 8}}},
    {"tp4+owned", {.mesh = {.tp = 4}, .split = TokenSplit::kOwned}},
    {"pp2tp2+sp", {.mesh = {.pp = 2, .tp = 2}, .sequence_parallel = true}},
    {"tp8+dsa_cp+ep8", {.mesh = {.tp = 8, .ep = 8}, .attention = AttentionChoice::kDsaCp}},
    {"pcp8+gate=k_sharded", {.mesh = {.pcp = 8}, .gate = GateChoice::kKSharded}},
    {"dp2tp4+ep8+ple=etp", {.mesh = {.dp = 2, .tp = 4, .ep = 8}, .ple = PleChoice::kEtp}},
    {"tp2dcp2+dcp_mode=merge", {.mesh = {.tp = 2, .dcp = 2}, .dcp_mode = DcpMode::kMerge}},
    {"pp2", {.mesh = {.pp = 2}}},
    {"tp4+dsa_cp+owned", {.mesh = {.tp = 4}, .attention = AttentionChoice::kDsaCp, .split = TokenSplit::kOwned}},
    {"tp4+dsa_cp+o_proj=streamed+prefetch=on",
     {.mesh = {.tp = 4}, .attention = AttentionChoice::kDsaCp, .o_proj = OProjChoice::kStreamed, .prefetch = true}},
    {"tp4+dsa_cp+sp+o_proj=streamed",
     {.mesh = {.tp = 4},
      .attention = AttentionChoice::kDsaCp,
      .sequence_parallel = true,
      .o_proj = OProjChoice::kStreamed}},
    {"tp4+lm_head=replicated+shared=replicated+ple=sharded+ple_tier=mapped+moe=tp",
     {.mesh = {.tp = 4},
      .lm_head = WeightChoice::kReplicated,
      .shared = WeightChoice::kReplicated,
      .ple = PleChoice::kSharded,
      .ple_tier = PleTier::kMapped,
      .moe = MoeChoice::kTp}},
    {"dp2tp4+ep8+router=full", {.mesh = {.dp = 2, .tp = 4, .ep = 8}, .router = RouterChoice::kFull}},
    {"pcp2+compressor=split", {.mesh = {.pcp = 2}, .compressor = CompressorChoice::kSplit}},
    {"tp4+dsa_cp+sp+o_proj=replicated+queries=full",
     {.mesh = {.tp = 4},
      .attention = AttentionChoice::kDsaCp,
      .sequence_parallel = true,
      .o_proj = OProjChoice::kReplicated,
      .queries = QueryRows::kFull}},
    {"dp2pp3tp4dcp2+ep4", {.mesh = {.dp = 2, .pp = 3, .tp = 4, .dcp = 2, .ep = 4}}},
    {"dp2pp3tp4pcp5+ep20", {.mesh = {.dp = 2, .pp = 3, .pcp = 5, .tp = 4, .ep = 20}}},
};

TEST(LayoutText, Canonical) {
  for (const TextCase& c : kCanonical) {
    SCOPED_TRACE(c.text);
    const Result<Layout> parsed = parse_layout(c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, c.layout);
    EXPECT_EQ(to_string(c.layout), c.text);
  }
}

TEST(LayoutText, OtherSpellings) {
  const std::pair<const char*, const char*> kCases[] = {
      {"dp1pp1pcp1tp1dcp1ep1", "tp1"},
      {"pcp2tp2", "tp2pcp2"},
      {"dp2ep4tp2", "dp2tp2+ep4"},
      {"dp4ep4", "ep4"},
      {"ep4+ple=etp", "ep4+ple=etp"},
      {"tp4+ple=etp+sp+dsa_cp", "tp4+dsa_cp+sp+ple=etp"},
      {"tp4+attention=dsa_cp+sequence_parallel=on+split=owned", "tp4+dsa_cp+sp+owned"},
      {"tp4+attention=heads+prefetch=off+moe=ep", "tp4"},
      {"tp8+ep8+dsa_cp", "tp8+dsa_cp+ep8"},
      {"tp2+dcp2", "tp2dcp2"},
  };
  for (const auto& [text, canonical] : kCases) {
    const Result<Layout> parsed = parse_layout(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(to_string(*parsed), canonical);
  }
}

TEST(LayoutText, Ranks) {
  EXPECT_EQ(to_string(*parse_layout("tp4+ep8", 8)), "dp2tp4+ep8");
  EXPECT_EQ(to_string(*parse_layout("pp2tp2", 8)), "dp2pp2tp2");
  EXPECT_EQ(to_string(*parse_layout("ep4", 8)), "dp8+ep4");
  EXPECT_EQ(to_string(*parse_layout("dp2tp4", 8)), "dp2tp4");
  EXPECT_EQ(parse_layout("dp2tp4", 16).status().message(), "layout 'dp2tp4' has 8 ranks, expected 16");
  EXPECT_EQ(parse_layout("pp2tp3", 8).status().message(),
            "layout 'pp2tp3': 8 ranks are not a multiple of pp 2 x pcp 1 x tp 3 = 6");
  EXPECT_EQ(parse_layout("tp2", 0).status().message(),
            "layout 'tp2': 0 ranks are not a multiple of pp 1 x pcp 1 x tp 2 = 2");
}

TEST(LayoutText, Errors) {
  const std::string sizes = "a size of dp, pp, tp, pcp, dcp, ep, e.g. tp4";
  const std::string items =
      sizes +
      "; dsa_cp, sp, owned; or key=value with one of attention, sequence_parallel, split, o_proj, "
      "lm_head, shared, gate, router, dcp_mode, ple, ple_tier, prefetch, moe, compressor, queries";
  const std::tuple<const char*, int, const char*, std::string> kCases[] = {
      {"", 1, "nothing", sizes},
      {"sp", 1, "'sp'", sizes},
      {"gate=streamed", 1, "'gate=streamed'", sizes},
      {"tq4", 1, "'tq4'", sizes},
      {"4", 1, "'4'", sizes},
      {"tp4+", 5, "nothing", items},
      {"tp4++sp", 5, "nothing", items},
      {"+tp4", 1, "nothing", sizes},
      {"tp4 +sp", 4, "' '", sizes},
      {"tp4+seq", 5, "'seq'", items},
      {"tp4+SP", 5, "'SP'", items},
      {"tp4+sp2", 5, "'sp2'", items},
      {"tp4dsa_cp", 4, "'dsa_cp'", sizes},
      {"tp", 3, "nothing", "a number in 1..65536"},
      {"tp0", 3, "'0'", "a number in 1..65536"},
      {"tp04", 3, "'04'", "a number in 1..65536"},
      {"tp-4", 1, "'tp-4'", sizes},
      {"dp2tp65537", 6, "'65537'", "a number in 1..65536"},
      {"tp99999999999999999999", 3, "'99999999999999999999'", "a number in 1..65536"},
      {"tp4tp4", 4, "'tp'", "'tp' once"},
      {"tp4+ep2+ep2", 9, "'ep'", "'ep' once"},
      {"tp4+sp+sp", 8, "'sp'", "'sequence_parallel' once"},
      {"tp4+owned+split=flat", 11, "'split=flat'", "'split' once"},
      {"tp4+colour=red", 5, "'colour'", items},
      {"tp4+gate=red", 10, "'red'", "replicated, k_sharded, n_sharded, streamed"},
      {"tp4+gate=", 10, "nothing", "replicated, k_sharded, n_sharded, streamed"},
      {"tp4+=on", 5, "nothing", items},
      {"tp4+prefetch=yes", 14, "'yes'", "off, on"},
  };
  for (const auto& [text, position, found, allowed] : kCases) {
    const Result<Layout> parsed = parse_layout(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parsed.status().message(), "layout '" + std::string(text) + "': position " + std::to_string(position) +
                                             ": found " + found + "; allowed: " + allowed);
  }
}

// What a message quotes is printable, and short.
TEST(LayoutText, MessagesOfAnyText) {
  const std::string message = parse_layout("tp2\n\x1b[31m").status().message();
  EXPECT_TRUE(message.starts_with("layout 'tp2\\n\\x1b[31m': position 4: found '\\n\\x1b[31m'; allowed: ")) << message;
  EXPECT_LT(parse_layout("tp4+" + std::string(100000, 'a')).status().message().size(), 1000u);
  EXPECT_LT(parse_layout("tp" + std::string(100000, '9')).status().message().size(), 1000u);
}

// No text makes the parser read out of bounds, and what it accepts prints to a text that it accepts as the same layout.
TEST(LayoutText, ArbitraryText) {
  const std::string_view pieces[] = {
      "tp", "dp",     "ep",    "pcp",  "dcp",   "2",       "4",   "1",  "+", "=",
      "sp", "dsa_cp", "owned", "gate", "split", "=zigzag", "moe", "on", "q", std::string_view("\0", 1)};
  const unsigned seed = 20240917;
  std::mt19937 random(seed);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = i % 2 == 0 ? "tp4" : "";
    for (int n = static_cast<int>(random() % 6); n > 0; --n) text += pieces[random() % std::size(pieces)];
    const Result<Layout> parsed = parse_layout(text);
    if (!parsed.ok()) continue;
    ++accepted;
    const Result<Layout> again = parse_layout(to_string(*parsed));
    ASSERT_TRUE(again.ok()) << text << " seed " << seed;
    ASSERT_EQ(*again, *parsed) << text << " seed " << seed;
  }
  EXPECT_GT(accepted, 1000);
}

struct RuleCase {
  const char* rule;
  Layout layout;
  const char* message;
};

const RuleCase kBroken[] = {
    {"mesh", {.mesh = {.tp = 4, .dcp = 3}}, "layout tp4dcp3: tp 4 is not divisible by dcp 3; usable sizes: 1 2 4"},
    {"mesh",
     {.mesh = {.tp = 4, .ep = 8}},
     "layout tp4+ep8: dp 1 x pcp 1 x tp 4 = 4 is not divisible by ep 8; usable sizes: 1 2 4"},
    {"effect",
     {.mesh = {}, .moe = MoeChoice::kTp},
     "layout tp1+moe=tp: moe=tp splits every expert over tp: it needs tp > 1; else leave it out"},
    {"one_token_split",
     {.mesh = {.pcp = 2, .tp = 2}, .attention = AttentionChoice::kDsaCp},
     "layout tp2pcp2+dsa_cp: dsa_cp splits tokens over tp, pcp 2 would split them again; use one of the two"},
    {"owned_without_pcp",
     {.mesh = {.pcp = 2, .tp = 2}, .split = TokenSplit::kOwned},
     "layout tp2pcp2+owned: owned keeps a request's caches on one rank, pcp 2 on all its ranks; use pcp 1"},
    {"owned_without_dcp",
     {.mesh = {.tp = 2, .dcp = 2}, .split = TokenSplit::kOwned},
     "layout tp2dcp2+owned: owned keeps a request's caches on one rank, dcp 2 spreads them; use one of the two"},
    {"dcp_without_prefill_split",
     {.mesh = {.tp = 4, .dcp = 2}, .attention = AttentionChoice::kDsaCp},
     "layout tp4dcp2+dsa_cp: dcp 2 spreads the caches that dsa_cp needs whole on every rank; use one of the two"},
    {"dcp_without_prefill_split",
     {.mesh = {.pcp = 2, .tp = 4, .dcp = 2}},
     "layout tp4pcp2dcp2: dcp 2 spreads the caches that pcp 2 needs whole on every rank; use one of the two"},
    {"moe_tp_without_ep",
     {.mesh = {.tp = 4, .ep = 2}, .moe = MoeChoice::kTp},
     "layout tp4+ep2+moe=tp: moe=tp splits every expert over tp, ep 2 keeps them whole; use one of the two"},
    {"full_queries_of_flat_splits",
     {.mesh = {.tp = 4},
      .attention = AttentionChoice::kDsaCp,
      .sequence_parallel = true,
      .split = TokenSplit::kZigzag,
      .o_proj = OProjChoice::kReplicated,
      .queries = QueryRows::kFull},
     "layout tp4+dsa_cp+sp+split=zigzag+o_proj=replicated+queries=full: queries=full computes all rows on every rank: "
     "leave split "
     "and compressor=split out"},
};

TEST(LayoutRules, EveryRuleHasItsMessage) {
  std::set<std::string_view> tested;
  for (const RuleCase& c : kBroken) {
    const Status status = check_layout(c.layout);
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const LayoutRule<>& rule : layout_rules()) {
      if (rule.name == std::string_view(c.rule)) {
        EXPECT_NE(rule.violation(c.layout), "");
      }
    }
    tested.insert(c.rule);
  }
  for (const LayoutRule<>& rule : layout_rules()) EXPECT_TRUE(tested.contains(rule.name)) << rule.name;
  for (const TextCase& c : kCanonical) EXPECT_EQ(check_layout(c.layout).message(), "") << c.text;
}

// Choices that change nothing beside those that they need, and layouts where they do.
struct NeedCase {
  const char *refused, *message;  // behind "layout ...: "
  const char* taken;
};

const NeedCase kNeeds[] = {
    {"tp1+dsa_cp", "dsa_cp splits the query tokens over tp: it needs tp > 1; else leave it out", "tp2+dsa_cp"},
    {"ep4+dsa_cp", "dsa_cp splits the query tokens over tp: it needs tp > 1; else leave it out", "dp2tp2+dsa_cp+ep4"},
    {"pcp2+sp", "sp splits the rows between the sublayers over tp: it needs tp > 1; else leave it out", "tp2pcp2+sp"},
    {"tp4+split=zigzag",
     "split=zigzag splits the query tokens of prefill: it needs pcp > 1 or dsa_cp; else leave it out",
     "pcp2+split=zigzag"},
    {"dp2+split=per_request",
     "split=per_request splits the query tokens of prefill: it needs pcp > 1 or dsa_cp; else leave it out",
     "tp2+dsa_cp+split=per_request"},
    {"pp2+owned", "owned gives every tp rank requests of its own: it needs tp > 1; else leave it out", "tp2+owned"},
    {"tp2+o_proj=replicated",
     "o_proj=replicated projects all heads of a rank's own tokens: it needs dsa_cp or owned; else leave it out",
     "tp2+owned+o_proj=replicated"},
    {"pcp2+o_proj=streamed",
     "o_proj=streamed projects all heads of a rank's own tokens: it needs dsa_cp or owned; else leave it out",
     "tp2+dsa_cp+o_proj=streamed"},
    {"pcp2+lm_head=replicated", "lm_head=replicated keeps whole what tp splits: it needs tp > 1; else leave it out",
     "tp2+lm_head=replicated"},
    {"dp2+shared=replicated", "shared=replicated keeps whole what tp splits: it needs tp > 1; else leave it out",
     "tp2+shared=replicated"},
    {"tp1+gate=k_sharded",
     "gate=k_sharded splits the gate over ranks: it needs several ranks in a stage; else leave it out",
     "pcp8+gate=k_sharded"},
    {"pp2+gate=n_sharded",
     "gate=n_sharded splits the gate over ranks: it needs several ranks in a stage; else leave it out",
     "dp2+gate=n_sharded"},
    {"tp1+gate=streamed",
     "gate=streamed splits the gate over ranks: it needs several ranks in a stage; else leave it out",
     "tp2+gate=streamed"},
    {"tp2+router=full",
     "router=full routes rows before they are sliced for the experts: it needs ep > 1 and ranks with the same rows in "
     "front of them "
     "(tp without sp, or pcp); else leave it out",
     "tp2+ep2+router=full"},
    {"tp2+sp+ep2+router=full",
     "router=full routes rows before they are sliced for the experts: it needs ep > 1 and ranks with the same rows in "
     "front of them "
     "(tp without sp, or pcp); else leave it out",
     "tp2+dsa_cp+sp+ep2+o_proj=replicated+router=full+queries=full"},
    {"ep2+router=full",
     "router=full routes rows before they are sliced for the experts: it needs ep > 1 and ranks with the same rows in "
     "front of them "
     "(tp without sp, or pcp); else leave it out",
     "pcp2+ep2+router=full"},
    {"tp2+dcp_mode=merge", "dcp_mode=merge merges partial softmaxes of dcp ranks: it needs dcp > 1; else leave it out",
     "tp2dcp2+dcp_mode=merge"},
    {"dp2+ple=sharded", "ple=sharded splits tables over tp: it needs tp > 1; else leave it out", "tp2+ple=sharded"},
    {"pcp2+ple=etp", "ple=etp splits tables over dp x tp: it needs dp x tp > 1; else leave it out", "dp2+ple=etp"},
    {"tp4+dsa_cp+prefetch=on",
     "prefetch=on starts gathers of weights early: it needs o_proj=streamed; else leave it out",
     "tp4+dsa_cp+o_proj=streamed+prefetch=on"},
    {"pcp2+moe=tp", "moe=tp splits every expert over tp: it needs tp > 1; else leave it out", "tp2+moe=tp"},
    {"tp4+compressor=split",
     "compressor=split compresses a rank's own tokens: it needs pcp > 1 or dsa_cp; else leave it out",
     "pcp2+compressor=split"},
    {"tp4+dsa_cp+sp+queries=full",
     "queries=full takes a rank's rows behind attention, in front of a whole output projection: it needs dsa_cp, sp "
     "and o_proj=replicated; "
     "else leave it out",
     "tp4+dsa_cp+sp+o_proj=replicated+queries=full"},
};

TEST(LayoutRules, ChoicesWithoutEffectAreRefused) {
  std::set<std::pair<std::string_view, int>> refused, taken;  // values by choice
  for (const NeedCase& c : kNeeds) {
    const Status status = parse_layout(c.refused).status();
    EXPECT_EQ(status.message(), "layout " + std::string(c.refused) + ": " + c.message);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const Result<Layout> with = parse_layout(c.taken);
    ASSERT_TRUE(with.ok()) << with.status().message();
    EXPECT_EQ(choice_without_effect(*with), "") << c.taken;
    for (const LayoutChoice& choice : layout_choices()) {
      const std::string value =
          std::string(choice.key) + "=" + std::string(choice.values[static_cast<size_t>(choice.get(*with))].name);
      taken.insert({choice.key, choice.get(*with)});
      if (std::string_view(c.message).starts_with(value)) refused.insert({choice.key, choice.get(*with)});
    }
  }
  // Flags are named by their short spelling.
  refused.insert({{"attention", 1}, {"sequence_parallel", 1}, {"split", 3}});
  for (const LayoutChoice& choice : layout_choices()) {
    EXPECT_EQ(choice.values[0].need.met, nullptr) << choice.key;
    for (int value = 1; value < static_cast<int>(choice.values.size()); ++value) {
      if (choice.values[static_cast<size_t>(value)].need.met == nullptr) continue;
      EXPECT_TRUE(refused.contains({choice.key, value}) && taken.contains({choice.key, value}))
          << choice.key << "=" << choice.values[static_cast<size_t>(value)].name << " is not in the table";
    }
  }
}

TEST(LayoutRules, TheParserChecksThem) {
  EXPECT_EQ(parse_layout("tp4+ep8").status().message(),
            "layout tp4+ep8: dp 1 x pcp 1 x tp 4 = 4 is not divisible by ep 8; usable sizes: 1 2 4");
}

// A family's contract looks at its config too.
TEST(LayoutRules, ContractOfAFamily) {
  struct Config {
    int64_t o_groups;
  };
  constexpr LayoutRule<Config> kContract[] = {
      {"groups", [](const Layout& l, const Config& c) {
         return check_divisible("o_groups", c.o_groups, "tp", l.mesh.tp).message();
       }}};
  const std::span<const LayoutRule<Config>> contract = kContract;
  EXPECT_TRUE(check_rules(contract, *parse_layout("tp4"), Config{8}).ok());
  EXPECT_EQ(check_rules(contract, *parse_layout("tp6"), Config{8}).message(),
            "layout tp6: o_groups 8 is not divisible by tp 6; usable sizes: 1 2 4 8");
}

TEST(LayoutSteps, OwnedOnlyInDecode) {
  const Layout owned = *parse_layout("tp4+owned");
  EXPECT_TRUE(check_step(owned, StepPhase::kDecode).ok());
  EXPECT_EQ(
      check_step(owned, StepPhase::kPrefill).message(),
      "layout tp4+owned: owned is for decode steps: its rank-local caches cannot be filled by heads split over tp "
      "4; prefill with dsa_cp");
  EXPECT_TRUE(check_step(*parse_layout("tp4+dsa_cp+owned"), StepPhase::kPrefill).ok());
  EXPECT_TRUE(check_step(*parse_layout("tp4"), StepPhase::kPrefill).ok());
}

TEST(LayoutSteps, WhoSplitsTheQueries) {
  using Split = std::optional<QuerySplit>;
  const auto on = [](MeshAxis axis, TokenSplit split) { return Split(QuerySplit{axis, split}); };
  struct Case {
    const char* text;
    Split prefill, decode;
  };
  const Case kCases[] = {
      {"tp4", {}, {}},
      {"tp4+sp", {}, {}},
      {"tp4+dsa_cp", on(MeshAxis::kTp, TokenSplit::kFlat), {}},
      {"tp4+dsa_cp+split=zigzag", on(MeshAxis::kTp, TokenSplit::kZigzag), {}},
      {"tp2pcp2+split=per_request", on(MeshAxis::kPcp, TokenSplit::kPerRequest), {}},
      {"tp4+owned", {}, on(MeshAxis::kTp, TokenSplit::kOwned)},
      {"tp4+owned+o_proj=replicated", {}, on(MeshAxis::kTp, TokenSplit::kOwned)},
      {"tp4+dsa_cp+owned", on(MeshAxis::kTp, TokenSplit::kFlat), on(MeshAxis::kTp, TokenSplit::kOwned)},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text);
    const Layout layout = *parse_layout(c.text);
    EXPECT_EQ(query_split(layout, StepPhase::kPrefill), c.prefill);
    EXPECT_EQ(query_split(layout, StepPhase::kDecode), c.decode);
  }
}

}  // namespace
}  // namespace weft
