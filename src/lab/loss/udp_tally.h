// Counts of a simulated run over UDP: each call that ends is added once, with its report and its result. Pure.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "executor/completion.h"
#include "lab/loss/udp_run.h"
#include "lossy/range_geometry.h"

namespace unisono::sim {

// The members of a group, from when it formed until it formed again.
struct UdpEra {
  std::vector<PeerIndex> members;  // by rank
  uint64_t first_operation = 0;    // of the run: its operations are numbered on
  std::optional<RangeGeometry> geometry;
  Nanos began = 0;

  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  Rank rank_of(PeerIndex process) const;  // world() if it is none
};

class UdpTally {
 public:
  explicit UdpTally(const UdpRunSettings& settings);

  void begin(const UdpEra& era) { era_ = era; }
  const UdpEra& era() const { return era_; }
  // Writes the contribution of `rank`. In every shard the owner's values are fixed_gradient(0, N), and those of the rank d
  // positions after it fixed_gradient(d, N). Each value also carries a mark of its element's index.
  void fill(Rank rank, std::vector<float>& values) const;
  // A call of one process that ended. now: since the first operation began.
  struct Ended {
    PeerIndex process = 0;
    const Completion& completion;
    std::span<const float> result;
    Nanos now = 0;
  };
  void ended(const Ended& call, const SocketNetwork& network);
  // The ranks from which nothing came in this call.
  std::vector<Rank> silent_ranks(const Completion& completion) const;
  // Slow, absent, or back only shortly; at: since the first operation began.
  bool is_away(PeerIndex process, Nanos at) const;
  void removed(PeerIndex process);
  // Ends the tally and returns its sums.
  UdpOutcome finish(const SocketNetwork& network, Nanos now);

 private:
  struct Operation {
    bool is_known = false;
    uint32_t checksum = 0;  // of the first result
    std::vector<int64_t> durations_us{};
    uint64_t data_sent = 0, data_overflowed = 0;  // on the network, when the first call of it ended
    uint64_t expected = 0, missing = 0;
  };

  bool is_absent(PeerIndex process, Nanos at) const;
  bool anybody_away(Nanos now) const;
  void note_names(const Ended& call);
  void note_delivery(const Ended& call, Operation& operation);
  void note_phase(const DeliveryReport::Phase& phase, int64_t hard_us, PhaseTally& tally);
  void note_kept(const Ended& call, int64_t hard_us);
  void note_result(const Ended& call, Operation& operation);
  void measure(std::span<const float> result);
  void note_fates(const SocketNetwork& network, Operation& operation);

  const UdpRunSettings settings_;
  UdpEra era_;
  UdpOutcome outcome_;
  std::vector<Operation> operations_;
  DatagramFates before_;  // of the network, when measuring began
  std::array<DatagramFates, 2> data_before_{};
  bool measuring_ = false;
  double effective_sum_ = 0;
  uint64_t effective_count_ = 0;
  std::vector<std::vector<bool>> named_by_;  // by fault, by process
};

}  // namespace unisono::sim
