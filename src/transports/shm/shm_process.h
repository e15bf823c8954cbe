// Which process is at the other end of a Unix socket, and whether it lives.
//
// All links of this process to one other process share one handle, whatever group they belong to. A handle takes a descriptor,
// so a handle per link would multiply the descriptors of a process by its groups. Therefore the handles are known to the whole
// process: this module is an exception to the rule that there are no globals.
#pragma once

#include <memory>

#include "transports/shm/shm_arena.h"

namespace unisono::shm {

// Returns a descriptor that becomes readable when the process at the other end of the socket has died. It does so even if
// children of that process still hold the socket. Returns null if the kernel or the process name space does not allow such a
// handle, or if no descriptor is free; errno says which. A handle of a process that is dead already is not shared. The function
// can be called from any thread.
std::shared_ptr<const UniqueFd> process_handle(int socket);
// Returns the number of that process, for use in messages. Returns 0 if the process is not visible from here.
int process_number(int socket);

}  // namespace unisono::shm
