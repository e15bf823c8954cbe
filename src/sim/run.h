// Executes a program on a cluster. Each process behaves like the program of a user: it makes a call, waits, checks the result,
// and reuses the memory.
//
// When an operation has ended, its output is copied for the checkers and then overwritten. This reveals whether the library
// reads or writes the memory too late.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/program.h"

namespace unisono::sim {

// The state of one call on one of its ranks.
struct Part {
  bool submitted = false, done = false;
  Memory memory;
  Mistake mistake = Mistake::none;
  std::shared_ptr<Completion> completion;
  Nanos submitted_at = 0, ended_at = 0;
  std::vector<std::byte> result;  // the output at the end of the operation
  std::vector<std::byte> unread;  // the input at the start, if the operation must not change it
  const Status& status() const { return completion->status; }
};

struct RunSettings {
  bool large = false;  // saves time and memory: outputs are neither copied nor overwritten
  uint64_t seed = 1;
};

class Run {
 public:
  Run(Cluster& cluster, const Program& program, const RunSettings& settings);

  // Runs until no event is left, or until time `limit`. Returns whether all operations of living processes have ended.
  bool finish(Nanos limit);

  const Program& program() const { return program_; }
  // The parts are indexed by call, and then by rank in the call's group.
  const std::vector<std::vector<Part>>& parts() const { return parts_; }
  // Each text says which call was refused as invalid, or which memory was touched after its operation had ended.
  const std::vector<std::string>& problems() const { return problems_; }
  // Checks the memory of all ended operations once more.
  void check_memory();

 private:
  struct CallProgress {  // progress of one process through its calls
    size_t next = 0;
    size_t in_flight = 0;
    bool scheduled = false;
    std::vector<std::pair<size_t, Rank>> open;
  };

  void make_next_call(PeerIndex process);
  void schedule(PeerIndex process, Nanos at);
  void submit(PeerIndex process, size_t index);
  void collect_ended(PeerIndex process);
  void ended(const Call& call, Part& part);
  bool all_ended() const;

  Cluster& cluster_;
  const Program& program_;
  RunSettings settings_;
  Random random_;
  std::vector<std::vector<GroupCore*>> groups_;  // indexed by process, then by group
  std::vector<std::vector<Part>> parts_;
  std::vector<CallProgress> progress_;
  std::vector<std::string> problems_;
};

}  // namespace unisono::sim
