// What the rules of an engine profile do to the lines of a ledger.
#include "planner/memory_ledger.h"

#include <gtest/gtest.h>

#include "planner/plan.h"
#include "planner/test_support.h"

namespace weft {
namespace {

PlanRequest request_of(const std::string& layout, EngineProfile engine) {
  engine.name = "other";
  PlanRequest request = sample_request(layout, std::move(engine));
  request.prompt = 64;
  request.gen = 16;
  request.batch = 2;
  return request;
}

RankLedger ledger_of(const PlanRequest& request) {
  auto plan = make_plan(request, {.times = false});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan->ledger[0];
}

int64_t sum_of_lines(const RankLedger& ledger) {
  int64_t bytes = 0;
  for (const LedgerLine& line : ledger.lines) bytes += line.bytes;
  return bytes;
}

WeightRule rule(WeightEffect effect, std::vector<std::string> patterns) {
  WeightRule made;
  made.name = "a rule";
  made.source = "a test";
  made.effect = effect;
  made.patterns = std::move(patterns);
  if (effect == WeightEffect::kExtraCopy) made.dtype = DType::kBF16;  // as the head is stored
  return made;
}

TEST(MemoryLedger, LinesAddUp) {
  for (const char* layout : {"tp1", "tp2+sp", "tp2+dsa_cp", "dp2+ep2", "pcp2"}) {
    const RankLedger ledger = ledger_of(request_of(layout, {}));
    EXPECT_EQ(sum_of_lines(ledger), ledger.total()) << layout;
    EXPECT_EQ(ledger.engine_bytes, 0) << layout;
    EXPECT_FALSE(ledger.peak_op.empty());
    for (const LedgerLine& line : ledger.lines) EXPECT_GT(line.bytes, 0) << layout << " " << line.what;
  }
}

TEST(MemoryLedger, CopiesOfOneRankOfMany) {
  const auto copies = [](const RankLedger& ledger, std::string_view what) {
    int64_t most = 0;
    for (const LedgerLine& line : ledger.lines) {
      if (line.category == LedgerCategory::kWeights && line.what == what) most = std::max(most, line.copies);
    }
    return most;
  };
  EXPECT_EQ(copies(ledger_of(request_of("tp1", {})), "routed experts"), 1);
  EXPECT_EQ(copies(ledger_of(request_of("tp2", {})), "routed experts"), 2);
  EXPECT_EQ(copies(ledger_of(request_of("tp2+ep2", {})), "routed experts"), 1);
  EXPECT_EQ(copies(ledger_of(request_of("dp2+ep2", {})), "embedding"), 2);
}

TEST(MemoryLedger, RulesOfAnEngine) {
  const RankLedger plain = ledger_of(request_of("tp2", {}));
  const auto with = [&](WeightRule r) {
    EngineProfile engine;
    engine.weights.push_back(std::move(r));
    const RankLedger ledger = ledger_of(request_of("tp2", engine));
    EXPECT_EQ(sum_of_lines(ledger), ledger.total());
    EXPECT_EQ(ledger.weight_bytes, plain.weight_bytes);  // what weft maps
    return ledger;
  };
  // The head is sliced over tp: whole, it is twice as large.
  int64_t head = 0, embedding = 0;
  for (const LedgerLine& line : plain.lines) {
    head += line.what == "head" ? line.bytes : 0;
    embedding += line.what == "embedding" ? line.bytes : 0;
  }
  ASSERT_GT(head, 0);
  EXPECT_EQ(with(rule(WeightEffect::kReplicate, {"head"})).engine_bytes, head);
  EXPECT_EQ(with(rule(WeightEffect::kShard, {"embed"})).engine_bytes, -embedding / 2);
  EXPECT_EQ(with(rule(WeightEffect::kOmit, {"embed"})).engine_bytes, -embedding);
  WeightRule copy = rule(WeightEffect::kExtraCopy, {"head"});
  copy.factor = 0.5;
  EXPECT_EQ(with(copy).of(LedgerCategory::kEngineCopies), head / 2);
  WeightRule load = rule(WeightEffect::kExtraCopy, {"head"});
  load.lifetime = Lifetime::kLoad;
  EXPECT_EQ(with(load).engine_bytes, 0);  // gone when the engine runs
  WeightRule marked = rule(WeightEffect::kExtraCopy, {"head"});
  marked.verified = false;
  bool unverified = false;
  for (const LedgerLine& line : with(marked).lines) unverified = unverified || line.unverified;
  EXPECT_TRUE(unverified);
}

TEST(MemoryLedger, Reserves) {
  EngineProfile engine;
  engine.reserves.push_back({"context", "a test", true, 1000, 0, 0});
  engine.reserves.push_back({"buffers", "a test", true, 0, 100, 0});
  PlanRequest request = request_of("dp2tp2", engine);
  request.reserve_bytes = 7;
  EXPECT_EQ(ledger_of(request).reserve_bytes, 1000 + 2 * 100 + 7);  // groups along dp and tp
}

}  // namespace
}  // namespace weft
