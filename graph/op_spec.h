// The one definition of an op: everything the rest of the system may ask of it.
//
// An op is a struct of attributes with
//   kName                    text form, plan files, traces
//   infer(inputs)            the only shape and dtype logic; says what is wrong with the inputs. Placements are added by the
//                            graph from shard_rule
//   work(inputs, outputs, env)   flops, traffic, scratch
//   shard_rule()             dimensions that may be split over ranks
//   placements(inputs)       only ops that move values between ranks: the placements of the outputs instead of a shard_rule
//   bytes_sent(ctx)          ... and what this rank sends in one run
//   visit_fields(self, f)    f(name, field) for every attribute: text form and parser
//   run(ctx)                 computes; inputs were checked by infer
// State inputs (caches) that run() changes are listed by mutates(): indices of inputs.
#pragma once

#include <concepts>
#include <string_view>

#include "base/status.h"
#include "graph/run_context.h"
#include "graph/shard_rule.h"
#include "graph/value_type.h"
#include "graph/work.h"

namespace weft {

template <class T>
concept OpSpec = std::equality_comparable<T> &&
                 requires(const T op, TypeSpan in, const WorkEnv& env, RunContext& ctx) {
                   { T::kName } -> std::convertible_to<std::string_view>;
                   { op.infer(in) } -> std::same_as<Result<ValueTypes>>;
                   { op.work(in, in, env) } -> std::same_as<Work>;
                   { op.shard_rule(in) } -> std::same_as<ShardRule>;
                   { op.mutates() } -> std::same_as<std::vector<int>>;
                   { op.run(ctx) } -> std::same_as<Status>;
                 };

// Traffic of an op that reads every input and writes every output once.
Work streaming_work(TypeSpan in, TypeSpan out);

// Texts of enum attributes: specialise with `static constexpr std::array<std::string_view, N> kNames` in the enum's order.
template <class E>
struct EnumText;

// "what: detail" errors of infer, worded alike everywhere.
Status expect_inputs(std::string_view op, TypeSpan in, int at_least, int at_most);
Status expect_rank(std::string_view op, TypeSpan in, int input, std::string_view name, int rank);
Status expect_rank_2_or_3(std::string_view op, TypeSpan in, int input, std::string_view name);
Status expect_dim(std::string_view op, std::string_view name, int64_t found, int64_t expected);
Status expect_range(std::string_view op, std::string_view name, int64_t found, int64_t at_least, int64_t at_most);
Status expect_dtype(std::string_view op, TypeSpan in, int input, std::string_view name, std::initializer_list<DType> allowed);
// A cache [slots or pages, rows, width].
Status expect_cache(std::string_view op, TypeSpan in, int input, std::string_view name, int64_t width);

}  // namespace weft
