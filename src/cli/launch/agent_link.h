// The launcher's end of one agent: the process (the agent itself or ssh), the record stream, and ssh's error output.
//
// The owner polls the descriptors and calls read(), flush() and read_errors() when they are ready, and reaped() when the
// process has ended. A link is over when its stream is closed and its process has ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/common/descriptor.h"
#include "cli/common/placement.h"
#include "cli/common/records.h"

namespace unisono::cli {

struct AgentCommand {
  std::string program;           // path of this tool, the same on all hosts
  std::vector<std::string> ssh;  // words before the host's name
};

class AgentLink {
 public:
  AgentLink(const Placement& placement, bool is_first) : placement_(placement), is_first_(is_first) {}

  // Starts the process. unavailable: why it could not be started.
  Status start(const AgentCommand& command);

  const Placement& placement() const { return placement_; }
  bool is_first() const { return is_first_; }  // rank 0's host
  std::string name() const { return placement_.host.empty() ? "this host" : "host " + placement_.host; }
  pid_t pid() const { return pid_; }               // -1 when it has ended
  int input() const { return from_agent_.get(); }  // -1 when closed
  int output() const { return to_agent_.get(); }
  int errors() const { return errors_.get(); }
  bool wants_write() const { return !pending_.empty() && to_agent_; }
  // The stream has ended, but the process has not (ssh may linger).
  bool lingers() const { return !from_agent_ && pid_ >= 0; }
  bool is_over() const { return !from_agent_ && pid_ < 0; }

  // Reads once and cuts records: the bytes read, 0 if there are none now or the stream has ended (input() is -1 then);
  // corrupt if the other side does not speak records.
  Result<size_t> read(std::vector<Record>& records);
  void flush();
  // Whole lines that ssh wrote to its standard error.
  void read_errors(std::vector<std::string>& lines);
  void send(RecordKind kind, ByteView payload);
  void send_signal(int signal);
  void close_stream();
  void kill_process();
  void reaped(int wait_status);
  // Why a link ended without `done`: "could not be reached: ssh exited with code 255: no route to host".
  std::string why_it_ended() const;

  bool greeted = false;
  bool done = false;
  bool failed = false;    // the owner has given it up and said so
  Nanos expires = never;  // its stream is closed: its process must end by then
  Hello hello;

 private:
  Placement placement_;
  bool is_first_ = false;
  std::string program_;
  std::string ssh_name_;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  Descriptor from_agent_;
  Descriptor to_agent_;
  Descriptor errors_;
  RecordReader reader_{true};
  std::string pending_;
  std::string error_line_;  // unfinished
  std::string last_error_;
};

}  // namespace unisono::cli
