// What stands around the ranks of `unisono bench`, or of `unisono launch --rate`, when links are to be bad or ranks to die: a
// process beside the launcher that carries the packets between the ranks' private networks, and that kills, stops and resumes
// ranks at their time.
//
// The launcher sets the stage before it starts the ranks; each rank takes its seat there. Both find the other by the name of
// the job, a socket in Linux's abstract name space that only processes of the same user may use. The stage ends with the
// launcher; when only ranks that it has stopped are left, it resumes them, so that they can end.
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
  LinkLimits limits;          // none: the ranks keep the host's network
  std::vector<Fault> faults;  // in the order of their times
  bool tells = false;         // at its end, on standard error, if packets came late: for ranks that do not ask for the tally
};

// The launcher's end. Its destructor ends the process.
class LinkEmulator {
 public:
  // unavailable: why the stage could not be set. The calling process must have one thread.
  static Result<LinkEmulator> set(const LinkEmulatorOptions& options);
  LinkEmulator(LinkEmulator&& other) noexcept;
  ~LinkEmulator();

 private:
  LinkEmulator(pid_t pid, Descriptor lifeline) : pid_(pid), lifeline_(std::move(lifeline)) {}
  pid_t pid_ = -1;
  Descriptor lifeline_;
};

// A fault that has been made, at a time of the monotonic clock just before it.
struct FaultNews {
  Fault fault;
  Nanos at = 0;
};

// What the links have done up to now, all together.
struct LinkTally {
  LinkCounts counts;
  Nanos latest = 0;           // most that a packet came after its time, because the stage waited for a core
  uint64_t late_packets = 0;  // by more than a millisecond
};

struct EmulatorMessage;
enum class EmulatorWord : uint32_t;

// A rank's end.
class EmulatedRank {
 public:
  // Connects; with private_network moves this process, which must have one thread, into its own; returns when all ranks are
  // seated. unavailable: there is no stage, or another rank did not come. unsupported: see enter_private_network.
  static Result<EmulatedRank> take(const std::string& job, uint32_t rank, bool private_network);
  // Says that this rank's group has formed; returns the time, on the monotonic clock, at which the last one said so.
  Result<Nanos> start();
  // Faults since the last call, without waiting.
  std::vector<FaultNews> news();
  Result<LinkTally> tally();

 private:
  explicit EmulatedRank(Descriptor socket) : socket_(std::move(socket)) {}
  // The next message of this kind; faults that come before it are kept for news().
  Result<EmulatorMessage> wait_for(EmulatorWord word);
  Descriptor socket_;
  std::vector<FaultNews> kept_;
};

}  // namespace unisono::cli
