// One collective again and again while ranks are killed, stopped and resumed: what each operation came to, how long the
// survivors were left without knowing, and how they go on.
//
// Every rank runs the same loop. Before each operation a small sum tells all of them whether rank 0 wants another one, and how
// many wrong elements there have been. Operations that go alike are one stretch; an operation that fails is an upset, after
// which the living re-form their group and go on with fewer, unless that is not wanted.
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
  Nanos zero = 0;                 // monotonic: when the group had formed
  Nanos until = 0;                // since then: it goes on so long, and for ten operations after the last upset
  uint32_t fault_events_max = 4;  // more than these are more than the faults explain: the last one's status is the result
};

struct Stretch {
  Nanos from = 0, to = 0;  // since the group formed
  uint32_t world_size = 0;
  uint32_t contributors = 0;  // the fewest that one operation counted
  uint64_t operations = 0;
  uint64_t wrong = 0;  // elements, of all ranks
  Timing timing;       // as this rank saw it
};

struct FaultEvent {
  Nanos at = 0;                // since the group formed: when this rank was told
  uint64_t operation = 0;      // which one, counted from 1
  Status status;               // of the survivor that noticed first: others may know only that it re-forms the group
  std::optional<Fault> cause;  // the last fault before
  Nanos told_after = 0;        // after it, the last survivor
  bool reformed = false;
  Nanos reform_time = 0;  // the slowest survivor's
  uint32_t epoch = 0;
  std::vector<uint32_t> before;   // by the rank that the status means: its number as the group formed
  std::vector<uint32_t> members;  // that go on, numbered as the group formed
};

// What one survivor knows of an upset, as it goes to the others.
struct Witness {
  Nanos at = 0;  // since the group formed
  Nanos told_after = 0;
  Nanos reform_time = 0;
  Code code = Code::ok;
  std::array<char, 1024> message{};  // ends with a zero; what is longer is cut
};

Witness witness_of(const FaultEvent& fault_event);
// Takes the words of who noticed first, and the slowest times. One of the witnesses is this rank's own.
void settle(FaultEvent& fault_event, std::span<const Witness> witnesses);

struct FaultRunOutcome {
  uint32_t started = 0, left = 0;  // ranks
  uint64_t operations = 0;
  uint64_t after = 0;  // of these, after the last upset
  uint64_t wrong = 0;
  bool went_on = true;  // the survivors did
};

// Told in the order of time, on the rank that is rank 0 then.
struct FaultRunListener {
  std::function<void(const Stretch&)> on_stretch;
  std::function<void(const FaultNews&, Nanos since_formed)> on_fault;
  std::function<void(const FaultEvent&)> on_fault_event;
  std::function<void(const FaultRunOutcome&)> on_outcome;
};

enum class FaultRunEnd : uint8_t { went_on, went_wrong, gave_up, left_out };

// went_wrong: as went_on, but results were wrong. left_out: this rank was stopped, and the others went on without it. Fails if
// it can neither go on nor know why not.
Result<FaultRunEnd> undergo(Group& group, EmulatedRank& rank_end, const FaultRunOptions& options,
                            const FaultRunListener& listener);

// As text: lines that start with '#' but for stretches, and as JSON lines.
std::string fault_run_head(const FaultRunOptions& options, const std::vector<Fault>& faults);
std::string to_line(const Stretch& stretch);
std::string to_line(const FaultNews& news, Nanos since_formed);
std::string to_line(const FaultEvent& fault_event);
std::string to_line(const FaultRunOutcome& outcome);
std::string to_json(const Stretch& stretch);
std::string to_json(const FaultNews& news, Nanos since_formed);
std::string to_json(const FaultEvent& fault_event);
std::string to_json(const FaultRunOutcome& outcome);

}  // namespace unisono::cli
