#include "cli/launch/job_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rendezvous/environment.h"
#include "rendezvous/security_options.h"
#include "tls/key_source.h"

namespace unisono::cli {
namespace {

constexpr std::string_view security_variable = "UNISONO_SECURITY";

Result<Security> parse_security(std::string_view name, std::string_view word) {
  if (word.empty() || word == "auto") return Security::automatic;
  if (word == "required") return Security::required;
  if (word == "off") return Security::off;
  return Status(Code::invalid, fmt::format("{} '{}': expected auto, required or off", name, word));
}

std::string_view value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

// Returns the variables that a rank on this host would find.
Environment environment_of_ranks(const JobOptions& job) {
  auto environment = process_environment();
  for (const auto& setting : job.environment) {
    const auto equals = setting.find('=');
    environment[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return environment;
}

Result<KeySource> source_of(const LaunchOptions& options, Environment environment) {
  if (!options.key_file.empty()) return KeySource{.file = options.key_file, .name = "--key-file"};
  environment.erase(std::string(security_variable));  // a key that is required may be missing here: the launcher makes it
  ResolvedOptions resolved;
  if (auto status = resolve_security({}, environment, resolved); !status.ok()) return status;
  return std::move(resolved.key);
}

// Overwrites the text of the key where the kernel shows it in /proc/PID/environ. Processes that are forked from this one show
// nothing, either.
void forget_key_text() {
  char* const text = std::getenv("UNISONO_KEY");
  if (text == nullptr) return;
  ::explicit_bzero(text, std::strlen(text));
  ::unsetenv("UNISONO_KEY");
}

}  // namespace

bool is_key_variable(std::string_view setting) {
  return std::ranges::find(key_variables, setting.substr(0, setting.find('='))) != key_variables.end();
}

Status set_security(const LaunchOptions& options, JobOptions& job) {
  const auto environment = environment_of_ranks(job);
  std::erase_if(job.environment, is_key_variable);
  forget_key_text();
  if (!options.security.empty()) job.environment.push_back(fmt::format("{}={}", security_variable, options.security));
  const auto security = options.security.empty() ? parse_security(security_variable, value_of(environment, security_variable))
                                                 : parse_security("--security", options.security);
  if (!security.ok()) return security.status();
  if (*security == Security::off) return {};
  const auto source = source_of(options, environment);
  if (!source.ok()) return source.status();
  auto key = load_key(*source);
  if (!key.ok()) return key.status();
  job.key = *std::move(key);
  const bool meets_others =
      !options.private_network && (!options.rendezvous.empty() || !value_of(environment, "UNISONO_RENDEZVOUS").empty());
  if (job.key || (meets_others && *security == Security::automatic)) return {};
  if (meets_others) {
    return {Code::invalid,
            "security is required, and the ranks meet at an address where processes of another launcher may come, too: give "
            "the key that all of them have with --key-file (unisono key --output FILE makes one)"};
  }
  auto drawn = SecretKey::draw();
  if (!drawn.ok()) return drawn.status();
  job.key = *std::move(drawn);
  return {};
}

Status set_group_security(const LaunchOptions& options, Options& group) {
  const auto security = parse_security("--security", options.security);
  if (!security.ok()) return security.status();
  group.security = *security;
  const char* const descriptor = std::getenv("UNISONO_KEY_FD");
  if (options.key_file.empty() || *security == Security::off || (descriptor != nullptr && *descriptor != '\0')) return {};
  const auto key = load_key({.file = options.key_file, .name = "--key-file"});
  if (!key.ok()) return key.status();
  group.key = (*key)->hex();
  return {};
}

}  // namespace unisono::cli
