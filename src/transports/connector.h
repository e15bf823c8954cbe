// How a transport that crosses process borders gets its links. Implemented by tcp and shm beside Transport.
//
// Links are made between processes that already know each other's PeerId, endpoints and the job's key (from the rendezvous
// or a roster). For each pair one side dials and the other waits. Everything is driven by Transport::poll.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// Random, made by the rendezvous, known to members only: a connection that does not show it is a stranger.
using JobKey = std::array<std::byte, 16>;

enum class LinkState : uint8_t { unknown, connecting, up, lost };

struct LinkRequest {
  PeerIndex peer = 0;
  PeerId id;                           // of the other process
  std::string label;                   // "rank 3 (host b, pid 42)", for messages
  std::vector<std::string> endpoints;  // the other side's endpoints(), best first
  bool dial = false;                   // this side connects; otherwise it waits to be connected to
  Nanos deadline = 0;                  // absolute; afterwards Sink::lost, naming every endpoint tried and its error
};

class Connector {
 public:
  virtual ~Connector() = default;
  // Where this process can be reached: "tcp://192.168.1.7:45001", "tcp://[::1]:45001", "shm://<host>/<name>".
  virtual std::vector<std::string> endpoints() const = 0;
  // The key that dialled and accepted links must show. Until it is set, incoming connections wait (bounded).
  virtual void set_job(const JobKey& key) = 0;
  // Starts making a link. The same index may be used again after close() or lost.
  virtual Status add_peer(const LinkRequest& request) = 0;
  virtual LinkState state(PeerIndex peer) const = 0;
};

}  // namespace unisono
