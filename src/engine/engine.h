// The engine of one rank: operations of all groups over all transports. Pure: `now` comes in; it has no thread and no clock,
// and it never sleeps. Two drivers run it: group/lifecycle/runtime, and sim/. All calls come from one thread at a time.
//
// It owns the groups and the objects that do the work, and says which of them an event is for: the table of operations, the
// frames that came early, the failure protocol, the control messages, the fast path, the lossy groups, the receives from any
// rank, and the recorder. README.md lists which object owns what.
//
// Memory that runs out while an operation runs ends that operation with unavailable: "out of memory", and its members are
// notified. Where no operation can be named, or there is no memory even for that, the engine ends everything: see
// end_without_memory().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "engine/buffer_pool.h"
#include "engine/compute.h"
#include "engine/control_messages.h"
#include "engine/engine_limits.h"
#include "engine/fast_path/fast_path_runner.h"
#include "engine/group_core.h"
#include "engine/lossy/lossy_groups.h"
#include "engine/operations/any_source.h"
#include "engine/operations/early_frames.h"
#include "engine/operations/failure_protocol.h"
#include "engine/operations/operation_recorder.h"
#include "engine/operations/operation_table.h"
#include "engine/peer_table.h"
#include "executor/completion.h"
#include "transports/transport.h"

namespace unisono {

class Engine final : public Sink {
 public:
  Engine(const EngineLimits& limits, Compute& compute);

  // --- Transports and peers ---
  void add_transport(Transport& transport) { transports_.push_back(&transport); }
  // label: "host b, pid 42". It names no rank, because ranks change when the group is re-formed.
  void add_peer(PeerIndex peer, Transport& route, std::string label);
  void remove_peer(PeerIndex peer);
  // Ok while the link stands, else why it does not.
  const Status& peer_status(PeerIndex peer) const { return peers_[peer].lost; }
  std::string describe_link(PeerIndex peer) const { return peers_[peer].route->describe(peer); }

  // --- Groups ---
  // members by rank; self_peer marks this process. number and epoch are equal on all members.
  GroupCore& make_group(uint32_t number, uint32_t epoch, std::vector<PeerIndex> members, std::vector<uint32_t> host_groups);
  // Before make_group: groups whose links all carry datagrams can have lossy operations then.
  void set_datagrams(const std::optional<DatagramSecret>& secret) { lossy_.set_secret(secret); }
  // Ends all operations of the group here with `why`, and at the other members those that need this rank. Later calls are
  // refused. The group stays.
  void abort_group(GroupCore& group, const Status& why, Nanos now);
  // Ends all its operations with `why` and forgets it.
  void end_group(uint32_t number, const Status& why, Nanos now);
  // Ends all groups, as end_group does for one, and goes between epochs: frames of any epoch are kept until set_epoch.
  void end_all_groups(const Status& why, Nanos now);
  // Ends what is running in all groups with `why`, and refuses later calls. The groups stay.
  void stop_all_groups(const Status& why, Nanos now);
  // Member `from` re-forms the group, so it has ended its own operations. Ends those that still need something of it (none if
  // it is self_peer), gives the others until `by`, and refuses later calls with `why`. If the last thing that ended here
  // failed on another member, later calls are refused with that reason too.
  void drain(PeerIndex from, const Status& why, Nanos by, Nanos now);
  // From now on frames of other epochs are dropped and counted.
  void set_epoch(uint32_t epoch);
  // The engine chooses schedules by this. Set before the first operation, equal on all ranks.
  void set_topology(const Topology& topology) { topology_ = topology; }
  const Topology& topology() const { return topology_; }
  size_t group_count() const { return groups_.size(); }

  // --- Operations ---
  // Starts an operation. id: 0 = by order of calls. The completion may be done at return.
  std::shared_ptr<Completion> submit(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now);
  // The progress of a running operation, or the final report of one that has ended.
  Report report(const Completion& completion, Nanos now) const;
  // Gives back the completion of a finished operation that nobody else has, to be used for another.
  void reuse(std::shared_ptr<Completion> completion) { operations_.reuse(std::move(completion)); }

  // The fast path, for an operation that may be so small that it needs no executor. False: submit() it. True: call look()
  // until all is found; then the operation is done, and report() says what happened. At the first look that finds something
  // else, or when the caller would rather not look on, call take_over(): the executor goes on, and the completion is its own.
  // No other call of the engine may come between.
  bool begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now);
  FastPath::Found look(FastPath& fast_path) { return fast_path_.look(fast_path); }
  // The report of a finished fast-path operation. Call exactly once: it also writes the record entry.
  Result<Report> report(const FastPath& fast_path, Nanos now) const { return FastPathRunner::report(fast_path, now); }
  std::shared_ptr<Completion> take_over(FastPath& fast_path, Nanos now);

  // --- Time and events ---
  bool poll(Nanos now);
  Nanos next_deadline() const;
  size_t active() const { return operations_.size() + any_source_.size() + lossy_.active(); }
  // Whether this process may not leave yet: what it sent is not known to have arrived, or members of a lossy operation may
  // still ask for it.
  bool has_pending() const;
  void computed(uint64_t id, Nanos now);
  // Writes down how far each operation is, where its group keeps a record. poll() does so every 10 ms, and a thread that is
  // about to sleep does it before.
  void observe(Nanos now) { recorder_.observe(operations_, now); }
  void observe_before_sleep(Nanos now) {
    if (recorder_.is_due_before_sleep(now)) observe(now);
  }
  // Writes down that this process leaves all groups.
  void leave(Nanos now);

  // --- Membership messages: opaque here ---
  using ControlHandler = std::function<void(PeerIndex from, ByteView message)>;
  void on_control(ControlHandler handler) { on_control_ = std::move(handler); }
  using LostHandler = std::function<void(PeerIndex peer, const Status& why)>;
  void on_lost(LostHandler handler) { on_lost_ = std::move(handler); }
  using RemovedHandler = std::function<void(PeerIndex by)>;
  void on_removed(RemovedHandler handler) { on_removed_ = std::move(handler); }
  void send_control(PeerIndex to, Bytes message) { send_control(to, std::make_shared<Bytes>(std::move(message))); }
  // Many may share one message.
  void send_control(PeerIndex to, std::shared_ptr<Bytes> message) { control_.send_control(to, std::move(message)); }
  // Tells a peer that it was removed from the group; always fits. Its engine calls on_removed.
  void send_removed(PeerIndex to) { control_.send_goodbye(to, epoch_); }

  const EngineCounters& counters() const { return counters_; }
  // Bytes of staged and early messages held now; 0 when nothing is in flight.
  size_t held_bytes() const { return pool_.used_bytes(); }
  uint64_t in_flight_bytes() const { return operations_.in_flight_bytes(); }

  // --- Sink: what the transports call ---
  std::byte* place(PeerIndex from, const FrameHeader& header) override;
  void received(PeerIndex from, const FrameHeader& header, const View& view) override;
  // An operation has ended: the next message may be for one that starts next, and finds it then.
  bool has_enough() const override { return settle_needed_; }
  void sent(uint64_t id) override;
  void lost(PeerIndex peer, const Status& why) override;
  void credit(PeerIndex peer) override;

 private:
  struct Launch {
    ChosenPlan chosen;
    uint64_t number = 0;
    bool is_sent = false;  // all messages of the plan
    std::shared_ptr<const DeliveryReport> delivery{};
    std::shared_ptr<Completion> completion{};  // null: a new one
  };
  enum class Memory : uint8_t { enough, missing, ended };  // missing: the next poll ends everything

  std::shared_ptr<Completion> start(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now);
  std::shared_ptr<Completion> start_lossy(GroupCore& group, OperationRequest&& request, Nanos now);
  std::shared_ptr<Completion> start_any_source(GroupCore& group, OperationRequest&& request, uint32_t tag, Nanos now);
  bool match_any_source(Nanos now);
  std::shared_ptr<Completion> launch(GroupCore& group, OperationRequest&& request, const Launch& what, Nanos started,
                                     Nanos now);
  void replay_early(ActiveOperation& active);
  void settle(ActiveOperation& active);
  void settle_all();

  void received_data(PeerIndex from, const FrameHeader& header, const View& view);
  void received_early(PeerIndex from, const FrameHeader& header, const View& view);
  void copy_out(PeerIndex from);
  void release(PeerIndex from, const View& view);
  void on_absent(GroupCore& group, Rank rank);

  bool poll_all(Nanos now);
  void end_drain(Nanos now);

  // An event of one operation, which memory that runs out ends.
  template <typename Event>
  void attempt(Operation& operation, Event&& event);
  // A call that begins an operation: memory that runs out where no operation can be named ends everything.
  template <typename Start>
  std::shared_ptr<Completion> guarded(Start&& start);
  // An upcall ran out of memory, and the transport is in the middle of something: the next poll ends everything.
  void note_missing_memory() {
    if (memory_ == Memory::enough) memory_ = Memory::missing;
  }
  void end_without_memory();

  static constexpr Nanos poll_age_max = 10 * millisecond;  // after a longer pause an operation begins with a poll

  const EngineLimits limits_;
  BufferPool pool_;
  std::vector<Transport*> transports_;
  PeerTable peers_;
  GroupTable groups_;
  EngineCounters counters_;
  Topology topology_;
  ControlMessages control_;
  OperationTable operations_;
  EarlyFrames early_;
  FailureProtocol failures_;
  OperationRecorder recorder_;
  FastPathRunner fast_path_;
  LossyGroups lossy_;
  AnySourceReceives any_source_;
  ControlHandler on_control_;
  LostHandler on_lost_;
  RemovedHandler on_removed_;
  uint32_t epoch_ = 0;  // 0: between epochs
  Nanos now_ = 0, polled_ = 0;
  Nanos drain_by_ = never;
  Status drain_why_;
  bool settle_needed_ = false;
  Memory memory_ = Memory::enough;
  const std::shared_ptr<Completion> no_memory_;  // of operations that could not even be refused
};

}  // namespace unisono
