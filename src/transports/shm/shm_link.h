// One link of the shared-memory transport: the peer, the descriptors and memory of the link, and its stage.
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
  // ended: nothing is delivered any more, but one side may still read the other's memory.
  enum class Stage : uint8_t { connecting, up, ended };

  Link(uint16_t region_number, const LinkRequest& link_request) : region(region_number), request(link_request) {}

  uint16_t region = 0;  // of our arena; also the link's index in the transport's table
  LinkRequest request;
  Stage stage = Stage::connecting;
  std::string socket_name;    // of the peer's listener
  std::string last_error;     // last error of the connecting side
  bool greeted = false;       // connecting: our hello is sent
  bool said_goodbye = false;  // the peer ended the link in order
  bool gone = false;          // the peer no longer reads our memory: its socket is shut down, or the process is dead
  bool died = false;          // the process is known to be dead
  bool reading = true;        // we may still read the peer's memory
  int process = 0;            // process number; 0 if not visible from here
  UniqueFd socket;
  UniqueFd process_handle;  // readable when the process has died
  UniqueFd bell;            // of the peer
  Arena memory;             // of the peer
  std::unique_ptr<Outbound> outbound;
  std::unique_ptr<Inbound> inbound;
};

// The byte that ends a link in order, on its socket.
inline constexpr char goodbye_byte = 'G';

}  // namespace unisono::shm
