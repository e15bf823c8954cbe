// The texts of errno values. They do not depend on the locale.
#pragma once

#include <sys/resource.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/concat.h"

namespace unisono {

// Returns whether the error means that no file descriptor is free, in this process or on the whole machine.
inline bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

// If no file descriptor is free, returns which limit has been reached, and how to raise it: " (this process may have 1024;
// raise the limit with ulimit -n)". Returns an empty text for every other error.
inline std::string descriptor_limit_text(int error) {
  if (error == ENFILE) return " (all processes of this machine together; raise the limit with sysctl fs.file-max)";
  rlimit limit{};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  return concat(" (this process may have ", static_cast<unsigned long long>(limit.rlim_cur),
                "; raise the limit with ulimit -n)");
}

// Returns the text of an errno value, for example "connection refused".
inline std::string error_text(int error) {
  if (error == EKEYREJECTED) return "authentication failed: its key differs from ours, or it has none";
  if (error == EBADMSG) return "its bytes were altered on the way";
  const char* text = ::strerrordesc_np(error);
  if (text == nullptr) return concat("error ", error);
  std::string result(text);
  if (!result.empty()) result[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(result[0])));
  return result + descriptor_limit_text(error);
}

}  // namespace unisono
