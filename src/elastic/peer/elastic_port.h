// What one peer of an elastic run may ask of whoever carries its messages: elastic/links/elastic_links in real time,
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
  // Where a peer can be reached; told whenever that changes. dialable: false for clients, which only ever dial themselves.
  virtual void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) = 0;
  // Goes out in order, whole, or the link is lost. Queued while the link is being made.
  virtual void send(const PeerId& to, SharedMessage message) = 0;
  // To whoever listens there.
  virtual void send_to_address(const std::string& address, SharedBuffer message) = 0;
  // Little is queued for the peer: large messages may be sent. A refusal is followed by room news.
  virtual bool credit(const PeerId& to) = 0;
  // Nothing more is to be said to it.
  virtual void close(const PeerId& peer) = 0;
};

}  // namespace unisono
