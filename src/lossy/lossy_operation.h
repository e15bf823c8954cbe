// One lossy collective on one rank. It reduces the data that arrives in time; missing data is estimated, or keeps its old
// value.
//
// A state machine: the engine reports events by calls with `now`, and requests go out through StreamPort. Phase 0: every rank
// sends each owner its contribution to the owner's shard. When phase 0 closes, the owner reduces its shard. Phase 1: every
// owner sends its shard to all ranks. all_reduce has both phases, and repairs the second to completion. reduce_scatter has
// phase 0 only, all_gather phase 1 only. If a range is missing when phase 1 closes, the output keeps its old values there.
// Order and repetition of datagrams do not change a bit of the result. After warm-up it does not allocate. Source:
// docs/design/methods/packet_loss.md; arXiv 2507.07114.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
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
// Minimum silence before a rank that has sent data in this operation counts as gone, whatever LossyPhaseSetup::silent is: four
// repair requests may go unanswered.
inline constexpr Nanos lossy_silence_min = 20 * millisecond;

struct LossyPhaseSetup {
  StreamLimits limits;
  bool completes = false;  // repaired until nothing is missing
  // A stream ends if its sender sends nothing, in any phase, for this long; repair stops then, too.
  Nanos silent = never;
};

struct LossySetup {
  Collective collective = Collective::all_reduce;
  bool mean = false;
  DType dtype = DType::f32;     // f32, f16 or bf16
  const void* input = nullptr;  // the whole tensor; all_gather: the own shard
  void* output = nullptr;       // the whole tensor, may be input; reduce_scatter: the own shard
  std::optional<RangeGeometry> geometry{};
  Rank self = 0;
  uint32_t op = 0;
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::own;
  bool own_exact = false;  // as Codec::own_exact
  double loss_budget = 0.05;
  // Nothing may be missing: a range that is missing when a phase closes, or a lost link, ends the operation. Requires that its
  // phases complete.
  bool reliable = false;
  std::array<LossyPhaseSetup, lossy_phases> phases{};
  std::array<Nanos, lossy_phases> announced{};  // t_hard of each phase, sent to the other ranks
  // all_gather: by rank, the ranges of its shard that must arrive, ascending; may have fewer entries than ranks.
  std::vector<std::vector<uint32_t>> needed{};
  Nanos needed_hard = 0;   // how long needed ranges are requested from a rank that is not silent
  Nanos deadline = never;  // absolute; an operation that is not complete then ends with late
};

// State of one stream.
struct LossyStream {
  RangeArrivals arrivals;
  StreamClock clock;
  uint64_t duplicate = 0, late = 0, repaired = 0;  // datagrams
  uint32_t missing = 0;                            // ranges, when its phase closed
  uint32_t needed = 0;                             // needed ranges that are still missing
  Nanos asked = -1;                                // time of the last repair request; -1: never
  Nanos ask_at = never;
  bool all_sent = false;   // its `end` arrived
  bool lost = false;       // its link is gone
  bool confirmed = false;  // it has ended, and its sender was notified that nothing more is needed
  // Arrivals before the phase began at this rank.
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

  // A datagram of this operation. none: it was accepted.
  DatagramFault data(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  void end_seen(Rank from, const DatagramHeader& header, Nanos now);
  void wake(Nanos now);
  // Next time at which wake() must be called even if nothing arrives.
  Nanos due() const;
  // The link to a rank is gone, so its streams receive nothing more.
  void peer_lost(Rank rank, const Status& why, Nanos now);
  // Ends the operation now with the data that arrived: this rank is `operations` behind the others.
  void fall_behind(uint32_t operations, Nanos now);
  void fail(const Status& why, Nanos now);

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // Call after done(). The sent data is kept until then, as other ranks may request it again.
  void drop_streams();

  const LossyPhase& phase(uint32_t number) const { return phases_[number]; }
  // After phase 0 has closed: by range of the own shard, the number of contributions in it; 1: only this rank's.
  std::span<const uint16_t> contributors() const { return contributors_; }
  struct RangeCounts {
    uint64_t full = 0, reduced = 0, empty = 0;
  };
  const RangeCounts& range_counts() const { return counts_; }
  double effective_contributors() const { return effective_; }
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
  void keep(uint32_t phase, Rank from, uint32_t range, std::span<const std::byte> payload);
  void step(uint32_t number, Rank from, Nanos now);
  Nanos silent_at(uint32_t number, Rank from) const;
  uint32_t deadline_us(uint32_t phase) const;
  void step_all(Nanos now);
  bool all_ended(const LossyPhase& phase) const;
  void close_phase(uint32_t number, Nanos now);
  bool reduce_shard();
  uint32_t run_of(uint32_t first) const;
  void reduce_run(uint32_t first, uint32_t count);
  void ask_for(uint32_t number, Rank from, LossyStream& stream, Nanos now);
  bool lacks(uint32_t number, const LossyStream& stream) const;
  bool lacks_much(uint32_t number, const LossyStream& stream) const;
  std::span<const uint32_t> needed_of(uint32_t number, Rank from) const;
  void finish(Status status, Nanos now);
  Status incomplete(uint32_t number) const;

  LossySetup setup_;
  StreamPort* port_ = nullptr;
  std::array<LossyPhase, lossy_phases> phases_;
  std::vector<Nanos> last_seen_;     // by rank: time of the last datagram of this operation; -1: none yet
  std::vector<std::byte> outgoing_;  // encoded contributions, shard after shard
  std::vector<size_t> outgoing_at_;  // offset by owner
  std::vector<std::byte> staging_;   // received contributions to the own shard, sender after sender
  std::vector<std::byte> result_;    // the own shard, encoded
  std::vector<float> wide_;          // the own shard in fp32 if it is encoded from a 16-bit tensor, to round only once
  std::vector<uint16_t> contributors_;
  std::vector<const std::byte*> present_;  // messages of one range, by rank
  RangeEstimator estimator_;
  kernels::BlockCounts blocks_;
  RangeCounts counts_;
  double effective_ = 0;
  uint32_t behind_ = 0;
  bool done_ = true, sending_ = false;
  Status status_;
  Nanos started_ = 0, ended_ = 0;
};

}  // namespace unisono
