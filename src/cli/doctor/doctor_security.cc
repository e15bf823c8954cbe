#include "cli/doctor/doctor_security.h"

#include <fmt/format.h>

namespace unisono::cli {
namespace {

// Ranks compare these bytes, to see whether they have the same key. They are derived from the key and do not reveal it.
constexpr size_t mark_bytes = 8;

std::string source_text(const KeySource& source) {
  if (source.descriptor >= 0) return fmt::format("{} (a descriptor from the launcher)", source.name);
  return source.file.empty() ? source.name : fmt::format("{} ({})", source.name, source.file);
}

}  // namespace

SecurityFacts read_security(const ResolvedOptions& options) {
  SecurityFacts facts;
  facts.level = options.security == Security::off ? "off" : options.security == Security::required ? "required" : "auto";
  if (options.security == Security::off || !options.key.given()) return facts;
  const auto key = load_key(options.key);
  if (!key.ok()) {
    facts.key_source = options.key.name;  // not the path: a user may have given the digits instead of one
    facts.key_error = key.status().message();
    return facts;
  }
  facts.key_source = source_text(options.key);
  const auto derived = (*key)->derive("unisono doctor: which key");
  for (size_t i = 0; i < mark_bytes; ++i) facts.key_mark += fmt::format("{:02x}", std::to_integer<unsigned>(derived[i]));
  return facts;
}

}  // namespace unisono::cli
