#include "record/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/concat.h"

namespace unisono::record {

// Parses a text such as "42 (any ) name) S 1 …". The third field is the state and the 22nd field is the start time. The name of
// the process may contain any character.
std::optional<ProcessState> process_state(pid_t pid) {
  const auto path = concat("/proc/", pid, "/stat");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char buffer[1024];
  const auto got = ::read(fd, buffer, sizeof(buffer) - 1);
  ::close(fd);
  if (got <= 0) return std::nullopt;
  const std::string_view text(buffer, static_cast<size_t>(got));
  auto at = text.rfind(") ");
  if (at == std::string_view::npos || at + 2 >= text.size()) return std::nullopt;
  ProcessState process{.state = text[at + 2]};
  at += 2;
  constexpr int fields_between = 22 - 3;
  for (int i = 0; i < fields_between; ++i) {
    at = text.find(' ', at);
    if (at == std::string_view::npos) return std::nullopt;
    ++at;
  }
  buffer[got] = '\0';
  process.started = std::strtoull(buffer + at, nullptr, 10);
  return process;
}

}  // namespace unisono::record
