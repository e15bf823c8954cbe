// A group of real processes under test. There is one group_program for each rank. The cluster sends commands to the ranks and
// reads their answers.
//
// The ranks meet at a Unix socket in the folder of the cluster. Therefore tests need no port, and do not disturb each other.
// Nothing here sleeps for a fixed time. Every wait is for a line from a rank. If the line does not come, the test fails.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "child_process.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int slowness = 5;  // Time limits are multiplied by this, because sanitizers slow everything down.
#else
inline constexpr int slowness = 1;
#endif

// The answer of a rank to one command.
struct Line {
  std::string text;
  std::map<std::string, std::string> values;
  bool ok() const { return code() == "ok"; }
  std::string code() const { return value("code"); }
  std::string message() const { return value("message"); }
  std::string value(const std::string& key) const;
  int64_t number(const std::string& key) const;
  int64_t at() const { return number("at"); }  // the time of the answer, in ns of CLOCK_MONOTONIC
  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

int64_t now_ns();

// The process of one rank.
class RankProcess {
 public:
  RankProcess(const std::string& folder, const std::string& name, std::vector<std::string> environment,
              const std::vector<std::string>& commands, const Wrapper& wrapper = {});
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;

  // Sends a command. Returns its number, which answer() needs.
  size_t send_command(const std::string& command);
  Line answer(size_t number);
  Line ask(const std::string& command) { return answer(send_command(command)); }
  // Waits until the loop of the command with this number has begun.
  bool has_begun(size_t number);
  pid_t pid() const { return child_.pid(); }
  void signal(int number) const { child_.signal(number); }
  // Waits until SIGSTOP has stopped the process.
  bool wait_stopped() { return child_.wait_stopped(); }
  // If the process still runs, ends it with the command `exit`. Returns its exit code. If a signal killed it, returns minus the
  // number of the signal.
  int finish();
  Finished wait() { return child_.wait(); }
  std::string output() const { return child_.out() + child_.error(); }

 private:
  std::string pipe_;
  int commands_ = -1;
  size_t next_ = 0;
  ChildProcess child_;
};

struct ClusterOptions {
  std::string transport = "auto";
  std::vector<std::string> environment = {};  // texts of the form NAME=value, for all ranks
  std::string rendezvous = {};                // empty: a socket in the folder of the cluster
  std::vector<Wrapper> wrappers = {};         // for each rank; empty: none
};

inline std::ostream& operator<<(std::ostream& out, const ClusterOptions& options) {
  out << options.transport;
  for (const auto& setting : options.environment) out << " " << setting;
  return out;
}

class Cluster {
 public:
  // Starts the ranks, and waits until all of them have joined.
  Cluster(size_t world, const ClusterOptions& options = {});

  RankProcess& operator[](size_t rank) { return *ranks_.at(rank); }
  size_t size() const { return ranks_.size(); }
  // Starts a process that waits until it can join the running group. The command with which it joins has number 0.
  RankProcess& add_joiner();
  // ask_all() sends one command to all living ranks, and ask() sends it to `ranks`. Then both return all answers, in the same
  // order.
  std::vector<Line> ask_all(const std::string& command);
  std::vector<Line> ask(const std::vector<size_t>& ranks, const std::string& command);
  std::vector<size_t> send_command(const std::vector<size_t>& ranks, const std::string& command);
  std::vector<Line> answers(const std::vector<size_t>& ranks, const std::vector<size_t>& numbers);
  // Returns all ranks except `gone`.
  std::vector<size_t> all_but(const std::vector<size_t>& gone) const;
  // Ends these ranks, or all ranks, in order. Each must exit with 0.
  void finish(const std::vector<size_t>& ranks);
  void finish() { finish(all_but({})); }
  const std::string& folder() const { return folder_.path(); }

 private:
  std::vector<std::string> environment(const ClusterOptions& options) const;

  test::TemporaryFolder folder_;
  ClusterOptions options_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

// Names a test after the transport that it uses.
inline std::string name_of(const ::testing::TestParamInfo<std::string>& transport) { return transport.param; }

// Expects that every line is ok. If one is not, the failure shows it.
void expect_all_ok(const std::vector<Line>& lines);

// Prints a time that was measured. Fails if it is longer than the limit, which is larger under sanitizers.
void expect_within(const std::string& what, int64_t took_ns, int64_t limit_ms);

}  // namespace unisono::testing
