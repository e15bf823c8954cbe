// Links inside one process, through memory: for tests, for the simulator's neighbours, and for several ranks in one process.
//
// A hub connects all its endpoints with each other; each endpoint is a Transport and may live in its own thread. Frames arrive
// in order and cannot be damaged. Slots reach every receiver without a copy, as zero-copy views; send() copies. The hub owns
// everything, including these views, and must outlive its users.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace unisono {

struct LoopbackOptions {
  size_t count = 2;
  // Frames with payload that may be in flight from one endpoint to another; credit() counts down from it. Frames without
  // payload are accepted beyond it.
  size_t queue_frames_max = 64;
  // Slots per endpoint; result_slots of them are reserved for payloads that end a chunk.
  size_t slots = 64;
  size_t result_slots = 16;
  bool payload_checksum = false;
  // The label under which the others know endpoint i; "rank i (loopback)" if null.
  std::function<std::string(size_t)> label{};
};

class LoopbackHub {
 public:
  // invalid: no endpoint, or no slot left for contributions.
  static Result<std::unique_ptr<LoopbackHub>> make(const LoopbackOptions& options);
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  size_t size() const;
  // Endpoint i; it knows endpoint j as PeerIndex j.
  Transport& at(size_t i);
  // Simulates the death of endpoint i's process: the others get what it had sent, then lost. The endpoint does nothing any
  // more.
  void kill(size_t i);

 private:
  struct State;
  class Endpoint;
  explicit LoopbackHub(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace unisono
