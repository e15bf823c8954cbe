// The gradients of `unisono-lab bench compress`: made ones, of which each rank has its own, or real ones from files.
//
// Made ones have a part that all ranks share, the same in every step, and noise that differs from rank to rank and from step to
// step. Numbers are those of compressors/counter_random.h: the same everywhere for one seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compressors/compressor.h"

namespace unisono::cli {

using TensorShape = std::vector<uint64_t>;
// "4096x4096,512": at least one, each with at most 2^32 elements. invalid: which is none.
Result<std::vector<TensorShape>> parse_shapes(std::string_view text);
std::string shape_text(const TensorShape& shape);  // "4096x4096"

// The part of a gradient that all ranks share. gaussian: normally distributed. decay: the same, with row i (from 0) times
// (i+1)^-0.5. rank_one: u v' of two normally distributed vectors.
enum class GradientModel : uint8_t { gaussian, decay, rank_one };
std::vector<std::string> gradient_model_names();
Result<GradientModel> parse_gradient_model(std::string_view text);
const char* name(GradientModel model);

struct GradientPlan {
  std::vector<TensorShape> shapes;
  GradientModel model = GradientModel::decay;
  double noise = 0.5;  // its deviation, as a part of the root mean square of what is shared in the row
  uint64_t seed = 0;
  std::string file;  // not empty: fp32, little-endian, one tensor after the other; "{rank}" stands for the rank's number
  uint64_t elements() const;
  std::vector<GroupTensor> tensors() const;
};

class Gradients {
 public:
  // unavailable: the file cannot be read. invalid: it has another size than the tensors.
  static Result<Gradients> make(const GradientPlan& plan, uint32_t rank);
  // This rank's, of one step: all tensors, one after the other.
  void fill(uint64_t step, std::span<float> out) const;

 private:
  struct Rows {
    uint64_t count = 0, columns = 0;
  };
  void make_tensor(const GradientPlan& plan, uint32_t rank, uint32_t tensor, std::span<float> shared, std::span<float> noise);

  std::vector<float> shared_;
  std::vector<float> noise_;  // empty: none
  std::vector<Rows> tensors_;
  std::vector<float> noise_scale_;  // by row of all tensors
};

}  // namespace unisono::cli
