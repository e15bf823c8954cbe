// The part of resolve_options() that is about the key and the protection of the links.
#pragma once

#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono {

// Sets resolved.key and resolved.security.
Status resolve_security(const Options& options, const Environment& environment, ResolvedOptions& resolved);

}  // namespace unisono
