// Stream connections over the kernel's TCP sockets. Descriptors are owned by Descriptor, so that a child made by fork() does
// not keep them. Watchers are epoll sets.
#pragma once

#include "net/stream_socket.h"

namespace unisono {

// The object has no state of its own. So all transports of a process can use it, from any thread.
StreamNetwork& kernel_streams();

}  // namespace unisono
