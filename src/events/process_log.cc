#include "events/process_log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "base/concat.h"
#include "forks/fork.h"

namespace unisono {
namespace {

// Writes a line with one call, so that lines of several processes do not mix. If nobody reads a pipe and it is full, the line
// is lost, because waiting could stop the group. poll() says that a pipe is writable if it has room for PIPE_BUF bytes.
void write_line(int fd, std::string_view line) {
  pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
  std::string cut;
  if (line.size() > PIPE_BUF) line = cut = std::string(line.substr(0, PIPE_BUF - 4)) + "...\n";
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
}

struct Entry {
  std::unique_ptr<EventLog> log;
  Status problem;
};

Entry open_log(const LogTarget& target, EventLog::Clock clock) {
  int fd = STDERR_FILENO;
  Status problem;
  if (!target.path.empty()) {
    fd = ::open(target.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0) {
      problem = Status(Code::unavailable, concat("UNISONO_LOG: ", std::strerror(errno), " (", target.path,
                                                 "); events go to standard error instead"));
      fd = STDERR_FILENO;
    }
  }
  return {std::make_unique<EventLog>(target, clock, [fd](std::string_view line) { write_line(fd, line); }), problem};
}

}  // namespace

EventLog& process_log(const LogTarget& target, EventLog::Clock clock, Status& problem) {
  // It is never destroyed, because threads may report events until the process ends. It is made under the mutex: a thread that
  // makes a static variable holds a lock of its own, which a child would find locked.
  static std::map<std::tuple<EventLevel, std::string, bool>, Entry>* logs = nullptr;
  MutexLock lock(fork_mutex());
  if (logs == nullptr) logs = new std::map<std::tuple<EventLevel, std::string, bool>, Entry>;
  const std::tuple key(target.least, target.path, target.chosen);
  auto found = logs->find(key);
  if (found == logs->end()) found = logs->emplace(key, open_log(target, clock)).first;
  problem = found->second.problem;
  return *found->second.log;
}

}  // namespace unisono
