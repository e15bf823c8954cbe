// Runs one collective repeatedly while ranks are killed, stopped and resumed. Reports the outcome of each operation, the time
// until the survivors noticed a fault, and how they continued.
//
// Every rank runs the same loop. Before each operation, a small all-reduce tells all ranks how many elements were wrong, and
// whether rank 0 wants another operation. Consecutive operations with equal outcomes form a stretch. After an operation has
// failed, the survivors re-form their group and continue, unless FaultRunOptions::reform is false.
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
  DataPlan data;  // the collective must be one without a root
  CallOptions call;
  uint64_t bytes = 0;
  bool in_place = false;
  bool check = true;
  bool reform = true;
  Nanos zero = 0;     // monotonic time at which the group was formed
  Nanos until = 0;    // The run ends this long after `zero`, or later: see wants_more().
  size_t faults = 0;  // how many faults will be injected
  // If there are more failures than this, the run ends, because the faults cannot explain so many failures.
  uint32_t failures_max = 4;
};

// How far a fault run is.
struct FaultRunProgress {
  Nanos now = 0;                                // measured like FaultRunOptions::until
  size_t faults = 0;                            // how many faults have been injected
  uint64_t since_fault = 0, since_failure = 0;  // number of operations that have succeeded since the last of each
};
inline constexpr uint64_t operations_after_min = 10;
// Returns whether a fault run continues. It waits until all faults have been injected, which may be late on a busy machine, and
// until operations_after_min operations have succeeded since the last fault and since the last failure.
bool wants_more(const FaultRunOptions& options, const FaultRunProgress& progress);

struct Stretch {
  Nanos from = 0, to = 0;  // measured from the time at which the group was formed
  uint32_t world_size = 0;
  uint32_t contributors = 0;  // the smallest number of contributors of an operation in the stretch
  uint64_t operations = 0;
  uint64_t wrong = 0;  // number of wrong elements on all ranks
  Timing timing;       // how long the operations took on this rank
};

// Describes an operation that failed, and how the group was re-formed after it.
struct Failure {
  Nanos at = 0;            // when this rank noticed the failure, measured from the time at which the group was formed
  uint64_t operation = 0;  // number of the operation that failed; the first has number 1
  // The status with which the operation failed on the survivor that noticed the failure first. On other survivors, the status
  // may only say that the first survivor re-forms the group.
  Status status;
  std::optional<Fault> cause;  // the last kill or stop before the failure
  Nanos noticed_after = 0;     // how long after the cause the last survivor noticed the failure
  bool reformed = false;
  Nanos reform_time = 0;  // how long the slowest survivor needed to re-form the group
  uint32_t epoch = 0;
  // before[rank]: a member's rank when the group first formed; `rank` is its rank before the failure, as in `status`
  std::vector<uint32_t> before;
  std::vector<uint32_t> members;  // the members that continue, as ranks when the group first formed
};

// The knowledge of one survivor about a failure. The survivors exchange these records.
struct SurvivorRecord {
  Nanos at = 0;  // when this survivor noticed the failure, measured from the time at which the group was formed
  Nanos noticed_after = 0;
  Nanos reform_time = 0;
  Code code = Code::ok;
  std::array<char, 1024> message{};  // ends with a zero byte; a longer message is cut
};

SurvivorRecord survivor_record_of(const Failure& failure);
// Merges the survivors' records into `failure`: takes the message of the survivor that noticed the failure first, and the
// longest times. `records` must contain this rank's own record, too.
void settle(Failure& failure, std::span<const SurvivorRecord> records);

struct FaultRunOutcome {
  uint32_t started = 0, left = 0;  // how many ranks there were at the start, and how many are left at the end
  uint64_t operations = 0;
  uint64_t after = 0;  // number of operations since the last failure
  uint64_t wrong = 0;
  bool went_on = true;  // whether the survivors could continue after each failure
};

// Callbacks of a fault run. They are called in the order of the events, on the process that is rank 0 at that time.
struct FaultRunListener {
  std::function<void(const Stretch&)> on_stretch;
  std::function<void(const InjectedFault&, Nanos since_formed)> on_fault;
  std::function<void(const Failure&)> on_failure;
  std::function<void(const FaultRunOutcome&)> on_outcome;
};

enum class FaultRunEnd : uint8_t { continued, wrong_results, aborted, excluded };

// The result wrong_results means that the survivors continued, but that some of their results were wrong. The result excluded
// means that this rank was stopped, and that the others continued without it. Returns an error if this rank cannot continue for
// another reason.
Result<FaultRunEnd> run_with_faults(Group& group, EmulatedRank& emulated_rank, const FaultRunOptions& options,
                                    const FaultRunListener& listener);

// Formats the output as text, or as JSON lines. In the text, all lines except those for stretches begin with '#'.
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
