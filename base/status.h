// Status and Result<T>: how a fault that a file, a user, a peer or the machine caused travels up.
//
// A message says where (file, tensor, field, rank), what was expected, what was found, and the remedy if one is known.
// Faults of our own code are WEFT_CHECK (base/check.h), never a Status.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace weft {

enum class StatusCode {
  kOk,
  kCheckFailed,      // a comparison failed, or a plan does not fit     -> exit 1
  kInvalidArgument,  // bad usage or bad input                          -> exit 2
  kMachineFailed,    // out of memory, I/O error, lost peer             -> exit 3
  kCancelled,        // the user stopped it                             -> exit 130
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status check_failed(std::string message) { return {StatusCode::kCheckFailed, std::move(message)}; }
inline Status invalid_argument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status machine_failed(std::string message) { return {StatusCode::kMachineFailed, std::move(message)}; }
inline Status cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }

// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    WEFT_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    WEFT_CHECK(ok(), "{}", status_.message());
    return *value_;
  }
  const T& value() const& {
    WEFT_CHECK(ok(), "{}", status_.message());
    return *value_;
  }
  T&& value() && {
    WEFT_CHECK(ok(), "{}", status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace weft

#define WEFT_CONCAT_INNER_(a, b) a##b
#define WEFT_CONCAT_(a, b) WEFT_CONCAT_INNER_(a, b)

#define WEFT_RETURN_IF_ERROR(expr)                                      \
  do {                                                                  \
    if (::weft::Status weft_status_ = (expr); !weft_status_.ok()) {     \
      return weft_status_;                                              \
    }                                                                   \
  } while (false)

// WEFT_ASSIGN_OR_RETURN(auto value, function_that_returns_a_result());
#define WEFT_ASSIGN_OR_RETURN(decl, expr) WEFT_ASSIGN_OR_RETURN_(WEFT_CONCAT_(weft_result_, __LINE__), decl, expr)
#define WEFT_ASSIGN_OR_RETURN_(tmp, decl, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return tmp.status();           \
  decl = std::move(tmp).value()
