// Where to meet, told through a store that all processes reach: rank 0 opens a free port and writes its addresses down, the
// others read them.
#pragma once

#include <optional>

#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "unisono/store.h"

namespace unisono {

// Fills in `rendezvous`, and on rank 0 `listen_fd`: of the socket that is returned, which is to be kept until the group has
// formed.
Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store);

}  // namespace unisono
