// Executes a program on a cluster, the way a user's processes would: calls, waits, looks at the result, uses the memory again.
//
// When an operation has ended, its output is kept for the checkers and then overwritten: whoever still reads or writes it
// shows.
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
  std::vector<std::byte> result;  // output as it was when the operation ended
  std::vector<std::byte> unread;  // input as it was at the start, where it must not change
  const Status& status() const { return completion->status; }
};

struct RunSettings {
  bool large = false;  // keep no copies, overwrite nothing: for speed
  uint64_t seed = 1;
};

class Run {
 public:
  Run(Cluster& cluster, const Program& program, const RunSettings& settings);

  // Runs until all operations on living processes have ended and the links are quiet, or `limit`. True if all ended.
  bool finish(Nanos limit);

  const Program& program() const { return program_; }
  // By call, then by rank in its group.
  const std::vector<std::vector<Part>>& parts() const { return parts_; }
  // What broke while it ran: calls that were refused as wrong, memory touched after the end.
  const std::vector<std::string>& problems() const { return problems_; }
  // Looks once more at the memory of everything that has ended.
  void check_memory();

 private:
  struct Walker {  // one process's way through its calls
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
