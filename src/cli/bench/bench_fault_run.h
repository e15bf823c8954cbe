// Runs one collective again and again while ranks are killed, stopped and resumed. It reports the outcome of each operation,
// how long survivors did not know of a fault, and how they go on.
//
// Every rank runs the same loop. Before each operation a small sum tells all ranks whether rank 0 wants another one, and how
// many wrong elements there have been. Operations with equal outcomes form one stretch. After an operation that fails, the
// survivors re-form their group and go on with fewer ranks, unless FaultRunOptions::reform is false.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/bench/bench_data.h"
#include "cli/launch/link_emulator.h"
#include "unisono/group.h"

namespace unisono::cli {

struct FaultRunOptions {
  DataPlan data;  // a collective without root
  CallOptions call;
  uint64_t bytes = 0;
  bool in_place = false;
  bool check = true;
  bool reform = true;
  Nanos zero = 0;             // monotonic: when the group had formed
  Nanos until = 0;            // since `zero`: it runs until then, and for ten operations after the last failure
  uint32_t failures_max = 4;  // the faults explain no more failures than these; the next one's status is the result
};

struct Stretch {
  Nanos from = 0, to = 0;  // since the group formed
  uint32_t world_size = 0;
  uint32_t contributors = 0;  // the fewest that one operation counted
  uint64_t operations = 0;
  uint64_t wrong = 0;  // elements, of all ranks
  Timing timing;       // as this rank saw it
};

// An operation that failed, and the re-forming after it.
struct Failure {
  Nanos at = 0;                // since the group formed: when this rank noticed
  uint64_t operation = 0;      // which one, counted from 1
  Status status;               // of the survivor that noticed first: others may know only that it re-forms the group
  std::optional<Fault> cause;  // the last fault before
  Nanos noticed_after = 0;     // time from the cause until the last survivor noticed
  bool reformed = false;
  Nanos reform_time = 0;  // the slowest survivor's
  uint32_t epoch = 0;
  std::vector<uint32_t> before;   // by the rank that the status means: its number as the group formed
  std::vector<uint32_t> members;  // that go on, numbered as the group formed
};

// The facts that one survivor knows about a failure, as the survivors exchange them.
struct Witness {
  Nanos at = 0;  // since the group formed
  Nanos noticed_after = 0;
  Nanos reform_time = 0;
  Code code = Code::ok;
  std::array<char, 1024> message{};  // ends with a zero; what is longer is cut
};

Witness witness_of(const Failure& failure);
// Takes the message of the survivor that noticed first, and the slowest times. One of the witnesses is this rank's own.
void settle(Failure& failure, std::span<const Witness> witnesses);

struct FaultRunOutcome {
  uint32_t started = 0, left = 0;  // ranks
  uint64_t operations = 0;
  uint64_t after = 0;  // of these, after the last failure
  uint64_t wrong = 0;
  bool went_on = true;  // the survivors did
};

// Called in the order of time, on the rank that is rank 0 at that time.
struct FaultRunListener {
  std::function<void(const Stretch&)> on_stretch;
  std::function<void(const InjectedFault&, Nanos since_formed)> on_fault;
  std::function<void(const Failure&)> on_failure;
  std::function<void(const FaultRunOutcome&)> on_outcome;
};

enum class FaultRunEnd : uint8_t { went_on, went_wrong, gave_up, left_out };

// went_wrong: as went_on, but results were wrong. left_out: this rank was stopped, and the others went on without it. Fails if
// it can neither go on nor know why not.
Result<FaultRunEnd> run_with_faults(Group& group, EmulatedRank& emulated_rank, const FaultRunOptions& options,
                                    const FaultRunListener& listener);

// As text, in lines that start with '#' except those of stretches; and as JSON lines.
std::string fault_run_head(const FaultRunOptions& options, const std::vector<Fault>& faults);
std::string to_line(const Stretch& stretch);
std::string to_line(const InjectedFault& injected, Nanos since_formed);
std::string to_line(const Failure& failure);
std::string to_line(const FaultRunOutcome& outcome);
std::string to_json(const Stretch& stretch);
std::string to_json(const InjectedFault& injected, Nanos since_formed);
std::string to_json(const Failure& failure);
std::string to_json(const FaultRunOutcome& outcome);

}  // namespace unisono::cli
