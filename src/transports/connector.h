// How a transport that crosses process borders makes its links. tcp, shm and udp implement it beside Transport.
//
// Links are made between processes that already know each other's PeerId, endpoints and job key (from the rendezvous or a
// roster). For each pair one side dials and the other waits. Transport::poll drives everything. With an InboundRegistry a
// transport accepts processes of the job that nobody added; then both sides of a pair may dial.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// A random key, made by the rendezvous and known to members only. A connection that does not show it belongs to an
// unauthenticated peer.
using JobKey = std::array<std::byte, 16>;

enum class LinkState : uint8_t { unknown, connecting, up, lost };

struct LinkRequest {
  PeerIndex peer = 0;
  PeerId id;          // of the other process; PeerId{} with an InboundRegistry: whichever process listens there
  std::string label;  // "rank 3 (host b, pid 42)", for messages
  std::vector<std::string> endpoints;  // the other side's endpoints(), best first
  bool dial = false;                   // this side connects; otherwise it waits to be connected to
  Nanos deadline = 0;                  // absolute; after it Sink::lost names every endpoint tried and its error
  // If true, a dial ends as soon as every endpoint has refused it: nobody listens there, or another process does. Then
  // Sink::lost says peer_lost (the process is gone). It says unavailable for a peer that does not answer in time or accepts
  // nobody.
  bool fail_if_refused = false;
};

// Numbers inbound connections: processes that show the key of the job and that nobody added. Transport::poll calls it, and it
// must not call the transport.
class InboundRegistry {
 public:
  virtual ~InboundRegistry() = default;
  // The process inbound.id, to which there is no link, connects. Return true to accept it, with inbound.peer (a free index) and
  // inbound.label filled in; Sink::credit tells when the link is up. Return false to refuse it (busy).
  virtual bool admit(LinkRequest& inbound) = 0;
  // `id` is the process that answered the dial of `peer`, which had no id. If goes_on is false, the answer came from this
  // process itself or from one that already has a link: the dial is over, the index is free again, and no `lost` follows.
  virtual void answered(PeerIndex peer, const PeerId& id, bool goes_on) = 0;
};

class Connector {
 public:
  virtual ~Connector() = default;
  // Addresses at which this process can be reached: "tcp://192.168.1.7:45001", "tcp://[::1]:45001", "shm://<host>/<name>".
  virtual std::vector<std::string> endpoints() const = 0;
  // The key that dialled and accepted links must show. Until it is set, incoming connections wait; their number is bounded.
  virtual void set_job(const JobKey& key) = 0;
  // Starts making a link. The same index may be used again after close() or lost.
  virtual Status add_peer(const LinkRequest& request) = 0;
  virtual LinkState state(PeerIndex peer) const = 0;
};

}  // namespace unisono
