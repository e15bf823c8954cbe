// How a transport that crosses process borders gets its links. Implemented by tcp and shm beside Transport.
//
// Links are made between processes that already know each other's PeerId, endpoints and the job's key (from the rendezvous
// or a roster). For each pair one side dials and the other waits. Everything is driven by Transport::poll.
// With a guest book a transport is open to processes of the job that nobody added; then both sides of a pair may dial.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// Random, made by the rendezvous, known to members only: a connection that does not show it is an unauthenticated peer.
using JobKey = std::array<std::byte, 16>;

enum class LinkState : uint8_t { unknown, connecting, up, lost };

struct LinkRequest {
  PeerIndex peer = 0;
  PeerId id;                           // of the other process; PeerId{}, for dials with a guest book: whoever listens there
  std::string label;                   // "rank 3 (host b, pid 42)", for messages
  std::vector<std::string> endpoints;  // the other side's endpoints(), best first
  bool dial = false;                   // this side connects; otherwise it waits to be connected to
  Nanos deadline = 0;                  // absolute; afterwards Sink::lost, naming every endpoint tried and its error
  // A dial ends as soon as every endpoint has turned it away: nobody listens there, or another process does. Then Sink::lost
  // says peer_lost (the process is gone); unavailable remains for who does not answer in time, or lets nobody in.
  bool give_up_if_refused = false;
};

// Keeps the numbers of guests: processes that show the key of the job and that nobody added. Called from Transport::poll only,
// and must not call the transport.
class InboundRegistry {
 public:
  virtual ~InboundRegistry() = default;
  // A process guest.id, to which there is no link, comes in. True: it gets one, and guest.peer (a free index) and guest.label
  // are filled in; Sink::room tells when it is up. False: it is refused (busy).
  virtual bool admit(LinkRequest& inbound) = 0;
  // Who listens where the dial without an id of `peer` led. Without goes_on it is this process itself, or there is a link to it
  // already: the dial is over, the index free again, and no `lost` follows.
  virtual void answered(PeerIndex peer, const PeerId& id, bool goes_on) = 0;
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
