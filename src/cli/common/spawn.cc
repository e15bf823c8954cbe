#include "cli/common/spawn.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/error_text.h"
#include "cli/common/descriptor.h"

extern char** environ;

namespace unisono::cli {
namespace {

// The step at which the child failed. The child sends a Failure to its parent through a pipe if it cannot run the program.
enum class ChildStep : int { session, streams, directory, cores, execute };
struct Failure {
  ChildStep stage;
  int error;
};

// Returns the file of the program. If `name` contains a slash, the file is `name` itself. Otherwise it is the first executable
// file with this name in PATH. As in execvp, `error` is EACCES if there were such files but none of them is executable.
std::string find_program(const std::string& name, const std::string& path, int& error) {
  error = 0;
  if (name.find('/') != std::string::npos) return name;
  error = ENOENT;
  for (size_t at = 0; at <= path.size();) {
    const auto end = std::min(path.find(':', at), path.size());
    const auto candidate = (end == at ? std::string(".") : path.substr(at, end - at)) + "/" + name;
    at = end + 1;
    if (::access(candidate.c_str(), X_OK) == 0) {
      error = 0;
      return candidate;
    }
    if (errno == EACCES) error = EACCES;
  }
  return name;
}

std::string value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const auto& entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// Turns the given descriptors into the descriptors 0, 1 and 2. A given descriptor below 3 could be overwritten meanwhile, so it
// is first moved to a higher number.
bool install_streams(const SpawnOptions& options) {
  int input = options.input >= 0 ? options.input : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0) return false;
  int sources[3] = {input, options.output >= 0 ? options.output : 1, options.error >= 0 ? options.error : 2};
  for (int target = 0; target < 3; ++target) {
    if (sources[target] < 3 && sources[target] != target) sources[target] = ::fcntl(sources[target], F_DUPFD_CLOEXEC, 3);
    if (sources[target] < 0) return false;
  }
  for (int target = 0; target < 3; ++target) {
    if (sources[target] == target) {
      if (::fcntl(target, F_SETFD, 0) != 0) return false;
    } else if (::dup2(sources[target], target) < 0) {
      return false;
    }
  }
  return true;
}

void restore_signals() {
  // The tool ignores SIGPIPE, and blocks the signals that it reads through signalfd. A program expects neither. Apart from
  // this, the tool has changed no signal: if SIGHUP was ignored before the tool started (nohup), it stays ignored.
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool pin_to(const std::vector<int>& cores) {
  if (cores.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

[[noreturn]] void run_child(const SpawnOptions& options, const char* file, char* const* arguments, char* const* environment,
                            pid_t parent, int report) {
  const auto fail = [report](ChildStep stage) {
    const Failure failure{stage, errno};
    [[maybe_unused]] const auto written = ::write(report, &failure, sizeof(failure));
    ::_exit(127);
  };
  if (options.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (::getppid() != parent) ::_exit(127);  // the parent may have died before prctl was called
  }
  if (options.new_session && ::setsid() < 0) fail(ChildStep::session);
  if (options.new_group && ::setpgid(0, 0) != 0) fail(ChildStep::session);
  if (!pin_to(options.cores)) fail(ChildStep::cores);
  if (!install_streams(options)) fail(ChildStep::streams);
  // The limit is set after the streams, because this process may have more descriptors open than the program may have.
  if (options.open_files != 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = options.open_files;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) fail(ChildStep::directory);
  restore_signals();
  ::execve(file, arguments, environment);
  fail(ChildStep::execute);
  ::_exit(127);
}

std::string reason_of(int error) {
  return fmt::format("{} ({}){}", std::strerror(error), strerrorname_np(error), descriptor_limit_text(error));
}

std::string explain(const SpawnOptions& options, const std::string& file, const Failure& failure) {
  const auto reason = reason_of(failure.error);
  if (failure.stage == ChildStep::directory) return fmt::format("cannot enter directory '{}': {}", options.directory, reason);
  if (failure.stage == ChildStep::cores) return fmt::format("cannot pin '{}' to its cores: {}", file, reason);
  if (failure.stage != ChildStep::execute) return fmt::format("cannot prepare the process for '{}': {}", file, reason);
  auto text = fmt::format("cannot start '{}': {}", file, reason);
  const bool bare_name = file.find('/') == std::string::npos;
  if (bare_name) text += fmt::format("; PATH is {}", value_of(options.environment, "PATH"));
  if (failure.error == ENOENT && !bare_name && file[0] != '/') {
    text += fmt::format("; the directory is '{}'", options.directory);
  } else if (failure.error == ENOENT && !bare_name && ::access(file.c_str(), F_OK) == 0) {
    text += "; the file is there, but its interpreter or loader is not";
  }
  if (failure.error == ENOEXEC) text += "; a script needs a first line such as #!/bin/sh";
  return text;
}

}  // namespace

Spawned spawn(const SpawnOptions& options) {
  Spawned result;
  int not_found = 0;
  const auto file = find_program(options.arguments.at(0), value_of(options.environment, "PATH"), not_found);
  if (not_found != 0) {
    result.error = not_found;
    result.message = explain(options, file, {ChildStep::execute, not_found});
    return result;
  }
  const auto arguments = pointers(options.arguments);
  const auto environment = pointers(options.environment);
  Pipe report;
  const bool piped = make_pipe(report);
  const pid_t parent = ::getpid();
  const pid_t pid = piped ? ::fork() : -1;
  if (pid == 0) run_child(options, file.c_str(), arguments.data(), environment.data(), parent, report.write.get());
  if (pid < 0) {
    result.error = errno;
    result.message = fmt::format("cannot make a process for '{}': {}", file, reason_of(result.error));
    return result;
  }
  // The parent sets the process group, too. So the group surely exists before a signal is sent to it.
  if (options.new_group) ::setpgid(pid, pid);
  report.write.reset();
  Failure failure{};
  ssize_t got = 0;
  do got = ::read(report.read.get(), &failure, sizeof(failure));
  while (got < 0 && errno == EINTR);
  if (got == sizeof(failure)) {
    ::waitpid(pid, nullptr, 0);
    result.error = failure.error;
    result.message = explain(options, file, failure);
    return result;
  }
  result.pid = pid;
  return result;
}

int exit_code_of_start_error(int error) { return error == ENOENT || error == ENOTDIR ? 127 : 126; }

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  for (const auto& change : changes) {
    const auto name = change.substr(0, change.find('=') + 1);
    std::erase_if(all, [&](const std::string& entry) { return entry.starts_with(name); });
    all.push_back(change);
  }
  return all;
}

std::string own_executable() {
  std::string path(PATH_MAX, '\0');
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return path;
}

}  // namespace unisono::cli
