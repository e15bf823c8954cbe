// The lossy operations of one group: their numbers, their order, the datagrams that arrive early for the next one, the
// deadlines that they learn, and the choice to deliver some of them reliably after all (engine/lossy/delivery_choice). One runs
// at a time; the others wait in order of calls.
//
// The engine owns it, notifies it of time and of links that end, and gives it a datagram service. A sender keeps its copies
// until the operation after the next one starts, because until then others may ask for them again.
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
#include "engine/lossy/delivery_choice.h"
#include "executor/completion.h"
#include "executor/request.h"
#include "lossy/deadline.h"
#include "lossy/lossy_operation.h"
#include "transports/datagram_service.h"
#include "unisono/delivery.h"

namespace unisono {

// The key and the size of the datagrams of lossy operations; equal on all members.
struct DatagramSecret {
  uint64_t run_id = 0;
  GroupKey key{};
  DatagramAuth auth = DatagramAuth::mac;
  uint32_t datagram_bytes = 1472;  // of a full one
};

struct LossyGroupSetup {
  uint32_t number = 0;  // of the group
  DatagramGroup datagrams;
  std::vector<PeerIndex> peers;            // by rank
  uint32_t datagram_bytes = 1472;          // of a full one; equal on all ranks
  std::function<std::string(Rank)> place;  // "host b, pid 42"
  // Notifies a rank, reliably, of what this rank calls as operation `op`. It calls LossyGroup::heard_call().
  std::function<void(Rank to, uint32_t op, const CallDescriptor& call)> tell;
  // Sends a rank any other message, reliably. It calls LossyGroup::heard().
  std::function<void(Rank to, Bytes news)> say{};
  ReliableCalls reliable{};  // null functions: their order is not compared
};

class LossyGroup final : public DatagramSink, public StreamPort {
 public:
  static constexpr size_t waiting_max = 1024;            // calls
  static constexpr size_t early_bytes_max = 256u << 20;  // of datagrams for an operation that has not begun here
  static constexpr size_t kept_positions_max = 256;
  static constexpr uint32_t silent_operations_max = 3;  // in a row: then the rank counts as lost

  static Result<std::unique_ptr<LossyGroup>> make(DatagramService& service, LossyGroupSetup setup);
  ~LossyGroup() override;

  // Whether a call can be made of datagrams here; else invalid, and what is in the way. Alike on all ranks.
  Status fits(const OperationRequest& request) const;
  // request.delivery: lossy or automatic. The completion may be done at return.
  void submit(OperationRequest&& request, std::shared_ptr<Completion> completion, Nanos now);
  // True if something ended.
  bool step(Nanos now);
  Nanos next_deadline() const;
  uint32_t datagram_bytes() const { return setup_.datagram_bytes; }
  size_t active() const { return waiting_.size() + (running_ ? 1 : 0); }
  void peer_lost(Rank rank, const Status& why, Nanos now);
  // Calls of one number that differ end with invalid on all ranks that take part in one of them.
  void heard_call(Rank from, uint32_t op, const CallDescriptor& call, Nanos now);
  // A message of another rank has arrived. False: it is malformed.
  bool heard(Rank from, ByteView news, Nanos now);
  // A rank has begun a reliable call that this rank has not begun, and may never begin: the calls may differ.
  void others_began(Rank from);
  // This rank has begun a reliable call. Calls may differ if others have sent datagrams of a lossy call that it has not begun.
  void reliable_began(Nanos now);
  // Ends everything. without_reports: where there is no memory for them.
  void fail_all(const Status& why, Nanos now, bool without_reports = false);
  // Others may still ask for what this rank sent in its last operations: it should not leave yet.
  bool has_pending() const;
  // Datagrams that came before their operation began here and could not be kept.
  uint64_t early_dropped() const { return early_dropped_; }

  // DatagramSink
  DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                         Nanos now) override;
  void stream_sent(uint32_t group, Rank to, StreamName stream) override;

  // StreamPort
  void send_stream(const OutStream& stream) override { service_.send_stream(setup_.number, stream); }
  void drop_stream(Rank to, StreamName stream) override { service_.drop_stream(setup_.number, to, stream); }
  void ask(Rank from, StreamName stream, uint16_t slice, uint32_t first, std::span<const std::byte> bitmap) override {
    service_.ask(setup_.number, from, stream, slice, first, bitmap);
  }
  Nanos answer_time(Rank rank) const override { return service_.answer_time(setup_.number, rank); }
  std::string place(Rank rank) const override { return setup_.place(rank); }

 private:
  LossyGroup(DatagramService& service, LossyGroupSetup setup) : service_(service), setup_(std::move(setup)) {}
  uint32_t world() const { return setup_.datagrams.world; }

  struct Call {
    OperationRequest request;
    Codec codec{};                                // the request's is this one
    std::vector<std::vector<uint32_t>> needed{};  // likewise
    std::shared_ptr<Completion> completion{};     // null: it has ended while it waited, and only its number is left
    Nanos deadline = 0;
    std::optional<RangeGeometry> geometry{};
    uint64_t reliable_before = 0;  // as in CallPosition, when it began
  };
  // The deadlines that operations of one kind and size have taught.
  struct Learnt {
    std::array<Deadline, lossy_phases> deadlines;
    std::array<std::vector<Nanos>, lossy_phases> announced;  // by rank
  };
  struct HeardCall {
    uint32_t op = 0;
    CallDescriptor call;
    bool known = false;
  };
  struct Early {
    Rank from = 0;
    DatagramHeader header;
    size_t at = 0;
    Nanos came = 0;
  };
  struct EarlyStore {  // of one operation
    uint32_t op = 0;
    std::vector<Early> datagrams;
    std::vector<std::byte> payloads;
    std::vector<uint8_t> ended;  // by rank, a bit for each phase: its end is kept already
  };

  LossyOperation& current() { return operations_[op_ % operations_.size()]; }
  const LossyOperation& current() const { return operations_[op_ % operations_.size()]; }
  Learnt& learnt_for(const OperationRequest& request, size_t bytes);
  Result<RangeGeometry> geometry_for(const OperationRequest& request) const;
  bool end_late_waiting(Nanos now);
  void start_next(Nanos now);
  void begin(Call&& call, Nanos now);
  LossyPhaseSetup phase_setup(uint32_t phase, const OperationRequest& request, Nanos now) const;
  void replay(EarlyStore& store, Nanos now);
  DatagramFault keep_early(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  void count_silence(const Status& status);
  void tell_call();
  void tell_call_again();
  void compare_call(Rank from, Nanos now);
  uint32_t next_number() const { return op_ + static_cast<uint32_t>(active()); }
  Call* under_way(uint32_t number);
  CallPosition position_in(uint32_t number) const;
  std::optional<CallPosition> waiting_position() const;
  void tell_position(Rank to, const CallPosition& position);
  void judge_position(Rank from, const CallPosition& theirs, Nanos now);
  void keep_position(Rank from, const CallPosition& position);
  void judge_kept_positions(Nanos now);
  bool passed(const CallPosition& position) const;
  Status difference_from(const CallPosition& theirs, const CallPosition& ours) const;
  void note_newest(Rank from, uint32_t op);
  bool present(Rank rank) const { return heard_at_[rank] >= current().started(); }
  uint32_t operations_behind() const;
  void settle(Nanos now, bool without_reports = false);
  void learn();
  void judge();
  void count_bytes(Report& report);
  Status outcome() const;
  std::shared_ptr<const DeliveryReport> delivery_report() const;
  void end(Call&& call, Status status);

  DatagramService& service_;
  LossyGroupSetup setup_;
  uint32_t op_ = 0;  // number of the running operation, or of the next one
  bool running_ = false;
  Call call_;                 // the running call
  Learnt* learnt_ = nullptr;  // what earlier calls of its collective and size taught
  DeliveryChoice choice_;
  Delivery used_ = Delivery::lossy;  // the running call's delivery
  std::deque<Call> waiting_;
  std::array<LossyOperation, 3> operations_;
  std::array<EarlyStore, 2> early_;  // by op & 1: datagrams for op_ before it begins, and for the next operation
  uint64_t early_dropped_ = 0;
  std::vector<uint32_t> newest_;           // by rank: the newest op seen in an authentic datagram
  std::vector<uint32_t> silent_;           // by rank: operations in a row in which nothing came
  std::vector<Nanos> heard_at_;            // by rank: the latest datagram, of any operation: a rank that is ahead is not silent
  std::vector<Status> lost_;               // by rank
  std::vector<uint64_t> repaired_before_;  // by rank: datagrams that it had asked for again when the last operation ended
  CallDescriptor own_call_;                // the running call, or the last one
  std::array<CallDescriptor, 4>
      told_{};  // the latest calls that all ranks were notified of, a ring: equal calls in turn are announced once
  uint32_t told_count_ = 0;
  uint32_t told_again_ = 0;  // 1 + the operation whose call was announced again, because a rank calls something else
  std::vector<std::array<HeardCall, 2>> heard_calls_;          // by rank, by op & 1
  std::vector<std::pair<uint32_t, uint64_t>> told_positions_;  // by rank: the last ones, lossy and reliable
  std::vector<std::pair<Rank, CallPosition>> kept_positions_;  // positions ahead of this rank's, and the rank that sent each
  std::map<uint64_t, Learnt> learnt_by_size_;
};

}  // namespace unisono
