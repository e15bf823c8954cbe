// Helpers around sockets: an owned descriptor, error texts, and the options of every stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"

namespace unisono {

// Owns one file descriptor.
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

// For example "connection refused". The text does not depend on a locale.
std::string error_text(int error);

// Sets TCP_NODELAY for small frames, and keep-alive probes that find a dead host behind an idle link. Buffer sizes: see
// tcp_path.h.
void set_stream_options(int socket);

// Inside one host nothing is congested, and a congestion control that paces (BBR) halves the throughput of a connection. So
// connections inside a host use Reno, which every kernel has and any user may select. Connections between hosts keep the
// machine's default. The kernel's timers pace a connection that ever had BBR, even after a change. So a socket begins with Reno
// before connect or listen (accepted sockets inherit it). Once it is connected to another host, it gets the machine's default.
void begin_without_pacing(int socket);
void set_congestion_control(int socket);

// True if sent data is outstanding and the other host has not answered in any way for `silence`, although it was asked at least
// twice. The kernel of a stopped or slow peer still answers. TCP_USER_TIMEOUT would end the link of such a peer, too, because
// it counts a closed window as silence.
bool host_is_silent(int socket, Nanos silence);
// True if the other side acknowledged everything that was written.
bool all_acknowledged(int socket);

// Non-blocking. 0: would block, or nothing was written. Negative: -errno.
ptrdiff_t send_some(int socket, std::span<const std::byte> bytes);
// Non-blocking. Sets `ended` at an orderly end. 0 without `ended`: nothing is there. Negative: -errno.
ptrdiff_t receive_some(int socket, std::span<std::byte> bytes, bool& ended);

// Add, change or remove interest. Adding fails when the kernel's limit of watches or its memory is used up.
[[nodiscard]] bool watch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void rewatch(int epoll, int descriptor, uint32_t events, uint64_t tag);
void unwatch(int epoll, int descriptor);

}  // namespace unisono
