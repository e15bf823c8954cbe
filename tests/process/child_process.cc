#include "child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/concat.h"

namespace unisono::testing {
namespace {

using Clock = std::chrono::steady_clock;
// A time limit that is much longer than any wait here, even under sanitizers on a busy machine.
constexpr auto patience = std::chrono::seconds(60);

int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

int open_terminal(std::string& name) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) std::abort();
  name = ::ptsname(master);
  return master;
}

void enter_terminal(const std::string& name) {
  ::setsid();
  const int terminal = ::open(name.c_str(), O_RDWR);
  ::ioctl(terminal, TIOCSCTTY, 0);
  for (int fd = 0; fd < 3; ++fd) ::dup2(terminal, fd);
}

// Sets the process name space of the children that this process makes from now on.
void make_children_in(int process_space) {
  if (::setns(process_space, CLONE_NEWPID) != 0) std::abort();
}

pid_t fork_in(int process_space) {
  if (process_space < 0) return ::fork();
  const int own = ::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  make_children_in(process_space);
  const pid_t pid = ::fork();
  if (pid == 0) return 0;
  make_children_in(own);
  ::close(own);
  return pid;
}

}  // namespace

ProcessSpace::ProcessSpace() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  first_ = static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (first_ == 0) {
    ::signal(SIGCHLD, SIG_IGN);  // The kernel then removes the processes whose parents have ended.
    ::dup2(ends[0], 0);
    ::close_range(1, ~0U, 0);
    char byte = 0;
    while (::read(0, &byte, 1) < 0) {}
    ::_exit(0);
  }
  ::close(ends[0]);
  stop_ = ends[1];
  descriptor_ = ::open(concat("/proc/", first_, "/ns/pid").c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) std::abort();
}

ProcessSpace::~ProcessSpace() {
  ::close(stop_);
  ::waitpid(first_, nullptr, 0);
  ::close(descriptor_);
}

ChildProcess::ChildProcess(const Words& arguments, const ChildOptions& options) {
  int out_pipe[2];
  int error_pipe[2];
  std::string terminal;
  if (::pipe2(out_pipe, O_CLOEXEC) != 0 || ::pipe2(error_pipe, O_CLOEXEC) != 0) std::abort();
  const int master = options.terminal ? open_terminal(terminal) : -1;
  pid_ = fork_in(options.process_space);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left over if the test itself is killed
    if (options.terminal) {
      enter_terminal(terminal);
    } else {
      ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
      ::dup2(out_pipe[1], 1);
      ::dup2(error_pipe[1], 2);
    }
    for (const auto& setting : options.environment) {
      const auto equals = setting.find('=');
      ::setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
    }
    std::vector<char*> words;
    for (const auto& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    ::_exit(99);
  }
  ::close(out_pipe[1]);
  ::close(error_pipe[1]);
  output_ = out_pipe[0];
  errors_ = error_pipe[0];
  if (master >= 0) {
    ::close(output_);
    output_ = master;
  }
  if (options.close_output) {
    ::close(output_);
    output_ = -1;
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
  if (errors_ >= 0) ::close(errors_);
}

void ChildProcess::signal(int number) const { ::kill(pid_, number); }

void ChildProcess::type(const std::string& bytes) const {
  [[maybe_unused]] const auto put = ::write(output_, bytes.data(), bytes.size());
}

// Reads the output that is available. Returns false when both streams are closed, or when the time is over.
bool ChildProcess::read_some(int milliseconds) {
  pollfd waits[] = {{output_, POLLIN, 0}, {errors_, POLLIN, 0}};
  if ((output_ < 0 && errors_ < 0) || ::poll(waits, 2, milliseconds) <= 0) return false;
  char bytes[65536];
  for (int i = 0; i < 2; ++i) {
    if (waits[i].revents == 0) continue;
    auto& fd = i == 0 ? output_ : errors_;
    const auto got = ::read(fd, bytes, sizeof(bytes));
    if (got > 0) (i == 0 ? out_ : error_).append(bytes, static_cast<size_t>(got));
    else if (got == 0 || errno != EINTR) {  // A terminal returns EIO when no process has it open any more.
      ::close(fd);
      fd = -1;
    }
  }
  return true;
}

bool ChildProcess::wait_for(const std::string& text, size_t count) {
  const auto end = Clock::now() + patience;
  while (count_of(out_, text) + count_of(error_, text) < count) {
    if (!read_some(milliseconds_until(end))) return false;
  }
  return true;
}

bool ChildProcess::wait_stopped() {
  int status = 0;
  return ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
}

Finished ChildProcess::wait() {
  const auto end = Clock::now() + patience;
  while (read_some(milliseconds_until(end))) {}
  Finished finished;
  const Watched watched(pid_);
  finished.timed_out = Clock::now() >= end || !watched.ends();
  if (finished.timed_out) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  finished.by_signal = WIFSIGNALED(status);
  finished.code = finished.by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  finished.out = out_;
  finished.error = error_;
  return finished;
}

Finished run(const Words& arguments, const ChildOptions& options) { return ChildProcess(arguments, options).wait(); }

Watched::Watched(pid_t pid) : handle_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

Watched::~Watched() {
  if (handle_ >= 0) ::close(handle_);
}

Watched::Watched(Watched&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}

bool Watched::ends() const {
  pollfd wait{handle_, POLLIN, 0};
  return handle_ < 0 || ::poll(&wait, 1, 20'000) == 1;
}

bool Watched::has_ended() const {
  pollfd wait{handle_, POLLIN, 0};
  return handle_ < 0 || ::poll(&wait, 1, 0) == 1;
}

std::vector<pid_t> numbers_after(const std::string& text, const std::string& label) {
  std::vector<pid_t> numbers;
  for (auto at = text.find(label); at != std::string::npos; at = text.find(label, at + 1)) {
    numbers.push_back(static_cast<pid_t>(std::strtol(text.c_str() + at + label.size(), nullptr, 10)));
  }
  return numbers;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string whole(const Finished& done) { return done.out + done.error; }

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace unisono::testing
