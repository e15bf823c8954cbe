#include "schedules/uneven_links.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace unisono {
namespace {

constexpr uint32_t hosts_min = 3, hosts_max = 64, ranks_max = 256;
constexpr double rate_ratio_max = 1.5, latency_ratio_max = 3, significant_latency_us = 100;
// To find the shares of the ranks, the tensor is divided into world * parts_per_rank parts.
constexpr uint32_t parts_per_rank = 16;

// Renumbers host groups in the order in which they appear: 0, 1, 2, and so on. `numbers` receives their original numbers.
std::vector<uint32_t> without_gaps(std::span<const uint32_t> host_groups, std::vector<uint32_t>& numbers) {
  std::vector<uint32_t> result;
  for (const auto host_group : host_groups) {
    const auto known = std::find(numbers.begin(), numbers.end(), host_group);
    result.push_back(static_cast<uint32_t>(known - numbers.begin()));
    if (known == numbers.end()) numbers.push_back(host_group);
  }
  return result;
}

// Returns the time that a link needs for `parts`. It is an integer, so that it is equal on all machines.
uint64_t link_time(uint64_t parts, double bytes_per_us) {
  return (parts << 32) / static_cast<uint64_t>(std::clamp(bytes_per_us * 1024, 1.0, 0x1p52));
}

bool are_similar(const std::vector<double>& rates, const std::vector<double>& latencies) {
  const auto [slowest, fastest] = std::minmax_element(rates.begin(), rates.end());
  const auto [nearest, farthest] = std::minmax_element(latencies.begin(), latencies.end());
  return *fastest <= *slowest * rate_ratio_max &&
         (*farthest <= *nearest * latency_ratio_max || *farthest < significant_latency_us);
}

}  // namespace

std::unique_ptr<UnevenLinks> UnevenLinks::find(std::span<const uint32_t> host_groups, const HostLinks& links) {
  std::vector<uint32_t> numbers;
  without_gaps(host_groups, numbers);
  const auto count = static_cast<uint32_t>(numbers.size());
  const bool known = std::all_of(numbers.begin(), numbers.end(), [&](uint32_t number) { return number < links.hosts; });
  if (!known || count < hosts_min || count > hosts_max || host_groups.size() > ranks_max) return nullptr;
  std::vector<double> rates, latencies;
  for (uint32_t b = 1; b < count; ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const auto& link = links.between(numbers[a], numbers[b]);
      if (link.bytes_per_us > 0) rates.push_back(link.bytes_per_us), latencies.push_back(link.latency_us);
    }
  }
  if (rates.empty() || are_similar(rates, latencies)) return nullptr;
  const LinkSpeed usual{.latency_us = median(latencies), .bytes_per_us = median(rates)};
  std::vector<LinkSpeed> speeds(size_t{count} * count);
  for (uint32_t a = 0; a < count; ++a) {
    for (uint32_t b = 0; b < count; ++b) {
      if (a == b) continue;
      const auto& link = links.between(numbers[a], numbers[b]);
      speeds[size_t{a} * count + b] = link.bytes_per_us > 0 ? link : usual;
    }
  }
  return std::unique_ptr<UnevenLinks>(new UnevenLinks(host_groups, std::move(speeds)));
}

UnevenLinks::UnevenLinks(std::span<const uint32_t> host_groups, std::vector<LinkSpeed> speeds) : speeds_(std::move(speeds)) {
  std::vector<uint32_t> numbers;
  host_group_ = without_gaps(host_groups, numbers);
  count_ = static_cast<uint32_t>(numbers.size());
  for (uint32_t a = 0; a < count_; ++a) {
    double best = 0;
    for (uint32_t b = 0; b < count_; ++b) best = std::max(best, rate(a, b));
    host_rate_.push_back(best);
  }
  assign_shares();
  find_ring_order();
}

// Assigns the parts to owners one by one. A part goes to the rank with which the busiest link or host is least busy. To compare
// two ranks, it is enough to look at the links of their host groups, and at all hosts, because a part adds traffic only there.
void UnevenLinks::assign_shares() {
  const auto world = static_cast<uint32_t>(host_group_.size());
  const auto parts = world * parts_per_rank;
  std::vector<uint32_t> ranks_of(count_, 0);
  for (const auto host_group : host_group_) ++ranks_of[host_group];
  std::vector<uint64_t> pair(size_t{count_} * count_, 0);  // parts that are sent in each direction between two host groups
  std::vector<uint64_t> host(count_, 0);                   // parts that leave a host group
  shares_.assign(world, 0);
  uint64_t busiest = 0;
  const auto busiest_with = [&](uint32_t owner) {
    uint64_t most = link_time(host[owner] + world - ranks_of[owner], host_rate_[owner]);
    for (uint32_t other = 0; other < count_; ++other) {
      if (other == owner) continue;
      most = std::max({most, link_time(pair[cell(owner, other)] + ranks_of[other], rate(owner, other)),
                       link_time(host[other] + ranks_of[other], host_rate_[other])});
    }
    return most;
  };
  for (uint32_t part = 0; part < parts; ++part) {
    std::vector<uint64_t> with(count_);
    for (uint32_t host_group = 0; host_group < count_; ++host_group) with[host_group] = busiest_with(host_group);
    const auto better = [&](Rank a, Rank b) {
      const auto busiest_a = std::max(busiest, with[host_group_[a]]), busiest_b = std::max(busiest, with[host_group_[b]]);
      if (busiest_a != busiest_b) return busiest_a < busiest_b;
      if (shares_[a] != shares_[b] && host_group_[a] == host_group_[b]) return shares_[a] < shares_[b];
      return with[host_group_[a]] < with[host_group_[b]];
    };
    Rank best = 0;
    for (Rank rank = 1; rank < world; ++rank) {
      if (better(rank, best)) best = rank;
    }
    const auto owner = host_group_[best];
    busiest = std::max(busiest, with[owner]);
    ++shares_[best];
    host[owner] += world - ranks_of[owner];
    for (uint32_t other = 0; other < count_; ++other) {
      if (other == owner) continue;
      host[other] += ranks_of[other];
      pair[cell(owner, other)] += ranks_of[other];
      pair[cell(other, owner)] += ranks_of[other];
    }
  }
}

// Finds the order of hosts for a ring. The length of a link is its time per byte. One order is better than another if its
// longest link is shorter. If the longest links are equal, the order with the smaller sum of lengths is better.
void UnevenLinks::find_ring_order() {
  std::vector<uint32_t> order(count_);
  std::iota(order.begin(), order.end(), 0u);
  const auto length = [&](const std::vector<uint32_t>& hosts) {
    std::pair<uint64_t, uint64_t> slowest_and_all{0, 0};
    for (uint32_t i = 0; i < count_; ++i) {
      const auto link = link_time(1, rate(hosts[i], hosts[(i + 1) % count_]));
      slowest_and_all.first = std::max(slowest_and_all.first, link);
      slowest_and_all.second += link;
    }
    return slowest_and_all;
  };
  const auto improve = [&] {
    for (uint32_t begin = 1; begin + 1 < count_; ++begin) {
      for (uint32_t end = begin + 2; end <= count_; ++end) {
        auto other = order;
        std::reverse(other.begin() + begin, other.begin() + end);
        if (length(other) < length(order)) return order = std::move(other), true;
      }
    }
    return false;
  };
  for (uint32_t turns = 0; turns < count_ * count_ && improve();) ++turns;
  for (const auto host : order) {
    for (Rank rank = 0; rank < host_group_.size(); ++rank) {
      if (host_group_[rank] == host) ring_order_.push_back(rank);
    }
  }
}

bool UnevenLinks::can_fit(Collective collective, ScheduleKind kind) {
  if (kind == ScheduleKind::two_step) return collective == Collective::all_reduce;
  return kind == ScheduleKind::ring && (collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
                                        collective == Collective::all_gather);
}

// Counts the bytes that are sent between host groups, in units of the tensor. For this, the schedules of all ranks are made.
UnevenLinks::Matrix UnevenLinks::traffic_of(const Which& which) const {
  const auto world = static_cast<uint32_t>(host_group_.size());
  const double all_shares = static_cast<double>(world) * parts_per_rank;
  Matrix traffic(size_t{count_} * count_, 0);
  for (Rank rank = 0; rank < world; ++rank) {
    const auto schedule =
        make_schedule({.collective = which.collective,
                       .kind = which.kind,
                       .world = world,
                       .rank = rank,
                       .host_groups = host_group_,
                       .inner = which.inner,
                       .outer = which.outer,
                       .ring_order = which.fitted && which.kind == ScheduleKind::ring ? std::span<const Rank>(ring_order_)
                                                                                      : std::span<const Rank>()});
    if (!schedule) continue;  // impossible schedules are excluded by choose()
    // In an all-to-all, a chunk is the block for a pair of ranks, so the input of one rank has `world` chunks.
    const double chunks = which.collective == Collective::all_to_all ? world : std::max(1u, schedule->chunk_count);
    for (const auto& step : schedule->steps) {
      if (step.op != Op::send || host_group_[rank] == host_group_[step.peer]) continue;
      double part = (step.chunks.end - step.chunks.begin) / chunks;
      if (which.fitted && which.kind == ScheduleKind::two_step) {
        part = 0;
        for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk) part += shares_[chunk] / all_shares;
      }
      traffic[cell(host_group_[rank], host_group_[step.peer])] += part;
    }
  }
  return traffic;
}

UnevenLinks::Cost UnevenLinks::cost_of(const Matrix& traffic) const {
  Cost cost;
  for (uint32_t a = 0; a < count_; ++a) {
    double out = 0, in = 0;
    for (uint32_t b = 0; b < count_; ++b) {
      const double part = traffic[cell(a, b)];
      out += part;
      in += traffic[cell(b, a)];
      if (part == 0) continue;
      cost.us_per_byte = std::max(cost.us_per_byte, part / rate(a, b));
      cost.latency_us = std::max(cost.latency_us, speeds_[cell(a, b)].latency_us);
    }
    cost.us_per_byte = std::max(cost.us_per_byte, std::max(out, in) / host_rate_[a]);
  }
  return cost;
}

const UnevenLinks::Cost& UnevenLinks::cost(const Which& which) const {
  auto known = costs_.find(which);
  if (known == costs_.end()) known = costs_.emplace(which, cost_of(traffic_of(which))).first;
  return known->second;
}

}  // namespace unisono
