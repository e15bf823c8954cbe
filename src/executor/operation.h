// Executes one collective on one rank, from request to completion, for any plan, in slices.
//
// A state machine: the engine reports events by calls with `now`, and the operation sends requests through Port. It reads no
// clock and owns no thread. A lane is one slice of one chunk. Lanes advance independently through their chunk's stages, so
// every schedule is pipelined over slices. A lane enters its next stage when the stage's sends no longer need their memory and
// all its messages have arrived. The messages are combined in one pass, in ascending rank order, with this rank's value at its
// position. Objects are reused; after warm-up an operation does not allocate.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "executor/arrival_map.h"
#include "executor/operation_setup.h"
#include "executor/port.h"
#include "executor/progress.h"
#include "unisono/report.h"

namespace unisono {

// After its deadline, an operation asks the other ranks for this long which rank is to blame, if it cannot know that itself.
inline constexpr Nanos inquiry_time = 50 * millisecond;

class Operation {
 public:
  // The caller fills in the setup before start(). The previous operation must have ended.
  OperationSetup& new_setup() {
    setup_.frame = {};
    return setup_;
  }
  // Sends what can be sent now. The operation may be done on return.
  void start(Port& port, Nanos now);

  // Events.
  std::byte* place(Rank from, const FrameHeader& header);
  // Port::release gives the piece back, whatever the outcome.
  void received(Rank from, const FrameHeader& header, const Piece& piece, Nanos now);
  void granted(Rank from, uint64_t bytes, Nanos now);
  // The rank has no memory left to share with this one. Returns its memory, and from now on copies messages that have to wait.
  void copy_out(Rank from);
  void credit(Rank to, Nanos now);
  void sent(uint32_t lane, Nanos now);
  void computed(uint32_t lane, Nanos now);
  // before: the error that had already ended the group, but not this operation; ok: none.
  void peer_lost(Rank peer, const Status& why, const Status& before, Nanos now);
  void deadline(Nanos now);
  // Another rank reports which ranks it waits for, because its deadline has passed or it was asked. Its operation has the age
  // `its_age`.
  void heard_late(Rank from, Nanos its_age, std::span<const uint32_t> waits_for, Nanos now);
  // True once, when the other ranks must be notified of waits_for() and age().
  bool take_inquiry() { return std::exchange(inquiry_due_, false); }
  const std::vector<uint32_t>& waits_for() const { return waits_for_; }
  Nanos age() const { return now_ - started_; }
  // Ends the operation from outside. It gives back everything it holds and no longer touches the buffers.
  void fail(Status why, Nanos now);
  // Call after a failure, once the transports have forgotten this operation. Until then they may still write into memory from
  // place(), so the memory must not be reused.
  void cancelled();
  // Like fail(), for a cause found at this rank: failure_is_ours() is true afterwards.
  void fail_and_tell(Status why, Nanos now);

  // Memory ran out in an event handler: the operation fails here, and the other ranks must be notified. Allocates nothing.
  void out_of_memory(Nanos now) { fail_and_tell({Code::unavailable, "out of memory"}, now); }

  bool done() const { return done_; }
  bool finished_ok() const { return done_ && status_.ok(); }
  const Status& status() const { return status_; }
  Nanos deadline_at() const { return inquiring_ ? inquiry_ends_ : started_ + setup_.request.timeout; }
  Report report(Nanos now) const;
  const OperationSetup& setup() const { return setup_; }
  // pending: the first pending_told_max ranks that it waits for, ascending; also for a failed operation.
  Progress progress(std::vector<Rank>& pending) const;
  OperationTimes times() const { return {started_, first_send_, last_first_arrival_, last_receive_, ended_}; }
  bool is_prepared() const {
    return prepared_;
  }  // false: memory for the start ran out, so flow() and progress() show an earlier operation
  const Flow& flow(Rank partner) const { return flows_[partner]; }  // to and from one of the plan's partners
  Rank last_rank() const { return last_rank_; }  // the rank whose first message came last; UINT32_MAX: it waited for none
  std::string label() const;                     // "all_reduce 17"
  // CallDescriptor that every message must carry.
  const CallDescriptor& descriptor() const { return descriptor_; }
  // Whether messages from this rank, or to it, are still outstanding.
  bool needs(Rank peer) const;
  // True if this rank found the failure itself, so that the other ranks must be notified.
  bool failure_is_ours() const { return failure_is_ours_; }
  void may_hold_lent() { setup_.hold_lent = true; }
  void becomes_next(Nanos now);  // OperationSetup::is_next
  Nanos becomes_next_at() const { return becomes_next_at_; }

 private:
  struct Lane {
    uint32_t chunk = 0;  // index into Plan::chunks
    uint32_t slice = 0;
    uint32_t stage = 0;     // index into Plan::stages
    uint32_t arrivals = 0;  // first entry in arrivals_
    uint32_t elements = 0;
    uint32_t sends_pending = 0;
    uint32_t got = 0;  // messages of the current stage that arrived
    bool entered = false, computing = false, combined = false, has_output = false, committed = false, ready = false,
         finished = false, has_error = false;
  };
  struct Outgoing {  // a transport slot that receives a lane's sum
    uint32_t lane = 0;
    PortSlot slot;
    bool filled = false;
  };
  struct SendItem {
    uint32_t lane = 0;
    uint32_t stage = 0;
    int32_t next = -1;
  };
  struct Missing {  // of one rank
    uint64_t bytes = 0, messages = 0, unsent_bytes = 0;
    std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};  // round and slice
  };
  struct Message {  // a frame's position in the plan
    uint32_t lane = 0, stage = 0;
    size_t entry = 0;
  };

  void prepare_memory();
  void make_lanes();
  void count_as_sent(uint32_t lane, const Stage& stage);
  void count_send(Flow& flow, const Lane& lane, const Stage& stage);
  void copy_local();
  void widen();
  void narrow();
  uint32_t slice_count(size_t chunk) const { return first_lane_[chunk + 1] - first_lane_[chunk]; }
  size_t lane_bytes(const Lane& lane) const { return lane.elements * element_size_; }
  const WireCodec& codec_of(const Stage& stage) const { return codecs_[static_cast<size_t>(plan_->step_of(stage.round))]; }
  bool is_encoded(const Stage& stage) const { return coded_ && !codec_of(stage).is_plain(); }
  size_t message_bytes(const Lane& lane, const Stage& stage) const {
    return coded_ ? codec_of(stage).message_bytes(lane.elements) : lane_bytes(lane) * stage.blocks;
  }
  size_t slice_offset(const Lane& lane) const { return static_cast<size_t>(lane.slice) * slice_elements_ * element_size_; }
  size_t lane_offset(const Lane& lane) const { return plan_->relayed ? slice_offset(lane) * setup_.world : slice_offset(lane); }
  // Destination of a message that replaces the value instead of being added.
  std::byte* landing(const Lane& lane, const Stage& stage) const { return output(lane) + stage.position * lane_bytes(lane); }
  const std::byte* value(const Lane& lane) const;
  std::byte* output(const Lane& lane) const;

  // operation_codec.cc
  void choose_codecs();
  void encode(uint32_t lane, const Stage& stage, std::byte* message);
  const std::byte* message_of(uint32_t lane, const Stage& stage);
  void keep_message(uint32_t lane, const Piece& piece);
  void drop_message(uint32_t lane);
  bool sends_later(const Lane& lane, uint32_t stages_ahead) const;
  bool fold_lane(uint32_t lane, bool completes);
  void begin_errors();
  float* error_of(const Lane& lane) const;
  ErrorUse begin_error(Lane& lane) const;
  uint32_t passes() const;
  bool decode_lane(uint32_t lane);
  Status check_codec(Rank from, const FrameHeader& header, const Message& message, const std::byte* payload) const;

  void run(Nanos now);
  void make_ready(uint32_t lane);
  void advance(uint32_t lane);
  void enter(uint32_t lane);
  bool combine(uint32_t lane);
  bool reduce_lane(uint32_t lane);
  void begin_relay();
  bool add_relayed(uint32_t lane);
  void send_together(uint32_t lane, const Stage& stage);
  PortSlot acquire_for(const Stage& stage, size_t bytes, bool result);
  PortSlot acquire_result(uint32_t lane);
  void after_combine(uint32_t lane);
  void finish_lane(uint32_t lane);
  void pump(Rank to);
  FrameHeader header_for(const Lane& lane, const Stage& stage) const;
  // Finds the message that a frame claims to be, or explains why it is not one of this operation.
  Status locate(Rank from, const FrameHeader& header, Message& message, const std::byte* payload = nullptr) const;
  Piece piece_to_hold(Rank from, const Message& message, const Piece& given);
  Piece copied(const Piece& given);
  bool send_queued(Rank to, const SendItem& item);
  bool is_result(const Lane& lane, const Stage& stage) const;
  SendQueue& queue_for(Flow& flow, const Lane& lane, const Stage& stage) const;
  bool bring_oldest_forward(SendQueue& queue);
  void request_credit(Rank to);
  void pass_oldest();
  void consume(Rank from, uint64_t bytes);
  void grant_more(Rank from);
  void finish(Status status);
  void fail_here(Status why);
  void give_back_all();
  std::map<Rank, Missing> missing() const;
  std::map<Rank, Missing> first_missing() const;
  std::string missing_text(const std::map<Rank, Missing>& missing) const;
  Status late(const std::string& who) const;
  void answer();
  void begin_inquiry();
  void end_inquiry();
  void end_inquiry_if_all_spoke();
  std::vector<Rank> pending_receivers() const;

  OperationSetup setup_;
  const Plan* plan_ = nullptr;
  Port* port_ = nullptr;
  CallDescriptor descriptor_;
  size_t element_size_ = 4;
  size_t slice_elements_ = 1;
  size_t unit_elements_ = 0;               // smallest unit that chunks are cut into; 0: a cache line
  std::vector<ChunkMemory> chunk_memory_;  // by index into Plan::chunks
  std::vector<uint32_t> first_lane_;       // by index into Plan::chunks; the last entry is the number of lanes
  std::vector<Lane> lanes_;
  std::vector<uint32_t> ready_;
  std::vector<SendItem> items_;
  std::vector<Flow> flows_;  // by rank
  ArrivalMap arrivals_;
  std::vector<const void*> sources_;
  std::vector<Rank> slot_readers_;
  std::vector<Outgoing> slots_;  // of lanes that are being computed
  std::vector<std::byte> scratch_, wide_;
  bool widened_ = false;
  bool coded_ = false;               // some messages are not plain
  bool lanes_begin_errors_ = false;  // each lane initialises its part of encode_error, instead of start() initialising it
  std::array<WireCodec, 3> codecs_;  // by MessageStep
  // If coded_, by lane: the encoded form of its value; then, by lane again: of the sum being computed.
  std::vector<Piece> messages_;
  kernels::BlockCounts encoding_;
  size_t lanes_left_ = 0;
  uint32_t oldest_ = 0;  // the first lane that is not finished; lanes have one order on all ranks
  bool done_ = true, running_ = false, prepared_ = false, copied_local_ = false, failure_is_ours_ = false, answered_ = false,
       inquiring_ = false, inquiry_due_ = false;
  Status status_;
  Nanos started_ = 0, ended_ = 0, now_ = 0;
  Report counts_;
  Nanos inquiry_ends_ = 0, becomes_next_at_ = never;
  std::vector<uint32_t> waits_for_;  // ranks whose messages are missing here, or that have not taken ours
  std::vector<Rank> waiter_of_;      // by rank: the first rank that reported waiting for it
  std::vector<bool> answered_by_;    // by rank: it reported the ranks it waits for
  std::vector<Nanos> lags_;          // by rank: how much later it began, as reported
  Nanos last_first_arrival_ = 0, first_send_ = 0, last_receive_ = 0;
  Rank last_rank_ = UINT32_MAX;
};

}  // namespace unisono
