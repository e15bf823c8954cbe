// Executes a program on a cluster as a user's processes would: it calls, waits, checks the result and reuses the memory.
//
// When an operation has ended, its output is kept for the checkers and then overwritten. So a late read or write by the library
// shows up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/program.h"

namespace unisono::sim {

// One call on one of its ranks.
struct Part {
  bool submitted = false, done = false;
  Memory memory;
  Slip slip = Slip::none;
  std::shared_ptr<Completion> completion;
  Nanos submitted_at = 0, ended_at = 0;
  std::vector<std::byte> result;  // output at the end of the operation
  std::vector<std::byte> unread;  // input at the start, if it must not change
  const Status& status() const { return completion->status; }
};

struct RunSettings {
  bool large = false;  // saves time: keeps no copies and overwrites nothing
  uint64_t seed = 1;
};

class Run {
 public:
  Run(Cluster& cluster, const Program& program, const RunSettings& settings);

  // Runs until all operations on living processes have ended and the links are idle, or until `limit`. True if all have ended.
  bool finish(Nanos limit);

  const Program& program() const { return program_; }
  // By call, then by rank in its group.
  const std::vector<std::vector<Part>>& parts() const { return parts_; }
  // Problems found during the run: calls refused as wrong, memory touched after the end.
  const std::vector<std::string>& problems() const { return problems_; }
  // Checks the memory of all ended operations once more.
  void check_memory();

 private:
  struct Walker {  // one process's position in its calls
    size_t next = 0;
    size_t in_flight = 0;
    bool scheduled = false;
    std::vector<std::pair<size_t, Rank>> open;
  };

  void walk(PeerIndex process);
  void schedule(PeerIndex process, Nanos at);
  void submit(PeerIndex process, size_t index);
  void harvest(PeerIndex process);
  void ended(const Call& call, Part& part);
  bool all_ended() const;

  Cluster& cluster_;
  const Program& program_;
  RunSettings settings_;
  Random random_;
  std::vector<std::vector<GroupCore*>> groups_;  // by process, by group
  std::vector<std::vector<Part>> parts_;
  std::vector<Walker> walkers_;
  std::vector<std::string> problems_;
};

}  // namespace unisono::sim
