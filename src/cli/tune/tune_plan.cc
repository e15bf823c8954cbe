#include "cli/tune/tune_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "schedules/make.h"

namespace unisono::cli {
namespace {

constexpr uint64_t slices[] = {64u << 10, 128u << 10, 256u << 10, 512u << 10, 1u << 20};
constexpr uint64_t sliced_from = 512u << 10;  // slice sizes are tried only for tensors with at least this many bytes

bool alike(const Trial& a, const Trial& b) { return a.kind == b.kind && a.slice_bytes == b.slice_bytes; }
bool is_automatic(const Trial& trial) { return trial.kind == ScheduleKind::automatic && trial.slice_bytes == 0; }

}  // namespace

std::vector<Trial> schedule_trials(unisono::Collective collective, std::span<const uint32_t> host_groups) {
  const std::set<uint32_t> hosts(host_groups.begin(), host_groups.end());
  const bool hierarchy = hosts.size() > 1 && hosts.size() < host_groups.size();
  std::vector<Trial> trials(1);
  for (const auto kind : kinds_of(collective)) {
    if (kind != ScheduleKind::hierarchical || hierarchy) trials.push_back({.kind = kind});
  }
  return trials;
}

std::vector<Trial> slice_trials(const Trial& quickest, uint64_t bytes) {
  std::vector<Trial> trials;
  for (const auto slice : slices) {
    if (bytes >= sliced_from && slice < bytes) trials.push_back({.kind = quickest.kind, .slice_bytes = slice});
  }
  return trials;
}

const Trial& winner(std::span<const Trial> trials, double gain) {
  const auto& first = trials.front();
  const auto& best =
      *std::min_element(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.us < b.us; });
  return best.us < first.us * (1 - gain) && best.high_us < first.low_us ? best : first;
}

std::vector<TunedCall> calls_of(unisono::Collective collective, std::span<const TunedSize> sizes) {
  std::vector<TunedCall> calls;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto& won = sizes[i].winner;
    if (i > 0 && alike(won, sizes[i - 1].winner)) calls.pop_back();
    TunedCall call{.collective = collective, .kind = won.kind, .slice_bytes = won.slice_bytes};
    if (i + 1 < sizes.size())
      call.bytes_max =
          static_cast<uint64_t>(std::sqrt(static_cast<double>(sizes[i].bytes) * static_cast<double>(sizes[i + 1].bytes)));
    calls.push_back(call);
  }
  const bool all = std::all_of(sizes.begin(), sizes.end(), [](const TunedSize& size) { return is_automatic(size.winner); });
  return all ? std::vector<TunedCall>() : calls;
}

uint32_t best_streams(std::span<const StreamTrial> trials, double gain) {
  const auto least = std::min_element(trials.begin(), trials.end(), [](const StreamTrial& a, const StreamTrial& b) {
                       return a.us < b.us;
                     })->us;
  uint32_t best = UINT32_MAX;
  for (const auto& trial : trials) {
    if (trial.us * (1 - gain) <= least) best = std::min(best, trial.streams);
  }
  return best;
}

}  // namespace unisono::cli
