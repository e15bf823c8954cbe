// Exchanges the rendezvous address through a key-value store that all processes can reach. Rank 0 opens a free port and writes
// its addresses to the store. The other ranks read them from there.
//
// If rank 0 has no key, and security is not off, it draws one and writes it beside the addresses. Such a key is worth as much
// as the store: it guards against those who reach the ports of the job, and not against those who read the store.
#pragma once

#include <optional>

#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "unisono/store.h"

namespace unisono {

// Sets options.rendezvous, and options.key if the store has one and none was given. If security is required, a key from the
// store does not suffice, and the result is the error invalid. On rank 0, also returns a listening socket, and sets
// options.listen_fd to its descriptor. The caller must keep the socket until the group has formed.
Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store);

}  // namespace unisono
