// Starts a program as a child process, and says precisely why it could not.
//
// The child gets default signal dispositions for what the parent had changed, the signal mask it is given, only the three
// standard streams, and, if asked, its own process group or session and a signal when its parent dies.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace unisono::cli {

struct SpawnOptions {
  std::vector<std::string> arguments;    // [0] is looked for in PATH if it has no slash
  std::vector<std::string> environment;  // NAME=value; the whole of it
  std::string directory;                 // empty: the parent's
  int input = -1;                        // -1: /dev/null
  int output = -1;                       // -1: the parent's
  int error = -1;                        // -1: the parent's
  int death_signal = 0;                  // sent to the child when this process dies
  bool new_session = false;
  bool new_group = false;
  rlim_t open_files = 0;   // soft limit of open files; 0: the parent's
  std::vector<int> cores;  // empty: the parent's
};

struct Spawned {
  pid_t pid = -1;
  int error = 0;        // errno; 0 = the program runs
  std::string message;  // "cannot start './x': No such file or directory (ENOENT)"
};

Spawned spawn(const SpawnOptions& options);

// The shell's codes for a program that did not start: 127 not found, 126 found but not startable.
int exit_code_of_start_error(int error);

// The path of this program; empty if /proc does not say.
std::string own_executable();

// The current environment as NAME=value, with later settings in `changes` replacing earlier ones.
std::vector<std::string> environment_with(const std::vector<std::string>& changes);

}  // namespace unisono::cli
