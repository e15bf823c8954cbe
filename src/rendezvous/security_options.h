// The part of resolve_options() that is about the key and the protection of the links.
#pragma once

#include <vector>

#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono {

// Sets resolved.key and resolved.security.
Status resolve_security(const Options& options, const Environment& environment, ResolvedOptions& resolved);
// Returns the key that a group with these options would use, for a server that serves this group alone (StandaloneOptions).
// Returns an empty list if the group would have none.
Result<std::vector<SecretKey>> keys_of(const Options& options, const Environment& environment);

}  // namespace unisono
