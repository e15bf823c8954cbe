// The faults of one run, chosen by profile and seed: a value that can be printed and compared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "sim/network.h"
#include "unisono/status.h"

namespace unisono::sim {

enum class FaultProfile : uint8_t { none, light, heavy, kill, stop, partition, mixed };
const char* name(FaultProfile profile);
Result<FaultProfile> parse_fault_profile(std::string_view text);

enum class FaultKind : uint8_t {
  slow,       // the process computes and sends `factor` times as slowly, from the start
  stop,       // the process does nothing for `time`, then continues
  kill,       // the process dies; the others notice after `time` (`never`: only by their deadlines)
  cut,        // the link between process and other breaks; both notice after about `time`
  partition,  // processes whose bit in `side` is set are separated from the others for `time`; links break after `notice`
};

struct Fault {
  FaultKind kind = FaultKind::slow;
  Nanos at = 0;
  PeerIndex process = 0, other = 0;
  Nanos time = 0;
  Nanos notice = never;
  double factor = 1;
  std::vector<bool> side{};
};

struct FaultPlan {
  double loss = 0;  // of packets, until `calm_at`
  std::vector<Fault> faults;
  Nanos calm_at = 0;  // the last temporary fault has ended by then

  std::string to_string() const;
};

struct FaultRequest {
  FaultProfile profile = FaultProfile::none;
  uint32_t processes = 2;
  Nanos span = 5 * millisecond;       // faults begin within it
  Nanos timeout = 500 * millisecond;  // of operations: determines which faults are short and which are long
};
FaultPlan make_fault_plan(const FaultRequest& request, Random& random);

// Whether every operation must succeed despite the plan, because no fault lasts as long as an operation may.
bool harmless(const FaultPlan& plan, const FaultRequest& request);
// Whether an error may name this process (partition: any).
bool is_faulty(const FaultPlan& plan, PeerIndex process);

// Random link behaviour within the freedom that Transport leaves; all of it is legal without faults.
NetworkSettings random_network(Random& random);

}  // namespace unisono::sim
