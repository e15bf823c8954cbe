// A process beside the launcher that emulates links between ranks of one host, and injects faults: it carries the packets
// between the ranks' private networks, and kills, stops and resumes ranks at their times. For `unisono bench` and `unisono
// launch --rate`.
//
// The launcher starts the emulator before the ranks; each rank connects to it. They find each other by the job's name: a socket
// in Linux's abstract name space, which only processes of the same user may use. The emulator ends with the launcher. When only
// ranks that it has stopped are left, it resumes them, so that they can end.
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
  LinkLimits limits;              // none: the ranks keep the host's network
  std::vector<Fault> faults;      // in the order of their times
  bool reports_lateness = false;  // on standard error at its end, if packets came late; for ranks that do not ask for the tally
};

// The launcher's end. Its destructor ends the process.
class LinkEmulator {
 public:
  // The calling process must have one thread. unavailable: why the emulator could not be started.
  static Result<LinkEmulator> start(const LinkEmulatorOptions& options);
  LinkEmulator(LinkEmulator&& other) noexcept;
  ~LinkEmulator();

 private:
  LinkEmulator(pid_t pid, Descriptor lifeline) : pid_(pid), lifeline_(std::move(lifeline)) {}
  pid_t pid_ = -1;
  Descriptor lifeline_;
};

// A fault and when it was injected: a time of the monotonic clock, just before it.
struct InjectedFault {
  Fault fault;
  Nanos at = 0;
};

// The counts of all links together, up to now.
struct LinkTally {
  LinkCounts counts;
  Nanos latest = 0;           // most that a packet came after its time, because the emulator waited for a core
  uint64_t late_packets = 0;  // by more than a millisecond
};

struct EmulatorMessage;
enum class EmulatorMessageType : uint32_t;

// A rank's end.
class EmulatedRank {
 public:
  // Returns when all ranks are connected. With private_network it moves this process, which must have one thread, into a
  // network of its own. unavailable: there is no emulator, or another rank did not connect. unsupported: see
  // enter_private_network.
  static Result<EmulatedRank> connect(const std::string& job, uint32_t rank, bool private_network);
  // Tells the emulator that this rank's group has formed. Returns the time, on the monotonic clock, at which the last rank did
  // so.
  Result<Nanos> announce_formed();
  // Faults injected since the last call. Does not wait.
  std::vector<InjectedFault> injected_faults();
  Result<LinkTally> tally();

 private:
  explicit EmulatedRank(Descriptor socket) : socket_(std::move(socket)) {}
  // The next message of this type; faults that come before it are kept for injected_faults().
  Result<EmulatorMessage> wait_for(EmulatorMessageType type);
  Descriptor socket_;
  std::vector<InjectedFault> injected_;
};

}  // namespace unisono::cli
