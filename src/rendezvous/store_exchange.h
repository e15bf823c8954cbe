// Exchanges the rendezvous address through a store that all processes reach: rank 0 opens a free port and writes its addresses,
// and the others read them.
#pragma once

#include <optional>

#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "unisono/store.h"

namespace unisono {

// Fills in `rendezvous`, and on rank 0 `listen_fd`, the descriptor of the returned socket. Keep that socket until the group has
// formed.
Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store);

}  // namespace unisono
