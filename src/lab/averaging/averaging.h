// The averaging simulation of the authors of Moshpit SGD (yandex-research/moshpit-sgd, averaging_experiments), number for
// number, with two algorithms more: Unisono's fitted grid, and the rule of chunk keys as published.
//
// N peers hold a normal number each. In each round each peer is absent by chance; the algorithm averages among those that are
// there. Measured is the population variance of all N numbers, absent peers' among them, and what was sent on the way. A pure
// function of the settings: the seed is the number of the restart.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::sim {

enum class AveragingAlgorithm : uint8_t {
  all_reduce,      // of all at once; one absent peer spoils the round
  gossip,          // each with its two neighbours on a ring
  sgp,             // stochastic gradient push with the matrices of the authors' code; no weight variable, so it is not push-sum
  random_groups,   // of max_group, drawn anew in each round
  published_grid,  // max_group^d cells, each peer in one of them for ever; cells may be empty
  chunk_keys,      // groups of peers with one key, in which each gets another digit: the published rule of regrouping
  fitted,          // Unisono's: the grid is fitted to the number of peers, weights conserve mass
  fitted_mid_round  // the same, but peers vanish once they are listed in a group: their line loses the round if its owner or
                    // half of it is gone
};
inline constexpr AveragingAlgorithm averaging_algorithms[] = {
    AveragingAlgorithm::all_reduce,    AveragingAlgorithm::gossip,          AveragingAlgorithm::sgp,
    AveragingAlgorithm::random_groups, AveragingAlgorithm::published_grid,  AveragingAlgorithm::chunk_keys,
    AveragingAlgorithm::fitted,        AveragingAlgorithm::fitted_mid_round};
// "all-reduce", "chunk-keys".
std::string_view name(AveragingAlgorithm algorithm);

inline constexpr uint32_t averaging_peers_least = 3;     // sgp has no matrix for two
inline constexpr uint32_t averaging_peers_limit = 4096;  // as many as a run may have
inline constexpr uint32_t averaging_rounds_cap = 50;     // the authors' own
inline constexpr uint32_t averaging_place_seed =
    12345;  // theirs has none: where peers stand in the published grid differs from run to run

struct AveragingSettings {
  AveragingAlgorithm algorithm = AveragingAlgorithm::fitted;
  uint32_t peers = 512;
  double absence = 0;  // chance that a peer is absent in a round
  uint32_t max_group = 32;
  uint32_t seed = 0;
  double target = 1e-9;  // ends once the variance is below; 0: runs rounds_max rounds
  uint32_t rounds_max = averaging_rounds_cap;
  uint32_t place_seed = averaging_place_seed;
};

struct AveragingOutcome {
  std::vector<double> variances;  // after 0, 1, … rounds
  std::vector<double> sent;       // likewise: what the mean peer has sent so far, in sizes of its vector
  double error_max = 0;           // at the end: the largest distance of a value from the mean of all inputs
  // Rounds until the variance was below; as many as were run if it never was.
  uint32_t rounds_to(double target) const;
};
// invalid, naming the number that cannot be: peers, absence not in [0, 1], max_group below 2 (fitted: 4).
Result<AveragingOutcome> run_averaging(const AveragingSettings& settings);

// Means over the seeds settings.seed, settings.seed + 1, …
struct AveragingRestarts {
  uint32_t restarts = 10;
  std::span<const double> targets{};  // the smallest replaces settings.target
  bool curve = false;                 // then every restart runs all its rounds
};
struct AveragingMeans {
  struct Target {
    double variance = 0;  // that should be reached
    double rounds = 0;
    double deviation = 0;    // of a sample of rounds; 0 for one restart
    double sent = 0;         // vectors per peer until then
    uint32_t unreached = 0;  // restarts that ended above
  };
  std::vector<Target> targets;
  std::vector<double> variances;  // of a curve: the mean after 0, 1, … rounds
};
// invalid as run_averaging says, or no restart. `progress` is called after each restart.
Result<AveragingMeans> average_restarts(const AveragingSettings& settings, const AveragingRestarts& what,
                                        const std::function<void()>& progress = nullptr);

}  // namespace unisono::sim
