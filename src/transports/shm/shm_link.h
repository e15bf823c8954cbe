// One link of the shared-memory transport: its peer, its stage, its descriptors and its memory.
#pragma once

#include <memory>
#include <string>

#include "transports/connector.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_handshake.h"
#include "transports/shm/shm_inbound.h"
#include "transports/shm/shm_outbound.h"

namespace unisono::shm {

struct Link {
  // In the stage `ended`, no more frames are delivered, but one of the processes may still read the other's memory.
  enum class Stage : uint8_t { connecting, up, ended };

  Link(uint16_t region_number, const LinkRequest& link_request) : region(region_number), request(link_request) {}

  uint16_t region = 0;  // The link's region in our arena. It is also the link's index in ShmTransport::links_.
  LinkRequest request;
  Stage stage = Stage::connecting;
  std::string socket_name;        // name of the peer's listening socket
  std::string last_error;         // The last error while connecting. It is reported if the deadline passes.
  bool hello_sent = false;        // our hello has been sent
  bool goodbye_received = false;  // the peer has sent a goodbye, which ends the link
  bool given_up = false;          // the peer lives, and has ended the link because of invalid data
  // The peer no longer reads our memory, because it has shut down its socket, or because its process is dead.
  bool gone = false;
  bool died = false;    // the peer's process is known to be dead
  bool reading = true;  // our process may still read the peer's memory
  int process = 0;      // number of the peer's process; 0 if it is not visible from here
  UniqueFd socket;
  std::shared_ptr<const UniqueFd> process_handle;  // readable when the peer's process has died; null: not available
  Arena memory;                                    // the mapped arena of the peer
  std::unique_ptr<Outbound> outbound;
  std::unique_ptr<Inbound> inbound;
};

}  // namespace unisono::shm
