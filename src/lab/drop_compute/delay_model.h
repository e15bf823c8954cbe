// How long a micro-batch takes, drawn by a law of docs/design/methods/drop_compute.md, "Delay models", for the simulator and
// for delays that examples inject.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/random.h"
#include "unisono/status.h"

namespace unisono::sim {

struct DelayModel {
  // paper: mean (1 + min(exp(4 + Z) / (2 e^4.5), 5.5)). reference: base (1 + 0.5 factor X / E[X]), X on 1..999. normal: redrawn
  // while negative. The others: base plus a noise of that law.
  enum class Law : uint8_t { constant, paper, reference, normal, exponential, gamma, bernoulli, lognormal, normal_cut };
  Law law = Law::constant;
  double base = 1;       // seconds: mu of `paper`, compute of `reference`, the mean of `normal`
  double mean = 0;       // of the noise, seconds
  double deviation = 0;  // of the noise (of `normal`: of all)
  double factor = 1;     // of `reference`
  // Model P: this worker's micro-batches take so many times as long. -1: none.
  int64_t slow_worker = -1;
  double slow_factor = 1;

  // "L:mu=0.02", "R:compute=1,factor=1", "G:mean=1,sd=0.25", "exp:base=1,mean=0.3",
  // "gamma|bernoulli|lognormal|normal0:base=…,mean=…,sd=…", "constant:base=1"; then slow=RANKxFACTOR. invalid: names the part
  // that is wrong.
  static Result<DelayModel> parse(std::string_view text);
  std::string to_string() const;

  // The part of a micro-batch's latency beyond `base`, at random; and all of it.
  double delay(Random& random) const;
  double latency(Random& random, uint32_t worker) const;
  // Expectation and standard deviation of latency() of a worker that is not slow, seconds; to 1e-6 of them.
  double latency_mean() const;
  double latency_deviation() const;
};

// The same for the same (seed, step, worker, micro-batch), whatever else was drawn: methods are compared under the same delays.
Random random_of(uint64_t seed, uint64_t step, uint32_t worker, uint32_t micro_batch);

}  // namespace unisono::sim
