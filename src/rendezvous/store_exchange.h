// Exchanges the rendezvous address through a key-value store that all processes can reach. Rank 0 opens a free port and writes
// its addresses to the store. The other ranks read them from there.
#pragma once

#include <optional>

#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "unisono/store.h"

namespace unisono {

// Sets options.rendezvous. On rank 0, also returns a listening socket, and sets options.listen_fd to its descriptor. The caller
// must keep the socket until the group has formed.
Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store);

}  // namespace unisono
