// The connection of the launcher to one agent. It consists of a process (the agent itself, or ssh), the stream of records, and
// the standard error of ssh.
//
// The owner polls the descriptors. When they are ready, it calls read(), flush() and read_errors(). When the process has ended,
// it calls reaped(). A link is over when its stream has been closed and its process has ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/common/descriptor.h"
#include "cli/common/placement.h"
#include "cli/common/records.h"

namespace unisono::cli {

struct AgentCommand {
  std::string program;           // path of this tool; it is the same on all hosts
  std::vector<std::string> ssh;  // the ssh command, without the name of the host
};

class AgentLink {
 public:
  AgentLink(const Placement& placement, bool is_first) : placement_(placement), is_first_(is_first) {}

  // Starts the process. Returns Code::unavailable if it could not be started; the message says why.
  Status start(const AgentCommand& command);

  const Placement& placement() const { return placement_; }
  bool is_first() const { return is_first_; }  // whether this link leads to the host of rank 0
  std::string name() const { return placement_.host.empty() ? "this host" : "host " + placement_.host; }
  pid_t pid() const { return pid_; }               // -1: the process has ended
  int input() const { return from_agent_.get(); }  // -1: the stream is closed
  int output() const { return to_agent_.get(); }
  int errors() const { return errors_.get(); }
  bool wants_write() const { return !pending_.empty() && to_agent_; }
  // Returns true if the stream has ended but the process has not. This can happen with ssh.
  bool lingers() const { return !from_agent_ && pid_ >= 0; }
  bool is_over() const { return !from_agent_ && pid_ < 0; }

  // Reads once, and appends the records that are complete. Returns the number of bytes that were read. The result 0 means that
  // no bytes are available, or that the stream has ended; in the second case, input() is -1. Returns Code::corrupt if the bytes
  // are not records.
  Result<size_t> read(std::vector<Record>& records);
  void flush();
  // Appends the complete lines that ssh has written to its standard error.
  void read_errors(std::vector<std::string>& lines);
  void send(RecordKind kind, ByteView payload);
  void send_signal(int signal);
  void close_stream();
  void kill_process();
  void reaped(int wait_status);
  // Explains why the link ended before the record `done` came: "could not be reached: ssh exited with code 255: no route to
  // host".
  std::string why_it_ended() const;

  bool greeted = false;
  bool done = false;
  bool failed = false;    // the owner has given up this link and reported it
  Nanos expires = never;  // if the stream has ended, and the process has not ended by this time, it is killed
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
  std::string error_line_;  // the line on ssh's standard error that is not complete yet
  std::string last_error_;
};

}  // namespace unisono::cli
