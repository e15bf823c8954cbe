// How a job ended: which rank failed first, why, what became of the others, and the exit code that says so. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/records.h"

namespace unisono::cli {

// The launcher itself failed: a host cannot be reached, an agent was lost.
inline constexpr int exit_code_launcher = 125;
// The command line was wrong.
inline constexpr int exit_code_usage = 2;

class Verdict {
 public:
  // hosts[rank] is shown beside the pid; empty for this host.
  explicit Verdict(std::vector<std::string> hosts);

  // How this rank ends is no failure of the job.
  void forgive(uint32_t rank);
  void started(uint32_t rank, uint32_t pid);
  // asked: the launcher had asked the ranks to end, or passed on a request to.
  void ended(uint32_t rank, const Ended& ended, bool asked);
  void refused(uint32_t rank, const Refused& refused);
  // Its agent is gone; what became of the rank is not known. No effect on a rank that has ended.
  void lost(uint32_t rank, const std::string& why);

  uint32_t running_count() const;
  bool has_failure() const { return first_ >= 0; }
  // "rank 2 (pid 41) was killed by signal 9 (SIGKILL) after 1.24 s", of a rank that has ended.
  std::string describe(uint32_t rank) const;
  std::string first_failure() const { return first_ < 0 ? "" : describe(static_cast<uint32_t>(first_)); }
  // "ranks 0, 1 exited with code 1; rank 3 was ended": all but the first failure; empty if there are no others.
  std::string others() const;
  // 0 if no rank failed. Else the exit code of the first failure: its own, 128 + its signal, 126 or 127 if it could not be
  // started, or 125 if it was lost.
  int exit_code() const;

 private:
  enum class State : uint8_t { waiting, running, exited, killed, refused, lost };
  struct Rank {
    State state = State::waiting;
    bool asked = false;
    bool forgiven = false;
    uint32_t pid = 0;
    Ended ended;
    std::string message;
    int error = 0;
    std::string host;
  };
  void note_failure(uint32_t rank);
  std::string fate(const Rank& rank) const;

  std::vector<Rank> ranks_;
  int64_t first_ = -1;
};

}  // namespace unisono::cli
