// Counts what happens in a simulated run over UDP. When a call ends, it is added once, with its report and its result. Performs
// no I/O.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "executor/completion.h"
#include "lab/loss/udp_run.h"
#include "lossy/range_geometry.h"

namespace unisono::sim {

// The members that a group has from one formation to the next, and the operations in this time.
struct UdpMembership {
  std::vector<PeerIndex> members;  // by rank: the process of the member
  uint64_t first_operation = 0;    // number of the first operation of these members, counted from the start of the run
  std::optional<RangeGeometry> geometry;
  Nanos began = 0;

  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  Rank rank_of(PeerIndex process) const;  // returns world() if the process is not a member
};

class UdpTally {
 public:
  explicit UdpTally(const UdpRunSettings& settings);

  void begin(const UdpMembership& membership) { membership_ = membership; }
  const UdpMembership& membership() const { return membership_; }
  // Writes the contribution of `rank`. In the shard of rank r, the rank (r + d) mod N has the values fixed_gradient(d, N). A
  // mark is added to each value that shows the position of the element.
  void fill(Rank rank, std::vector<float>& values) const;
  // How one call of one process ended. now: the time since the first operation began.
  struct Ended {
    PeerIndex process = 0;
    const Completion& completion;
    std::span<const float> result;
    Nanos now = 0;
  };
  void ended(const Ended& call, const SocketNetwork& network);
  // Returns the ranks that sent nothing in this call.
  std::vector<Rank> silent_ranks(const Completion& completion) const;
  // True if the process is slow, if it is absent, or if it came back a short time before. at: the time since the first
  // operation began.
  bool is_away(PeerIndex process, Nanos at) const;
  void removed(PeerIndex process);
  // Stops counting and returns the results.
  UdpOutcome finish(const SocketNetwork& network, Nanos now);

 private:
  struct Operation {
    bool is_known = false;
    uint32_t checksum = 0;  // checksum of the first result; the results of all other ranks must have the same one
    std::vector<int64_t> durations_us{};
    uint64_t data_sent = 0, data_overflowed = 0;  // what the network had counted when the first call of the operation ended
    uint64_t expected = 0, missing = 0;
  };

  bool is_absent(PeerIndex process, Nanos at) const;
  bool is_any_away(Nanos now) const;
  void note_names(const Ended& call);
  void note_delivery(const Ended& call, Operation& operation);
  void note_phase(const DeliveryReport::Phase& phase, int64_t hard_us, PhaseTally& tally);
  void note_delay(const Ended& call, int64_t hard_us);
  void note_result(const Ended& call, Operation& operation);
  void measure(std::span<const float> result);
  void note_fates(const SocketNetwork& network, Operation& operation);

  const UdpRunSettings settings_;
  UdpMembership membership_;
  UdpOutcome outcome_;
  std::vector<Operation> operations_;
  DatagramFates before_;  // what the network had counted when the first measured operation began
  std::array<DatagramFates, 2> data_before_{};
  bool measuring_ = false;
  double effective_sum_ = 0;
  uint64_t effective_count_ = 0;
  // [fault][process]: true if an error of the process has named the rank that has the fault
  std::vector<std::vector<bool>> named_by_;
};

}  // namespace unisono::sim
