// Estimates the mean of a quantity over many steps, and the standard error of this mean. The values of neighbouring steps are
// correlated. Therefore steps are joined to blocks, and both numbers are computed from the means of the blocks.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace unisono::sim {

// For each step, the caller adds the sum of the step's samples and the number of these samples. A last block that is incomplete
// is ignored, and so is a block without samples.
class BlockMeans {
 public:
  BlockMeans() = default;  // each block is one step
  explicit BlockMeans(uint64_t steps_per_block) : steps_per_block_(steps_per_block) {}

  void add(double sum, double samples) {
    sum_ += sum;
    samples_ += samples;
    if (++steps_ < steps_per_block_) return;
    if (samples_ > 0) blocks_.push_back({sum_ / samples_, samples_});
    sum_ = samples_ = 0;
    steps_ = 0;
  }
  // Adds the blocks of another run.
  void append(const BlockMeans& other) { blocks_.insert(blocks_.end(), other.blocks_.begin(), other.blocks_.end()); }

  bool empty() const { return blocks_.empty(); }
  size_t blocks() const { return blocks_.size(); }
  double block(size_t i) const { return blocks_[i].mean; }
  double samples_of(size_t i) const { return blocks_[i].samples; }
  double samples() const {
    double all = 0;
    for (const auto& block : blocks_) all += block.samples;
    return all;
  }
  // Returns the mean of all samples, or NaN if there are no blocks.
  double mean() const {
    double sum = 0;
    for (const auto& block : blocks_) sum += block.mean * block.samples;
    return sum / samples();
  }
  // Returns the standard error of the mean, or infinity if there are fewer than two blocks.
  double standard_error() const {
    if (blocks_.size() < 2) return std::numeric_limits<double>::infinity();
    const double centre = mean(), all = samples(), count = static_cast<double>(blocks_.size());
    double squares = 0;
    for (const auto& block : blocks_)
      squares += (block.mean - centre) * (block.mean - centre) * (block.samples / all) * (block.samples / all);
    return std::sqrt(squares * count / (count - 1));
  }

 private:
  struct Block {
    double mean = 0, samples = 0;
  };
  uint64_t steps_per_block_ = 1, steps_ = 0;
  double sum_ = 0, samples_ = 0;
  std::vector<Block> blocks_;
};

// Returns by how many standard errors a mean may be wrong, if it was computed from `blocks` blocks. An error larger than this
// is as rare as an error of more than z standard errors in a normal distribution. Computes Student's distribution by Wallace's
// approximation (1959, "Bounds on normal approximations to Student's and the chi-square distributions").
inline double student(double z, size_t blocks) {
  if (blocks < 2) return std::numeric_limits<double>::infinity();
  const double freedom = static_cast<double>(blocks - 1), scaled = z * (8 * freedom + 3) / (8 * freedom + 1);
  return std::sqrt(freedom * std::expm1(scaled * scaled / freedom));
}

}  // namespace unisono::sim
