// Estimates the sum of one range (the part of a tensor that fits into one datagram) from the contributions that arrived.
//
// If all links have the same loss, the expectation of the estimate is the full sum for `stratified` (given that a contribution
// of another rank arrived), for count_all (given that any contribution arrived), and for horvitz_thompson. The estimates of
// `count` and zero_fill are biased.
//
// Contributions are added in rank order, in fp32 (f64 tensors: in double), without fused multiply-add. The sum is rounded to
// the tensor's type once, at the end. If every contribution arrived, the sum equals the sum of a reliable two_step bit for bit.
//
// Source of `stratified` and its variance: docs/design/methods/packet_loss.md, "The estimator". `count` divides by the number
// of contributions that arrived; later write-ups attribute this rule to arXiv 2507.07114.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/codec.h"
#include "unisono/delivery.h"
#include "unisono/tensor.h"
#include "wire/peer_id.h"

namespace unisono {

// - full: every contribution arrived
// - empty: no contribution of another rank arrived (for count_all: no contribution at all arrived)
enum class RangeKind : uint8_t { full, reduced /* some are missing */, empty };

struct RangeTask {
  const WireCodec& codec;    // codec of the contributions, plain or quantised; for f64 it must be plain
  DType dtype = DType::f32;  // type of `own` and `output`: f32, f16, bf16 or f64
  // By rank: the rank's message, which encodes `count` elements, or null if it is missing. The owner's entry is not used.
  std::span<const std::byte* const> contributions{};
  const void* own = nullptr;  // the owner's values, not encoded; null if they are missing (count_all only)
  Rank owner = 0;
  size_t count = 0;
  bool mean = false;  // true: estimate the mean of the contributions; false: estimate their sum
  Estimator estimator = Estimator::stratified;
  // Decides what is written for an empty range. `automatic` acts like `own`. For zero_fill and horvitz_thompson, `own` and
  // `zero` give the same value.
  OnEmpty on_empty = OnEmpty::own;
  // Has an effect only with a codec. true: the owner's values are added exactly. false: they are added as the other ranks would
  // decode them.
  bool own_exact = false;
  // For 16-bit tensors. true: the output is fp32 and is not rounded, because an optimizer or a codec computes further with it.
  bool fp32_output = false;
  double loss = 0;         // the probability that a contribution is lost; only horvitz_thompson uses it
  void* output = nullptr;  // may equal `own`; nothing is written if the range is empty and on_empty is hold or fail
  float* error = nullptr;  // if not null, the encoding error of the owner's values is added to this array
};

// Estimates one range after another, and reuses its memory.
class RangeEstimator {
 public:
  // Estimates one range, and skips contributions that are null.
  RangeKind estimate(const RangeTask& task);
  // Returns how many elements were too large for a codec or for the output type, in all ranges so far.
  const kernels::BlockCounts& counts() const { return counts_; }

 private:
  template <typename T>
  struct Memory {
    std::vector<T> sum, own;
  };
  template <typename T>
  void estimate_as(const RangeTask& task, uint32_t received, Memory<T>& memory);
  template <typename T>
  void add_up(const RangeTask& task, const void* own, Memory<T>& memory);
  const void* own_as_sent(const RangeTask& task, const void* own, std::vector<float>& copy);

  Memory<float> single_;
  Memory<double> double_;
  std::vector<const void*> sources_;  // the messages to add, in this order; null stands for the owner's values
  std::vector<std::byte> message_;
  kernels::BlockCounts counts_;
};

// Computes the effective number of contributors of one operation, N_eff = 1 / m. Here m is the mean over all elements of 1/N^2
// + ((N-1)/N)^2 / R, where R is the number of other ranks whose contribution to the element arrived. If nothing is lost, N_eff
// is N.
//
// If no other rank's contribution arrived, the element adds 1 to the mean if on_empty is `own` or `automatic`, and is left out
// of the mean otherwise. If all elements are left out, N_eff is 0.
class EffectiveContributors {
 public:
  explicit EffectiveContributors(uint32_t world) : world_(world) {}
  void add(uint32_t received_remote, uint64_t elements, OnEmpty on_empty);
  double value() const;

 private:
  uint32_t world_;
  uint64_t elements_ = 0, left_out_ = 0;
  double sum_ = 0;
};

// Returns E[1/R | R >= 1] with R ~ Binomial(draws, 1 - loss), or 0 if draws is 0. The source of this function and of the next
// two is docs/design/methods/packet_loss.md, "The estimator".
double inverse_received(uint32_t draws, double loss);
// Returns the variance of the estimated mean, divided by sigma^2 / N. Contributions are independent and identically
// distributed. For horvitz_thompson and zero_fill their mean must be 0.
// - stratified: the variance, given that a contribution of another rank arrived
// - count_all: the variance, given that any contribution arrived
// - other estimators: the variance over all outcomes, with OnEmpty::own
double noise_inflation(Estimator estimator, uint32_t world, double loss);
// Returns the variance of the estimated mean for given contributions `values`. It assumes the same arrivals as
// noise_inflation().
double estimator_variance(Estimator estimator, std::span<const double> values, Rank owner, double loss);

}  // namespace unisono
