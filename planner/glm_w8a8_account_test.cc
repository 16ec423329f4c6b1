// The GLM-5.1-W8A8 study (docs/glm_5_1_w8a8.md): where the bytes of a rank lie in TensorCast's two published accounts, 28.452 and
// 38.068 GiB on TP16, DP2, EP32. Every row of glm_moe_dsa.md 8.3 comes out of the planner, and the page says the same.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "models/layout_test_support.h"
#include "planner/plan.h"
#include "planner/profile_files.h"

namespace weft {
namespace {

constexpr double kGiB = 1 << 30;

RankLedger account(const std::string& engine_name, const std::string& layout, int64_t drafts = 0) {
  PlanRequest request;
  request.model = published("glm-5.1-w8a8");
  request.model_name = "glm-5.1-w8a8";
  request.layout = layout_of(layout);
  DeviceProfile device;
  device.name = "test";
  request.device = std::make_shared<const DeviceProfile>(std::move(device));
  auto engine = load_engine_profile(engine_name, {WEFT_SOURCE_DIR "/devices/engines"});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  request.engine = std::make_shared<const EngineProfile>(std::move(*engine));
  request.mode = request.model->mode(DType::kBF16, std::nullopt);
  request.prompt = 4096;
  request.drafts = drafts;
  auto plan = make_plan(request, {.times = false});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan->ledger[0] : RankLedger();
}

bool is_static(const LedgerLine& line) {
  return line.category <= LedgerCategory::kEngineCopies || line.category == LedgerCategory::kReserve;
}

// A row of 8.3: its tensors (or the name of a reserve), and its bytes in both accounts.
struct Row {
  const char* name;
  std::vector<std::string> tensors;
  int64_t plain, corrected;
  const char* why;  // of a change
};

constexpr int64_t kLayers = 78, kMoe = 75, kTp = 16, kExpert = 37'748'736;

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"routed experts, 8 of 256 a rank, int8",
       {"mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"},
       8 * kMoe * kExpert,
       8 * kMoe * kExpert,
       ""},
      {"shared expert, whole, int8",
       {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"},
       kMoe * kExpert,
       kMoe * kExpert,
       ""},
      {"dense layers, 1/16, int8",
       {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
       3 * 226'492'416 / kTp,
       3 * 226'492'416 / kTp,
       ""},
      {"q_a and kv_a, whole, int8",
       {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"},
       kLayers * 16'121'856,
       kLayers * 16'121'856,
       ""},
      {"q_b, int8",
       {"self_attn.q_b_proj"},
       kLayers * 33'554'432 / kTp,
       kLayers * 33'554'432,
       "all heads on every rank"},
      {"kv_b, as W_UK and W_UV",
       {"self_attn.w_uk", "self_attn.w_uv"},
       kLayers * 14'680'064 / kTp,
       kLayers * 14'680'064 * 2,
       "all heads on every rank, and bf16: it is a float exception of the checkpoint"},
      {"o_proj, int8",
       {"self_attn.o_proj"},
       kLayers * 100'663'296 / kTp,
       kLayers * 100'663'296,
       "whole, applied to a slice of the tokens"},
      {"indexer wq_b, whole, int8", {"self_attn.indexer.wq_b"}, kLayers * 8'388'608, kLayers * 8'388'608, ""},
      {"indexer wk and weights_proj, whole",
       {"self_attn.indexer.wk", "self_attn.indexer.weights_proj"},
       kLayers * 983'040,
       kLayers * 983'040 * 2,
       "bf16: float exceptions of the checkpoint"},
      {"router, whole, bf16", {"mlp.gate"}, kMoe * 1'572'864 * 2, kMoe * 1'572'864 * 2, ""},
      {"embedding, bf16",
       {"embed_tokens"},
       1'903'165'440,
       1'903'165'440 / kTp,
       "an option of the corrected run, not DSA-CP: --word-embedding-tp row"},
      {"head, 1/16, bf16", {"lm_head"}, 1'903'165'440 / kTp, 1'903'165'440 / kTp, ""},
      {"cos and sin of all positions",
       {"cos and sin of all positions, bf16, 64 values each"},
       202'752 * 256,
       202'752 * 256,
       ""},
      {"norms",
       {"input_layernorm", "post_attention_layernorm", "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", "norm"},
       (kLayers * 14'848 + 6144) * 2,
       (kLayers * 14'848 + 6144) * 2,
       ""},
      {"k_norm bf16, router biases fp32",
       {"self_attn.indexer.k_norm", "self_attn.indexer.k_norm.bias", "mlp.gate.e_score_correction_bias"},
       kLayers * 256 * 2 + kMoe * 256 * 4,
       kLayers * 256 * 2 + kMoe * 256 * 4,
       ""},
  };
  return kRows;
}

// Bytes of the static lines by tensor; of a reserve by its name.
std::map<std::string, int64_t> static_bytes(const RankLedger& ledger) {
  std::map<std::string, int64_t> bytes;
  for (const LedgerLine& line : ledger.lines) {
    if (is_static(line)) bytes[line.tensor.empty() ? line.what : line.tensor] += line.bytes;
  }
  return bytes;
}

void expect_rows(const RankLedger& ledger, int64_t Row::*wanted, double published, int64_t exact) {
  std::map<std::string, int64_t> left = static_bytes(ledger);
  for (const Row& row : rows()) {
    int64_t bytes = 0;
    for (const std::string& tensor : row.tensors) {
      EXPECT_TRUE(left.contains(tensor)) << tensor;
      bytes += left[tensor];
      left.erase(tensor);
    }
    EXPECT_EQ(bytes, row.*wanted) << row.name;
  }
  for (const auto& [tensor, bytes] : left) EXPECT_EQ(bytes, 0) << tensor << " is in no row of the account";
  EXPECT_EQ(ledger.static_bytes(), exact);
  EXPECT_EQ(fmt::format("{:.3f}", static_cast<double>(ledger.static_bytes()) / kGiB), fmt::format("{:.3f}", published));
}

TEST(GlmW8a8Account, PlainRowByRow) {
  expect_rows(account("tensorcast", "dp2tp16+ep32"), &Row::plain, 28.452, 30'549'626'880);
}

std::string page_text() {
  std::ifstream in(WEFT_SOURCE_DIR "/docs/glm_5_1_w8a8.md");
  return {std::istreambuf_iterator<char>(in), {}};
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// The page's table is this account.
TEST(GlmW8a8Account, ThePageSaysTheSame) {
  const std::string page = page_text();
  int64_t plain = 0, corrected = 0;
  const auto line = [](const char* name, int64_t a, int64_t b, const char* why) {
    return fmt::format("| {} | {:.4f} | {:.4f} | {} | {} |\n", name, gib(a), gib(b),
                       a == b ? "" : fmt::format("{:+.4f}", gib(b - a)), why);
  };
  for (const Row& row : rows()) {
    plain += row.plain;
    corrected += row.corrected;
    const std::string wanted = line(row.name, row.plain, row.corrected, row.why);
    EXPECT_NE(page.find(wanted), page.npos) << wanted;
  }
  const std::string sum = line("sum", plain, corrected, "");
  EXPECT_NE(page.find(sum), page.npos) << sum;
}

// From the corrected account to what weft holds with the draft layer, to the byte: what the published figure leaves out.
TEST(GlmW8a8Account, FromThePublishedFigureToAllBytes) {
  const RankLedger theirs = account("tensorcast", "dp2tp16+sp+ep32");
  const RankLedger ours = account("weft", "dp2tp16+dsa_cp+sp+ep32+o_proj=replicated+shared=replicated", 1);
  std::map<std::string, int64_t> change;
  const auto kind = [](const LedgerLine& line) -> std::string {
    if (line.tensor == "rot") return "rotation in front of the draft layer, bf16";
    if (line.what == "mtp") return "MTP layer with its own embedding and head";
    if (line.category == LedgerCategory::kReserve) return "cos and sin, which weft computes";
    if (line.tensor.find("scale") != line.tensor.npos || line.tensor.find("quant") != line.tensor.npos)
      return "scales, offsets and biases of int8";
    if (line.tensor == "embed_tokens") return "embedding on every rank";
    if (line.tensor == "lm_head") return "head fp32, as the checkpoint has it";
    if (line.tensor.find("norm") != line.tensor.npos) return "norms fp32, as the checkpoint has them";
    return "the rest";
  };
  for (const LedgerLine& line : theirs.lines) change[kind(line)] -= is_static(line) ? line.bytes : 0;
  for (const LedgerLine& line : ours.lines) change[kind(line)] += is_static(line) ? line.bytes : 0;
  EXPECT_EQ(change["the rest"], 0);
  change.erase("the rest");
  EXPECT_EQ(change.size(), 7u);
  int64_t sum = theirs.static_bytes();
  const std::string page = page_text();
  for (const auto& [what, bytes] : change) {
    sum += bytes;
    const std::string wanted = fmt::format("| {} | {:+.4f} |\n", what, gib(bytes));
    EXPECT_NE(page.find(wanted), page.npos) << wanted;
  }
  EXPECT_EQ(sum, ours.static_bytes());
  const std::string total = fmt::format("| all that weft holds of the model | {:.4f} |\n", gib(sum));
  EXPECT_NE(page.find(total), page.npos) << total;
}

// DSA-CP comes with sequence parallelism; no layout names it.
TEST(GlmW8a8Account, CorrectedRowByRow) {
  expect_rows(account("tensorcast", "dp2tp16+sp+ep32"), &Row::corrected, 38.068, 40'875'282'432);
}

// 8.4: what vllm-ascend holds, as far as its rules are known; HCCL buffers and the device's context are not in those figures.
TEST(GlmW8a8Account, VllmAscend) {
  const auto weights = [](const RankLedger& ledger) {
    return static_cast<double>(ledger.weight_bytes + ledger.engine_bytes) / kGiB;
  };
  EXPECT_NEAR(weights(account("vllm-ascend", "dp2tp16+ep32")), 24.5, 0.3);
  EXPECT_NEAR(weights(account("vllm-ascend", "dp2tp16+dsa_cp+ep32")), 28.8, 0.3);
  EXPECT_NEAR(weights(account("vllm-ascend", "dp2tp16+dsa_cp+sp+ep32+o_proj=replicated+shared=replicated")), 38.1, 0.3);
  EXPECT_NEAR(weights(account("vllm-ascend", "dp2tp16+dsa_cp+sp+ep32+shared=replicated")), 31.3, 0.3);
  EXPECT_NEAR(weights(account("vllm-ascend", "dp2tp16+ep32", 1)), 25.0,
              0.5);  // with its rotation and own embedding and head
}

}  // namespace
}  // namespace weft
