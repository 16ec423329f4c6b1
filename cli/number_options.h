// Numbers on the command line. Every one is a decimal number inside its range, or an error that names the option, the
// range and what was found: "--ctx: expected a whole number from 1 to 2147483647, found '0'".
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/sampling.h"

namespace weft {

inline constexpr uint64_t kMaxCount = std::numeric_limits<int32_t>::max();  // of tokens, rows, repetitions
inline constexpr uint64_t kMaxSeed = std::numeric_limits<uint64_t>::max();
inline constexpr uint64_t kMaxThreads = 1024;
inline constexpr uint64_t kMaxDrafts = 64;

// The whole text as a decimal number inside of the range: never NaN, never infinite. Nothing for any other text.
std::optional<double> parse_real(std::string_view text, const NumberRange& range);

// For CLI::Option::check. They spell the number anew, so that what CLI11 converts afterwards is what was checked.
CLI::Validator whole_number(uint64_t min, uint64_t max = kMaxCount);
CLI::Validator number_in(const NumberRange& range);

// Whole numbers separated by commas: "0,4096". Nothing between two commas is an error.
CLI::Option* add_number_list(CLI::App& app, const std::string& name, std::vector<int64_t>& values, uint64_t min,
                             const std::string& what, uint64_t max = kMaxCount);

CLI::Option* add_real_list(CLI::App& app, const std::string& name, std::vector<double>& values,
                           const NumberRange& range, const std::string& what);

// A name or path: not "".
CLI::Validator some_text();

// One of some words: "--dtype: expected one of f32, bf16; found 'f16'".
CLI::Validator one_of(std::vector<std::string> words);

}  // namespace weft
