// A group of real processes under test: starts group_program once per rank, tells each what to do, and reads what came of it.
//
// Ranks meet at a Unix socket in a directory of the cluster's own, so that tests need no port and cannot meet each other.
// Nothing here sleeps: every wait is for a line from a rank, and ends with a test failure if the line does not come.
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
inline constexpr int slowness = 5;  // how much longer things may take
#else
inline constexpr int slowness = 1;
#endif

// A rank's answer to one command.
struct Line {
  std::string text;
  std::map<std::string, std::string> values;
  bool ok() const { return code() == "ok"; }
  std::string code() const { return value("code"); }
  std::string message() const { return value("message"); }
  std::string value(const std::string& key) const;
  int64_t number(const std::string& key) const;
  int64_t at() const { return number("at"); }  // ns of CLOCK_MONOTONIC
  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

int64_t now_ns();

// One process.
class RankProcess {
 public:
  // `wrapper` goes before the program's path: {"ip", "netns", "exec", "a"}.
  RankProcess(const std::string& folder, const std::string& name, std::vector<std::string> environment,
              const std::vector<std::string>& commands, const std::vector<std::string>& wrapper = {});
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;

  // Returns the number of the command, for answer().
  size_t tell(const std::string& command);
  Line answer(size_t number);
  Line ask(const std::string& command) { return answer(tell(command)); }
  // Until the loop of command `number` is under way.
  bool going(size_t number);
  pid_t pid() const { return child_.pid(); }
  void signal(int number) const { child_.signal(number); }
  // Until a SIGSTOP has taken effect.
  bool wait_stopped() { return child_.wait_stopped(); }
  // Ends it by `exit`, or finds that it ended; its exit code, or minus the signal.
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
  std::vector<std::string> environment = {};            // NAME=value, for every rank
  std::string rendezvous = {};                          // empty: a socket in the cluster's folder
  std::vector<std::vector<std::string>> wrappers = {};  // by rank, before the program; empty: none
};

inline std::ostream& operator<<(std::ostream& out, const ClusterOptions& options) {
  out << options.transport;
  for (const auto& setting : options.environment) out << " " << setting;
  return out;
}

class Cluster {
 public:
  // Starts the ranks and waits until all have joined.
  Cluster(size_t world, const ClusterOptions& options = {});

  RankProcess& operator[](size_t rank) { return *ranks_.at(rank); }
  size_t size() const { return ranks_.size(); }
  // Starts a process that waits to be taken in: its join is command 0.
  RankProcess& add_joiner();
  // The same command to all that live (or to these), then all answers, in the order given.
  std::vector<Line> ask_all(const std::string& command);
  std::vector<Line> ask(const std::vector<size_t>& ranks, const std::string& command);
  std::vector<size_t> tell(const std::vector<size_t>& ranks, const std::string& command);
  std::vector<Line> answers(const std::vector<size_t>& ranks, const std::vector<size_t>& numbers);
  // All ranks but these.
  std::vector<size_t> all_but(const std::vector<size_t>& gone) const;
  // Ends the living ranks in order; each must end with 0.
  void finish(const std::vector<size_t>& ranks);
  void finish() { finish(all_but({})); }
  const std::string& folder() const { return folder_.path(); }

 private:
  std::vector<std::string> environment(const ClusterOptions& options) const;

  test::TemporaryFolder folder_;
  ClusterOptions options_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

// Names tests after the transport that they run over.
inline std::string name_of(const ::testing::TestParamInfo<std::string>& transport) { return transport.param; }

// Every line is ok; says which is not.
void expect_all_ok(const std::vector<Line>& lines);

// Prints a measured time, and fails if it is above the limit (stretched under sanitizers).
void expect_within(const std::string& what, int64_t took_ns, int64_t limit_ms);

}  // namespace unisono::testing
