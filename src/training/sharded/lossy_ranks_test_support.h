// Ranks with sharded states in one process. The caller decides what is lost. Updates are random, or come from a test's
// optimizer.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "training/sharded/sharded_state.h"

namespace unisono::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

inline constexpr uint32_t smallest_datagram = 576;  // 128 elements of f32

inline WireCodec plain(DType type) { return {.dtype = type, .block = {}}; }

inline RangeGeometry geometry_of(uint32_t world, uint64_t elements, const WireCodec& codec = plain(DType::f32)) {
  auto made = RangeGeometry::make({.elements = elements, .world = world, .datagram_bytes = smallest_datagram, .codec = codec});
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *made;
}

// Returns a uniform random number with mean 0 and variance 1.
inline float uniform(Random& random) { return (static_cast<float>(random.next() >> 40) * 0x1p-24f - 0.5f) * 3.4641016f; }

// An optimizer that ignores gradients and makes random updates. Their second moment is 1. Their autocorrelation is rho^s from
// the first step on.
class RandomWalk final : public ShardOptimizer {
 public:
  RandomWalk(double rho, uint64_t seed)
      : rho_(static_cast<float>(rho)), fresh_(static_cast<float>(std::sqrt(1 - rho * rho))), random_(seed) {}
  void update(const ShardUpdate& task) override {
    for (size_t i = 0; i < task.values.size(); ++i) {
      float& u = last_[task.begin + i];
      u = rho_ * u + fresh_ * uniform(random_);
      task.values[i] += u;
    }
  }
  double rate() const override { return 1; }
  void set_rate(double) override {}
  uint32_t state_count() const override { return 1; }
  std::span<float> state(uint32_t) override { return last_; }
  void resize(uint64_t elements) override {
    last_.resize(elements);
    for (auto& u : last_) u = uniform(random_);
  }

 private:
  float rho_, fresh_;
  Random random_;
  std::vector<float> last_;
};

struct MeanSquare {
  double owner = 0, pair = 0;  // mean over the elements of all shards
};

class LossyRanks {
 public:
  struct Options {
    uint32_t world = 3;
    uint64_t shard = 16;  // elements per shard; 16 are a single, short range
    WireCodec codec = plain(DType::f32);
    uint32_t stale_max = 0;
    double rho = 0;
    uint64_t seed = 0;
  };
  explicit LossyRanks(const Options& options)
      : geometry(geometry_of(options.world, options.shard * options.world, options.codec)), gradient_(options.shard) {
    std::vector<float> values(geometry.cut().elements);
    Random random(mix64(options.seed));
    for (auto& value : values) value = uniform(random);
    for (Rank rank = 0; rank < options.world; ++rank) {
      auto made = ShardedState::make(geometry, rank, values, std::make_unique<RandomWalk>(options.rho, random.next()),
                                     {.stale_max = options.stale_max});
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      ranks.push_back(std::move(*made));
    }
  }

  // Runs one step on all ranks. Calls lost(owner, range, receiver) once for each delivery. The calls are ordered by owner,
  // then by range, then by receiver. `lost` may keep state between calls.
  template <typename Lost>
  void step(Lost&& lost, const std::vector<uint8_t>& held = {}) {
    for (auto& rank : ranks) rank.update(std::span(gradient_).first(rank.own_values().size()), held);
    for (Rank owner = 0; owner < ranks.size(); ++owner) broadcast(owner, lost);
    fetch();
  }
  template <typename Lost>
  void broadcast(Rank owner, Lost& lost) {
    const auto encoded = ranks[owner].encode();
    for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
      for (Rank to = 0; to < ranks.size(); ++to) {
        if (to == owner || lost(owner, range, to)) continue;
        EXPECT_TRUE(ranks[to].receive(owner, range, ranks[owner].step(),
                                      encoded.subspan(geometry.offset(range), geometry.bytes(owner, range))));
      }
    }
  }
  void fetch() {
    for (auto& rank : ranks) {
      for (Rank owner = 0; owner < ranks.size(); ++owner) {
        rank.to_fetch(owner, wanted_);
        for (const auto range : wanted_) {
          std::vector<std::byte> message(geometry.bytes(owner, range));
          const auto extent = geometry.range(owner, range);
          kernels::BlockCounts counts;
          encode({.codec = geometry.cut().codec,
                  .elements = ranks[owner].parameters().data() + extent.begin,
                  .count = extent.count(),
                  .message = message.data()},
                 counts);
          EXPECT_TRUE(rank.receive(owner, range, rank.step(), message));
          ++fetched;
        }
      }
    }
  }

  MeanSquare drift() const {
    MeanSquare sum;
    for (Rank owner = 0; owner < ranks.size(); ++owner) {
      for (uint64_t i = geometry.shard(owner).begin; i < geometry.shard(owner).end; ++i) {
        for (Rank a = 0; a < ranks.size(); ++a) {
          if (a == owner) continue;
          sum.owner += squared(a, owner, i);
          for (Rank b = a + 1; b < ranks.size(); ++b) sum.pair += b == owner ? 0 : squared(a, b, i);
        }
      }
    }
    const double n = static_cast<double>(ranks.size()), elements = static_cast<double>(geometry.cut().elements);
    return {sum.owner / (elements * (n - 1)), n < 3 ? 0 : sum.pair / (elements * (n - 1) * (n - 2) / 2)};
  }
  double squared(Rank a, Rank b, uint64_t i) const {
    const double difference = double{ranks[a].parameters()[i]} - ranks[b].parameters()[i];
    return difference * difference;
  }
  bool identical() const {
    for (const auto& rank : ranks) {
      if (std::memcmp(rank.parameters().data(), ranks[0].parameters().data(), rank.parameters().size_bytes()) != 0)
        return false;
    }
    return true;
  }

  RangeGeometry geometry;
  std::vector<ShardedState> ranks;
  uint64_t fetched = 0;

 private:
  std::vector<float> gradient_;
  std::vector<uint32_t> wanted_;
};

// Mean and standard error of independent samples.
class Sample {
 public:
  void add(double value) { ++count_, sum_ += value, squares_ += value * value; }
  double mean() const { return sum_ / count_; }
  double standard_error() const { return std::sqrt(std::max(0.0, squares_ / count_ - mean() * mean()) / (count_ - 1)); }
  // Expects that the mean is `value`, up to the relative tolerance, and that the standard error is at most a third of the
  // tolerance. With sanitizers there are fewer samples, so both limits are wider.
  void expect(double value, double relative) const {
    SCOPED_TRACE(testing::Message() << "measured " << mean() << " +- " << standard_error() << ", expected " << value);
    const double tolerance = relative * value;
    EXPECT_LE(standard_error(), sanitized ? value : tolerance / 3);
    EXPECT_NEAR(mean(), value, sanitized ? std::max(tolerance, 5 * standard_error()) : tolerance);
  }

 private:
  double count_ = 0, sum_ = 0, squares_ = 0;
};

}  // namespace unisono::test
