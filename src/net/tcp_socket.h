// Helpers for sockets of the kernel: a class that owns a descriptor, reads and writes that do not block, and epoll sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/error_text.h"
#include "forks/fork.h"

namespace unisono {

// Owns one file descriptor. A child made by fork() does not keep it (forks/fork.h).
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(own_descriptor(number)) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  void reset();

 private:
  int number_ = -1;
};

// Sets TCP_NODELAY, so that small frames are sent at once, and keep-alive probes, which detect a dead host on an idle link.
void set_stream_options(int socket);

// Writes without blocking. Returns the number of bytes written. The result is 0 if the write would block, and -errno after an
// error.
ptrdiff_t send_some(int socket, std::span<const std::byte> bytes);
// Reads without blocking. Returns the number of bytes read, or -errno after an error. The result is 0 in two cases: nothing is
// available (then `ended` is false), or the stream has ended normally (then `ended` is true).
ptrdiff_t receive_some(int socket, std::span<std::byte> bytes, bool& ended);

// Add, change or remove a descriptor of an epoll set. watch() returns false if the kernel lacks memory, or if the kernel's
// limit of watches is reached.
[[nodiscard]] bool watch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void rewatch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void unwatch(int epoll, int descriptor);

}  // namespace unisono
