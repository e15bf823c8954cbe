// The cost of schedules if the links between hosts differ in speed. Two schedules can be fitted (adapted) to such links.
//
// In a two-step all-reduce, the owner of a part receives the part from all ranks, and sends the sum to all ranks. So the link
// between ranks i and j carries (share of i + share of j) of the tensor in each direction. A rank behind a slow link gets a
// small share, and so do two ranks with a slow link between them. Sums are still added in rank order.
//
// A ring uses only the links between neighbours, so it can be ordered in such a way that it avoids slow links where possible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "schedules/host_links.h"
#include "schedules/make.h"

namespace unisono {

class UnevenLinks {
 public:
  // Creates the object for a group in which ranks have these host group numbers. Returns null if
  // - there are fewer than three hosts
  // - all links are similar: rates within a factor of 1.5, and latencies within a factor of 3 or all below 100 us
  // - there are more than 64 hosts or 256 ranks, so that the search would take too long
  //
  // A pair that was not measured gets the median speed.
  static std::unique_ptr<UnevenLinks> find(std::span<const uint32_t> host_groups, const HostLinks& links);

  struct Which {
    Collective collective = Collective::all_reduce;
    ScheduleKind kind = ScheduleKind::two_step, inner = ScheduleKind::automatic, outer = ScheduleKind::automatic;
    // True: in a two_step all_reduce, the parts are as in shares(), not equal; a ring has the order ring_order().
    bool fitted = false;
    friend auto operator<=>(const Which&, const Which&) = default;
  };
  struct Cost {
    double us_per_byte = 0;  // time per byte of the tensor, on the link or host that is busiest
    double latency_us = 0;   // latency of the slowest link among those that are used
  };
  // Returns the cost of one schedule. In rooted collectives, rank 0 is the root. The first call for a schedule computes its
  // cost from the schedules of all ranks.
  const Cost& cost(const Which& which) const;

  // In a fitted two-step all-reduce, rank r owns shares()[r] / (sum of all shares) of the tensor. The search gives small parts
  // to the ranks, one by one. Each part goes to the rank with which the busiest link or host is least busy.
  const std::vector<uint32_t>& shares() const { return shares_; }
  // Returns all ranks in the best order that was found for a ring. Ranks of one host are adjacent. The search reverses sections
  // of the order while this makes the slowest link faster, or makes the whole ring faster at the same slowest link.
  const std::vector<Rank>& ring_order() const { return ring_order_; }
  // Returns whether the schedule has a fitted form.
  static bool can_fit(Collective collective, ScheduleKind kind);

 private:
  using Matrix = std::vector<double>;  // bytes from one host group to another, in units of the tensor

  UnevenLinks(std::span<const uint32_t> host_groups, std::vector<LinkSpeed> speeds);
  Matrix traffic_of(const Which& which) const;
  Cost cost_of(const Matrix& traffic) const;
  void assign_shares();
  void find_ring_order();
  size_t cell(uint32_t a, uint32_t b) const { return size_t{a} * count_ + b; }
  double rate(uint32_t a, uint32_t b) const { return speeds_[cell(a, b)].bytes_per_us; }

  std::vector<uint32_t> host_group_;  // index of each rank's host group, without gaps
  uint32_t count_ = 0;                // number of host groups
  std::vector<LinkSpeed> speeds_;     // count_ x count_ matrix
  std::vector<double> host_rate_;     // rate of the fastest link of each host group
  std::vector<uint32_t> shares_;
  std::vector<Rank> ring_order_;
  mutable std::map<Which, Cost> costs_;
};

}  // namespace unisono
