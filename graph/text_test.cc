#include "graph/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "graph/op_samples.h"

namespace weft {
namespace {

TEST(GraphText, EveryOpReadsBack) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    Graph graph("all ops");
    std::set<size_t> kinds;
    int i = 0;
    for (const OpSample& sample : op_samples(random)) {
      const std::string name = (i % 3 == 0   ? "layers."
                                : i % 3 == 1 ? "a \"quoted\\\" name "
                                             : "result") +
                               std::to_string(i);
      const auto out = add_sample(graph, sample, name, i % 2 == 0 ? "" : "layers.1", static_cast<Stream>(i % 3));
      ASSERT_TRUE(out.ok()) << out.status().message() << " seed " << seed;
      const auto partial = [](const Placement& p) { return p.kind == Placement::Kind::kPartial; };
      if (!out->empty() && i % 4 == 0 && std::ranges::none_of(graph.value(out->back()).type.placement, partial)) {
        graph.mark_result(out->back());
      }
      kinds.insert(sample.op.index());
      ++i;
    }
    ASSERT_EQ(kinds.size(), std::variant_size_v<Op>) << "an op has no sample";
    const std::string text = to_text(graph);
    const auto parsed = parse_graph(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message() << "\n" << text;
    EXPECT_EQ(to_text(*parsed), text);
    ASSERT_TRUE(*parsed == graph) << "seed " << seed << "\n" << text;
    EXPECT_TRUE(verify(*parsed).ok()) << verify(*parsed).message();
  }
}

TEST(GraphText, PrintsValuesAndNodesInOrder) {
  constexpr std::string_view kText =
      "graph tiny\n"
      "input tokens: I32[tokens 8]\n"
      "weight embed.weight: BF16[64,16]\n"
      "x = embedding(tokens, embed.weight) {streams=0, dtype=F32}: F32[tokens 8,16]\n"
      "state layers.0.window: F32[2,7,16]\n"
      "ring_write(x, layers.0.window) in layers.0\n"
      "weight norm: F32[16]\n"
      "y = rms_norm(x, norm) {eps=0.1, rounding=once} in layers.0 on prefetch: F32[tokens 8,16]\n"
      "result y\n"
      "result x\n";
  const auto graph = parse_graph(kText);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(to_text(*graph), kText);
  EXPECT_EQ(graph->nodes()[1].region, "layers.0");
  EXPECT_EQ(graph->nodes()[2].stream, Stream::kPrefetch);
  EXPECT_EQ(summarise(*graph),
            "graph tiny: 3 nodes, 2 weights (2112 bytes), 1 states (896 bytes)\n"
            "x                                    embedding         F32[tokens 8,16]  weights BF16[64,16]\n"
            "layers.0                             ring_write          changes layers.0.window\n"
            "y                                    rms_norm          F32[tokens 8,16]  weights F32[16]\n");
}

TEST(GraphText, PlacementsReadBack) {
  constexpr std::string_view kText =
      "graph sharded\n"
      "input x: F32[tokens 4,8] pcp:shard(0) tp:shard(1)\n"
      "weight w: F32[6,8] tp:shard(1)\n"
      "y = linear(x, w) {dtype=F32, act_quant=none, groups=1, k_blocks=2, heads=0, scale_rows=0, scale_cols=0, rest=0}: "
      "F32[tokens 4,6] pcp:shard(0) tp:partial\n";
  const auto graph = parse_graph(kText);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(to_text(*graph), kText);
}

TEST(GraphText, DoublesKeepTheirBits) {
  for (double value : {0.1, 1e-6, 1.0 / 3, 1e300, 5e-324, -0.0, std::nextafter(1.0, 2.0), 160000.0}) {
    Graph graph;
    const auto x = graph.add_value("x", {{DType::kF32, {2, 4}}}, ValueRole::kInput);
    ASSERT_TRUE(graph.add_node(Swiglu{value}, {*x, *x}, "y").ok());
    const auto parsed = parse_graph(to_text(graph));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const double found = std::get<Swiglu>(parsed->nodes()[0].op).limit;
    EXPECT_EQ(std::signbit(found), std::signbit(value));
    EXPECT_EQ(found, value);
  }
}

TEST(GraphText, EmptyLinesAndCommentsAreSkipped) {
  const auto graph = parse_graph("# a comment\n\n  graph g \r\n\t# another\ninput x : F32[ 2 , 4 ]\nresult x");
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(to_text(*graph), "graph g\ninput x: F32[2,4]\nresult x\n");
}

struct ErrorCase {
  const char* what;
  const char* lines;  // after "graph g", "input x: F32[tokens 2,4]" and "weight w: F32[4]"
  const char* message;
};

const ErrorCase kErrorCases[] = {
    {"unknown op", "y = rms_normal(x)", "line 4: unknown op 'rms_normal', known are embedding, rms_norm, "},
    {"unknown attribute", "y = swiglu(x, x) {limit=0, top_k=2}: F32[tokens 2,4]",
     "line 4: swiglu has no attribute 'top_k'"},
    {"missing attribute", "y = rms_norm(x, w) {eps=0}: F32[tokens 2,4]",
     "line 4: rms_norm lacks the attribute 'rounding'"},
    {"no attributes at all", "y = swiglu(x, x): F32[tokens 2,4]", "line 4: swiglu lacks the attribute 'limit'"},
    {"attribute twice", "y = swiglu(x, x) {limit=0, limit=0}", "line 4: attribute 'limit' is given twice"},
    {"not a number", "y = swiglu(x, x) {limit=ten}", "line 4: attribute limit: 'ten' is not a number"},
    {"a number and more", "y = swiglu(x, x) {limit=1.5x}", "line 4: attribute limit: '1.5x' is not a number"},
    {"not an integer", "y = gather_rows(x) {capacity=1.5}", "line 4: attribute capacity: '1.5' is not an integer"},
    {"beyond int64", "y = gather_rows(x) {capacity=9223372036854775808}",
     "line 4: attribute capacity: '9223372036854775808' is not an integer"},
    {"not an enumerator", "y = rms_norm(x, w) {eps=0, rounding=never}",
     "line 4: attribute rounding: 'never' is not one of once, each_step"},
    {"not a bool", "y = quantise(x) {format=fp8, begin=0, end=4, block=4, hadamard=1}",
     "line 4: attribute hadamard: '1' is not true or false"},
    {"not a dtype", "y = embedding(x, w) {streams=0, dtype=F31}", "line 4: attribute dtype: 'F31' is not a dtype"},
    {"undefined value", "\n\ny = add(x, z): F32[tokens 2,4]", "line 6: value 'z' is not defined above"},
    {"used before it is made", "z = add(x, y): F32[2,4]\ny = add(x, x): F32[2,4]",
     "line 4: value 'y' is not defined above"},
    {"undefined result", "result z", "line 4: value 'z' is not defined above"},
    {"another type", "y = add(x, x): F32[tokens 2,5]",
     "line 4: output 0 of add is F32[tokens 2,4], the text says F32[tokens 2,5]"},
    {"another row kind", "y = add(x, x): F32[2,4]",
     "line 4: output 0 of add is F32[tokens 2,4], the text says F32[2,4]"},
    {"too few outputs", "y = add(x, x): F32[tokens 2,4], F32[2]", "line 4: add has 1 outputs, the text has 2"},
    {"infer refuses", "y = add(x, w): F32[tokens 2,4]",
     "line 4: graph g: node 'y' (add): add: a is F32[tokens 2,4], b is F32[4]"},
    {"defined twice", "input x: F32[2]", "line 4: value 'x' is defined twice"},
    {"node of a known name", "w = add(x, x): F32[tokens 2,4]", "line 4: value 'w' is defined twice"},
    {"no type", "y = add(x, x)", "line 4: expected ':', found 'the end of the line'"},
    {"no such dtype", "input y: F33[2]", "line 4: 'F33' is not a dtype"},
    {"negative dimension", "input y: F32[-2]", "line 4: expected a dimension, found '-2]'"},
    {"open bracket", "input y: F32[2", "line 4: expected ']', found 'the end of the line'"},
    {"too many dimensions", "input y: F32[1,1,1,1,1,1]", "line 4: 6 dimensions, at most 5"},
    {"larger than memory", "input y: F32[4294967296,4294967296]", "line 4: the tensor is too large"},
    {"half a byte", "input y: F4_E2M1[3]", "line 4: the tensor does not fill whole bytes"},
    {"no such dimension", "input y: F32[2] tp:shard(1)", "line 4: there is no dimension 1 to shard"},
    {"no such placement", "input y: F32[2] tp:whole", "line 4: a placement is shard(DIM) or partial"},
    {"axes out of order", "input y: F32[2] tp:partial dp:partial", "line 4: expected the end of the line, found 'dp'"},
    {"unknown stream", "y = add(x, x) on disk: F32[tokens 2,4]", "line 4: unknown stream 'disk'"},
    {"open quote", "input \"y: F32[2]", "line 4: a quoted name does not end"},
    {"something after", "result x x", "line 4: expected the end of the line, found 'x'"},
    {"no name", "= add(x, x)", "line 4: expected a name or an op, found '= add(x, x)'"},
};

TEST(GraphText, ErrorsNameTheLine) {
  for (const ErrorCase& c : kErrorCases) {
    const auto graph = parse_graph(std::string("graph g\ninput x: F32[tokens 2,4]\nweight w: F32[4]\n") + c.lines);
    ASSERT_FALSE(graph.ok()) << c.what;
    EXPECT_EQ(graph.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(graph.status().message().substr(0, 12 + std::string_view(c.message).size()),
              std::string("graph text, ") + c.message)
        << c.what;
  }
  EXPECT_EQ(parse_graph("").status().message(), "graph text: empty, expected 'graph NAME'");
  EXPECT_EQ(parse_graph("input x: F32[2]").status().message(),
            "graph text, line 1: expected 'graph NAME' first, found 'input'");
}

// No text may crash the parser: bytes of a good text are changed, dropped, doubled.
TEST(GraphText, ChangedTextsAreRefusedOrGood) {
  std::mt19937_64 random(7);
  Graph graph("g");
  int i = 0;
  for (const OpSample& sample : op_samples(random))
    ASSERT_TRUE(add_sample(graph, sample, "n" + std::to_string(i++)).ok());
  const std::string good = to_text(graph);
  for (int n = 0; n < 3000; ++n) {
    std::string text = good;
    for (int change = 0; change < 1 + n % 3; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = "0123456789,()[]{}=-\"x \n"[random() % 23]; break;
        case 1: text.erase(at, 1 + random() % 3); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 5));
      }
    }
    const auto parsed = parse_graph(text);
    if (parsed.ok()) {
      EXPECT_TRUE(parse_graph(to_text(*parsed)).ok()) << text;
    }
  }
}

}  // namespace
}  // namespace weft
