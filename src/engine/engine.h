// The engine of one rank. It runs the operations of all groups over all transports. It has no thread and no clock, and never
// sleeps; callers pass the current time in the parameter `now`. Its callers are group/lifecycle/runtime and sim/. Only one
// thread may call it at a time.
//
// The engine owns the groups, and routes each event to one of its parts. README.md lists the parts and what they own.
//
// If memory runs out while an operation runs, that operation ends with unavailable ("out of memory"), and its members are
// notified. If no operation can be blamed, or if even that needs more memory than there is, the engine ends everything: see
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
  // label: for example "host b, pid 42". It does not contain the rank, because ranks change when the group re-forms.
  void add_peer(PeerIndex peer, Transport& route, std::string label);
  void remove_peer(PeerIndex peer);
  // Returns ok while the link is up. After that, returns the reason why it is down.
  const Status& peer_status(PeerIndex peer) const { return peers_[peer].lost; }
  // Of a peer whose link is lost.
  PeerFate peer_fate(PeerIndex peer) const { return peers_[peer].fate; }
  std::string describe_link(PeerIndex peer) const { return peers_[peer].route->describe(peer); }

  // --- Groups ---
  // members: the peers, indexed by rank; self_peer stands for this process. All members must pass the same number and epoch.
  GroupCore& make_group(uint32_t number, uint32_t epoch, std::vector<PeerIndex> members, std::vector<uint32_t> host_groups);
  // Groups that are made after this call can have lossy operations, if all their links carry datagrams.
  void set_datagrams(const std::optional<DatagramSecret>& secret) { lossy_.set_secret(secret); }
  // Ends the operations of the group on this rank with `why`. On other members, this ends the operations that need this rank.
  // Later calls are refused. The group remains.
  void abort_group(GroupCore& group, const Status& why, Nanos now);
  // Ends all operations of the group with `why`, and deletes the group.
  void end_group(uint32_t number, const Status& why, Nanos now);
  // Ends all groups, like end_group(). Until set_epoch() is called, the engine is then between epochs, and keeps frames of any
  // epoch.
  void end_all_groups(const Status& why, Nanos now);
  // Ends the running operations of all groups with `why`, and refuses later calls. The groups remain.
  void stop_all_groups(const Status& why, Nanos now);
  // Call it when member `from` re-forms the group and has ended its own operations. The operations that still need `from` end.
  // (If `from` is self_peer, no operation needs it.) The other operations may run until `by`. Later calls are refused with
  // `why`. If the last operation that ended here failed on another member, the text of that failure precedes `why`.
  void drain(PeerIndex from, const Status& why, Nanos by, Nanos now);
  // Sets the epoch. From now on, frames that carry another epoch are dropped and counted.
  void set_epoch(uint32_t epoch);
  // The library chooses schedules by these link speeds. Set them before the first operation. They must be equal on all ranks.
  void set_topology(const Topology& topology) { topology_ = topology; }
  const Topology& topology() const { return topology_; }
  size_t group_count() const { return groups_.size(); }

  // --- Operations ---
  // Starts an operation. id 0: ranks match it by the order of calls. The completion may be done on return.
  std::shared_ptr<Completion> submit(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now);
  // Returns the present report of a running operation, or the final report of an operation that has ended.
  Report report(const Completion& completion, Nanos now) const;
  // Recycles the completion of a finished operation if the caller holds the only reference.
  void reuse(std::shared_ptr<Completion> completion) { operations_.reuse(std::move(completion)); }

  // The fast path. It is for operations that are so small that most of their time would be the executor's work. If
  // begin_fast_path() returns false, call submit(). Otherwise call look() until it returns Found::all. Then the operation is
  // done, and report() returns its result.
  //
  // If look() returns Found::unexpected_frame, or if the caller stops looking, call take_over(). The executor then continues
  // the operation with an ordinary completion. Make no other call of the engine in between.
  bool begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now);
  FastPath::Found look(FastPath& fast_path) { return fast_path_.look(fast_path); }
  // Returns the report of a fast-path operation that is done. Call it exactly once, because it also writes the record entry.
  Result<Report> report(const FastPath& fast_path, Nanos now) const { return FastPathRunner::report(fast_path, now); }
  std::shared_ptr<Completion> take_over(FastPath& fast_path, Nanos now);

  // --- Time and events ---
  bool poll(Nanos now);
  Nanos next_deadline() const;
  size_t active() const { return operations_.size() + any_source_.size() + lossy_.active(); }
  // Returns true if an operation runs here that other ranks may need: any operation but a receive.
  bool is_needed() const;
  // Returns true if this process must not exit yet. Data that it sent may not have arrived yet, or members of a lossy operation
  // may request data again.
  bool has_pending() const;
  void computed(uint64_t id, Nanos now);
  // Records the progress of all operations whose group keeps a record. poll() calls it every 10 ms. A thread also calls it
  // before it sleeps.
  void observe(Nanos now) { recorder_.observe(operations_, now); }
  void observe_before_sleep(Nanos now) {
    if (recorder_.is_due_before_sleep(now)) observe(now);
  }
  // Call it before the thread sleeps, and before Transport::arm().
  void prepare_to_sleep() {
    for (auto* active : operations_.running()) active->operation.release_memory_early();
  }
  // Call it before the links are closed, when this process leaves all groups. Records that, and tells the other members for
  // which ranks the running operations wait.
  void leave(Nanos now);
  // Writes an event into the records of all groups that have `about` as a member. self_peer: into all records.
  void record_event(PeerIndex about, EventKind kind, const std::string& text, Nanos now);

  // --- Membership messages; the engine does not interpret them ---
  using ControlHandler = std::function<void(PeerIndex from, ByteView message)>;
  void on_control(ControlHandler handler) { on_control_ = std::move(handler); }
  using LostHandler = std::function<void(PeerIndex peer, const Status& why, PeerFate fate)>;
  void on_lost(LostHandler handler) { on_lost_ = std::move(handler); }
  using RemovedHandler = std::function<void(PeerIndex by)>;
  void on_removed(RemovedHandler handler) { on_removed_ = std::move(handler); }
  using NoticedHandler = std::function<void(PeerIndex peer, EventKind kind, const std::string& text)>;
  void on_noticed(NoticedHandler handler) { on_noticed_ = std::move(handler); }
  void send_control(PeerIndex to, Bytes message) { send_control(to, std::make_shared<Bytes>(std::move(message))); }
  // Sends a membership message. Several sends may share one payload.
  void send_control(PeerIndex to, std::shared_ptr<Bytes> message) { control_.send_control(to, std::move(message)); }
  // See ControlMessages::cancel().
  void cancel_control(PeerIndex to, const std::shared_ptr<Bytes>& message) { control_.cancel(to, message); }
  // Tells a peer that it was removed from the group. The peer's engine then calls its on_removed handler. It needs no credit.
  void send_removed(PeerIndex to) { control_.send_goodbye(to, epoch_); }

  const EngineCounters& counters() const { return counters_; }
  // Returns how many bytes of staged and early messages are held now. It is 0 when nothing is in flight.
  size_t held_bytes() const { return pool_.used_bytes(); }
  uint64_t in_flight_bytes() const { return operations_.in_flight_bytes(); }

  // --- Sink: the functions that transports call ---
  std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override;
  void received(PeerIndex from, const FrameHeader& header, const View& view) override;
  // Returns true if an operation has ended. The transport then stops delivering frames, because the next frame may belong to an
  // operation that the caller is about to start.
  bool has_enough() const override { return settle_needed_; }
  void sent(uint64_t id) override;
  void lost(PeerIndex peer, const Status& why, PeerFate fate) override;
  void credit(PeerIndex peer) override;
  void noticed(PeerIndex peer, EventKind kind, const std::string& text) override {
    if (kind == EventKind::reconnected) operations_.note_link(peer, text);
    if (on_noticed_) on_noticed_(peer, kind, text);
  }

 private:
  struct Launch {
    ChosenPlan chosen;
    uint64_t number = 0;
    bool already_sent = false;          // the fast path has sent all messages of the plan, except the confirmation
    bool already_confirmed = false;     // the fast path has sent the confirmation
    std::optional<TakenFrame> taken{};  // a frame that the fast path has taken from the transport
    std::shared_ptr<const DeliveryReport> delivery{};
    std::shared_ptr<Completion> completion{};  // null: start() takes a new one
  };
  enum class Memory : uint8_t { enough, missing, ended };  // missing: memory ran out, so the next poll ends everything

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

  // Handles an event of one operation. If memory runs out meanwhile, it ends that operation.
  template <typename Event>
  void attempt(Operation& operation, Event&& event);
  // Makes a call that begins an operation. If memory runs out before the operation exists, it ends everything.
  template <typename Start>
  std::shared_ptr<Completion> guarded(Start&& start);
  // Call it when memory runs out while a transport calls the engine. The transport cannot be closed within its own call, so the
  // next poll ends everything.
  void note_missing_memory() {
    if (memory_ == Memory::enough) memory_ = Memory::missing;
  }
  void end_without_memory();

  static constexpr Nanos poll_age_max = 10 * millisecond;  // if the last poll was longer ago, an operation begins with a poll

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
  NoticedHandler on_noticed_;
  uint32_t epoch_ = 0;  // 0: between epochs
  Nanos now_ = 0, polled_ = 0;
  Nanos drain_by_ = never;
  Status drain_why_;
  bool settle_needed_ = false;
  Memory memory_ = Memory::enough;
  const std::shared_ptr<Completion> no_memory_;  // the completion of operations that could not start because memory ran out
};

}  // namespace unisono
