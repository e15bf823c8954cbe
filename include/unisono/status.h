// The outcome of an operation. A Status has a code and a message. A Result<T> has either a value or a Status.
//
// The code says what the caller should do. The message names the peer, the operation and the numbers. The library throws
// nothing, prints nothing and never exits the process. Result<T> has the same shape as std::expected, which can replace it
// later.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace unisono {

enum class Code : uint8_t {
  ok = 0,
  invalid = 1,      // fix the call: arguments are wrong, or differ between ranks
  unavailable = 2,  // try later: nobody answers, an address is taken, a resource is gone
  peer_lost = 3,    // regroup: a peer is dead or unreachable, or this rank was removed
  late = 4,         // the deadline has passed; the output is unspecified unless the report says otherwise
  corrupt = 5,      // bytes were damaged, or belong to something else
  unsupported = 6,  // a correct request that this build or host cannot serve
  internal = 7,     // a bug in Unisono
};

constexpr const char* name(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid: return "invalid";
    case Code::unavailable: return "unavailable";
    case Code::peer_lost: return "peer_lost";
    case Code::late: return "late";
    case Code::corrupt: return "corrupt";
    case Code::unsupported: return "unsupported";
    case Code::internal: return "internal";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // Returns, for example, "late: all_reduce 7: rank 2 (host b) ..."; or "ok".
  std::string to_string() const {
    return message_.empty() ? std::string(name(code_)) : std::string(name(code_)) + ": " + message_;
  }
  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::ok;
  std::string message_;
};

// Holds a value, or the Status that says why there is none. Call ok() before value(): if there is no value, value() aborts the
// process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(const T& value) : value_(value) {}
  Result(T&& value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = Status(Code::internal, "Result made from an ok Status without a value");
  }

  bool ok() const { return value_.has_value(); }
  bool has_value() const { return ok(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  const Status& error() const { return status_; }
  T& value() & { return checked(), *value_; }
  const T& value() const& { return checked(), *value_; }
  T&& value() && { return checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void checked() const {
    if (!value_) std::abort();
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace unisono
