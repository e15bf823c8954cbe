// The probe port of one rank. It answers the probes of other ranks on its own threads, while the rank does something else.
//
// A prober first sends the key of the rank that it wants to reach. So the doctor notices if an address leads to another
// process. Then the prober sends requests. Peers that have not sent a key cost little: the responder waits only a few seconds
// for the key, and keeps at most connections_max connections.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cli/doctor/doctor_stream.h"
#include "unisono/status.h"

namespace unisono::cli {

inline constexpr size_t probe_key_bytes = 32;  // a probe key has this many hexadecimal digits
inline constexpr std::array<char, 8> probe_greeting = {'U', 'N', 'I', 'D', 'O', 'C', '0', '1'};

// The first bytes that the prober sends. The responder answers with only the greeting.
struct ProbeHello {
  std::array<char, 8> greeting = probe_greeting;
  std::array<char, probe_key_bytes> key{};
};

// A request of the prober. The struct is the layout; it is little-endian.
struct ProbeRequest {
  enum class Kind : uint32_t {
    echo = 1,    // the prober sends `bytes` bytes; when all have arrived, the responder sends a Stamp
    burst = 2,   // the responder sends `bytes` bytes
    source = 3,  // the responder sends bytes for `ms` milliseconds and closes the connection
    sink = 4,    // the prober sends bytes; after `ms` milliseconds, the responder sends a Count, and ignores all further bytes
  };
  Kind kind = Kind::echo;
  uint32_t bytes = 0;
  uint32_t ms = 0;
  uint32_t reserved = 0;
};
struct Stamp {
  int64_t received_ns = 0;  // CLOCK_REALTIME of the responder
  int64_t answered_ns = 0;
};
struct Count {
  uint64_t bytes = 0;
  int64_t took_ns = 0;
};
template <typename T>
std::span<std::byte> object_bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

inline constexpr uint32_t probe_bytes_max = 1 << 20;
inline constexpr uint32_t probe_ms_max = 2000;

int64_t realtime_ns();
// Counts the bytes that arrive during the second half of `span_ms`. In the first half, TCP's slow start and the filling of
// buffers would distort the count.
Result<Count> count_incoming(ByteStream& stream, uint32_t span_ms, Nanos timeout);

class Responder {
 public:
  static constexpr size_t connections_max = 256;

  // Listens on every address of the host, at a port that the kernel chooses.
  static Result<std::unique_ptr<Responder>> make(std::string key);
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  uint16_t port() const { return port_; }
  const std::string& key() const { return key_; }

 private:
  struct Visit {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  Responder(std::string key, unisono::Descriptor socket, unisono::Descriptor stop);
  void accept_all();
  void reap(bool all);
  void serve(ByteStream stream) const;
  bool answer(ByteStream& stream, const ProbeRequest& request) const;

  const std::string key_;
  const unisono::Descriptor socket_;
  const unisono::Descriptor stop_;  // becomes readable when the threads must end
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::vector<Visit> visits_;  // only the accepting thread uses this
  std::thread acceptor_;
};

}  // namespace unisono::cli
