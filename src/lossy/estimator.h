// Estimates the sum of one range from the contributions that arrived, so that its expectation is the full sum.
//
// Contributions are added in rank order, without fused multiply-add: in fp32 (tensors of f64: in double, the same code),
// rounded to the tensor's type once at the end. If every contribution arrived, the sum equals the one of a reliable two_step
// bit for bit. docs/design/methods/packet_loss.md, "The estimator", derives stratified and its variance. `count` divides by the
// number received, as has been attributed to arXiv 2507.07114.
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

// empty: no other rank's contribution arrived (count_all: none at all).
enum class RangeKind : uint8_t { full, reduced /* short: some are missing */, empty };

struct RangeTask {
  const WireCodec& codec;    // of the contributions: plain or quantised; f64: plain
  DType dtype = DType::f32;  // of own and output: f32, f16, bf16 or f64
  std::span<const std::byte* const>
      contributions{};        // by rank: messages of `count` elements; null: missing. The owner's entry is unused
  const void* own = nullptr;  // null: missing too (count_all)
  Rank owner = 0;
  size_t count = 0;
  bool mean = false;  // else the sum, which is the mean times N
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::own;  // automatic is own. zero_fill and horvitz_thompson need neither own nor zero
  bool own_exact = false;           // with a codec: own values are added exactly, not as the other ranks would decode them
  bool fp32_output = false;         // for a 16-bit tensor: the output is not rounded, as later steps use fp32 or another codec
  double loss = 0;                  // horvitz_thompson: p
  void* output = nullptr;           // may equal own. With hold and fail, an empty range is not written
  float* error = nullptr;           // null, or the encoding error of the own values is added to it
};

// Reuses its memory from range to range.
class RangeEstimator {
 public:
  // Never reads a null contribution.
  RangeKind estimate(const RangeTask& task);
  // Elements beyond the range of a codec or a type, over all ranges so far.
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
  std::vector<const void*> sources_;  // the summands in order; null: the own values
  std::vector<std::byte> message_;
  kernels::BlockCounts counts_;
};

// Effective number of contributors of one operation: 1 / mean over elements of (1/N^2 + ((N-1)/N)^2 / R); N without loss. Empty
// ranges count only if they are `own`; 0 if there are no others.
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
// E[1/R
//
// R >= 1] with R ~ Binomial(draws, 1 - loss). 0 if draws is 0.
double inverse_received(uint32_t draws, double loss);
// Variance of the mean divided by sigma^2 / N, for independent, identically distributed contributions (horvitz_thompson and
// zero_fill: of mean 0). stratified and count_all: given that something arrived. The others: over all outcomes, with empty
// ranges as `own`.
double noise_inflation(Estimator estimator, uint32_t world, double loss);
// Variance of the mean for fixed contributions `values`, under the same conditions.
double estimator_variance(Estimator estimator, std::span<const double> values, Rank owner, double loss);

}  // namespace unisono
