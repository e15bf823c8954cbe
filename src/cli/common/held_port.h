// Reserves a free TCP port for a job until rank 0 of the job listens on it.
//
// The socket is bound with SO_REUSEADDR, but it does not listen. While it exists, the kernel does not choose this port for
// other processes. So two jobs that start at the same time get different ports. A process that asks for exactly this port and
// sets SO_REUSEADDR can still bind it and listen on it. Rendezvous servers do this: ours, and torch's TCPStore.
//
// Two other ways were rejected. If the socket were closed before the job starts, two jobs might get the same port. If the
// launcher ran a server itself, programs that start their own server at MASTER_PORT would find the port taken.
#pragma once

#include <cstdint>

#include "cli/common/descriptor.h"

namespace unisono::cli {

class HeldPort {
 public:
  // Reserves a port. If the system has no free port, number() is 0 and errno says why.
  static HeldPort take();
  uint16_t number() const { return number_; }

 private:
  Descriptor socket_;
  uint16_t number_ = 0;
};

}  // namespace unisono::cli
