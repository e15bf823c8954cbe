// How links between processes are made. The tcp, shm and udp transports implement this interface in addition to Transport.
//
// The two processes of a link know each other's PeerId, endpoints and job key. They know them from the rendezvous or from a
// roster (the list of an elastic run's peers). One process dials, and the other waits for it. Transport::poll does all the
// work. A transport with an InboundRegistry also accepts processes of the job that nobody added. In that case both processes of
// a pair may dial.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// A random key that the rendezvous makes and that only members of the job know. A peer that does not present this key is
// unauthenticated.
using JobKey = std::array<std::byte, 16>;

enum class LinkState : uint8_t { unknown, connecting, up, lost };

struct LinkRequest {
  PeerIndex peer = 0;
  // The id of the other process. PeerId{} stands for whichever process listens at the endpoints; this needs an InboundRegistry.
  PeerId id;
  std::string label;                   // describes the peer in messages: "rank 3 (host b, pid 42)"
  std::vector<std::string> endpoints;  // endpoints() of the other process, best first
  bool dial = false;                   // true: this process connects; false: it waits for the other process to connect
  // The link must be up by this time (absolute). Otherwise Sink::lost reports every endpoint that was tried, and its error.
  Nanos deadline = 0;
  // If true, the dial ends as soon as every endpoint has refused it. An endpoint refuses if nobody listens there, or if another
  // process listens there. Sink::lost then gets the code peer_lost, because the process is gone. If the peer does not answer in
  // time, or does not accept the connection, the code is unavailable.
  bool fail_if_refused = false;
};

// Decides whether to accept an inbound connection from a process that nobody added. The process has already presented the job's
// key. Transport::poll calls the registry; the registry must not call the transport.
class InboundRegistry {
 public:
  virtual ~InboundRegistry() = default;
  // Called when the process inbound.id connects and has no link yet. To accept it, set inbound.peer (a free index) and
  // inbound.label, and return true. Sink::credit later reports that the link is up. To refuse it (busy), return false.
  virtual bool admit(LinkRequest& inbound) = 0;
  // Called when `peer` was dialled by a request without an id, and the process `id` has answered. If goes_on is false, the dial
  // is over, because the answer came from this process itself or from a process that already has a link. The index `peer` is
  // then free again, and no `lost` follows.
  virtual void answered(PeerIndex peer, const PeerId& id, bool goes_on) = 0;
};

class Connector {
 public:
  virtual ~Connector() = default;
  // Returns the addresses at which this process can be reached: "tcp://192.168.1.7:45001", "tcp://[::1]:45001",
  // "shm://<host>/<name>".
  virtual std::vector<std::string> endpoints() const = 0;
  // Sets the job's key. The other process of every link must present this key. Before this call, incoming connections wait, and
  // only a limited number of them can.
  virtual void set_job(const JobKey& key) = 0;
  // Starts making a link. The index request.peer may be used again after close() or lost.
  virtual Status add_peer(const LinkRequest& request) = 0;
  virtual LinkState state(PeerIndex peer) const = 0;
  // Returns true if the link is up, but one of its connections is being made anew.
  virtual bool is_reconnecting(PeerIndex peer) const = 0;
  // Returns true if data that was sent is not acknowledged, and nothing has come from the peer's host for `silence`. A host
  // acknowledges even if the process is stopped. Returns false if the transport cannot tell the two apart.
  virtual bool is_host_silent(PeerIndex peer, Nanos silence) const = 0;
  // Call this when no further process will connect to this one. The transport closes what only listening needs: descriptors and
  // ports. Later links can still be made, but this process must dial them.
  virtual void stop_listening() = 0;
  // Call this when all processes of a group have their links to each other, so that the transport may do in the background what
  // would delay the making of links.
  virtual void members_linked() {}
};

}  // namespace unisono
