// The message transport of a peer of an elastic run. Implemented by elastic/peer/elastic_driver over links in real time, and by
// sim/elastic/elastic_cluster in virtual time.
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
  // Sets where a peer can be reached; called again on each change. dialable: false for clients, which open all their
  // connections themselves.
  virtual void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) = 0;
  // Delivers whole messages in order, or reports the link as lost. Queues while the link is being made.
  virtual void send(const PeerId& to, SharedMessage message) = 0;
  // Sends to the process that listens at this address.
  virtual void send_to_address(const std::string& address, SharedBuffer message) = 0;
  // True: little is queued for the peer, so large messages may be sent. After false, MoshpitPeer::credit follows when that
  // changes.
  virtual bool credit(const PeerId& to) = 0;
  // Nothing more will be sent to the peer.
  virtual void close(const PeerId& peer) = 0;
};

}  // namespace unisono
