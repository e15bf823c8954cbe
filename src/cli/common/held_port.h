// A free TCP port, taken for a job before the job's rank 0 listens on it.
//
// The socket is bound but does not listen, and has SO_REUSEADDR. While it lives, the kernel gives the port to no process that
// asks for "any port" (for listening or as the near end of a connection), so two jobs that start at once cannot get the same
// one; a process that names the port and sets SO_REUSEADDR, as rendezvous servers do (ours, torch's TCPStore), can bind it and
// listen. Rejected: bind, close and hope (two jobs can meet at one port), and a server inside the launcher (programs that
// bring their own server to MASTER_PORT would find it taken).
#pragma once

#include <cstdint>

#include "cli/common/descriptor.h"

namespace unisono::cli {

class HeldPort {
 public:
  // number() is 0 if the system gave none; then errno says why.
  static HeldPort take();
  uint16_t number() const { return number_; }

 private:
  Descriptor socket_;
  uint16_t number_ = 0;
};

}  // namespace unisono::cli
