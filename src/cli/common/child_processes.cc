#include "cli/common/child_processes.h"

#include <dirent.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/common/descriptor.h"
#include "cli/common/monotonic.h"

namespace unisono::cli {
namespace {

// Returns the parent of a process, which is the fourth field of /proc/PID/stat. The second field is the name of the program in
// parentheses, and this name may itself contain blanks and parentheses.
pid_t parent_of(const char* pid) {
  const auto path = std::string("/proc/") + pid + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return -1;
  char line[512] = {};
  const auto size = std::fread(line, 1, sizeof(line) - 1, file);
  std::fclose(file);
  const auto close = std::string(line, size).rfind(')');
  int parent = -1;
  if (close == std::string::npos || std::sscanf(line + close + 1, " %*c %d", &parent) != 1) return -1;
  return parent;
}

std::vector<pid_t> living_children() {
  std::vector<pid_t> children;
  DIR* directory = ::opendir("/proc");
  if (directory == nullptr) return children;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (parent_of(entry->d_name) == self) children.push_back(static_cast<pid_t>(std::atol(entry->d_name)));
  }
  ::closedir(directory);
  return children;
}

// Waits until the child ends or the deadline passes. If the child has ended, reaps it. The kernel gives the pid of a child to
// no other process before the child has been reaped. So the caller can kill the child by its pid without a race.
void reap_until(pid_t child, Nanos deadline) {
  // Calls the system directly, because glibc 2.36 declares pidfd_open for C only.
  const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ended{handle.get(), POLLIN, 0};
  while (handle && ::poll(&ended, 1, poll_milliseconds(deadline, monotonic_now())) < 0 && errno == EINTR) {}
  ::waitpid(child, nullptr, WNOHANG);
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool kill_child_processes(Nanos time) {
  const auto deadline = monotonic_now() + time;
  while (monotonic_now() < deadline) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return true;
    const auto children = living_children();
    for (const pid_t child : children) ::kill(child, SIGKILL);
    for (const pid_t child : children) reap_until(child, deadline);
  }
  return false;
}

}  // namespace unisono::cli
