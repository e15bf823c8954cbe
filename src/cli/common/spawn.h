// Starts a program as a child process. If this fails, says at which step and for which reason.
//
// The child gets only the three standard streams, and it starts with no blocked signals. The signals that the parent had
// changed have their default effect again. On request, the child gets its own process group or session, and a signal when its
// parent dies.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace unisono::cli {

struct SpawnOptions {
  std::vector<std::string> arguments;    // argv; if the program's name has no slash, it is looked up in PATH
  std::vector<std::string> environment;  // NAME=value; this is the whole environment of the child
  std::string directory;                 // the child's working directory; empty: the parent's
  int input = -1;                        // -1: /dev/null
  int output = -1;                       // -1: the parent's standard output
  int error = -1;                        // -1: the parent's standard error
  int death_signal = 0;                  // sent to the child when this process dies; 0: no signal
  bool new_session = false;
  bool new_group = false;
  rlim_t open_files = 0;   // the soft limit on the number of open files; 0: the same as for the parent
  std::vector<int> cores;  // the cores that the child may use; empty: the same as the parent
};

struct Spawned {
  pid_t pid = -1;
  int error = 0;        // an errno value; 0: the program runs
  std::string message;  // "cannot start './x': No such file or directory (ENOENT)"
};

Spawned spawn(const SpawnOptions& options);

// Returns the exit code that a shell gives for a program that could not be started: 127 if it was not found, otherwise 126.
int exit_code_of_start_error(int error);

// Returns the path of the running program. It is empty if /proc does not say.
std::string own_executable();

// Returns the current environment as a list of NAME=value, after applying `changes`. If several changes have the same name, the
// last one counts.
std::vector<std::string> environment_with(const std::vector<std::string>& changes);

}  // namespace unisono::cli
