// This file has the functions of rendezvous_socket.h that ask the operating system for identities, names and the time.
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>

#include "base/error_text.h"
#include "base/random.h"
#include "net/this_host.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono {

namespace {

Status random_bytes(void* out, size_t size) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const auto count = getrandom(at, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {Code::internal, "getrandom: " + error_text(errno)};
    at += count;
    size -= static_cast<size_t>(count);
  }
  return {};
}

uint64_t hash_of_text(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

Result<PeerId> random_peer_id() {
  PeerId id;
  if (auto status = random_bytes(&id, sizeof(id)); !status.ok()) return status;
  return id;
}

std::string this_host_name() {
  std::array<char, host_bytes_max + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

uint64_t this_machine() {
  const auto host = host_identity();
  return host ? std::max<uint64_t>(hash_of_text(host->boot), 1) : 0;
}

uint64_t this_network() {
  const auto host = host_identity();
  return host ? std::max<uint64_t>(mix64(hash_of_text(host->boot) ^ mix64(host->network)), 1) : 0;
}

Nanos monotonic_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RosterKey random_roster_key() {
  RosterKey key{};
  // If the source of random numbers fails, the key stays zero. The group works without a key, because it only keeps out peers
  // that do not belong to the job.
  (void)random_bytes(key.data(), key.size());
  return key;
}

}  // namespace unisono
