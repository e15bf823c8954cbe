// Helpers for tests that read the output of commands.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace unisono::cli {

// Returns the first line that contains `part`; empty if there is none.
inline std::string line_with(const std::string& text, const std::string& part) {
  const auto at = text.find(part);
  if (at == std::string::npos) return "";
  const auto begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

// Parses JSON lines.
inline std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(nlohmann::json::parse(text.substr(at, text.find('\n', at) - at)));
  return lines;
}

}  // namespace unisono::cli
