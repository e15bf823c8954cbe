#include "elastic/formation/load_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/concat.h"

namespace unisono {

namespace {

bool contributes(const ShareMember& member) { return member.role != ElasticRole::reducer; }

// Returns each member's bandwidth, divided by the largest bandwidth. A client gets 0, because it owns no chunks. If a bandwidth
// is unknown, the mean of the known bandwidths above 0 is used instead.
std::vector<double> usable_bandwidths(const std::vector<ShareMember>& members) {
  const auto known = [](const ShareMember& member) { return member.bandwidth >= 0 && std::isfinite(member.bandwidth); };
  double largest = 0;
  for (const auto& member : members) {
    if (known(member)) largest = std::max(largest, member.bandwidth);
  }
  // Without this division, a sum of bandwidths could overflow. A very small bandwidth may underflow to 0.
  const double unit = largest > 0 ? largest : 1;
  double sum = 0;
  size_t count = 0;
  for (const auto& member : members) {
    if (!known(member) || member.bandwidth == 0) continue;
    sum += member.bandwidth / unit;
    ++count;
  }
  const double mean = count > 0 ? sum / static_cast<double>(count) : 1;
  std::vector<double> usable;
  for (const auto& member : members)
    usable.push_back(member.role == ElasticRole::client ? 0 : known(member) ? member.bandwidth / unit : mean);
  return usable;
}

// Returns shares that are proportional to bandwidth. This is for at most two contributors, because their traffic does not
// depend on their shares. Reducers own chunks only if no contributor can.
std::vector<double> proportional_shares(const ShareRequest& request, const std::vector<double>& bandwidths) {
  std::vector<double> shares(bandwidths.size(), 0);
  double sum = 0;
  for (const bool reducers : {false, true}) {
    for (size_t i = 0; i < shares.size(); ++i) {
      if (contributes(request.members[i]) == reducers) continue;
      shares[i] = bandwidths[i];
      sum += bandwidths[i];
    }
    if (sum > 0) break;
  }
  for (auto& share : shares) share /= sum;
  return shares;
}

// Returns the optimal shares. With these, all owners have the same load xi = traffic / bandwidth, and no other member has a
// higher load.
std::vector<double> balanced_shares(const ShareRequest& request, std::vector<double> bandwidths, double contributors) {
  const double slope = contributors - 2;
  double xi = 0;
  while (true) {
    double owners = 0, of_contributors = 0, of_reducers = 0;
    size_t slowest = bandwidths.size();
    for (size_t i = 0; i < bandwidths.size(); ++i) {
      if (bandwidths[i] == 0) continue;
      if (!contributes(request.members[i])) {
        of_reducers += bandwidths[i];
        continue;
      }
      ++owners;
      of_contributors += bandwidths[i];
      if (slowest == bandwidths.size() || bandwidths[i] < bandwidths[slowest]) slowest = i;
    }
    xi = (1 + owners / slope) / (of_contributors / slope + of_reducers / contributors);
    if (slowest == bandwidths.size() || xi * bandwidths[slowest] >= 1) break;
    // This member needs longer than xi even if it only sends its own values, so it owns no chunks.
    bandwidths[slowest] = 0;
  }
  std::vector<double> shares;
  for (size_t i = 0; i < bandwidths.size(); ++i) {
    if (bandwidths[i] == 0) shares.push_back(0);
    else
      shares.push_back(contributes(request.members[i]) ? (xi * bandwidths[i] - 1) / slope : xi * bandwidths[i] / contributors);
  }
  return shares;
}

// First rounds the shares, because shares that differ only in their last bits must give equal numbers of chunks. Then drops
// shares that are too small.
void round_and_drop_small(std::vector<double>& shares, const ShareRequest& request) {
  for (auto& share : shares) share = std::round(share * 1e9) / 1e9;
  const auto small = [&](double share) { return share * request.chunk_count < request.min_chunks; };
  if (small(*std::max_element(shares.begin(), shares.end()))) return;
  double kept = 0;
  bool dropped = false;
  for (auto& share : shares) {
    if (share > 0 && small(share)) share = 0, dropped = true;
    kept += share;
  }
  if (!dropped) return;
  for (auto& share : shares) share /= kept;
}

// Distributes whole chunks by the Hagenbach-Bischoff method. At first, each member gets its share, rounded down to whole
// chunks. Then each remaining chunk goes to the member with the largest share / (chunks + 1).
std::vector<uint32_t> whole_chunks(const std::vector<double>& shares, uint32_t chunk_count) {
  std::vector<uint32_t> chunks;
  uint32_t left = chunk_count;
  for (const auto share : shares) {
    const auto floor = std::min(static_cast<double>(left), std::floor(share * chunk_count));
    chunks.push_back(static_cast<uint32_t>(floor));
    left -= chunks.back();
  }
  for (; left > 0; --left) {
    size_t next = 0;
    double most = -1;
    for (size_t i = 0; i < shares.size(); ++i) {
      const double quotient = shares[i] / (chunks[i] + 1.0);
      if (quotient > most) most = quotient, next = i;
    }
    ++chunks[next];
  }
  return chunks;
}

}  // namespace

Result<std::vector<uint32_t>> load_shares(const ShareRequest& request) {
  const auto bandwidths = usable_bandwidths(request.members);
  if (std::none_of(bandwidths.begin(), bandwidths.end(), [](double bandwidth) { return bandwidth > 0; }))
    return Status{Code::unavailable, concat("NO_REDUCER: none of ", request.members.size(), " members can own chunks")};
  const auto contributors = std::count_if(request.members.begin(), request.members.end(), contributes);
  auto shares = contributors <= 2 ? proportional_shares(request, bandwidths)
                                  : balanced_shares(request, bandwidths, static_cast<double>(contributors));
  round_and_drop_small(shares, request);
  return whole_chunks(shares, request.chunk_count);
}

}  // namespace unisono
