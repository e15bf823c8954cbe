// Draws random durations of micro-batches, for the simulator and for examples that inject delays. The laws are described in
// docs/design/methods/drop_compute.md, "Delay models".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/random.h"
#include "unisono/status.h"

namespace unisono::sim {

struct DelayModel {
  // How the latency (the duration of a micro-batch) is distributed:
  // - paper: base (1 + min(exp(4 + Z) / (2 e^4.5), cap)), where Z is standard normal
  // - reference: base (1 + 0.5 factor X / E[X]), where X is an integer from 1 to 999
  // - normal: normal with mean `base`; negative latencies are drawn again
  // - other laws: `base` plus noise of that law
  enum class Law : uint8_t { constant, paper, reference, normal, exponential, gamma, bernoulli, lognormal, normal_cut };
  Law law = Law::constant;
  double base = 1;       // in seconds; called mu in `paper` and compute in `reference`, and the mean of the law `normal`
  double mean = 0;       // mean of the noise, seconds
  double deviation = 0;  // standard deviation of the noise; for the law `normal`, of the latency
  double factor = 1;     // factor in the formula of law `reference`
  double cap = 5.5;      // of the law `paper`: the longest delay, as a multiple of base
  // Model P: the latencies of this worker are multiplied by slow_factor. -1 means that no worker is slow.
  int64_t slow_worker = -1;
  double slow_factor = 1;

  // Parses one of these texts. Each may end with ",slow=RANKxFACTOR". Fails with Code::invalid; the message quotes the part of
  // the text that is wrong.
  // - L:mu=0.02,cap=5.5
  // - R:compute=1,factor=1
  // - G:mean=1,sd=0.25
  // - exp:base=1,mean=0.3
  // - gamma:base=…,mean=…,sd=… (also bernoulli, lognormal, normal0)
  // - constant:base=1
  static Result<DelayModel> parse(std::string_view text);
  std::string to_string() const;

  // latency() draws the whole duration of a micro-batch; delay() draws only the part that exceeds `base`. Both return seconds.
  double delay(Random& random) const;
  double latency(Random& random, uint32_t worker) const;
  // Return the mean and the standard deviation of latency() in seconds, for a worker that is not slow. The relative error is at
  // most 1e-6.
  double latency_mean() const;
  double latency_deviation() const;
};

// Returns the random generator of one micro-batch. It depends only on these four numbers, so all methods are compared under the
// same delays.
Random random_of(uint64_t seed, uint64_t step, uint32_t worker, uint32_t micro_batch);

}  // namespace unisono::sim
