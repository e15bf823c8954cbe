// Provides the gradients of `unisono-lab bench compress`. They are synthetic, or real ones that are read from files. Each rank
// has different gradients.
//
// A synthetic gradient is the sum of two parts. The shared part is the same on all ranks and in all steps; the noise is
// different on each rank and in each step. Random numbers are from compressors/counter_random.h, so a seed gives the same
// numbers on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compressors/compressor.h"

namespace unisono::lab {

using TensorShape = std::vector<uint64_t>;
// Parses a list of shapes such as "4096x4096,512". Fails with Code::invalid if the list is empty, if a shape is not valid, or
// if a tensor has more than 2^32 elements.
Result<std::vector<TensorShape>> parse_shapes(std::string_view text);
std::string shape_text(const TensorShape& shape);  // formats a shape, such as "4096x4096"

// The shared part of a gradient.
// - gaussian: normally distributed
// - decay: like gaussian, but row i (from 0) is multiplied by (i+1)^-0.5
// - rank_one: the product u v' of two normally distributed vectors
enum class GradientModel : uint8_t { gaussian, decay, rank_one };
std::vector<std::string> gradient_model_names();
Result<GradientModel> parse_gradient_model(std::string_view text);
const char* name(GradientModel model);

struct GradientPlan {
  std::vector<TensorShape> shapes;
  GradientModel model = GradientModel::decay;
  double noise = 0.5;  // standard deviation of the noise, relative to the root mean square of the shared part of the same row
  uint64_t seed = 0;
  // If not empty, the gradients are read from this file, which holds fp32 numbers (little-endian), tensor after tensor. If the
  // name contains "{rank}", the number of the rank is put in its place.
  std::string file;
  uint64_t elements() const;
  std::vector<GroupTensor> tensors() const;
};

class Gradients {
 public:
  // Fails with Code::unavailable if the file cannot be read, and with Code::invalid if the file's size does not fit the
  // tensors.
  static Result<Gradients> make(const GradientPlan& plan, uint32_t rank);
  // Writes this rank's gradients in one step, tensor after tensor.
  void fill(uint64_t step, std::span<float> out) const;

 private:
  struct Rows {
    uint64_t count = 0, columns = 0;
  };
  void make_tensor(const GradientPlan& plan, uint32_t rank, uint32_t tensor, std::span<float> shared, std::span<float> noise);

  std::vector<float> shared_;
  std::vector<float> noise_;  // empty: the gradients have no noise
  std::vector<Rows> tensors_;
  std::vector<float> noise_scale_;  // one entry for each row; rows are numbered across all tensors
};

}  // namespace unisono::lab
