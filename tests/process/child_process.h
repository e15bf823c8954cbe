// A process under test. It is started, watched and ended without a shell, and without fixed sleeps.
//
// Every wait has a time limit. When the limit is over, the process is killed, and the wait reports that. The destructor kills a
// process that still runs.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace unisono::testing {

using Words = std::vector<std::string>;

struct ChildOptions {
  // Texts of the form NAME=value. They are added to the environment of the test itself.
  Words environment = {};
  int process_space = -1;     // the descriptor of a ProcessSpace in which the process runs; -1: it runs in that of the test
  bool terminal = false;      // true: the standard streams are a new terminal, and all output is in out()
  bool close_output = false;  // true: standard output is a pipe that nobody reads
};

// How a program is started in a special environment.
struct Wrapper {
  Wrapper() = default;
  Wrapper(Words put_in_front, int space = -1) : words(std::move(put_in_front)), process_space(space) {}
  Wrapper(std::initializer_list<std::string> put_in_front) : words(put_in_front) {}

  Words words;             // are put in front of the program's path, such as {"ip", "netns", "exec", "a"}
  int process_space = -1;  // see ChildOptions
};

// A process name space, as a container has. Its first process only waits. When that process ends, the kernel kills all other
// processes in the name space. It ends with this object, and with the test however that ends. Before that, the
// test must have waited for all its children in it. Making it needs root.
class ProcessSpace {
 public:
  ProcessSpace();
  ~ProcessSpace();
  ProcessSpace(const ProcessSpace&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int stop_ = -1;  // the first process waits until nobody has this end of a pipe any more
  pid_t first_ = -1;
  int descriptor_ = -1;
};

struct Finished {
  bool timed_out = false;
  bool by_signal = false;
  int code = -1;  // the exit code, or the number of the signal
  std::string out;
  std::string error;
};

class ChildProcess {
 public:
  explicit ChildProcess(const Words& arguments, const ChildOptions& options = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Types bytes on the keyboard of the terminal.
  void type(const std::string& bytes) const;
  // Waits until the text has appeared `count` times in out() and error() together. Returns false if the process ends before
  // that, or after 20 s.
  bool wait_for(const std::string& text, size_t count = 1);
  // Waits until a signal has stopped the process.
  bool wait_stopped();
  // Waits until the process has ended and its streams are closed.
  Finished wait();
  const std::string& out() const { return out_; }
  const std::string& error() const { return error_; }

 private:
  bool read_some(int milliseconds);

  pid_t pid_ = -1;
  int output_ = -1;
  int errors_ = -1;
  std::string out_;
  std::string error_;
};

// Runs a program and waits until it ends.
Finished run(const Words& arguments, const ChildOptions& options = {});

// Watches a process that is not a child of the test. Make this object while the process surely lives, because later another
// process could have the same pid.
class Watched {
 public:
  explicit Watched(pid_t pid);
  ~Watched();
  Watched(Watched&& other) noexcept;
  bool is_open() const { return handle_ >= 0; }
  // Waits up to 20 s until the process ends. Returns whether it has ended.
  bool ends() const;
  bool has_ended() const;

 private:
  int handle_;
};

// Returns the numbers that follow `label` in the text, in their order.
std::vector<pid_t> numbers_after(const std::string& text, const std::string& label);

size_t count_of(const std::string& text, const std::string& part);
bool contains(const std::string& text, const std::string& part);
// Returns both outputs of the process.
std::string whole(const Finished& done);

}  // namespace unisono::testing
