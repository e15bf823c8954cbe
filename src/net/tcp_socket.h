// Small pieces of the socket interface: an owned descriptor, error texts, and the options that every stream gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"

namespace unisono {

// Owns one descriptor of the kernel.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
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

// "connection refused", from the number and without any locale.
std::string error_text(int error);

// No delay for small frames, and probes that find a dead host behind an idle link. Buffer sizes: see tcp_path.h.
void set_stream_options(int socket);

// Inside one host nothing is congested, and a congestion control that paces (BBR) halves what the link carries: connections
// have Reno there, which every kernel has and any user may ask for. Between hosts the machine's choice stands. A connection
// that has had BBR once is paced by the kernel's timers for ever, whatever it has later; so a socket begins with Reno, before
// connect or listen (of which accepted ones inherit it), and once connected to another host gets the machine's choice.
void begin_without_pacing(int socket);
void set_congestion_control(int socket);

// True if there is data under way that the host at the other end has not answered in any way for `silence`, although asked
// at least twice. A peer that is merely stopped or slow still answers, by its kernel: TCP_USER_TIMEOUT would end
// its link too, because a closed window counts as silence there.
bool host_is_silent(int socket, Nanos silence);
// True if everything written was acknowledged.
bool all_acknowledged(int socket);

// Non-blocking. 0 = would block (or nothing was written), negative = -errno.
ptrdiff_t send_some(int socket, std::span<const std::byte> bytes);
// Non-blocking. `ended` tells an orderly end; 0 without it = nothing there; negative = -errno.
ptrdiff_t receive_some(int socket, std::span<std::byte> bytes, bool& ended);

// Adds, changes or removes interest. Adding fails when the kernel's limit of watches or its memory is used up.
[[nodiscard]] bool watch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void rewatch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void unwatch(int epoll, int descriptor);

}  // namespace unisono
