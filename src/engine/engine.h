// The engine of one rank: operations of all groups over all transports. Pure: `now` comes in, nothing sleeps, no thread, no
// clock.
//
// It owns the operations and groups, routes frames between them and the transports, keeps messages for operations that have
// not started here yet, ends operations at their deadlines, and tells the other members when one fails here. Two drivers run
// it: node/event_loop and sim/. All calls come from one thread at a time.
//
// Memory that runs out while operations run ends the operation that needed more, with unavailable: "out of memory"; the others
// are told. Where no operation can be named, or there is no memory even for that, the engine gives up: see give_up().
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "engine/any_source.h"
#include "engine/buffer_pool.h"
#include "engine/compute.h"
#include "engine/engine_limits.h"
#include "engine/fast_path/fast_path.h"
#include "engine/group_core.h"
#include "engine/planner.h"
#include "executor/completion.h"
#include "executor/operation.h"
#include "transports/transport.h"

namespace unisono {

class Engine final : public Sink {
 public:
  Engine(const EngineLimits& limits, Compute& compute);
  ~Engine() override;

  void add_transport(Transport& transport) { transports_.push_back(&transport); }
  // label: "host b, pid 42". Without a rank: that changes when the group is re-formed.
  void add_peer(PeerIndex peer, Transport& route, std::string label);
  void remove_peer(PeerIndex peer);
  // Ok while the link stands, else why it does not.
  const Status& peer_status(PeerIndex peer) const { return peers_[peer].lost; }
  std::string describe_link(PeerIndex peer) const { return peers_[peer].route->describe(peer); }

  // members by rank; self_peer marks this process. number and epoch are equal on all members.
  GroupCore& make_group(uint32_t number, uint32_t epoch, std::vector<PeerIndex> members, std::vector<uint32_t> host_groups);
  // Before make_group: groups whose links all carry datagrams can have lossy operations then.
  void set_datagrams(const std::optional<DatagramSecret>& secret) { datagrams_ = secret; }
  // Ends all its operations with `why` here, at the other members those and what needs this rank; refuses what comes after. The
  // group stays.
  void abort_group(GroupCore& group, const Status& why, Nanos now);
  // Ends all its operations with `why` and forgets it.
  void end_group(uint32_t number, const Status& why, Nanos now);

  // Starts an operation. id: 0 = by order of calls. The completion may be done at return.
  std::shared_ptr<Completion> submit(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now);

  // An operation that may be so small that it needs no executor. False: submit it. Else look until all is found (then it is
  // done, and report says what happened), or give it to the executor, whose completion it then has: at the first look that
  // finds something else, or when the caller would rather not look on. No other call may come between.
  bool begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now);
  FastPath::Found look(FastPath& fast_path);
  // Of one that is done; to be asked for once, as it is written down then.
  Result<Report> report(const FastPath& fast_path, Nanos now) const;
  std::shared_ptr<Completion> take_over(FastPath& fast_path, Nanos now);

  // Writes down how far each operation is, where its group keeps a record. poll does so every 10 ms; who is about to sleep does
  // it before, but at most once a millisecond: a link may make it sleep much more often.
  void observe(Nanos now);
  void observe_before_sleep(Nanos now) {
    if (now - observe_at_ >= millisecond - observe_every) observe(now);
  }
  // Writes down that this process leaves all groups.
  void leave(Nanos now);

  // What happened so far; of an operation that has ended, what it ended with.
  Report report(const Completion& completion, Nanos now) const;

  // Gives back the completion of a finished operation that nobody else has, to be used for another.
  void reuse(std::shared_ptr<Completion> completion);

  // Ends all groups, as end_group does for one, and goes between epochs: frames of any epoch are kept until set_epoch.
  void end_all_groups(const Status& why, Nanos now);
  // Ends what is running in all groups and refuses what comes after, with `why`; groups stay.
  void stop_all_groups(const Status& why, Nanos now);
  // `from` re-forms the group, so it has ended all it had to do here: ends what still needs something of it (nothing at once if
  // it is self_peer), gives the rest until `by`, and refuses what comes after, with `why`, and with what a member gave up if
  // that was the last thing to end here.
  void wind_down(PeerIndex from, const Status& why, Nanos by, Nanos now);
  // From now on frames of other epochs are dropped and counted.
  void set_epoch(uint32_t epoch);
  // What schedules are chosen by; set before the first operation, equal on all ranks.
  void set_topology(const Topology& topology) { topology_ = topology; }
  const Topology& topology() const { return topology_; }
  size_t group_count() const { return groups_.size(); }

  bool poll(Nanos now);
  Nanos next_deadline() const;
  size_t active() const;
  // What was sent is not known to have arrived and would be lost with this process, or members may still ask for it (lossy
  // operations).
  bool has_pending() const;
  void computed(uint64_t id, Nanos now);

  // Membership messages: opaque here.
  using ControlHandler = std::function<void(PeerIndex from, ByteView message)>;
  void on_control(ControlHandler handler) { control_ = std::move(handler); }
  using LostHandler = std::function<void(PeerIndex peer, const Status& why)>;
  void on_lost(LostHandler handler) { lost_ = std::move(handler); }
  void send_control(PeerIndex to, Bytes message) { send_control(to, std::make_shared<Bytes>(std::move(message))); }
  // Many may share one message.
  void send_control(PeerIndex to, std::shared_ptr<Bytes> message);
  // Tells a peer that it was removed from the group; always fits. Its engine calls on_removed.
  void send_removed(PeerIndex to);
  using RemovedHandler = std::function<void(PeerIndex by)>;
  void on_removed(RemovedHandler handler) { removed_ = std::move(handler); }

  const EngineCounters& counters() const { return counters_; }
  // Bytes of staged and unexpected messages held now; 0 when nothing is in flight.
  size_t held_bytes() const { return pool_.used_bytes(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

  // Sink.
  std::byte* place(PeerIndex from, const FrameHeader& header) override;
  void received(PeerIndex from, const FrameHeader& header, const View& view) override;
  // An operation has ended: the next message may be for one that starts next, and finds it then.
  bool has_enough() const override { return settle_needed_; }
  void sent(uint64_t id) override;
  void lost(PeerIndex peer, const Status& why) override;
  void credit(PeerIndex peer) override;

 private:
  class OperationPort;
  struct Active;
  struct Peer {
    Transport* route = nullptr;
    std::string label;
    Status lost;
    bool credit_requested = false;                                      // since there was room last
    std::list<std::pair<FrameHeader, std::shared_ptr<Bytes>>> waiting;  // control frames without room
  };
  struct Unexpected {
    PeerIndex from = 0;
    FrameHeader header;
    std::byte* data = nullptr;
  };

  Active* find(uint32_t group, uint64_t operation, PeerIndex from);
  Active& take_active();
  std::shared_ptr<Completion> take_completion();
  // What was chosen for a request; it stays with the group.
  struct Chosen {
    const Plan* plan = nullptr;
    uint64_t slice_bytes = 0;
    Codec codec{};
    std::string_view codec_note{};
  };
  Result<Chosen> plan_for(GroupCore& group, const OperationRequest& request);
  uint64_t number_operation(GroupCore& group, const OperationRequest& request, uint64_t id);
  std::shared_ptr<Completion> refuse(const OperationRequest& request, Status why) const;
  void open_lossy(GroupCore& group);
  std::shared_ptr<Completion> start_lossy(GroupCore& group, OperationRequest&& request, Nanos now);
  void received_call(PeerIndex from, const FrameHeader& header, ByteView payload);
  bool step_lossy(Nanos now);
  std::shared_ptr<Completion> start_any_source(GroupCore& group, OperationRequest&& request, uint32_t tag, Nanos now);
  std::optional<Rank> sender_of_first(const GroupCore& group, uint32_t tag) const;
  bool match_any_source(Nanos now);
  bool end_any_source(Nanos now);
  std::shared_ptr<Completion> start(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now);
  struct Launch {
    Chosen chosen;
    uint64_t number = 0;
    bool is_sent = false;  // all messages of the plan
    std::shared_ptr<const DeliveryReport> delivery{};
    std::shared_ptr<Completion> completion{};  // null: a new one
  };
  std::shared_ptr<Completion> launch(GroupCore& group, OperationRequest&& request, const Launch& what, Nanos started,
                                     Nanos now);
  template <typename Start>
  std::shared_ptr<Completion> guarded(Start&& start);  // what memory that runs out ends with everything else
  Transport* fast_path_route(const GroupCore& group);
  bool send_fast_path(FastPath& fast_path, std::span<const PeerIndex> others);
  bool send_blocks(FastPath& fast_path, std::span<const PeerIndex> others);
  bool plan_fast_path(GroupCore& group, const OperationRequest& request,
                      FastPathPlan& fast_path);  // false: it needs the executor
  void keep_block(FastPath& fast_path, Rank rank, const void* values);
  void add_up(FastPath& fast_path);
  bool poll_all(Nanos now);
  // An event of one operation, which memory that runs out ends.
  template <typename Event>
  void attempt(Operation& operation, Event&& event);
  void give_up();
  void replay_unexpected(Active& active);
  void keep_unexpected(PeerIndex from, const FrameHeader& header, const View& view);
  bool has_ended(const GroupCore& group, uint64_t operation, PeerIndex from) const;
  Active* next_of(const GroupCore& group) const;
  void received_data(PeerIndex from, const FrameHeader& header, const View& view);
  void copy_out(PeerIndex from);
  void heard_of_ended(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload);
  void received_failure(Active& active, Rank from, ByteView payload);
  void tell_abort(const GroupCore& group, Rank aborted, const Status& why);
  void received_abort(GroupCore& group, PeerIndex from, const FrameHeader& header, ByteView payload);
  const Status& absence(const GroupCore& group,
                        Rank rank) const;    // ok: there is a link to it, and it has not aborted the group
  void absent(GroupCore& group, Rank rank);  // nothing comes from it any more: ends what needs it
  void release_lent(PeerIndex from, const View& view);
  Status reason_to_wind_down(const GroupCore& group, const Status& news) const;
  Report report_of(const Active& active, Nanos now) const;
  void settle(Active& active);
  void settle_all();
  void record_begin(const Active& active, bool has_begun, Nanos started);
  void record_end(const Active& active);
  void record_lost(PeerIndex peer, Nanos now);
  void inquire(Active& active);
  void tell_members(const Active& active, Bytes payload);
  void tell_member(const GroupCore& group, Rank rank, FrameHeader header, const std::shared_ptr<Bytes>& payload);
  void send_owned(PeerIndex to, FrameHeader header, std::shared_ptr<Bytes> payload);

  static constexpr Nanos observe_every = 10 * millisecond,
                         news_age_max = 10 * millisecond;  // news older than that: an operation begins with a poll

  EngineLimits limits_;
  Compute& compute_;
  BufferPool pool_;
  std::vector<Transport*> transports_;
  std::vector<Peer> peers_;
  std::unordered_map<uint32_t, std::unique_ptr<GroupCore>> groups_;
  std::vector<std::unique_ptr<Active>> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<Active*> active_;                           // oldest first
  std::vector<std::shared_ptr<Completion>> completions_;  // to be used again
  AnySourceReceives any_source_;
  std::vector<Unexpected> unexpected_, replayed_;  // replayed_: empty but for its memory, except in replay_unexpected
  size_t unexpected_bytes_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Bytes>> control_in_flight_;
  uint64_t next_control_ = 0;
  Topology topology_;
  std::optional<DatagramSecret> datagrams_;
  ControlHandler control_;
  LostHandler lost_;
  RemovedHandler removed_;
  uint32_t epoch_ = 0;  // 0: between epochs
  EngineCounters counters_;
  Nanos now_ = 0, wind_down_by_ = never;
  Status wind_down_why_;
  Nanos observe_at_ = 0, polled_ = 0;  // polled_: when news were last asked for
  std::vector<Rank> pending_;          // of observe and record_end; large enough for all groups, as is
  std::vector<record::Moved> moved_;
  uint64_t in_flight_bytes_ = 0;  // of active_: their memory_bytes
  bool settle_needed_ = false, must_give_up_ = false, gave_up_ = false;
  const std::shared_ptr<Completion> no_memory_;  // of operations that could not even be refused
};

}  // namespace unisono
