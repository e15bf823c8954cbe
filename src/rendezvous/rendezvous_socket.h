// The rendezvous over real sockets. It drives the state machines of rendezvous_client and rendezvous_server. A socket is a TCP
// socket, or a Unix socket for file:///path on one host.
//
// Rank 0 opens a server at the rendezvous port, unless there is already a server. Then every process, including rank 0, dials
// the address and registers. Therefore it makes no difference to a process whether rank 0 or a standalone server (`unisono
// rendezvous`) serves. The connection of rank 0 stays open. On it, the server announces processes that want to join, and rank 0
// answers them. Only one thread at a time may use a session. Times are nanoseconds of CLOCK_MONOTONIC
// (std::chrono::steady_clock).
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
#include "tls/tls_context.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// Returns a new identity. It comes from the operating system's source of random numbers.
Result<PeerId> random_peer_id();
// Returns the name that gethostname returns, cut to host_bytes_max bytes.
std::string this_host_name();
// Returns the value of MemberRecord::machine for this process, which is computed from the boot id. Returns 0 if /proc does not
// show the boot id.
uint64_t this_machine();
// Returns the value of MemberRecord::network for this process, which is computed from the boot id and the network name space.
// Returns 0 if /proc does not show them.
uint64_t this_network();
Nanos monotonic_now();
RosterKey random_roster_key();

class RendezvousSession {
 public:
  // Makes a session that has not opened any socket yet. `endpoints` are the addresses of this process, as Connector::endpoints
  // of its transports returns them.
  // If `tls` is not null, every connection is one of TLS with its first key, and other processes are refused.
  static Result<std::unique_ptr<RendezvousSession>> make(const ResolvedOptions& options, PeerId self,
                                                         std::vector<std::string> endpoints,
                                                         std::shared_ptr<const TlsContext> tls = nullptr);
  ~RendezvousSession();
  RendezvousSession(const RendezvousSession&) = delete;
  RendezvousSession& operator=(const RendezvousSession&) = delete;

  // Blocks until all ranks have registered. If this process joins a running group, blocks until the group has admitted it.
  // Returns a roster that contains this process. On rank 0, the function does not return before the rosters of the other ranks
  // have been passed to the kernel. Errors:
  // - unavailable: No server answers, or another program has the port.
  // - late: Ranks are missing.
  // - invalid: The options of the processes disagree; the message names these options.
  Result<Roster> meet(Nanos deadline);

  // Returns true if meet() failed because this process has no free descriptor, so that it has told nobody.
  bool lacks_descriptors() const;
  // Registers at the rendezvous only to say that this process cannot join, so that the other ranks need not wait for it. Call
  // it when this process has freed what it can, such as listening sockets. It takes at most a second.
  static void tell_failure(const ResolvedOptions& options, PeerId self, const Status& why,
                           std::shared_ptr<const TlsContext> tls = nullptr);

  // After meet(), the members link up with each other. If a member fails meanwhile, or dies, the rendezvous tells the others,
  // so that none of them waits for its own deadline. formation_error() returns the reason; it returns ok while the group can
  // still form. poll_joiners() must be called meanwhile.
  Status formation_error() const;
  // Says that this process's join has succeeded.
  void joined();
  // Says that this process's join has failed. Returns the first failure of any member: `why`, or that of another member, of
  // which `why` is often only a consequence. It takes at most half a second.
  Status failed(const Status& why);

  // Returns true in the process that receives the announcements of joiners. This is rank 0, or the process that called
  // attend(). Call it after meet().
  bool attending() const;
  // Returns a descriptor for poll or epoll. It becomes readable when poll_joiners() has something to do. Call poll_joiners()
  // also when next_deadline() has come. The descriptor is negative while this process needs none; the result of both functions
  // may be another one after any other call.
  int wait_handle() const;
  Nanos next_deadline() const;
  // Reads and writes without blocking. Returns the processes that wait to join and have no answer yet. Their ranks have no
  // meaning.
  std::vector<MemberRecord> poll_joiners();
  // Sends an answer to a joiner: the new roster, which contains the joiner, or the reason why the joiner is refused. This takes
  // at most 50 ms.
  void answer_joiner(const PeerId& joiner, const Result<Roster>& answer);
  // Makes this process the one that receives the announcements of joiners. Call it on the new rank 0 after each re-forming. The
  // server may have died with the old rank 0. In that case, poll_joiners() tries to open it again. It can do so only if the
  // rendezvous address belongs to this host.
  void attend(const Roster& roster);
  // Stops serving and closes all connections. Joiners that are still waiting receive the reason.
  void close();

  // Called with a text for each refusal of a process, at a bounded rate, inside meet() and poll_joiners(). Set it before
  // meet().
  void on_refusal(std::function<void(const std::string&)> handler);

  // Returns a text for logs, such as "tcp://10.0.0.1:29500, served here", with the number of refused processes.
  std::string describe() const;

 private:
  struct State;
  explicit RendezvousSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The options of a standalone server. It serves any number of jobs, which have different names, until it is stopped.
struct StandaloneOptions {
  // A tcp or file address. tcp with port 0 stands for any free port; the first event then reports the port.
  RendezvousAddress listen;
  // With keys, only processes that have one of them are served. A connection belongs to the key that it used. Jobs of different
  // keys are apart, even if they have the same name.
  std::vector<SecretKey> keys{};
};

struct RendezvousEvent {
  enum class Kind : uint8_t { listening, registered, formed, failed, joiner, refused, ended };
  Kind kind = Kind::listening;
  std::string job;            // empty: the event does not belong to a job
  std::string text;           // a line of text for people
  RendezvousAddress address;  // used by kind listening: the address that is used, with its real port
};

// Serves until `stop` is true. The function looks at `stop` at least every 0.1 s. on_event may be empty; it is called on this
// thread.
Status serve_rendezvous(const StandaloneOptions& options, std::atomic<bool>& stop,
                        const std::function<void(const RendezvousEvent&)>& on_event);

}  // namespace unisono
