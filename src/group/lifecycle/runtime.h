// One process in real time: engine and transports behind a mutex, driven by whoever waits.
//
// At most one thread drives at a time: it polls for a short bounded time, then sleeps in the kernel without the mutex. Other
// waiting threads sleep on a condition variable until their operation is done or the driver's place is free. When operations
// are outstanding and nobody waits, a background thread drives, a little later (most callers wait soon, and then it would only
// be in the way); else it sleeps, and wakes up for processes that come to the rendezvous. Nothing here runs user code under the
// mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/lifecycle/link_probe.h"
#include "group/lifecycle/reform.h"
#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/roster.h"
#include "transports/connector.h"
#include "transports/transport.h"

namespace unisono {

struct Link {
  std::unique_ptr<Transport> transport;
  Connector* connector = nullptr;  // the same object
};

struct ProbedLink {
  PeerIndex peer = 0;
  uint32_t order = 0;  // by which rank 0 knows it
  LinkProbe probe;
};

// Of group/lifecycle/link_survey.
struct Survey {
  std::optional<ProbedLink> probe;              // what this process measures just now
  uint32_t probes = 0;                          // so far
  uint32_t first_order = 0, orders = 0;         // rank 0: what it has asked for
  std::map<uint32_t, LinkMeasurement> results;  // rank 0: what it has been told, by order
};

class Runtime {
 public:
  // A safety net: the engine itself ends an operation at its deadline; this much later it can only be a mistake of ours.
  static constexpr Nanos overdue_by = 10 * second;
  // How long who leaves stays for those who lack some of what it sent; and, of that or more, what it has for the farewell
  // itself.
  static constexpr Nanos drain_time = 2 * second, last_words_time = 300 * millisecond;

  // The transports are made and listening; nobody is known yet.
  static Result<std::shared_ptr<Runtime>> make(const ResolvedOptions& options, PeerId self, std::vector<Link> links);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Blocks until done() holds, driving if nobody else does. False if `until` passed first.
  bool wait(const std::function<bool()>& done, Nanos until);
  // As wait, for one operation.
  bool wait(const Completion& completion, Nanos until);
  // Submits an operation and drives it to its end; nobody else is woken for it. admit(), called under the mutex, says whether
  // its group still exists.
  template <typename Admit>
  Result<Report> run(GroupCore*& group, OperationRequest&& request, uint64_t id, Admit&& admit) {
    auto lock = enter();
    if (Status status = admit(); !status.ok()) return status;
    return run(lock, *group, std::move(request), id);
  }
  // Drives an operation to its end; overdue: when it should have ended by any measure.
  Result<Report> outcome(std::shared_ptr<Completion> completion, Nanos overdue);
  // `notice` is run once when the operation has ended, by the thread that finds it, without the mutex.
  void watch(std::shared_ptr<Completion> completion, std::function<void()> notice);
  // Runs f under the mutex and, if it left operations outstanding, sees to it that somebody drives.
  template <typename F>
  auto locked(F&& f) {
    Entry entry(*this);
    return f();
  }

  // Everything below is called under the mutex (inside locked).
  Engine& engine() { return engine_; }
  const ResolvedOptions& options() const { return options_; }
  PeerId self() const { return self_; }
  std::vector<Link>& links() { return links_; }
  RendezvousSession* session() { return session_.get(); }
  void set_session(std::unique_ptr<RendezvousSession> session) { session_ = std::move(session); }
  Roster& roster() { return roster_; }
  std::vector<PeerIndex>& peers() { return peers_; }  // of the roster's members, by rank; self_peer for this process
  // A new number for a process that was not known so far.
  PeerIndex add_process(const PeerId& id) {
    return process_ids_.push_back(id), static_cast<PeerIndex>(process_ids_.size() - 1);
  }
  const std::vector<PeerId>& process_ids() const { return process_ids_; }  // by PeerIndex; never shrinks
  std::unique_ptr<Reform>& reform() { return reform_; }
  // Why this process is not a member any more; ok while it is.
  Status& removed() { return removed_; }
  bool topology_known() const { return topology_known_; }
  void forget_topology() { topology_known_ = false; }
  // Of the current roster.
  void know_topology(const Topology& topology);
  // What is known of the links between hosts, by the host numbers of the current roster.
  HostLinks known_links() const;
  // Counts re-formings, also those that fail: groups of an earlier one do not exist any more.
  uint32_t& formation() { return formation_; }
  Survey& survey() { return survey_; }
  // Rank 0: what each member has said last when its links were up.
  struct Readiness {
    uint32_t epoch = 0;
    uint32_t datagram_bytes = 0;            // the largest datagram on all its links; 0: not all of them carry datagrams
    DatagramAuth auth = DatagramAuth::mac;  // that is enough for it
  };
  std::map<PeerIndex, Readiness>& ready() { return ready_; }
  // Of this process.
  uint32_t datagram_bytes();
  // It grows no more: paths were tried.
  bool datagram_bytes_known();
  // How long to poll before sleeping, from the number of processes that share its cores.
  void set_local_world(uint32_t processes);
  // Starts the background driver; waits are complete without it until then.
  void start_background();

 private:
  std::vector<PeerIndex> served_by(const Link& link) const;
  // How long an operation may be left alone before the background thread takes it up: more while it finds nothing to do.
  static constexpr Nanos call_delay_min = 50 * microsecond, call_delay_max = 400 * microsecond;

  // Holds the mutex for a caller; asks a polling driver to let go of it soon.
  class Entry {
   public:
    explicit Entry(Runtime& runtime) : runtime_(runtime), lock_(runtime.enter()) {}
    ~Entry();

   private:
    Runtime& runtime_;
    std::unique_lock<std::mutex> lock_;
  };

  Runtime(const ResolvedOptions& options, PeerId self, std::vector<Link> links, int wake_fd, int rest_fd);
  static void let_go(Runtime* runtime);
  std::unique_lock<std::mutex> enter();
  // After a change under the mutex: whoever waits looks again.
  void announce();
  std::vector<std::function<void()>> take_notices();
  // Runs the notices of operations that have ended; without the mutex meanwhile.
  void run_notices(std::unique_lock<std::mutex>& lock);
  Result<Report> run(std::unique_lock<std::mutex>& lock, GroupCore& group, OperationRequest&& request, uint64_t id);
  bool look_for(FastPath& fast_path);
  Result<Report> outcome(std::unique_lock<std::mutex>& lock, std::shared_ptr<Completion> completion, Nanos overdue, Nanos now);
  template <typename Done>
  bool wait_locked(std::unique_lock<std::mutex>& lock, const Done& done, Nanos until, Nanos now);
  template <typename Done>
  void drive(std::unique_lock<std::mutex>& lock, const Done& done, Nanos until, Nanos now);
  void give_way(std::unique_lock<std::mutex>& lock);
  void pass_gate(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock, Nanos until, Nanos rest);
  void wake();
  uint64_t ended() const;  // operations so far
  void call_background();
  bool draining() const;  // links still have something to write
  // They have, and the background thread sleeps without looking at them.
  bool forgets_links() const;
  void background();
  void part();
  void rest(std::unique_lock<std::mutex>& lock);

  const ResolvedOptions options_;
  const PeerId self_;
  std::vector<Link> links_;
  InlineCompute compute_{monotonic_now};
  Engine engine_;
  std::unique_ptr<RendezvousSession> session_;
  Roster roster_;
  std::vector<PeerIndex> peers_;
  std::vector<PeerId> process_ids_;
  std::unique_ptr<Reform> reform_;
  Status removed_;
  bool topology_known_ = false;            // of the current epoch
  std::vector<std::string> linked_hosts_;  // of the engine's topology, by number
  uint32_t formation_ = 0;
  std::map<PeerIndex, Readiness> ready_;
  Survey survey_;
  std::vector<std::pair<std::shared_ptr<Completion>, std::function<void()>>> watched_;

  std::mutex mutex_;
  std::mutex
      gate_;  // held by the next one to get the mutex; a driver that gives way waits for it, or it would be quicker again
  std::condition_variable free_;       // the driver's place is free, or something was done
  std::atomic<uint32_t> calling_{0};   // callers that wait for the mutex
  std::atomic<uint32_t> entering_{0};  // they, and the background thread
  uint32_t waiters_ = 0;               // callers in wait(), the driver included
  bool driving_ = false, sleeping_ = false, stop_ = false;
  bool orphaned_ = false;  // the background thread let go of it last, and is to delete it
  bool resting_ = false;   // the background thread waits for something to do
  bool rests_on_links_ = false;
  Nanos sleeps_until_ = 0;
  uint64_t ended_before_sleep_ = 0;
  bool yield_ = false;
  // Packets come further apart than it is worth polling for the next: 30 us, on 400 Mbit/s.
  static constexpr double packet_bytes = 1500, thin_packet_us = 30;
  bool thin_ = false;
  // Nor is it worth a wake-up: who has waited for long rests a little longer, and takes several at once. Pacers make up for so
  // much (TokenBucket::burst_time).
  static constexpr Nanos rest_max = 250 * microsecond;
  static constexpr int rest_part = 64;
  int wake_fd_ = -1;      // for the driver
  int rest_fd_ = -1;      // for the background thread, a timer
  Nanos called_for_ = 0;  // when it is to look, or has last looked, for something to drive
  Nanos call_delay_ = call_delay_min;
  std::thread background_;
};

}  // namespace unisono
