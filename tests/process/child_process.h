// A process under test: started, watched and ended without a shell and without sleeping.
//
// Every wait has a bound; a process that exceeds it is killed and the wait says so. The destructor kills what still runs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace unisono::testing {

struct ChildOptions {
  std::vector<std::string> environment = {};  // NAME=value, on top of the test's own
  bool terminal = false;                      // standard streams are a new terminal; everything appears in out
  bool close_output = false;                  // nobody reads standard output
};

struct Finished {
  bool timed_out = false;
  bool by_signal = false;
  int code = -1;  // exit code or signal number
  std::string out;
  std::string error;
};

class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments, const ChildOptions& options = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Bytes for the terminal's keyboard.
  void type(const std::string& bytes) const;
  // Until the text has appeared `count` times in out and error together; false if the process ended or 20 s passed.
  bool wait_for(const std::string& text, size_t count = 1);
  // Until the process has been stopped by a signal.
  bool wait_stopped();
  // Until the process has ended and its streams are closed.
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

// Runs to the end.
Finished run(const std::vector<std::string>& arguments, const ChildOptions& options = {});

// A process that is not our child, by number. Opened while it certainly lives, so that the number cannot mean another.
class Watched {
 public:
  explicit Watched(pid_t pid);
  ~Watched();
  Watched(Watched&& other) noexcept;
  bool is_open() const { return handle_ >= 0; }
  // Within 20 s.
  bool ends() const;
  bool has_ended() const;

 private:
  int handle_;
};

// The numbers that follow `label` in the text, in order.
std::vector<pid_t> numbers_after(const std::string& text, const std::string& label);

size_t count_of(const std::string& text, const std::string& part);

}  // namespace unisono::testing
