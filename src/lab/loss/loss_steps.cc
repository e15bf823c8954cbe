#include "lab/loss/loss_steps.h"

#include <algorithm>

namespace unisono::sim {
namespace {

constexpr uint64_t blocks_max = 50, block_steps_min = 100;
constexpr uint64_t work_between_updates = 4'000'000;  // between two progress reports, this many elements are processed

}  // namespace

Result<LossRanks> make_ranks(const LossSettings& settings, float rate, float value) {
  if (auto status = check(settings); !status.ok()) return status;
  auto options = settings.ranks;
  options.rate = rate;
  return LossRanks::make(options, std::vector<float>(size_t{options.ranges} * options.elements, value));
}

uint64_t block_steps(const LossSettings& settings) {
  const uint64_t measured = settings.steps - settings.burn_in;
  return std::max<uint64_t>(1, measured / std::clamp<uint64_t>(measured / block_steps_min, 4, blocks_max));
}

ProgressUpdates::ProgressUpdates(const LossSettings& settings, const LossWatch& watch) : watch_(watch) {
  const auto& r = settings.ranks;
  every_ = std::clamp<uint64_t>(work_between_updates / (uint64_t{r.peers} * r.peers * r.ranges * r.elements), 1, 1000);
}

}  // namespace unisono::sim
