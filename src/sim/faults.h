// The faults of one run. They are chosen at random for a profile and a seed. A fault plan is a value that can be printed and
// compared.
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

// `mixed` chooses one of those before it. `links`: links lose their connections and heal.
enum class FaultProfile : uint8_t { none, light, heavy, kill, stop, partition, mixed, links };
const char* name(FaultProfile profile);
Result<FaultProfile> parse_fault_profile(std::string_view text);

enum class FaultKind : uint8_t {
  slow,  // from the start of the run, the process computes and sends `factor` times as slowly
  stop,  // the process does nothing for `time`, then continues
  // The process dies. The other processes notice this after `time`; if `time` is `never`, they notice it only by their
  // deadlines.
  kill,
  cut,     // the link between `process` and `other` breaks; both notice after about `time`
  reset,   // the connection between `process` and `other` breaks; the link heals after `time`
  outage,  // for `time`, nothing reaches or leaves the host of `process`; then its links heal
  // For `time`, the processes are divided into two sets that cannot communicate. The bits of `side` say which process is in
  // which set. The links between the sets break after `notice`.
  partition,
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
  double loss = 0;  // this fraction of packets is lost until `faults_end_at`
  std::vector<Fault> faults;
  Nanos faults_end_at = 0;  // all temporary faults have ended by this time

  std::string to_string() const;
};

struct FaultRequest {
  FaultProfile profile = FaultProfile::none;
  uint32_t processes = 2;
  Nanos span = 5 * millisecond;  // faults begin before this time
  // Timeout of operations. Stops and partitions are chosen to be much shorter or much longer than this.
  Nanos timeout = 500 * millisecond;
};
FaultPlan make_fault_plan(const FaultRequest& request, Random& random);

// Returns whether every operation must succeed in spite of the faults. This is the case if no process is killed, no link is
// cut, loss is rare, and stops and partitions are much shorter than the timeout. Links that heal do so in time.
bool harmless(const FaultPlan& plan, const FaultRequest& request);
// Returns whether an error may blame this process. In a partition, an error may blame any process.
bool is_faulty(const FaultPlan& plan, PeerIndex process);

// Returns random settings of the links. Everything that such links do is allowed by Transport even without faults.
NetworkSettings random_network(Random& random);

}  // namespace unisono::sim
