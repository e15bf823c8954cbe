#include "rendezvous/security_options.h"

#include <unistd.h>

#include <charconv>
#include <optional>
#include <utility>

namespace unisono {
namespace {

Status invalid(std::string message) { return {Code::invalid, std::move(message)}; }

std::optional<std::string_view> lookup(const Environment& environment, std::string_view name) {
  const auto it = environment.find(name);
  if (it == environment.end() || it->second.empty()) return std::nullopt;  // An empty value counts as not set.
  return it->second;
}

Status resolve_key(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  const auto from_text = [&](std::string name, std::string_view text) -> Status {
    auto key = SecretKey::from_hex(text);
    if (!key.ok()) return {key.status().code(), name + ": " + key.status().message()};
    resolved.key = {.key = std::move(*key), .name = std::move(name)};
    return {};
  };
  if (!options.key.empty()) return from_text("Options::key", options.key);
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

Status resolve_security(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  resolved.security = options.security;
  if (const auto text = lookup(environment, "UNISONO_SECURITY"); text && options.security == Security::automatic) {
    if (*text == "required") resolved.security = Security::required;
    else if (*text == "off") resolved.security = Security::off;
    else if (*text != "auto") return invalid("UNISONO_SECURITY is '" + std::string(*text) + "'; needed: auto, required or off");
  }
  if (resolved.security == Security::off) return {};  // the key is not used
  if (auto s = resolve_key(options, environment, resolved); !s.ok()) return s;
  if (resolved.security == Security::required && !resolved.key.given() && options.store == nullptr)
    return invalid(
        "security is required, but there is no key: set UNISONO_KEY_FILE to a file that `unisono key` has written, or start "
        "with "
        "`unisono launch`");
  return {};
}

Result<std::vector<SecretKey>> keys_of(const Options& options, const Environment& environment) {
  ResolvedOptions resolved;
  if (auto s = resolve_security(options, environment, resolved); !s.ok()) return s;
  auto key = load_key(resolved.key);
  if (!key.ok()) return key.status();
  std::vector<SecretKey> keys;
  if (*key) keys.push_back(std::move(**key));
  return keys;
}

}  // namespace unisono
