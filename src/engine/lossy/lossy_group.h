// Runs the lossy operations of one group. It numbers them, keeps early datagrams for the next operation, and learns deadlines.
// It may run some of them reliably (engine/lossy/delivery_choice). Only one operation runs at a time. Later calls wait in
// order.
//
// The engine owns this object, provides a datagram service, and tells it the time and which links are lost. A sender keeps the
// data of operation k until it begins operation k + 2, because receivers may request the data again until then.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/call_position.h"
#include "engine/lossy/announced_call.h"
#include "engine/lossy/delivery_choice.h"
#include "executor/completion.h"
#include "executor/request.h"
#include "lossy/deadline.h"
#include "lossy/lossy_operation.h"
#include "transports/datagram_service.h"
#include "unisono/delivery.h"

namespace unisono {

// The key and the datagram size of lossy operations. They are equal on all members.
struct DatagramSecret {
  uint64_t run_id = 0;
  GroupKey key{};
  DatagramAuth auth = DatagramAuth::mac;
  uint32_t datagram_bytes = 1472;  // size of the largest datagram
};

struct LossyGroupSetup {
  uint32_t number = 0;  // the number of the group
  DatagramGroup datagrams;
  std::vector<PeerIndex> peers;                   // indexed by rank
  uint32_t datagram_bytes = 1472;                 // size of the largest datagram; equal on all ranks
  std::function<std::string(Rank)> location;      // returns, for example, "host b, pid 42"
  std::function<std::string(Rank)> link_state{};  // see Transport::link_state; null: nothing is known
  // Tells rank `to`, reliably, about this rank's call. on_call() must then be called there. It may come as a message, too.
  std::function<void(Rank to, const AnnouncedCall& call)> announce_call;
  // Sends any other message reliably to rank `to`. The receiver's engine then calls on_message().
  std::function<void(Rank to, Bytes message)> send_message{};
  ReliableCalls reliable{};  // if its functions are null, the order of calls is not compared
};

class LossyGroup final : public DatagramSink, public StreamPort {
 public:
  static constexpr size_t waiting_max = 1024;  // at most this many calls wait
  // Datagrams that arrive before their operation begins here are kept, up to this number of bytes.
  static constexpr size_t early_bytes_max = 256u << 20;
  static constexpr size_t kept_positions_max = 256;
  // If a rank is silent in this many successive operations, it counts as lost.
  static constexpr uint32_t silent_operations_max = 3;

  static Result<std::unique_ptr<LossyGroup>> make(DatagramService& service, LossyGroupSetup setup);
  ~LossyGroup() override;

  // Returns ok if the call can be sent as datagrams, and otherwise invalid with the reason. The result is equal on all ranks.
  Status fits(const OperationRequest& request) const;
  // Submits a call whose request.delivery is lossy or automatic. The completion may be done on return.
  void submit(OperationRequest&& request, std::shared_ptr<Completion> completion, Nanos now);
  // Advances the operations. Returns true if an operation ended.
  bool step(Nanos now);
  Nanos next_deadline() const;
  uint32_t datagram_bytes() const { return setup_.datagram_bytes; }
  size_t active() const { return waiting_.size() + (running_ ? 1 : 0); }
  void peer_lost(Rank rank, const Status& why, Nanos now);
  // Call it when rank `from` announces its call. If this rank's call with the same number is different, both calls end with
  // invalid.
  void on_call(Rank from, AnnouncedCall call, Nanos now);
  // Call it when a message arrives that another rank sent with LossyGroupSetup::send_message. Returns false if it is malformed.
  bool on_message(Rank from, ByteView message, Nanos now);
  // Call it when rank `from` has begun a reliable call that this rank has not begun. The two ranks may call in different
  // orders.
  void on_call_begun_elsewhere(Rank from);
  // Call it when this rank has begun a reliable call. If this rank then holds datagrams of a lossy call that it has not begun,
  // ranks may call in different orders.
  void on_reliable_call_begun(Nanos now);
  // Ends all operations. without_reports: it allocates no reports, because memory has run out.
  void fail_all(const Status& why, Nanos now, bool without_reports = false);
  // Returns true if other ranks may still request data of this rank's last operations. This rank should not leave before that
  // ends.
  bool has_pending() const;
  // Returns the number of early datagrams that were dropped because the limit was reached.
  uint64_t early_dropped() const { return early_dropped_; }

  // The functions of DatagramSink:
  DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                         Nanos now) override;
  void stream_requested(uint32_t group, Rank from, const StreamRequest& request, Nanos now) override;
  void stream_sent(uint32_t group, Rank to, StreamName stream) override;

  // The functions of StreamPort:
  void send_stream(const OutStream& stream) override;
  void drop_stream(Rank to, StreamName stream) override { service_.drop_stream(setup_.number, to, stream); }
  void request_repair(Rank from, StreamName stream, uint16_t slice, uint32_t first,
                      std::span<const std::byte> bitmap) override {
    service_.request_repair(setup_.number, from, stream, slice, first, bitmap);
  }
  Nanos answer_time(Rank rank) const override { return service_.answer_time(setup_.number, rank); }
  std::string location(Rank rank) const override { return setup_.location(rank); }

 private:
  LossyGroup(DatagramService& service, LossyGroupSetup setup) : service_(service), setup_(std::move(setup)) {}
  uint32_t world() const { return setup_.datagrams.world; }

  struct Call {
    OperationRequest request;
    Codec codec{};                                // a copy of the caller's codec; request.codec points to it
    std::vector<std::vector<uint32_t>> needed{};  // a copy of the caller's needed_ranges
    // null: the call ended while it waited, and the entry only keeps its number reserved
    std::shared_ptr<Completion> completion{};
    Nanos deadline = 0;
    std::optional<RangeGeometry> geometry{};
    uint64_t reliable_before = 0;  // number of reliable calls that this rank began before this call
  };
  // Deadlines that were learned from operations with the same collective and about the same size.
  struct LearnedDeadlines {
    std::array<Deadline, lossy_phases> deadlines;
    std::array<std::vector<Nanos>, lossy_phases> announced;  // the deadlines that other ranks have announced, indexed by rank
  };
  struct KnownCall {
    AnnouncedCall call;
    bool known = false;
  };
  struct Early {
    Rank from = 0;
    DatagramHeader header;
    size_t at = 0;
    Nanos came = 0;
  };
  struct EarlyStore {  // the early datagrams of one operation
    uint32_t op = 0;
    std::vector<Early> datagrams;
    std::vector<std::byte> payloads;
    std::vector<uint8_t> ended;  // indexed by rank: if bit p is set, the end message of phase p is kept
  };

  LossyOperation& current() { return operations_[op_ % operations_.size()]; }
  const LossyOperation& current() const { return operations_[op_ % operations_.size()]; }
  LearnedDeadlines& learned_deadlines_for(const OperationRequest& request, size_t bytes);
  Result<RangeGeometry> geometry_for(const OperationRequest& request) const;
  bool end_late_waiting(Nanos now);
  void start_next(Nanos now);
  void begin(Call&& call, Nanos now);
  LossyPhaseSetup phase_setup(uint32_t phase, const OperationRequest& request, Nanos now) const;
  void replay(EarlyStore& store, Nanos now);
  DatagramFault keep_early(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  DatagramFault deliver(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  void count_silence(const Status& status);
  void announce_call();
  void announce_to_all();
  void announce_call_again();
  bool is_of_other_call(const DatagramHeader& header) const;
  void compare_call(Rank from, Nanos now);
  void compare_past_call(Rank from, const AnnouncedCall& call, Nanos now);
  std::string difference(Rank from, const AnnouncedCall& theirs, const AnnouncedCall& ours) const;
  uint32_t next_number() const { return op_ + static_cast<uint32_t>(active()); }
  Call* find_call(uint32_t number);
  CallPosition position_in(uint32_t number) const;
  std::optional<CallPosition> waiting_position() const;
  void send_position(Rank to, const CallPosition& position);
  void check_position(Rank from, const CallPosition& theirs, Nanos now);
  void keep_position(Rank from, const CallPosition& position);
  void check_kept_positions(Nanos now);
  bool passed(const CallPosition& position) const;
  Status difference_from(const CallPosition& theirs, const CallPosition& ours) const;
  void note_newest(Rank from, uint32_t op);
  bool present(Rank rank) const { return last_datagram_at_[rank] >= current().started(); }
  uint32_t operations_behind() const;
  std::optional<Rank> pending_for(Rank to, StreamName stream) const;
  void settle(Nanos now, bool without_reports = false);
  void learn_deadlines();
  void update_delivery();
  void count_bytes(Report& report);
  Status outcome() const;
  std::string note() const;
  std::shared_ptr<const DeliveryReport> delivery_report() const;
  void end(Call&& call, Status status);

  DatagramService& service_;
  LossyGroupSetup setup_;
  uint32_t op_ = 0;  // number of the running operation; if none runs, of the next one
  bool running_ = false;
  Call call_;                            // the running call
  LearnedDeadlines* learned_ = nullptr;  // the deadlines for the collective and the size of the running call
  DeliveryChoice choice_;
  Delivery used_ = Delivery::lossy;  // delivery of the running call
  std::deque<Call> waiting_;
  std::array<LossyOperation, 3> operations_;
  std::array<EarlyStore, 2> early_;  // Early datagrams of operation op_ (until it begins) and of op_ + 1, indexed by op & 1.
  uint64_t early_dropped_ = 0;
  std::vector<uint32_t> newest_;  // indexed by rank: the newest operation number that an authentic datagram of the rank had
  std::vector<uint32_t> silent_;  // indexed by rank: number of successive operations in which no data of the rank arrived
  std::vector<Nanos> last_datagram_at_;  // indexed by rank: when its latest datagram arrived, whatever its operation
  std::vector<Nanos> answered_at_;       // indexed by rank: when this rank last answered one of its repair requests
  // indexed by rank, then by phase: 1 + the number of the last operation whose stream was sent to the rank
  std::vector<std::array<uint32_t, lossy_phases>> sent_count_;
  std::vector<Status> lost_;  // indexed by rank: why the rank is lost; ok: it is not lost
  // indexed by rank: how many datagrams were sent to the rank again before this operation
  std::vector<uint64_t> repaired_before_;
  AnnouncedCall own_call_;  // the running call; if none runs, the last one
  // A ring with the last four calls that were announced. If a call equals one of them, it is not announced again.
  std::array<AnnouncedCall, 4> announced_calls_{};
  uint32_t announced_count_ = 0;
  uint32_t announced_again_ = 0;  // op + 1 of the last call that was announced again because the call of another rank differs
  // the calls that other ranks have announced, indexed by rank, then by op & 1
  std::vector<std::array<KnownCall, 2>> received_calls_;
  // The calls of the last operations that succeeded here, indexed by op. An announcement that was lost on its way comes after
  // the data of its call, and may show that a result is wrong. violation_ then ends the next call.
  std::array<KnownCall, 4> past_calls_{};
  Status violation_;
  // Indexed by rank: the last position (lossy, reliable) that was sent to the rank.
  std::vector<std::pair<uint32_t, uint64_t>> sent_positions_;
  // Positions of other ranks that are ahead of this rank. Each is stored with the rank that sent it.
  std::vector<std::pair<Rank, CallPosition>> kept_positions_;
  std::map<uint64_t, LearnedDeadlines> learned_by_size_;
};

}  // namespace unisono
