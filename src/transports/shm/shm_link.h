// One link of the shared-memory transport: who the peer is, what connects us, and how far it has come.
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
  // ended: nothing is delivered any more, but one side may still look at the other's memory.
  enum class Stage : uint8_t { connecting, up, ended };

  Link(uint16_t region_number, const LinkRequest& link_request) : region(region_number), request(link_request) {}

  uint16_t region = 0;  // of our arena; the link's place in the transport's table
  LinkRequest request;
  Stage stage = Stage::connecting;
  std::string socket_name;    // of the peer's listener
  std::string trouble;        // what the connecting side met last
  bool greeted = false;       // connecting: our hello is sent
  bool said_goodbye = false;  // the peer ended the link in order
  bool gone = false;          // the peer reads our memory no more: its socket is shut down, or the process is dead
  bool died = false;          // the process is known to be dead
  bool reading = true;        // we may still look at the peer's memory
  int process = 0;            // its number; 0 if not visible from here
  UniqueFd socket;
  UniqueFd process_handle;  // readable when the process has died
  UniqueFd bell;            // of the peer
  Arena memory;             // of the peer
  std::unique_ptr<Outbound> outbound;
  std::unique_ptr<Inbound> inbound;
};

// What a link's socket says after the hello.
inline constexpr char goodbye_byte = 'G';

}  // namespace unisono::shm
