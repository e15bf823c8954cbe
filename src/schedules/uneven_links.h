// The cost of schedules where the links between hosts differ from each other. Two schedules can be fitted to such links.
//
// In a two-step all-reduce the owner of a part receives it from everybody and sends the sum to everybody, so the link between
// ranks i and j carries (share of i + share of j) of the tensor each way. The shares decide which links are used: a rank behind
// a slow link owns little, and two ranks with a slow link between them own little both. Rank order of the sums is not touched.
// A ring uses the links between neighbours only, so it goes around in an order in which no neighbours have a slow link, if
// there is one.
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
  // Makes one for a group with these host group numbers. Null where nothing is gained from knowing pairs: fewer than three
  // hosts, links that are alike (rates within 1.5, latencies within 3 or all below 100 us), or more than 64 hosts or 256 ranks,
  // for which it would take too long. Pairs that were not measured count as the median of the others.
  static std::unique_ptr<UnevenLinks> find(std::span<const uint32_t> host_groups, const HostLinks& links);

  struct Which {
    Collective collective = Collective::all_reduce;
    ScheduleKind kind = ScheduleKind::two_step, inner = ScheduleKind::automatic, outer = ScheduleKind::automatic;
    bool fitted = false;  // two_step all_reduce: parts as shares() says, not equal ones; ring: as around() goes
    friend auto operator<=>(const Which&, const Which&) = default;
  };
  struct Cost {
    double us_per_byte = 0;  // time per byte of the tensor, on the busiest link or host
    double latency_us = 0;   // latency of the slowest link in use
  };
  // The cost of one schedule; rooted collectives have rank 0 as the root. The first call computes it from the schedules of all
  // ranks.
  const Cost& cost(const Which& which) const;

  // Per rank, in parts of the sum of all: what each should own in a two-step all-reduce. They are found one small part after
  // the other, each given to the rank where the busiest link or host stays least busy.
  const std::vector<uint32_t>& shares() const { return shares_; }
  // All ranks, those of one host together. Found by reversing parts of the way while that makes its slowest link faster, or all
  // of it.
  const std::vector<Rank>& around() const { return around_; }
  // Whether there is a fitted form.
  static bool can_fit(Collective collective, ScheduleKind kind);

 private:
  using Matrix = std::vector<double>;  // parts of the tensor from host group to host group

  UnevenLinks(std::span<const uint32_t> host_groups, std::vector<LinkSpeed> speeds);
  Matrix traffic_of(const Which& which) const;
  Cost cost_of(const Matrix& traffic) const;
  void deal_shares();
  void find_way_around();
  size_t cell(uint32_t a, uint32_t b) const { return size_t{a} * count_ + b; }
  double rate(uint32_t a, uint32_t b) const { return speeds_[cell(a, b)].bytes_per_us; }

  std::vector<uint32_t> host_group_;  // by rank, without gaps
  uint32_t count_ = 0;                // of host groups
  std::vector<LinkSpeed> speeds_;     // count_ x count_
  std::vector<double> host_rate_;     // of each host group: the best of its links
  std::vector<uint32_t> shares_;
  std::vector<Rank> around_;
  mutable std::map<Which, Cost> costs_;
};

}  // namespace unisono
