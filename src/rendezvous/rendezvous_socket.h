// Coming together over real sockets: drives the rendezvous state machines (membership/rendezvous_*) with TCP, or with a
// Unix socket behind file:///path on one host.
//
// Rank 0 opens a server at the rendezvous port unless a server is there already; then every process, rank 0 too, dials
// the address and registers. So rank 0 and a standalone server (`unisono rendezvous`) look the same to everyone. Rank 0's
// connection stays open: through it, processes that want to join the running group are announced and answered.
// One thread at a time may use a session. Times are of CLOCK_MONOTONIC (std::chrono::steady_clock), in nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/environment.h"
#include "rendezvous/roster.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// A new identity, from the operating system's random source.
Result<PeerId> random_peer_id();
// gethostname, cut to host_bytes_max.
std::string this_host_name();
// MemberRecord::machine of this process: from the boot id, 0 where /proc does not tell it.
uint64_t this_machine();
Nanos monotonic_now();
RosterKey random_roster_key();

class RendezvousSession {
 public:
  // Opens nothing yet. endpoints: where this process can be reached (Connector::endpoints of its transports).
  static Result<std::unique_ptr<RendezvousSession>> make(const ResolvedOptions& options, PeerId self,
                                                         std::vector<std::string> endpoints);
  ~RendezvousSession();
  RendezvousSession(const RendezvousSession&) = delete;
  RendezvousSession& operator=(const RendezvousSession&) = delete;

  // Blocks until all ranks have registered, or, for a process that joins a running group, until the group has taken it
  // in. The roster holds `self`. On rank 0 it returns when the others' tables are on their way. Errors: unavailable
  // (nobody there, port taken), late (ranks missing), invalid (the processes ask for different things; names who).
  Result<Roster> meet(Nanos deadline);

  // After meet(). True on the process that is told of joiners: rank 0, or who called attend().
  bool attending() const;
  // Readable when poll_joiners() would do something. Valid as long as the session; may be watched by poll and epoll.
  int wait_handle() const;
  // Moves bytes, never blocks. All processes that wait to join now and are not answered yet; their rank is meaningless.
  std::vector<MemberRecord> poll_joiners();
  // The new roster that holds the joiner, or why it is not taken in. Takes at most 50 ms to hand the answer to the kernel.
  void answer_joiner(const PeerId& joiner, const Result<Roster>& answer);
  // This process is told of joiners from now on. Call on the new rank 0 after each re-forming. Tries in the background
  // (poll_joiners) to open the server again if it was rank 0's and died with it; that can only succeed if the
  // rendezvous address leads to this host.
  void attend(const Roster& roster);
  // Stops serving and closes everything; joiners that still wait are told.
  void close();

  // For logs: "tcp://10.0.0.1:29500, served here" and counts of who was turned away.
  std::string describe() const;

 private:
  struct State;
  explicit RendezvousSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Standing alone: serves any number of jobs, told apart by name, at once and one after another, until stopped.
struct StandaloneOptions {
  RendezvousAddress listen;  // tcp (port 0 = any free one, told by the first event), or file
};

struct RendezvousEvent {
  enum class Kind : uint8_t { listening, registered, formed, failed, joiner, refused, ended };
  Kind kind = Kind::listening;
  std::string job;            // where it belongs to one
  std::string text;           // one line, for people
  RendezvousAddress address;  // listening: the address in use, with its real port
};

// Blocks until `stop` is true (seen within 0.1 s). on_event may be empty; it is called on this thread.
Status serve_rendezvous(const StandaloneOptions& options, std::atomic<bool>& stop,
                        const std::function<void(const RendezvousEvent&)>& on_event);

}  // namespace unisono
