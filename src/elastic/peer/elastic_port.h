// The transport that carries the messages of one peer of an elastic run. elastic/peer/elastic_driver implements it with links
// in real time, and sim/elastic/elastic_cluster implements it in virtual time.
#pragma once

#include <string>
#include <vector>

#include "base/shared_buffer.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

class ElasticPort {
 public:
  virtual ~ElasticPort() = default;
  // Sets the addresses of a peer. It is called again whenever they change. If `dialable` is false, the peer is a client, and
  // only the client opens connections.
  virtual void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) = 0;
  // Sends a message, or queues it while the link is being made. Messages arrive whole and in order. If they cannot, the port
  // reports the link as lost.
  virtual void send(const PeerId& to, SharedMessage message) = 0;
  // Sends a message to whichever process listens at this address.
  virtual void send_to_address(const std::string& address, SharedBuffer message) = 0;
  // Returns true if few bytes are queued for the peer, so that large messages may be sent. If it has returned false, the port
  // calls MoshpitPeer::credit once large messages may be sent again.
  virtual bool credit(const PeerId& to) = 0;
  // Returns true if the link to the peer is up, but its connection is being made anew, or the peer's host does not answer.
  virtual bool is_out(const PeerId& /*peer*/) const { return false; }
  // Ends the link, because no further message will be sent to the peer.
  virtual void close(const PeerId& peer) = 0;
};

}  // namespace unisono
