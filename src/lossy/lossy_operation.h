// One lossy collective on one rank: what arrives in time is reduced, what does not is replaced in expectation, or keeps its old
// value.
//
// A state machine: events come in as calls with `now`, requests go out through StreamPort. Phase 0: every rank sends each owner
// its contribution to the owner's shard. When phase 0 closes the owner reduces its shard. Phase 1: every owner sends its shard
// to everybody. all_reduce has both, its second one repaired until complete; reduce_scatter has phase 0, all_gather phase 1
// only. A range that is missing when phase 1 closes stays as it was in the output. Order and repetition of datagrams cannot
// change a bit of the result. After warm-up nothing is allocated. Source: docs/design/methods/packet_loss.md; arXiv 2507.07114.
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
// A rank that was heard in an operation is given at least so long, whatever LossyPhaseSetup::silent says: four questions may be
// unanswered.
inline constexpr Nanos lossy_silence_min = 20 * millisecond;

struct LossyPhaseSetup {
  StreamLimits limits;
  bool completes = false;  // repaired until nothing is missing
  Nanos silent = never;    // and then only as long as its sender shows that it lives: this long without anything of it, in any
                           // phase, ends a stream
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
  bool reliable =
      false;  // nothing may be missing: what is when a phase closes, or a link is lost, ends the operation. Its phases complete
  std::array<LossyPhaseSetup, lossy_phases> phases{};
  std::array<Nanos, lossy_phases> announced{};  // t_hard of each phase, for others
  std::vector<std::vector<uint32_t>> needed{};  // all_gather: by rank, which of its ranges must come, ascending; may be shorter
  Nanos needed_hard = 0;                        // how long a rank of which some are needed is asked, if it shows that it lives
  Nanos deadline = never;                       // absolute; what is not complete then ends with late
};

// What happened to one stream.
struct LossyStream {
  RangeArrivals arrivals;
  StreamClock clock;
  uint64_t duplicate = 0, late = 0, repaired = 0;  // datagrams
  uint32_t missing = 0;                            // ranges, when its phase closed
  uint32_t needed = 0;                             // of those that must come: how many are still missing
  Nanos asked = -1;                                // when it was last asked for; -1: never
  Nanos ask_at = never;
  bool all_sent = false;   // its end was heard
  bool lost = false;       // its link is gone
  bool confirmed = false;  // it has ended, and its sender was told that nothing more is wanted
  // What came before the phase began here.
  Nanos early_first = never, early_last = never;
  bool early_tail = false, early_end = false;
};

struct LossyPhase {
  bool runs = false;  // the collective has it
  bool open = false, closed = false;
  Nanos start = 0, close = 0;
  std::vector<LossyStream> streams;  // by rank; this rank's is not used
};

class LossyOperation {
 public:
  // To be filled in before start(); the former operation is over and its streams are dropped.
  LossySetup& new_setup() { return setup_ = {}; }
  const LossySetup& setup() const { return setup_; }
  void start(StreamPort& port, Nanos now);

  // A datagram of this operation. none: it was used.
  DatagramFault data(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  void end_seen(Rank from, const DatagramHeader& header, Nanos now);
  void wake(Nanos now);
  // When wake() must be called even if nothing arrives.
  Nanos due() const;
  // The link to a rank is gone: nothing more comes of its streams.
  void peer_lost(Rank rank, const Status& why, Nanos now);
  // Ends it now with what is there: this rank has fallen behind the others by so many operations.
  void fall_behind(uint32_t operations, Nanos now);
  void fail(const Status& why, Nanos now);

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  // Once done: the sender's side is kept until then, because others may ask for it again.
  void drop_streams();

  const LossyPhase& phase(uint32_t number) const { return phases_[number]; }
  // Of the own shard, once phase 0 is closed: by range, how many ranks' contributions are in it; 1: nobody else's.
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
  std::vector<Nanos> heard_;         // by rank: anything of this operation, last; -1: nothing yet
  std::vector<std::byte> outgoing_;  // contributions, shard after shard, encoded
  std::vector<size_t> outgoing_at_;  // by owner
  std::vector<std::byte> staging_;   // received contributions to the own shard, sender after sender
  std::vector<std::byte> result_;    // the own shard, encoded
  std::vector<float> wide_;          // the own shard, where it is encoded from a 16-bit tensor: rounded once only
  std::vector<uint16_t> contributors_;
  std::vector<const std::byte*> present_;  // of one range, by rank
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
