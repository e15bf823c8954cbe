#include "rendezvous/security_options.h"

#include <unistd.h>

#include <charconv>
#include <optional>
#include <utility>

#include "base/concat.h"

namespace unisono {
namespace {

Status invalid(std::string message) { return {Code::invalid, std::move(message)}; }

std::optional<std::string_view> lookup(const Environment& environment, std::string_view name) {
  const auto it = environment.find(name);
  if (it == environment.end() || it->second.empty()) return std::nullopt;  // An empty value counts as not set.
  return it->second;
}

Status resolve_key(const SecurityRequest& request, const Environment& environment, ResolvedSecurity& resolved) {
  const auto from_text = [&](std::string name, std::string_view text) -> Status {
    auto key = SecretKey::from_hex(text);
    if (!key.ok()) return {key.status().code(), name + ": " + key.status().message()};
    resolved.key = {.key = std::move(*key), .name = std::move(name)};
    return {};
  };
  if (!request.key.empty()) return from_text(std::string(request.key_name), request.key);
  if (const auto text = lookup(environment, "UNISONO_KEY")) return from_text("UNISONO_KEY", *text);
  if (const auto path = lookup(environment, "UNISONO_KEY_FILE")) {
    resolved.key = {.file = std::string(*path), .name = "UNISONO_KEY_FILE"};
  } else if (const auto text = lookup(environment, "UNISONO_KEY_FD")) {
    int32_t descriptor = -1;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), descriptor);
    if (error != std::errc() || end != text->data() + text->size() || descriptor < 0)
      return invalid("UNISONO_KEY_FD is '" + std::string(*text) + "'; needed: the number of a descriptor");
    resolved.key = {.descriptor = descriptor, .name = "UNISONO_KEY_FD"};
  } else if (const auto folder = lookup(environment, "CREDENTIALS_DIRECTORY")) {
    const auto path_of_credential = std::string(*folder) + "/unisono_key";
    if (::access(path_of_credential.c_str(), F_OK) == 0)
      resolved.key = {.file = path_of_credential, .name = "CREDENTIALS_DIRECTORY"};
  }
  return {};
}

}  // namespace

Result<ResolvedSecurity> resolve_security(const SecurityRequest& request, const Environment& environment) {
  ResolvedSecurity resolved{.security = request.security};
  if (const auto text = lookup(environment, "UNISONO_SECURITY"); text && request.security == Security::automatic) {
    if (*text == "required") resolved.security = Security::required;
    else if (*text == "off") resolved.security = Security::off;
    else if (*text != "auto") return invalid("UNISONO_SECURITY is '" + std::string(*text) + "'; needed: auto, required or off");
  }
  if (resolved.security == Security::off) return resolved;  // the key is not used
  if (auto s = resolve_key(request, environment, resolved); !s.ok()) return s;
  if (resolved.security == Security::required && !resolved.key.given() && !request.key_may_follow)
    return invalid(
        "security is required, but there is no key: set UNISONO_KEY_FILE to a file that `unisono key` has written, or start "
        "with "
        "`unisono launch`");
  return resolved;
}

Status resolve_security(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  auto security = resolve_security(
      {.key = options.key, .security = options.security, .key_may_follow = options.store != nullptr}, environment);
  if (!security.ok()) return security.status();
  resolved.key = std::move(security->key);
  resolved.security = security->security;
  return {};
}

Result<std::shared_ptr<const TlsContext>> load_tls(const KeySource& source) {
  auto key = load_key(source);
  if (!key.ok()) return key.status();
  if (!*key) return std::shared_ptr<const TlsContext>();
  return TlsContext::make({std::move(**key)});
}

std::string unprotected_text(std::string_view what, std::string_view remedy, std::string_view processes) {
  return concat(
      "this ", what,
      " has no key, and it reaches beyond this host: whoever reaches its ports can read its data, change it, and join; ",
      remedy, "run `unisono key > job.key; chmod 600 job.key` and set UNISONO_KEY_FILE=job.key for all ", processes,
      " (UNISONO_SECURITY=off: no warning)");
}

}  // namespace unisono
