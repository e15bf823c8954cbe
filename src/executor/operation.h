// Executes one collective on one rank, in slices, from request to completion. Works for any plan.
//
// The operation is a state machine. The engine reports each event by a call with the time, `now`; the operation makes requests
// through Port. It reads no clock and owns no thread. A lane is one slice of one chunk. Lanes go through the stages of their
// chunk independently, so every schedule is pipelined. A lane leaves a stage when the memory of its sends is free and all
// messages of the stage have arrived. One pass combines the messages and this rank's value in rank order. Objects are used
// again; after some operations, none allocates.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "executor/arrival_map.h"
#include "executor/call_text.h"
#include "executor/operation_parts.h"
#include "executor/operation_setup.h"
#include "executor/port.h"
#include "executor/progress.h"
#include "unisono/report.h"

namespace unisono {

// If ranks make different calls, but a frame shows only hashes of their arguments, each rank waits this long for the text of
// another rank's call.
inline constexpr Nanos dispute_time = second;
// After its deadline, an operation may not know which rank is to blame. It then asks the other ranks, and waits this long.
inline constexpr Nanos inquiry_time = 50 * millisecond;

class Operation {
 public:
  // The caller must fill in the setup before start(). The previous operation must have ended.
  OperationSetup& new_setup() {
    setup_.frame = {};
    return setup_;
  }
  // Sends what can be sent now. The operation may be done on return.
  void start(Port& port, Nanos now);

  // Events. receive_buffer() returns a buffer into which the payload that arrives can be written, or null.
  std::byte* receive_buffer(Rank from, const FrameHeader& header);
  // The operation returns the piece through Port::release, even if it refuses the message.
  void received(Rank from, const FrameHeader& header, const Piece& piece, Nanos now);
  void granted(Rank from, uint64_t bytes, Nanos now);
  // Called when `from` has no more memory to share with this rank. The operation copies the messages that it holds in memory of
  // `from`, and returns that memory. If later messages from `from` have to wait, they are copied when they arrive.
  void copy_out(Rank from);
  void credit(Rank to, Nanos now);
  void sent(uint32_t lane, Nanos now);
  void computed(uint32_t lane, Nanos now);
  // `before`: the error that had already ended the group; ok: there was none.
  void peer_lost(Rank peer, const Status& why, const Status& before, Nanos now);
  void deadline(Nanos now);
  // Rank `from` says for which ranks it waits, because its deadline has passed or another rank asked it. `from` started the
  // operation `its_age` ago.
  void on_late_report(Rank from, Nanos its_age, std::span<const uint32_t> waits_for, Nanos now);
  // Rank `from` says what it calls, because a frame showed it that another rank makes a different call. If this rank's call
  // differs from it, the operation fails, and the error shows both values. Otherwise the operation waits for the text of a rank
  // whose call differs.
  void on_call_text(Rank from, const std::string& text, Nanos now);
  // Returns true, but only once, if the other ranks must be told call_text(). It may be true after the operation has ended.
  bool take_description() { return std::exchange(description_due_, false); }
  std::string call_text() const { return unisono::call_text(setup_.request, descriptor_, setup_.slice_bytes, setup_.world); }
  // Call it if this rank leaves while the operation runs. Prepares waits_for(). Returns false if the operation waits for
  // nobody.
  bool prepare_last_report(Nanos now);
  // Returns true, but only once, if the other ranks must be told waits_for() and age().
  bool take_inquiry() { return std::exchange(inquiry_due_, false); }
  const std::vector<uint32_t>& waits_for() const { return inquiry_.waits_for; }
  Nanos age() const { return now_ - started_; }
  // Ends the operation for a reason that the caller gives. The operation releases all memory of transports, and leaves the
  // caller's buffers alone.
  void fail(Status why, Nanos now);
  // Call it after a failure, when the transports have cancelled this operation. Memory from receive_buffer() may be used again
  // only then, because the transports may write into it until then.
  void cancelled();
  // Like fail(), for a cause that this rank found itself: failure_is_ours() is true afterwards.
  void fail_and_notify(Status why, Nanos now);

  // Call it if an event handler lacks memory. Like fail_and_notify(), but allocates nothing.
  void out_of_memory(Nanos now) { fail_and_notify({Code::unavailable, "out of memory"}, now); }

  void release_memory_early();  // call it before the thread sleeps: a copy is quicker than a confirmation
  bool done() const { return done_; }
  bool finished_ok() const { return done_ && status_.ok(); }
  const Status& status() const { return status_; }
  Nanos deadline_at() const {
    return disputed_ ? dispute_ends_ : inquiring_ ? inquiry_.ends : started_ + setup_.request.timeout;
  }
  Report report(Nanos now) const;
  const OperationSetup& setup() const { return setup_; }
  // Sets `pending` to the ranks for which it waits, in ascending order, at most pending_listed_max. Also works after a failure.
  Progress progress(std::vector<Rank>& pending) const;
  OperationTimes times() const { return {started_, first_send_, last_first_arrival_, last_receive_, ended_}; }
  bool is_prepared() const { return prepared_; }  // false: start() lacked memory; flow() and progress() are older
  const Flow& flow(Rank partner) const { return flows_[partner]; }  // `partner`: one of the plan's partners
  Rank last_rank() const { return last_rank_; }                     // rank whose first message came last; UINT32_MAX: none came
  std::string label() const;                                        // for example "all_reduce 17"
  const CallDescriptor& descriptor() const { return descriptor_; }  // which every message must carry
  // Returns true if messages from `peer` or to `peer` are still missing.
  bool needs(Rank peer) const;
  // Returns true if this rank found the failure itself, so that the other ranks must be notified.
  bool failure_is_ours() const { return failure_is_ours_; }
  void may_hold_views() { setup_.hold_views = true; }
  void becomes_next(Nanos now);  // sets OperationSetup::is_next
  Nanos becomes_next_at() const { return becomes_next_at_; }

 private:
  using Lane = OperationLane;
  using Outgoing = OutgoingSlot;
  using SendItem = QueuedSend;
  using Missing = MissingMessages;
  using Message = LocatedMessage;

  void prepare_memory();
  void make_lanes();
  void count_as_sent(uint32_t lane, const Stage& stage);
  void count_send(Flow& flow, const Lane& lane, const Stage& stage);
  void copy_local();
  bool confirm_if_all_heard();
  uint64_t elements_shown_to(Rank other) const;
  Status check_elements(Rank from, const FrameHeader& header, uint32_t chunk) const;
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
  // Returns where a received message is written if it replaces the value of the lane.
  std::byte* copy_destination(const Lane& lane, const Stage& stage) const {
    return output(lane) + stage.position * lane_bytes(lane);
  }
  const std::byte* value(const Lane& lane) const;
  std::byte* output(const Lane& lane) const;

  // Implemented in operation_codec.cc.
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
  bool keeps_what_it_sends(const Lane& lane) const;
  void wait_for_memory(Lane& lane, uint32_t index);
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
  // Finds the lane, the stage and the entry of a received frame. Returns an error if the frame is not valid in this operation.
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
  bool differs_in_hash(const FrameHeader& header) const;
  bool has_our_descriptor(const FrameHeader& header) const;
  void all_lanes_finished();
  void await_difference(Status why);
  void dispute(Status why);
  void release_all();
  std::map<Rank, Missing> missing() const;
  std::map<Rank, Missing> first_missing() const;
  std::string missing_text(const std::map<Rank, Missing>& missing) const;
  std::string missing_from_lost(Rank peer) const;
  Status late(const std::string& cause) const;
  void answer();
  void begin_inquiry();
  void end_inquiry();
  void end_inquiry_if_all_answered();
  std::vector<Rank> pending_receivers() const;

  OperationSetup setup_;
  const Plan* plan_ = nullptr;
  Port* port_ = nullptr;
  CallDescriptor descriptor_;
  uint64_t share_ = 0, balance_ = 0;  // for all_to_all: this rank's share, in the upper bits; the sum of all shares so far
  size_t element_size_ = 4;
  size_t slice_elements_ = 1;
  size_t unit_elements_ = 0;               // chunk boundaries are multiples of this; 0: multiples of a cache line
  std::vector<ChunkMemory> chunk_memory_;  // indexed like Plan::chunks
  std::vector<uint32_t> first_lane_;       // indexed like Plan::chunks; the last entry is the number of lanes
  std::vector<Lane> lanes_;
  std::vector<uint32_t> ready_;
  std::vector<SendItem> items_;
  std::vector<Flow> flows_;  // indexed by rank
  ArrivalMap arrivals_;
  std::vector<const void*> sources_;
  std::vector<Rank> slot_readers_;
  std::vector<Outgoing> slots_;  // slots of lanes whose sums are being computed
  std::vector<std::byte> scratch_, wide_;
  bool widened_ = false, coded_ = false;  // coded_: a codec is in use, so some messages are encoded
  bool lanes_begin_errors_ = false;       // true: each lane initialises its part of encode_error; false: start() does it
  std::array<WireCodec, 3> codecs_;       // indexed by MessageStep
  // If coded_: first one piece per lane with its encoded value. Then one piece per lane with the encoded value that this rank
  // sent; this piece is set only while the sum is computed.
  std::vector<Piece> messages_;
  kernels::BlockCounts encoding_;
  size_t lanes_left_ = 0;
  LanesInTransit in_transit_;
  uint32_t ranks_heard_ = 0;  // number of other ranks from which a message has arrived
  uint32_t oldest_ = 0;       // the first unfinished lane; the order of lanes is the same on all ranks
  bool done_ = true, running_ = false, prepared_ = false, copied_local_ = false, failure_is_ours_ = false, answered_ = false,
       inquiring_ = false, inquiry_due_ = false, disputed_ = false, description_due_ = false;
  Status status_;
  Nanos started_ = 0, ended_ = 0, now_ = 0;
  Report counts_;
  Nanos dispute_ends_ = 0, becomes_next_at_ = never;
  Status dispute_why_;  // if disputed_: the error if no rank says in time what differs
  OperationInquiry inquiry_;
  Nanos last_first_arrival_ = 0, first_send_ = 0, last_receive_ = 0;
  Rank last_rank_ = UINT32_MAX;
};

}  // namespace unisono
