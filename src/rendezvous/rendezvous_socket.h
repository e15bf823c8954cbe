// The rendezvous over real sockets: drives the state machines (rendezvous_client, rendezvous_server) with TCP, or with a Unix
// socket behind file:///path on one host.
//
// Rank 0 opens a server at the rendezvous port unless one is there already. Then every process, including rank 0, dials the
// address and registers. So rank 0 and a standalone server (`unisono rendezvous`) look the same to everyone. Rank 0's
// connection stays open: through it the server announces processes that want to join the running group, and rank 0 answers
// them. One thread at a time may use a session. Times are of CLOCK_MONOTONIC (std::chrono::steady_clock), in nanoseconds.
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
// The name from gethostname, cut to host_bytes_max.
std::string this_host_name();
// MemberRecord::machine for this process, computed from the boot id; 0 if /proc does not show it.
uint64_t this_machine();
Nanos monotonic_now();
RosterKey random_roster_key();

class RendezvousSession {
 public:
  // Opens nothing yet. endpoints: the addresses of this process (Connector::endpoints of its transports).
  static Result<std::unique_ptr<RendezvousSession>> make(const ResolvedOptions& options, PeerId self,
                                                         std::vector<std::string> endpoints);
  ~RendezvousSession();
  RendezvousSession(const RendezvousSession&) = delete;
  RendezvousSession& operator=(const RendezvousSession&) = delete;

  // Blocks until all ranks have registered, or, for a process that joins a running group, until the group has admitted it. The
  // roster holds `self`. On rank 0 it returns when the others' tables are on their way. Errors: unavailable (no server, port
  // taken), late (ranks missing), invalid (processes ask for different things; the message names them).
  Result<Roster> meet(Nanos deadline);

  // After meet(). True on the process that gets announcements of joiners: rank 0, or the process that called attend().
  bool attending() const;
  // Readable when poll_joiners() has work. Valid as long as the session; poll and epoll may watch it.
  int wait_handle() const;
  // Moves bytes and never blocks. Returns all processes that wait to join and have no answer yet; their rank is meaningless.
  std::vector<MemberRecord> poll_joiners();
  // Sends the joiner the new roster that holds it, or the reason for its refusal. Takes at most 50 ms to hand the answer to the
  // kernel.
  void answer_joiner(const PeerId& joiner, const Result<Roster>& answer);
  // From now on this process gets announcements of joiners. Call it on the new rank 0 after each re-forming. If the server was
  // rank 0's and died with it, poll_joiners() tries in the background to open it again. That can succeed only if the rendezvous
  // address leads to this host.
  void attend(const Roster& roster);
  // Stops serving and closes everything; joiners that still wait get the reason.
  void close();

  // For logs: "tcp://10.0.0.1:29500, served here", and how many processes were refused.
  std::string describe() const;

 private:
  struct State;
  explicit RendezvousSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A standalone server: serves any number of jobs, distinguished by name, at once and one after another, until stopped.
struct StandaloneOptions {
  RendezvousAddress listen;  // tcp (port 0: any free one, reported by the first event), or file
};

struct RendezvousEvent {
  enum class Kind : uint8_t { listening, registered, formed, failed, joiner, refused, ended };
  Kind kind = Kind::listening;
  std::string job;            // empty if it concerns no job
  std::string text;           // one line, for people
  RendezvousAddress address;  // listening: the address in use, with its real port
};

// Blocks until `stop` is true (noticed within 0.1 s). on_event may be empty; it is called on this thread.
Status serve_rendezvous(const StandaloneOptions& options, std::atomic<bool>& stop,
                        const std::function<void(const RendezvousEvent&)>& on_event);

}  // namespace unisono
