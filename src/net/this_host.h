// Which host this process is on. Two processes are on the same host if the same kernel runs them and if they are in the same
// network name space: then they have the same addresses, and can share memory. The name of the host does not count, because
// hosts may have the same name (containers often do), and containers may share a network under different names.
#pragma once

#include <cstdint>
#include <string>

#include "unisono/status.h"

namespace unisono {

struct HostIdentity {
  std::string boot;      // the kernel's boot id, 36 characters; every start of a machine has another one
  uint64_t network = 0;  // the network name space, as its inode number
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

// Returns the error unsupported if /proc does not show the boot id or the network name space.
Result<HostIdentity> host_identity();

}  // namespace unisono
