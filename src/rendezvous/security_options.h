// Where a process gets its key from, and whether it protects its links. Groups and elastic runs share this.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/environment.h"
#include "tls/tls_context.h"
#include "unisono/status.h"

namespace unisono {

// What the caller's options say.
struct SecurityRequest {
  std::string_view key{};  // 64 hexadecimal digits; empty: the environment says where the key is
  Security security = Security::automatic;
  std::string_view key_name = "Options::key";  // the option that gave the key, for messages
  bool key_may_follow = false;                 // a store may hand over a key later
};

struct ResolvedSecurity {
  KeySource key{};
  Security security = Security::automatic;
};

// Returns the error invalid if a value is malformed, or if security is required and there is no key. The key is not read yet.
Result<ResolvedSecurity> resolve_security(const SecurityRequest& request, const Environment& environment);
// Sets resolved.key and resolved.security.
Status resolve_security(const Options& options, const Environment& environment, ResolvedOptions& resolved);
// Reads the key. Returns null if there is none. Errors: those of load_key() and of TlsContext::make().
Result<std::shared_ptr<const TlsContext>> load_tls(const KeySource& source);
// Returns the text of the event `unprotected`: what reaches beyond this host without a key, and how to give it one.
std::string unprotected_text(std::string_view what, std::string_view remedy, std::string_view processes);

}  // namespace unisono
