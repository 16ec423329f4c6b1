// Running the program in tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "io/json.h"

namespace weft {

// What `weft ARGS --json` prints; an empty object, and a failure of the test, if that is no JSON.
inline Json run_json(const std::string& args) {
  const std::string command = fmt::format("'{}' {} --json", WEFT_PROGRAM, args);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  for (int c; (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  Result<Json> json = parse_json(text, command);
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json::object();
}

}  // namespace weft
