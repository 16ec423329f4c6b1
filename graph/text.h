// Graphs as text: golden files, pass tests (text in, text out), `weft graph`. parse_graph(to_text(g)) gives an equal graph.
//
//   graph tiny
//   input tokens: I32[tokens 8]
//   weight embed.weight: BF16[64,16]
//   derived layers.0.attn.w_uk: F32[64,8]
//   x = embedding(tokens, embed.weight) {streams=0, dtype=F32}: F32[tokens 8,16]
//   state layers.0.window: F32[2,7,16]
//   ring_write(x, layers.0.window) in layers.0
//   result x
//
// One line per value or node, in the order in which they were added; '#' starts a comment line. A node line is
//
//   name = op(inputs) {attributes} in REGION on STREAM: types of the outputs
//
// `name =` and the types are absent for a node without outputs, the braces without attributes, `in` outside of regions, `on`
// on the compute stream. Output 0 is called `name`, output i `name.i`. Every attribute must be there, once, in any order.
// Doubles have the fewest digits that give the same double. Names with other characters than letters, digits and _.-/ are
// quoted, with backslash escapes as in JSON.
#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace weft {

std::string to_text(const Graph& graph);

// The error names the line and what is wrong with it. The types of nodes are inferred again and must be those of the text.
// The graph was not verified as a whole (verify).
Result<Graph> parse_graph(std::string_view text);

// For people: one line per node with its op, the types that it makes, what it reads of the weights, and the states that it
// changes; at the top what the graph holds.
std::string summarise(const Graph& graph);

}  // namespace weft
