// Lossy all-reduces of whole ranks over a simulated network, one after the other, and what came of them: how they ended, how
// long they took, what was lost where, whether results were equal and right on average, and which rank was named when one died.
//
// Ranks that lose contact with one that died form the group again without it, as Group::reform does, but at once: how
// membership agrees is scenario `reform`'s business. Everything is counted in the run itself; what it should come to is in
// lab/loss/loss_network.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/loss_model.h"
#include "sim/loss_statistics.h"
#include "sim/udp/socket_network.h"
#include "sim/udp/udp_model.h"
#include "unisono/delivery.h"

namespace unisono::sim {

struct UdpRunSettings {
  UdpModel model;
  LossModel loss;
  uint32_t peers = 8;
  uint64_t bytes = 1u << 20;  // of the f32 tensor of every operation
  uint64_t operations = 200;
  uint64_t burn_in = 50;  // the first ones, of which only failures and differences count
  DeliveryOptions delivery;
  uint64_t seed = 0;
};
// invalid: what does not go together, named.
Status check(const UdpRunSettings& settings);

// Ranges of one phase, over all ranks.
struct PhaseTally {
  uint64_t expected = 0, missing = 0, repaired = 0;
  uint64_t phases = 0, over = 0;  // phases that were not to learn; of them, longer than t_hard and what is allowed beside it
  double longest = 0;             // of them, duration over t_hard
  void append(const PhaseTally& other);
};

// Contributions of the senders at one distance from the owner, as long as the group is whole.
struct SenderTally {
  uint64_t expected = 0, missing = 0;
  double share() const { return expected == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(expected); }
};

// The history of a fault, as the ranks saw it.
struct FaultStory {
  PeerFault fault;
  bool happened = false;                          // false: the run was over before
  bool removed = false;                           // the others went on without it
  Nanos first_named = never, last_named = never;  // since the fault began: by the first rank, and by the last
  uint32_t named_by = 0, to_be_named_by = 0;      // ranks: that named it in an error; that were there and well
};

struct OperationPoint {
  uint64_t number = 0;
  int64_t median_us = 0, longest_us = 0;  // of the ranks that ended well
  double overflowed = 0, missing = 0;     // shares of datagrams with data; of contributions, when phases closed
};

struct UdpOutcome {
  uint32_t datagram_bytes = 0, ranges = 0;  // of a shard
  std::map<Code, uint64_t> ended;           // calls, with all that were not measured
  uint64_t behind = 0;                      // of them, by ranks that had been away
  uint64_t failed_of_well = 0;              // calls that failed although no peer was away by then
  uint64_t innocent_named = 0;              // times that a healthy rank was named by a healthy rank
  std::string first_innocent;               // that message
  uint64_t differing = 0, strange = 0;      // results that differ from another rank's; elements that no contributions can give
  std::vector<int64_t> durations_us;        // of calls that ended well
  PhaseTally contributions, results;
  // kept: calls during which a member was away. kept_over: those of them that the absence kept longer than
  // t_hard + max(t_hard, lossy_silence_min) plus a tolerance.
  uint64_t kept = 0, kept_over = 0;
  double longest_kept = 0;  // the longest time that an absence kept a call, divided by t_hard
  // The statistics from here on cover healthy ranks only.
  std::array<uint64_t, 7> ends{};        // streams of contributions, by DeliveryReport::End
  std::vector<SenderTally> by_distance;  // 0 is the owner itself
  std::map<PeerIndex, uint64_t> silent;  // streams that were silent or lost, by process
  uint64_t ranges_full = 0, ranges_short = 0, ranges_empty = 0;
  double effective = 0;  // N_eff, the mean
  BlockMeans deviation, square,
      away_share;                       // of results from the true mean, by operation; of contributions that are not in them
  DatagramFates fates;                  // of all datagrams
  std::array<DatagramFates, 2> data{};  // of contributions, of results
  std::vector<FaultStory> faults;
  std::vector<OperationPoint> curve;
  uint64_t trace_hash = 0, events = 0, operations = 0;
  Nanos linked = 0, virtual_time = 0;  // from nothing to a group; of the operations
  uint32_t members = 0;                // in the end
  bool is_stuck = false;               // operations did not end

  // The quantile `part` (0 to 1) of the durations of the calls that ended well; 0 if none did.
  int64_t duration_us(double part) const;
  void append(const UdpOutcome& other);
};

// progress: called now and then with the operations done since the last call.
Result<UdpOutcome> run_udp(const UdpRunSettings& settings, const std::function<void(uint64_t)>& progress = nullptr);

}  // namespace unisono::sim
