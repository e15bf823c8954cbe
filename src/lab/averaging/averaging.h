// Repeats the averaging simulation of the authors of Moshpit SGD (yandex-research/moshpit-sgd, averaging_experiments), with
// exactly the same numbers. The algorithms `fitted` and `chunk_keys` are added.
//
// Each of N peers holds one normal random number. In each round some peers are absent at random, and the algorithm averages
// among the other peers. The results are how much was sent, and the population variance of all N numbers (absent peers
// included). The same settings always give the same result. The seed is the number of the restart.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono::sim {

enum class AveragingAlgorithm : uint8_t {
  all_reduce,      // one group of all peers; if one peer is absent, nobody averages in this round
  gossip,          // each peer averages with its two neighbours on a ring
  sgp,             // stochastic gradient push with the matrices of the authors' code, which does not use push-sum weights
  random_groups,   // groups of max_group peers, which are drawn again in each round
  published_grid,  // a grid of max_group^d cells; each peer keeps one cell, and cells may be empty
  chunk_keys,      // the rule by which Moshpit SGD's authors form new groups; see ChunkKeys
  // Unisono's grid, which fits the number of peers; each peer has a weight, so that absences do not change the weighted mean
  fitted,
  // Like `fitted`, but peers become absent after they were listed as members of a line (a group of the grid). A line does not
  // average in a round if its owner is absent, or if at least half of its peers are absent.
  fitted_mid_round
};
inline constexpr AveragingAlgorithm averaging_algorithms[] = {
    AveragingAlgorithm::all_reduce,    AveragingAlgorithm::gossip,          AveragingAlgorithm::sgp,
    AveragingAlgorithm::random_groups, AveragingAlgorithm::published_grid,  AveragingAlgorithm::chunk_keys,
    AveragingAlgorithm::fitted,        AveragingAlgorithm::fitted_mid_round};
// Returns the name of an algorithm, such as "all-reduce" or "chunk-keys".
std::string_view name(AveragingAlgorithm algorithm);

inline constexpr uint32_t averaging_peers_least = 3;     // sgp has no matrix for two peers
inline constexpr uint32_t averaging_peers_limit = 4096;  // maximum number of peers in a run
inline constexpr uint32_t averaging_rounds_cap = 50;     // maximum number of rounds in the authors' code
// The seed with which peers get their cells in the published grid. The authors' code sets no seed for this, so its cells differ
// from run to run.
inline constexpr uint32_t averaging_cell_seed = 12345;

struct AveragingSettings {
  AveragingAlgorithm algorithm = AveragingAlgorithm::fitted;
  uint32_t peers = 512;
  double absence = 0;  // probability that a given peer is absent in a round
  uint32_t max_group = 32;
  uint32_t seed = 0;
  double target = 1e-9;  // the run ends when the variance is below this value; 0: the run ends after rounds_max rounds
  uint32_t rounds_max = averaging_rounds_cap;
  uint32_t cell_seed = averaging_cell_seed;
};

struct AveragingOutcome {
  std::vector<double> variances;  // population variance after 0, 1, … rounds
  std::vector<double> sent;       // how many vectors a peer has sent (mean over the peers) after 0, 1, … rounds
  double error_max = 0;           // largest difference between a final value and the mean of the inputs
  // Returns the number of rounds after which the variance was first below `target`. If it never was, returns the number of all
  // rounds.
  uint32_t rounds_to(double target) const;
};
// Fails with Code::invalid if a setting is out of range. Allowed are
// - peers: averaging_peers_least to averaging_peers_limit
// - absence: 0 to 1
// - max_group: at least 2; for fitted grids, at least 4
Result<AveragingOutcome> run_averaging(const AveragingSettings& settings);

// Tells average_restarts() how to repeat a run. The runs have the seeds settings.seed, settings.seed + 1, …
struct AveragingRestarts {
  uint32_t restarts = 10;
  std::span<const double> targets{};  // variances to reach; the smallest one is used instead of settings.target
  bool curve = false;                 // true: every restart runs rounds_max rounds, and AveragingMeans::variances is filled
};
struct AveragingMeans {
  struct Target {
    double variance = 0;  // the target variance
    double rounds = 0;
    double deviation = 0;    // sample standard deviation of `rounds`; 0 if there is one restart
    double sent = 0;         // how many vectors a peer sent until the target was reached; mean over peers and restarts
    uint32_t unreached = 0;  // number of restarts that did not reach the target
  };
  std::vector<Target> targets;
  std::vector<double> variances;  // mean variance after 0, 1, … rounds; filled if AveragingRestarts::curve is true
};
// Returns means over the restarts, and calls `progress` after each restart. Fails like run_averaging(), and also with
// Code::invalid if the number of restarts is 0.
Result<AveragingMeans> average_restarts(const AveragingSettings& settings, const AveragingRestarts& what,
                                        const std::function<void()>& progress = nullptr);

}  // namespace unisono::sim
