// The sum of what arrived of one range, so that its expectation is the sum of all: the heart of lossy delivery.
//
// Contributions are added in rank order, without fused multiply-add: in fp32 (tensors of f64: in double, the same code),
// rounded to the tensor's type once at the end. A range of which everything arrived has, bit for bit, the sum that a reliable
// two_step gives. Source of stratified and its variance: docs/design/methods/packet_loss.md, "The estimator" (derived there);
// `count` divides by the realised number, as has been attributed to arXiv 2507.07114.
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

// empty: nothing arrived from others (count_all: nothing at all).
enum class RangeKind : uint8_t { full, reduced /* short: some are missing */, empty };

struct RangeTask {
  const WireCodec& codec;    // of the contributions, plain or quantised; f64: plain
  DType dtype = DType::f32;  // f32, f16, bf16 or f64: of own and output
  std::span<const std::byte* const>
      contributions{};        // by rank: messages of `count` elements; null: missing. The owner's entry is ignored
  const void* own = nullptr;  // null: missing too (count_all)
  Rank owner = 0;
  size_t count = 0;
  bool mean = false;  // else the sum, which is the mean times N
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::own;  // automatic is own. zero_fill and horvitz_thompson need neither own nor zero
  bool own_exact = false;           // with a codec: own values are added as they are, not as the others would have got them
  bool fp32_output = false;         // of a 16-bit tensor: not rounded, for what goes on in fp32 or through another codec
  double loss = 0;                  // horvitz_thompson: p
  void* output = nullptr;           // may be `own`. hold and fail: not written for an empty range
  float* error = nullptr;           // null, or added to: what the codec takes from the own values
};

// Keeps the memory that it needs between ranges.
class RangeEstimator {
 public:
  // Never reads a contribution that is null.
  RangeKind estimate(const RangeTask& task);
  // What was too large for a codec or a type, of all ranges until now.
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
  std::vector<const void*> sources_;  // what is added up, in this order; null: the own values
  std::vector<std::byte> message_;
  kernels::BlockCounts counts_;
};

// Of one operation: 1 / mean over elements of (1/N^2 + ((N-1)/N)^2 / R); N without loss. Empty ranges are left out unless they
// count as `own`; 0 if there are no others.
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

// The formulae of that section, for plans, simulations and reports.
// E[1/R | R >= 1], R ~ Binomial(draws, 1 - loss). 0 of no draws.
double inverse_received(uint32_t draws, double loss);
// Var of the mean over sigma^2 / N, for independent, equally distributed contributions (horvitz_thompson and zero_fill: of mean
// 0): stratified and count_all given that something arrived, the others over everything that can happen, empty ranges being
// `own`.
double noise_inflation(Estimator estimator, uint32_t world, double loss);
// Variance of the mean for fixed contributions `values`, under the same conditions.
double estimator_variance(Estimator estimator, std::span<const double> values, Rank owner, double loss);

}  // namespace unisono
