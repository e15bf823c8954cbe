// A process beside the launcher that emulates links between ranks on one host. It carries the packets between the private
// networks of the ranks. It also injects faults: it kills, stops and resumes ranks at given times. `unisono bench` and `unisono
// launch --rate` use it.
//
// The launcher starts the emulator before the ranks, and then each rank connects to it. The address of its socket is made from
// the name of the job, and lies in Linux's abstract name space. Only processes of the same user may connect. The emulator ends
// when the launcher ends. If the emulator has stopped all ranks that are left, it resumes them, so that they can end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/descriptor.h"
#include "cli/launch/injected_faults.h"
#include "cli/launch/thin_links.h"
#include "unisono/status.h"

namespace unisono::cli {

struct LinkEmulatorOptions {
  std::string job;
  uint32_t ranks = 0;
  LinkLimits limits;          // if there are no limits, the ranks stay in the host's network
  std::vector<Fault> faults;  // sorted by time
  // Whether the emulator, when it ends, reports late packets on standard error. This is for ranks that do not call tally().
  bool reports_lateness = false;
};

// Stands for the emulator process in the launcher. The destructor ends the process.
class LinkEmulator {
 public:
  // The calling process must have only one thread. Returns Code::unavailable if the emulator could not be started; the message
  // says why.
  static Result<LinkEmulator> start(const LinkEmulatorOptions& options);
  LinkEmulator(LinkEmulator&& other) noexcept;
  ~LinkEmulator();

 private:
  LinkEmulator(pid_t pid, Descriptor lifeline) : pid_(pid), lifeline_(std::move(lifeline)) {}
  pid_t pid_ = -1;
  Descriptor lifeline_;
};

// A fault that was injected. `at` is the monotonic time just before this.
struct InjectedFault {
  Fault fault;
  Nanos at = 0;
};

// The counts of all links together since the start.
struct LinkTally {
  LinkCounts counts;
  Nanos latest = 0;           // how late the latest packet was, because the emulator had to wait for a core
  uint64_t late_packets = 0;  // number of packets that were more than a millisecond late
};

struct EmulatorMessage;
enum class EmulatorMessageType : uint32_t;

// The connection of a rank to the emulator.
class EmulatedRank {
 public:
  // Connects to the emulator, and returns when all ranks have connected. If private_network is true, moves this process into a
  // private network; the process must then have only one thread. Returns Code::unavailable if there is no emulator, or if
  // another rank did not connect. For Code::unsupported, see enter_private_network().
  static Result<EmulatedRank> connect(const std::string& job, uint32_t rank, bool private_network);
  // Tells the emulator that this rank's group has been formed. Waits until all ranks have announced this. Returns the monotonic
  // time of the last announcement.
  Result<Nanos> announce_formed();
  // Returns the faults that have been injected since the last call. Does not wait.
  std::vector<InjectedFault> injected_faults();
  Result<LinkTally> tally();

 private:
  explicit EmulatedRank(Descriptor socket) : socket_(std::move(socket)) {}
  // Returns the next message of this type. Faults that arrive before this message are kept for injected_faults().
  Result<EmulatorMessage> wait_for(EmulatorMessageType type);
  Descriptor socket_;
  std::vector<InjectedFault> injected_;
};

}  // namespace unisono::cli
