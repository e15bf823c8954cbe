// Checks C1 and C2 of docs/design/methods/packet_loss.md: where training settles if ranks have different targets and lose
// gradients and values. In the stationary state, the expected gradient is zero. So the owner's mean value shows how the
// estimator weighs the ranks.
#include <array>

#include "lossy/estimator.h"
#include "training/sharded/lossy_ranks_test_support.h"

namespace unisono {
namespace {

using namespace test;

constexpr uint32_t world = 4;
constexpr size_t elements = 16;  // elements of the owner's only range; all are equal, because they are lost together
constexpr uint32_t groups = sanitized ? 20 : 400, steps = sanitized ? 300 : 4000, settle = 200;

// A range of one owner, and the copies of this range at the other ranks.
class FixedPointGroup {
 public:
  FixedPointGroup(Rank owner, double loss, Estimator estimator, uint64_t seed)
      : owner_(owner), loss_(loss), estimator_(estimator), random_(seed) {
    const auto geometry = geometry_of(world, world * elements);
    const std::vector<float> values(world * elements, 3.5f);
    for (Rank rank = 0; rank < world; ++rank)
      ranks_.push_back(std::move(*ShardedState::make(geometry, rank, values, make_sgd({.rate = 0.05}), {.stale_max = 0})));
  }

  // Runs one step. Rank i has the target i^2: its gradient is its copy of the value, minus i^2. Other owners' shards are held.
  void step() {
    std::array<const std::byte*, world> arrived{};
    for (Rank rank = 0; rank < world; ++rank) {
      const auto copy = ranks_[rank].parameters().subspan(owner_ * elements, elements);
      for (size_t i = 0; i < elements; ++i) gradients_[rank][i] = copy[i] - static_cast<float>(rank * rank);
      if (rank != owner_ && !random_.chance(loss_)) arrived[rank] = reinterpret_cast<const std::byte*>(gradients_[rank].data());
    }
    std::array<float, elements> reduced{};
    const auto on_empty = estimator_ == Estimator::stratified ? OnEmpty::hold : OnEmpty::own;
    const auto kind = estimate_.estimate({.codec = codec_,
                                          .contributions = arrived,
                                          .own = gradients_[owner_].data(),
                                          .owner = owner_,
                                          .count = elements,
                                          .mean = true,
                                          .estimator = estimator_,
                                          .on_empty = on_empty,
                                          .output = reduced.data()});
    const std::vector<uint8_t> held{kind == RangeKind::empty && on_empty == OnEmpty::hold};
    held_ += held[0];
    for (Rank rank = 0; rank < world; ++rank) rank == owner_ ? ranks_[rank].update(reduced, held) : ranks_[rank].hold();
    const auto encoded = ranks_[owner_].encode();
    for (Rank rank = 0; rank < world; ++rank) {
      if (rank != owner_ && !random_.chance(loss_)) ranks_[rank].receive(owner_, 0, ranks_[owner_].step(), encoded);
    }
  }
  float value() const { return ranks_[owner_].own_values()[0]; }
  uint64_t held() const { return held_; }

 private:
  Rank owner_;
  double loss_;
  Estimator estimator_;
  Random random_;
  WireCodec codec_ = plain(DType::f32);
  RangeEstimator estimate_;
  std::vector<ShardedState> ranks_;
  std::array<std::array<float, elements>, world> gradients_{};
  uint64_t held_ = 0;
};

void expect_fixed_point(Rank owner, double loss, Estimator estimator, double expected) {
  Sample means;
  double held = 0;
  for (uint32_t g = 0; g < groups; ++g) {
    FixedPointGroup group(owner, loss, estimator, mix64(owner * 1000 + static_cast<uint64_t>(estimator) * 100'000 + g));
    for (uint32_t step = 0; step < settle; ++step) group.step();
    double sum = 0;
    for (uint32_t step = 0; step < steps; ++step) {
      group.step();
      sum += double{group.value()};
    }
    means.add(sum / steps);
    held += static_cast<double>(group.held());
  }
  EXPECT_NEAR(means.mean(), expected, 5 * means.standard_error()) << "+- " << means.standard_error();
  EXPECT_LT(5 * means.standard_error(), sanitized ? 0.5 : 0.02) << "too wide to tell one estimator from another";
  const double share = held / (double{groups} * (steps + settle)),
               chance = estimator == Estimator::stratified ? loss * loss * loss : 0;
  EXPECT_NEAR(share, chance, 4 * std::sqrt(chance / (double{groups} * (steps + settle))));
}

// Check C1 of docs/design/methods/packet_loss.md. The targets 0, 1, 4 and 9 have the mean 3.5. The estimator `count` weighs the
// owner's 9 with w = (1 - p^4) / (4 (1 - p)) = 0.312, which is too much.
TEST(LossyFixedPoint, equals_the_mean_at_twenty_percent_loss_only_if_stratified) {
  expect_fixed_point(3, 0.2, Estimator::stratified, 3.5);
  expect_fixed_point(3, 0.2, Estimator::count, 3.954667);
  expect_fixed_point(3, 0.2, Estimator::zero_fill, 3.823529);
}

// Check C2 of docs/design/methods/packet_loss.md: the owner's target is 0, so the wrong results are below 3.5.
TEST(LossyFixedPoint, equals_the_mean_at_ten_percent_loss_only_if_stratified) {
  expect_fixed_point(0, 0.1, Estimator::stratified, 3.5);
  expect_fixed_point(0, 0.1, Estimator::count, 3.3705);
  expect_fixed_point(0, 0.1, Estimator::zero_fill, 3.405405);
}

}  // namespace
}  // namespace unisono
