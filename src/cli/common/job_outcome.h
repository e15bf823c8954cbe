// The outcome of a job: which rank failed first and why, how the other ranks ended, and the exit code. All functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/records.h"

namespace unisono::cli {

// The exit code if the launcher itself failed because it could not reach a host, or lost its connection to an agent.
inline constexpr int exit_code_launcher = 125;
// The exit code if the command line was wrong.
inline constexpr int exit_code_usage = 2;

class JobOutcome {
 public:
  // hosts[rank] is shown beside the pid of the rank. It is empty if the rank runs on this host.
  explicit JobOutcome(std::vector<std::string> hosts);

  // From now on, if this rank fails, the job does not count as failed.
  void allow_failure(uint32_t rank);
  void started(uint32_t rank, uint32_t pid);
  // `asked` means that before the rank ended, the launcher had asked the ranks to end or had forwarded a signal to them.
  void ended(uint32_t rank, const Ended& ended, bool asked);
  void refused(uint32_t rank, const Refused& refused);
  // The agent that supervised this rank is gone, so nobody knows what happened to the rank. This has no effect if the rank has
  // already ended.
  void lost(uint32_t rank, const std::string& why);

  uint32_t running_count() const;
  bool has_failure() const { return first_ >= 0; }
  // Says how a rank ended: "rank 2 (pid 41) was killed by signal 9 (SIGKILL) after 1.24 s".
  std::string describe(uint32_t rank) const;
  std::string first_failure() const { return first_ < 0 ? "" : describe(static_cast<uint32_t>(first_)); }
  // Says how all ranks ended except the one that failed first: "ranks 0, 1 exited with code 1; rank 3 was ended". The text is
  // empty if there are no other ranks.
  std::string others() const;
  // Returns 0 if no rank failed. Otherwise the code depends on how the rank that failed first ended:
  // - it ended by itself: its exit code
  // - it was killed by a signal: 128 + the number of the signal
  // - it could not be started: 126 or 127
  // - its agent was lost: 125
  int exit_code() const;

 private:
  enum class State : uint8_t { waiting, running, exited, killed, refused, lost };
  struct Rank {
    State state = State::waiting;
    bool asked = false;
    bool may_fail = false;
    uint32_t pid = 0;
    Ended ended;
    std::string message;
    int error = 0;
    std::string host;
  };
  void note_failure(uint32_t rank);
  std::string end_text(const Rank& rank) const;

  std::vector<Rank> ranks_;
  int64_t first_ = -1;
};

}  // namespace unisono::cli
