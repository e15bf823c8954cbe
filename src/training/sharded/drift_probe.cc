#include "training/sharded/drift_probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

// A buffer begins with five numbers: the bits of the step, and the four fields of DriftInputs. The values of all samples
// follow. At the end there is one bit per sample, which tells whether the sample is stale. 32 of these bits take the space of
// one value.
constexpr size_t head = 5, bits_per_value = 32;

double squared(double difference) { return difference * difference; }

// Returns the mean recovery over those ranks that could estimate it, or -1 if none could.
double mean_recovery(std::span<const float> gathered, size_t each) {
  double sum = 0, count = 0;
  for (size_t at = 0; at < gathered.size(); at += each) {
    if (gathered[at + 2] >= 0) sum += gathered[at + 2], ++count;
  }
  return count == 0 ? -1 : sum / count;
}

// Limits the recovery to the largest value that is possible with this loss. Because of noise and rounding, an estimate can be
// larger.
DriftLaw with_possible_recovery(DriftLaw law) {
  if (law.recovery >= 0 && law.loss * law.recovery > 1 - law.loss) law.recovery = (1 - law.loss) / law.loss;
  return law;
}

void expect(ShardDrift& shard, DriftLaw law) {
  law.rho = shard.rho;
  shard.owner_expected = shard.second_moment * owner_drift(law);
  shard.pair_expected = shard.second_moment * pair_drift(law);
  shard.paper = shard.second_moment * paper_form(law.loss);
}

}  // namespace

uint32_t DriftProbe::count(Rank owner) const {
  return static_cast<uint32_t>(std::min<uint64_t>(samples_, geometry_.shard(owner).count()));
}

void DriftProbe::sample(uint32_t step, Rank owner, std::vector<uint64_t>& elements) const {
  elements.clear();
  const auto shard = geometry_.shard(owner);
  const Wide of = count(owner);
  Random random(run_id_ ^ mix64(uint64_t{step} << 32 | owner));
  for (Wide i = 0; i < of; ++i) {
    const auto begin = static_cast<uint64_t>(i * shard.count() / of), end = static_cast<uint64_t>((i + 1) * shard.count() / of);
    elements.push_back(shard.begin + begin + random.below(end - begin));
  }
}

size_t DriftProbe::samples() const {
  size_t all = 0;
  for (Rank owner = 0; owner < geometry_.cut().world; ++owner) all += count(owner);
  return all;
}

size_t DriftProbe::buffer_elements() const { return head + samples() + (samples() + bits_per_value - 1) / bits_per_value; }

void DriftProbe::pack(const ShardedState& state, const DriftInputs& inputs, std::span<float> buffer) {
  UNISONO_CHECK(buffer.size() == buffer_elements() && state.parameters().size() == geometry_.cut().elements);
  buffer[0] = std::bit_cast<float>(state.step());
  buffer[1] = static_cast<float>(inputs.loss);
  buffer[2] = static_cast<float>(inputs.recovery);
  buffer[3] = static_cast<float>(inputs.second_moment);
  buffer[4] = static_cast<float>(inputs.rho);
  size_t at = 0, word = head + samples();
  uint32_t bits = 0;
  for (Rank owner = 0; owner < geometry_.cut().world; ++owner) {
    sample(state.step(), owner, elements_);
    const auto begin = geometry_.shard(owner).begin;
    for (const auto element : elements_) {
      buffer[head + at] = state.parameters()[element];
      if (state.age(owner, static_cast<uint32_t>((element - begin) / geometry_.range_elements())) > 0)
        bits |= uint32_t{1} << at % bits_per_value;
      if (++at % bits_per_value == 0) buffer[word++] = std::bit_cast<float>(std::exchange(bits, 0));
    }
  }
  if (word < buffer.size()) buffer[word] = std::bit_cast<float>(bits);
}

ShardDrift DriftProbe::measure(std::span<const float> gathered, Rank owner, size_t at, Gaps& gaps) const {
  const auto world = geometry_.cut().world;
  const size_t each = buffer_elements(), flags = head + samples(), end = at + count(owner);
  const auto value = [&](Rank rank, size_t sample) { return double{gathered[rank * each + head + sample]}; };
  const auto stale = [&](Rank rank, size_t sample) {
    return (std::bit_cast<uint32_t>(gathered[rank * each + flags + sample / bits_per_value]) >> sample % bits_per_value & 1) !=
           0;
  };
  double owners = 0, pairs = 0;
  Gaps mine;
  for (size_t i = at; i < end; ++i) {
    for (Rank a = 0; a < world; ++a) {
      if (a == owner) continue;
      owners += squared(value(a, i) - value(owner, i));
      for (Rank b = a + 1; b < world; ++b) {
        if (b == owner) continue;
        const double gap = squared(value(a, i) - value(b, i));
        pairs += gap;
        if (stale(a, i) != stale(b, i)) mine.sum += gap, ++mine.count;
      }
    }
  }
  gaps.sum += mine.sum, gaps.count += mine.count;
  const double n = world, count_of_elements = static_cast<double>(end - at);
  ShardDrift shard{
      .owner = world < 2 ? 0 : owners / (count_of_elements * (n - 1)),
      .pair = world < 3 ? std::numeric_limits<double>::quiet_NaN() : pairs / (count_of_elements * (n - 1) * (n - 2) / 2),
      .gap = mine.mean()};
  shard.second_moment = double{gathered[owner * each + 3]};
  shard.rho = double{gathered[owner * each + 4]};
  return shard;
}

Result<DriftReport> DriftProbe::evaluate(std::span<const float> gathered, uint32_t stale_max) const {
  const auto world = geometry_.cut().world;
  const size_t each = buffer_elements();
  if (gathered.size() != each * world)
    return Status(Code::invalid, concat("drift: ", gathered.size(), " values of ", world, " ranks, each of which has ", each));
  DriftReport report{.step = std::bit_cast<uint32_t>(gathered[0]),
                     .law = {.recovery = mean_recovery(gathered, each), .stale_max = stale_max}};
  for (Rank rank = 0; rank < world; ++rank) {
    const auto step = std::bit_cast<uint32_t>(gathered[rank * each]);
    if (step != report.step)
      return Status(Code::invalid, concat("drift: rank ", rank, " measured after step ", step, ", rank 0 after ", report.step));
    report.law.loss += double{gathered[rank * each + 1]} / world;
  }
  report.law = with_possible_recovery(report.law);
  report.shards.resize(world);
  auto& all = report.all;
  double moving = 0;
  Gaps gaps;
  size_t at = 0;
  for (Rank owner = 0; owner < world; at += count(owner++)) {
    if (count(owner) == 0) continue;
    auto& shard = report.shards[owner];
    shard = measure(gathered, owner, at, gaps);
    expect(shard, report.law);
    const double share = static_cast<double>(geometry_.shard(owner).count()) / static_cast<double>(geometry_.cut().elements);
    const std::pair<double&, double> sums[] = {{all.owner, shard.owner},
                                               {all.pair, shard.pair},
                                               {all.owner_expected, shard.owner_expected},
                                               {all.pair_expected, shard.pair_expected},
                                               {all.paper, shard.paper},
                                               {all.second_moment, shard.second_moment}};
    for (const auto& [sum, value] : sums) sum += share * value;
    moving += share * shard.second_moment * shard.rho;
    report.all_pairs += share * pair_mean(world, shard.owner, shard.pair);
  }
  all.gap = gaps.mean();
  all.rho = all.second_moment > 0 ? moving / all.second_moment : 0;
  return report;
}

void OwnUpdates::add(const ShardedState& state) {
  const auto values = state.parameters();
  if (elements_.empty()) {
    DriftProbe(state.geometry(), run_id_, samples_).sample(0, state.self(), elements_);
    for (const auto element : elements_) values_.push_back(values[element]);
    updates_.resize(elements_.size());
    return;
  }
  for (size_t i = 0; i < elements_.size(); ++i) {
    updates_[i] = values[elements_[i]] - values_[i];
    values_[i] = values[elements_[i]];
  }
  statistics_.add(updates_);
}

}  // namespace unisono
