// A command to group_program, which is a word with arguments, and the answer to it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "unisono/status.h"

namespace unisono::testing {

inline void put(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto written = ::write(1, text.data() + at, text.size() - at);
    if (written <= 0) std::_Exit(90);  // The other end of the pipe, which reads, is closed.
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] inline void misuse(const std::string& what) {
  put("misuse: " + what + "\n");
  std::_Exit(91);
}

inline std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

struct Command {
  std::string name;
  std::map<std::string, std::string> arguments;

  static Command parse(const std::string& text) {
    Command command;
    const auto colon = text.find(':');
    command.name = text.substr(0, colon);
    if (colon == std::string::npos) return command;
    for (const auto& part : split_text(text.substr(colon + 1), ',')) {
      const auto equals = part.find('=');
      command.arguments[part.substr(0, equals)] = equals == std::string::npos ? "1" : part.substr(equals + 1);
    }
    return command;
  }
  std::string text(const std::string& key, const std::string& fallback = "") const {
    const auto found = arguments.find(key);
    return found == arguments.end() ? fallback : found->second;
  }
  uint64_t number(const std::string& key, uint64_t fallback) const {
    const auto found = arguments.find(key);
    return found == arguments.end() ? fallback : std::strtoull(found->second.c_str(), nullptr, 10);
  }
  std::vector<size_t> numbers(const std::string& key, const std::string& fallback) const {
    std::vector<size_t> list;
    for (const auto& part : split_text(text(key, fallback), '/')) list.push_back(std::strtoull(part.c_str(), nullptr, 10));
    return list;
  }
};

// The answer to a command.
struct Answer {
  Status status;
  std::string details;  // any number of texts " key=value"

  template <typename T>
  Answer& add(const char* key, const T& value) {
    std::ostringstream out;
    out << ' ' << key << '=' << value;
    details += out.str();
    return *this;
  }
};

}  // namespace unisono::testing
