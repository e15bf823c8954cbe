// Runs one lossy collective on one rank. If data is lost, the result is estimated, or the output keeps its old values.
//
// This is a state machine. The engine reports events with the time `now`; this class sends and requests data through
// StreamPort. A shard is the part of the tensor that one rank owns, and a range is the part of a shard that one datagram
// carries.
// - Phase 0: every rank sends each owner its contribution to the owner's shard. When the phase closes, the owner reduces its
//   shard.
// - Phase 1: every owner sends its reduced shard to all ranks. If ranges are missing when the phase closes, the output keeps
//   its old values there.
//
// all_reduce has both phases, and repairs phase 1 until nothing is missing. reduce_scatter has only phase 0, all_gather only
// phase 1. The order of datagrams, and repeated datagrams, do not change a bit of the result. After warm-up no memory is
// allocated. Source: docs/design/methods/packet_loss.md; arXiv 2507.07114.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "lossy/estimator.h"
#include "lossy/range_arrivals.h"
#include "lossy/range_geometry.h"
#include "lossy/stream_clock.h"
#include "lossy/stream_port.h"
#include "schedules/schedule.h"
#include "unisono/delivery.h"
#include "unisono/status.h"
#include "unisono/tensor.h"
#include "wire/datagram.h"

namespace unisono {

inline constexpr uint32_t lossy_phases = 2;
// If a rank has sent data in this operation, it counts as gone only after it has been silent for this time, even if
// LossyPhaseSetup::silent is shorter.
inline constexpr Nanos lossy_silence_min = 20 * millisecond;

struct LossyPhaseSetup {
  StreamLimits limits;
  bool completes = false;  // the phase is repaired until no range is missing
  // If a rank has sent nothing for this time, in any phase, its stream ends, even during a repair.
  Nanos silent = never;
};

struct LossySetup {
  Collective collective = Collective::all_reduce;
  bool mean = false;
  DType dtype = DType::f32;     // f32, f16 or bf16
  const void* input = nullptr;  // the whole tensor; for all_gather, this rank's shard
  void* output = nullptr;       // the whole tensor; for reduce_scatter, this rank's shard; may equal input
  std::optional<RangeGeometry> geometry{};
  Rank self = 0;
  uint32_t op = 0;
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::own;
  bool own_exact = false;  // see Codec::own_exact
  double loss_budget = 0.05;
  // true: the operation fails if a range is missing when a phase closes, or if the link to a rank is lost while data of this
  // rank is missing. This requires LossyPhaseSetup::completes in both phases.
  bool reliable = false;
  std::array<LossyPhaseSetup, lossy_phases> phases{};
  // For each phase: the t_hard that this rank announces to the other ranks. t_hard is a deadline that counts from the start of
  // the phase.
  std::array<Nanos, lossy_phases> announced{};
  // Only all_gather uses this. For each rank: the ranges of its shard that must arrive, in ascending order. A rank without an
  // entry has no such ranges.
  std::vector<std::vector<uint32_t>> needed{};
  Nanos needed_hard = 0;  // in streams with needed ranges, t_hard is at least this long
  // At this absolute time, an operation that is still incomplete ends with Code::late, or with Code::invalid if another rank
  // makes another call.
  Nanos deadline = never;
};

// The state of one stream: the data that one rank sends to this rank in one phase.
struct LossyStream {
  RangeArrivals arrivals;
  StreamClock clock;
  uint64_t duplicate = 0, late = 0, repaired = 0;  // numbers of datagrams
  uint32_t missing = 0;                            // number of ranges that were missing when the phase closed
  uint32_t needed = 0;                             // number of ranges in LossySetup::needed that are still missing
  Nanos last_request = -1;                         // time of the last repair request; -1: none was sent
  Nanos next_request_at = never;
  bool all_sent = false;   // the sender's `end` datagram arrived
  bool lost = false;       // the link to the sender is gone
  bool confirmed = false;  // the stream has ended, and its sender was told that this rank needs nothing more
  // These describe data that arrived before this rank began the phase. early_first and early_last: the times of the first and
  // the last datagram. early_tail: one of the datagrams had the tail flag. early_end: an `end` datagram arrived.
  Nanos early_first = never, early_last = never;
  bool early_tail = false, early_end = false;
};

struct LossyPhase {
  bool runs = false;  // the collective has this phase
  bool open = false, closed = false;
  Nanos start = 0, close = 0;
  std::vector<LossyStream> streams;  // by rank; this rank's entry is unused
};

class LossyOperation {
 public:
  // The caller fills in the setup before start(). The previous operation must have ended and dropped its streams.
  LossySetup& new_setup() { return setup_ = {}; }
  const LossySetup& setup() const { return setup_; }
  void start(StreamPort& port, Nanos now);

  // Handles a datagram of this operation. Returns DatagramFault::none if the datagram was accepted.
  DatagramFault data(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  void end_seen(Rank from, const DatagramHeader& header, Nanos now);
  // Reports that data of this operation shows that its sender makes another call. The operation then cannot succeed: no phase
  // closes while the link to the sender works. The caller should call fail() when it knows the other call.
  void other_call_seen(Rank from, Nanos now);
  // Handles a repair request, or an answer to one, which shows that the rank lives. It may belong to another operation.
  void request_seen(Rank from, const StreamRequest& request, Nanos now);
  void wake(Nanos now);
  // Returns the time when wake() must be called even if nothing arrives.
  Nanos due() const;
  // Reports that the link to a rank is gone, so its streams receive nothing more.
  void peer_lost(Rank rank, const Status& why, Nanos now);
  // Ends the operation now with Code::late, because this rank is `operations` behind the others.
  void fall_behind(uint32_t operations, Nanos now);
  void fail(const Status& why, Nanos now);

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // Stops sending. Call this after done(), when no other rank can request repairs any more.
  void drop_streams();
  // Returns true if this rank takes part in the operation, but has not yet sent the streams of this phase.
  bool will_send(uint32_t phase) const;
  // Returns the first rank from which data is missing in an open phase. If there is none, returns this rank.
  Rank waits_for() const;

  const LossyPhase& phase(uint32_t number) const { return phases_[number]; }
  // Returns, for each range of this rank's shard, how many contributions were added (this rank's own included). Valid after
  // phase 0 has closed.
  std::span<const uint16_t> contributors() const { return contributors_; }
  struct RangeCounts {
    uint64_t full = 0, reduced = 0, empty = 0;
  };
  const RangeCounts& range_counts() const { return counts_; }
  double effective_contributors() const { return effective_; }
  // Returns how many times an element was encoded on its way: once in each phase that uses a codec.
  uint32_t passes() const;
  // Returns how many elements and groups were too large for the codec or the tensor's type, in this operation.
  kernels::BlockCounts block_counts() const;
  uint32_t behind() const { return behind_; }
  Nanos started() const { return started_; }
  Nanos ended() const { return ended_; }

 private:
  uint32_t world() const { return setup_.geometry->cut().world; }
  Rank owner_of(uint32_t phase, Rank from) const { return phase == 0 ? setup_.self : from; }
  size_t element_size() const;
  bool is_wide() const { return !setup_.geometry->cut().codec.is_plain() && setup_.dtype != DType::f32; }
  void encode_shard(Rank owner, DType dtype, const void* elements, std::byte* message);
  void decode_own();
  void write_own();
  void send_contributions();
  void publish(bool with_contributors);
  void open_phase(uint32_t number, Nanos now);
  std::byte* own_output() const;
  void store_range(uint32_t phase, Rank from, uint32_t range, std::span<const std::byte> payload);
  void step(uint32_t number, Rank from, Nanos now);
  Nanos silent_at(uint32_t number, Rank from) const;
  uint32_t deadline_us(uint32_t phase) const;
  void step_all(Nanos now);
  bool waits_for_stream(const LossyPhase& phase, Rank from) const;
  bool all_ended(const LossyPhase& phase) const;
  void close_phase(uint32_t number, Nanos now);
  bool reduce_shard();
  uint32_t run_of(uint32_t first) const;
  void reduce_run(uint32_t first, uint32_t count);
  void request_missing(uint32_t number, Rank from, LossyStream& stream, Nanos now);
  bool must_repair(uint32_t number, const LossyStream& stream) const;
  bool exceeds_loss_budget(uint32_t number, const LossyStream& stream) const;
  std::span<const uint32_t> needed_of(uint32_t number, Rank from) const;
  void finish(Status status, Nanos now);
  Status late_status(Nanos now) const;
  Status incomplete(uint32_t number, Nanos now) const;
  std::string silence_text(uint32_t number, Rank from, Nanos now) const;

  LossySetup setup_;
  StreamPort* port_ = nullptr;
  std::array<LossyPhase, lossy_phases> phases_;
  std::vector<Nanos> last_seen_;     // by rank: when its last datagram in this operation arrived; -1: none has arrived
  std::vector<uint8_t> other_call_;  // by rank: 1 if its data shows that it makes another call
  struct PendingAnswer {
    Nanos at = -1;
    Rank waits_for = 0;
  };
  // by rank: its last answer that it will send its stream later; at -1: it has not answered so
  std::vector<PendingAnswer> answers_;
  std::vector<std::byte> outgoing_;  // the encoded contributions to the shards of the other ranks, shard after shard
  std::vector<size_t> outgoing_at_;  // by owner: where the contribution to its shard begins in outgoing_
  std::vector<std::byte> staging_;   // the contributions to this rank's shard that arrived, sender after sender
  std::vector<std::byte> result_;    // this rank's shard, encoded
  // This rank's shard in fp32. Used if the tensor has 16 bits and a codec encodes the results, so that results are rounded only
  // once.
  std::vector<float> wide_;
  std::vector<uint16_t> contributors_;
  // by rank: its message for the range that is being reduced; null if the message is missing
  std::vector<const std::byte*> present_;
  RangeEstimator estimator_;
  kernels::BlockCounts blocks_;
  kernels::BlockCounts estimated_before_;  // the estimator's counts when this operation began
  RangeCounts counts_;
  double effective_ = 0;
  uint32_t behind_ = 0;
  bool done_ = true;
  Status status_;
  Nanos started_ = 0, ended_ = 0;
};

}  // namespace unisono
