// Runs lossy all-reduces, one after another, on whole ranks over a simulated network. Counts how calls end, how long they take,
// and how much data is lost. Checks whether results are equal on all ranks and correct on average, and whether errors name the
// right rank.
//
// If ranks lose contact with a dead rank, they form the group again without it. Group::reform does the same, but here it takes
// no time; how the members agree is tested in the scenario `reform`. All numbers are counted in the run; lab/loss/loss_network
// compares them with what is expected.
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

inline constexpr uint64_t udp_bytes_max = 256u << 20;  // the largest tensor of an operation

struct UdpRunSettings {
  UdpModel model;
  LossModel loss;
  uint32_t peers = 8;
  uint64_t bytes = 1u << 20;  // size of the f32 tensor that each operation reduces
  uint64_t operations = 200;
  uint64_t burn_in = 50;  // in this many operations at the start, only failures and wrong results are counted
  DeliveryOptions delivery;
  uint64_t seed = 0;
};
// Fails with Code::invalid if settings contradict each other; the message names these settings.
Status check(const UdpRunSettings& settings);

// Counts the ranges of one phase, over all ranks.
struct PhaseTally {
  uint64_t expected = 0, missing = 0, repaired = 0;
  // phases: the number of phases after the learning phase. over: how many of these took longer than t_hard plus a tolerance.
  uint64_t phases = 0, over = 0;
  double longest = 0;  // duration of the longest of these phases, divided by t_hard
  void append(const PhaseTally& other);
};

// Counts the contributions of senders at one distance from the owner. They are counted only as long as no member has left the
// group.
struct SenderTally {
  uint64_t expected = 0, missing = 0;
  double share() const { return expected == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(expected); }
};

// The outcome of a fault in the plan, and which ranks noticed it.
struct FaultRecord {
  PeerFault fault;
  bool happened = false;  // false: the run ended before the fault began
  bool removed = false;   // the group was formed again without the process
  // How long it took, from the start of the fault, until an error named the process. first_named: on any rank. last_named: on
  // the last healthy rank.
  Nanos first_named = never, last_named = never;
  // named_by: number of healthy ranks on which an error named the process. to_be_named_by: number of all healthy ranks.
  uint32_t named_by = 0, to_be_named_by = 0;
};

struct OperationPoint {
  uint64_t number = 0;
  int64_t median_us = 0, longest_us = 0;  // over the ranks whose call succeeded
  // overflowed: fraction of the datagrams with data that queues dropped. missing: fraction of the contributions that were
  // missing when the phase closed.
  double overflowed = 0, missing = 0;
};

struct UdpOutcome {
  uint32_t datagram_bytes = 0, ranges = 0;  // ranges: the number of ranges in a shard
  std::map<Code, uint64_t> ended;           // how many calls ended with each code; includes operations before burn_in
  uint64_t behind = 0;  // number of calls that ended behind those of the other ranks, because their rank had been away
  uint64_t failed_without_fault = 0;  // number of calls that failed while no peer was away
  uint64_t wrongly_named = 0;         // how often an error on a healthy rank named a healthy rank
  std::string first_wrong_error;      // message of the first such error
  // differing: number of results that differ from the result of another rank. out_of_range: number of elements that are below
  // or above all contributions.
  uint64_t differing = 0, out_of_range = 0;
  std::vector<int64_t> durations_us;  // of the calls that succeeded
  PhaseTally contributions, results;
  // delayed: number of calls during which a member was away. delayed_over: number of calls that this may have delayed by more
  // than t_hard + max(t_hard, lossy_silence_min), plus a tolerance.
  uint64_t delayed = 0, delayed_over = 0;
  double longest_delay = 0;  // longest time for which an absence may have delayed a call, divided by t_hard
  // The members from `ends` to `effective` count only ranks that were not absent.
  std::array<uint64_t, 7> ends{};  // how many streams with contributions ended in each way; the index is DeliveryReport::End
  std::vector<SenderTally> by_distance;  // indexed by the distance of the sender from the owner; index 0 is the owner itself
  std::map<PeerIndex, uint64_t> silent;  // by process that sends: how many of its streams were silent or lost
  uint64_t ranges_full = 0, ranges_short = 0, ranges_empty = 0;
  double effective = 0;  // mean of N_eff (the effective number of contributors)
  // deviation: the result minus the true mean. square: deviation^2. away_share: the fraction of the contributions that are
  // missing in results.
  BlockMeans deviation, square, away_share;
  DatagramFates fates;                  // what became of all datagrams
  std::array<DatagramFates, 2> data{};  // what became of the datagrams with contributions, and of those with results
  std::vector<FaultRecord> faults;
  std::vector<OperationPoint> curve;
  uint64_t trace_hash = 0, events = 0, operations = 0;
  // linked: how long it took to link all processes. virtual_time: how long the operations took.
  Nanos linked = 0, virtual_time = 0;
  uint32_t members = 0;   // number of members when the run ended
  bool is_stuck = false;  // the time limit of the run passed before all operations had ended

  // Returns a quantile of the durations of the calls that succeeded. part: 0 to 1. Returns 0 if no call succeeded.
  int64_t duration_us(double part) const;
  void append(const UdpOutcome& other);
};

// progress: called from time to time, with the number of operations that have ended since the last call.
Result<UdpOutcome> run_udp(const UdpRunSettings& settings, const std::function<void(uint64_t)>& progress = nullptr);

}  // namespace unisono::sim
