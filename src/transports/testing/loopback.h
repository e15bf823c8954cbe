// Links inside one process, through memory. They are used by tests that have several ranks in one process.
//
// A hub connects all its endpoints with each other. Each endpoint is a Transport, and may be used by a thread of its own.
// Frames arrive in order and cannot be damaged. A payload in a slot is not copied: the receiver gets a zero-copy view of the
// slot. send() copies its payload. The hub owns the endpoints and all memory, including views, so it must live longer than
// everything that uses them.
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
  // At most this many frames with payload may be in flight from one endpoint to another. credit() returns how many more may be
  // sent. Frames without payload are accepted beyond the limit.
  size_t queue_frames_max = 64;
  // Each endpoint has this many slots. result_slots of them are reserved for payloads that complete a chunk.
  size_t slots = 64;
  size_t result_slots = 16;
  bool payload_checksum = false;
  // Returns the name by which other endpoints call endpoint i in messages. If the function is null, this name is "rank i
  // (loopback)".
  std::function<std::string(size_t)> label{};
};

class LoopbackHub {
 public:
  // Returns the error invalid if there is no endpoint, or if all slots are reserved for results.
  static Result<std::unique_ptr<LoopbackHub>> make(const LoopbackOptions& options);
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  size_t size() const;
  // Returns endpoint i. For this endpoint, endpoint j has the PeerIndex j.
  Transport& at(size_t i);
  // Simulates the death of the process with endpoint i. The other endpoints receive the frames that it had sent, and then
  // `lost`. Endpoint i itself does nothing any more.
  void kill(size_t i);

 private:
  struct State;
  class Endpoint;
  explicit LoopbackHub(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace unisono
