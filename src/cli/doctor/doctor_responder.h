// The probe port of one rank: answers the probes of the others on threads of its own while the rank does something else.
//
// A prober shows the key of the rank that it means (so an address that leads to another process is noticed), then sends
// requests. The cost of unauthenticated peers is bounded: a few seconds for the key, connections_max connections at a time.
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

inline constexpr size_t probe_key_bytes = 32;  // hexadecimal digits
inline constexpr std::array<char, 8> probe_greeting = {'U', 'N', 'I', 'D', 'O', 'C', '0', '1'};

// The prober's first bytes; the answer is the greeting alone.
struct ProbeHello {
  std::array<char, 8> greeting = probe_greeting;
  std::array<char, probe_key_bytes> key{};
};

// Little-endian, as the frames of the wire are; the struct is the layout.
struct ProbeRequest {
  enum class Kind : uint32_t {
    echo = 1,    // `bytes` follow; answered by a Stamp when all are there
    burst = 2,   // answered by `bytes` bytes
    source = 3,  // answered by bytes without end for `ms`, then the connection ends
    sink = 4,    // bytes without end follow; after `ms` answered by a Count, the rest is thrown away
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
// Bytes that came during `span_ms`, without the first half of that time (slow start, full buffers on the way).
Result<Count> count_incoming(ByteStream& stream, uint32_t span_ms, Nanos patience);

class Responder {
 public:
  static constexpr size_t connections_max = 256;

  // Listens at every address of the host, at a port that the kernel chooses.
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
  const unisono::Descriptor stop_;  // readable when all is to end
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::vector<Visit> visits_;  // of the accepting thread
  std::thread acceptor_;
};

}  // namespace unisono::cli
