// Status and Result<T>: how every call of the library reports failure. Nothing here allocates on success,
// nothing throws, nothing prints.
#pragma once

#include <cassert>
#include <new>
#include <string>
#include <utility>
#include <variant>

namespace ccks {

/// Why a call failed. The values are stable: a C ABI will expose them as they stand.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,   ///< the caller passed something that can never work
  not_found = 2,          ///< a file, tensor or symbol of that name does not exist
  invalid_data = 3,       ///< a file or image exists but its contents are malformed
  out_of_range = 4,       ///< a dim outside its declared range, an index outside its tensor
  out_of_memory = 5,      ///< host or device memory could not be reserved
  unavailable = 6,        ///< the device or transport is not present on this machine
  device_fault = 7,       ///< a worker reported a fault, or the driver did
  deadline_exceeded = 8,  ///< the deadline passed; the message names worker, op, run and event where known
  cancelled = 9,          ///< the run was cancelled by its owner, or the engine was stopped
  io_error = 10,          ///< reading or writing a file failed; the message carries the system's words
  unsupported = 11,       ///< valid, but not by this device or build
  internal = 12,          ///< a bug: please report it
};

/// Stable lower-case name of `code`, for messages and logs.
constexpr const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::not_found: return "not found";
    case ErrorCode::invalid_data: return "invalid data";
    case ErrorCode::out_of_range: return "out of range";
    case ErrorCode::out_of_memory: return "out of memory";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::device_fault: return "device fault";
    case ErrorCode::deadline_exceeded: return "deadline exceeded";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::io_error: return "i/o error";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::internal: return "internal error";
  }
  return "unknown";
}

/// Status is success or a code with a message. Cheap to move; empty message on success.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::ok; }
  explicit operator bool() const { return ok(); }
  ErrorCode code() const { return code_; }
  /// What went wrong, for a person: no trailing full stop, no code name.
  const std::string& message() const { return message_; }
  /// `message()` behind the name of its code.
  std::string to_string() const {
    return ok() ? std::string("ok") : std::string(error_code_name(code_)) + ": " + message_;
  }

 private:
  ErrorCode code_ = ErrorCode::ok;
  std::string message_;
};

/// Result holds a T or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    assert(!std::get<1>(state_).ok() && "a Result without a value needs a failed Status");
  }
  Result(ErrorCode code, std::string message) : Result(Status(code, std::move(message))) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { assert(ok()); return std::get<0>(state_); }
  const T& value() const& { assert(ok()); return std::get<0>(state_); }
  T&& value() && { assert(ok()); return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace ccks

/// Returns from the enclosing function with the failed Status of `expr`.
#define CCKS_RETURN_IF_ERROR(expr)                                   \
  do {                                                               \
    if (::ccks::Status ccks_status_ = (expr); !ccks_status_.ok())    \
      return ccks_status_;                                           \
  } while (0)
