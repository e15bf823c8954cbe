#include "compressors/power_sgd.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "base/random.h"
#include "compressors/counter_random.h"
#include "compressors/finite.h"
#include "compressors/matrix_product.h"
#include "compressors/row_selection.h"
#include "kernels/sketch.h"

namespace unisono {
namespace {

// If orthogonalisation leaves less than this share of the length of a column, the column counts as rounding error.
constexpr double rounding_share = 1e-5;

// Makes columns orthonormal by the Gram-Schmidt process, one after the other from the left. Sums are computed in double from
// the first row to the last, so equal matrices give equal bits.
class Orthonormal {
 public:
  explicit Orthonormal(size_t columns_max) : before_(columns_max), along_(columns_max) {}
  void make(float* matrix, size_t rows, size_t columns);

 private:
  // For each column: its squared length before orthogonalisation, and its product with the current column.
  std::vector<double> before_, along_;
};

void Orthonormal::make(float* matrix, size_t rows, size_t columns) {
  std::fill(before_.begin(), before_.end(), 0.0);
  for (size_t i = 0; i < rows; ++i) {
    const float* const row = matrix + i * columns;
    for (size_t k = 0; k < columns; ++k) before_[k] += double{row[k]} * row[k];
  }
  for (size_t j = 0; j < columns; ++j) {
    std::fill(along_.begin(), along_.end(), 0.0);
    for (size_t i = 0; i < rows; ++i) {
      const float* const row = matrix + i * columns;
      for (size_t k = j; k < columns; ++k) along_[k] += double{row[j]} * row[k];
    }
    const double squared = along_[j];
    const double by = squared > rounding_share * rounding_share * before_[j] ? 1 / std::sqrt(squared) : 0;
    for (size_t i = 0; i < rows; ++i) {
      float* const row = matrix + i * columns;
      row[j] = static_cast<float>(row[j] * by);
      for (size_t k = j + 1; k < columns; ++k) row[k] = static_cast<float>(row[k] - row[j] * (along_[k] * by));
    }
  }
}

struct Sizes {
  size_t first = 0, second = 0;  // how many elements the first and the second all-reduce have
  // The largest values of all compressed tensors. `directions` and `transposed` are sizes of working memory, in floats.
  size_t directions = 0, transposed = 0, factors = 0;
};

Sizes sizes_of(std::span<const Decision> decisions) {
  Sizes sizes;
  for (const auto& decision : decisions) {
    const auto [rows, columns] = decision.matrix;
    sizes.second += decision.value_elements();
    if (decision.treatment != Treatment::compressed) continue;
    sizes.first += rows * decision.factors;
    sizes.directions = std::max(sizes.directions, kernels::direction_stride(columns) * decision.factors);
    sizes.transposed = std::max<size_t>(sizes.transposed, rows * decision.factors);
    sizes.factors = std::max<size_t>(sizes.factors, decision.factors);
  }
  return sizes;
}

class PowerSgd final : public Compressor {
 public:
  // Allocates all memory that the steps need.
  PowerSgd(const PowerOptions& options, uint32_t group, std::vector<GroupTensor> tensors, std::vector<Decision> decisions,
           const Sizes& sizes, uint32_t side_value_count)
      : options_(options),
        group_(group),
        tensors_(std::move(tensors)),
        decisions_(std::move(decisions)),
        side_value_count_(sizes.first > 0 ? side_value_count : 0),
        warm_(tensors_.size()),
        orthonormal_(sizes.factors),
        directions_(sizes.directions),
        transposed_(sizes.transposed),
        scratch_(sizes.factors > 0 ? matrix_product_scratch : 0),
        first_(sizes.first + side_value_count_),
        second_(sizes.second) {}

  std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) override;
  double residual_energy() const override { return residual_energy_; }
  std::span<float> side_values() override { return std::span(first_).last(side_value_count_); }
  Status choose() override;
  std::span<float> pack(std::span<const float* const> values) override;
  size_t dense_offset() const override { return offset_of_second(tensors_.size()); }
  Status accept() override;
  void unpack(std::span<float* const> outputs) const override;
  bool sends_rows() const override { return false; }
  void subtract_sent(size_t i, float* values, bool averaged) override;
  uint64_t fingerprint() const override;
  std::span<const uint32_t> rows(size_t) const override { return {}; }
  double captured() const override { return first_.empty() ? 1 : -1; }
  size_t buffer_bytes() const override;
  std::span<const Decision> decisions() const override { return decisions_; }

 private:
  bool compressed(size_t i) const { return decisions_[i].treatment == Treatment::compressed; }
  size_t offset_of_first(size_t i) const;
  size_t offset_of_second(size_t i) const;
  void set_directions(size_t i);
  void project(size_t i, const float* values);

  const PowerOptions options_;
  const uint32_t group_;
  const std::vector<GroupTensor> tensors_;
  const std::vector<Decision> decisions_;
  const size_t side_value_count_;
  uint64_t step_ = 0;
  double residual_energy_ = 0;
  Fingerprint start_;                      // a hash of the warm factors with which this step began
  std::vector<std::vector<float>*> warm_;  // for each tensor: CompressorInput::warm of this step, which may be null
  Orthonormal orthonormal_;
  std::vector<float> directions_;  // Q' of the current tensor, in the order that the kernel needs
  std::vector<float> transposed_;  // P' of the current tensor; in subtract_sent() it is -P
  mutable std::vector<float> scratch_;
  // The buffers of the two all-reduces. first_ holds P of each tensor (rows x factors), then the side values. second_ holds Q'
  // of each tensor, then the dense tensors.
  std::vector<float> first_, second_;
};

size_t PowerSgd::buffer_bytes() const {
  return sizeof(float) *
         (first_.capacity() + second_.capacity() + directions_.capacity() + transposed_.capacity() + scratch_.capacity());
}

size_t PowerSgd::offset_of_first(size_t i) const {
  size_t offset = 0;
  for (size_t k = 0; k < i; ++k) offset += decisions_[k].factors * decisions_[k].matrix.rows;
  return offset;
}

size_t PowerSgd::offset_of_second(size_t i) const {
  size_t offset = 0;
  for (size_t k = 0; k < i; ++k) offset += decisions_[k].factors * decisions_[k].matrix.columns;
  return offset;
}

// Sets the directions to Q' of the previous step (the warm start). If a column of Q is zero, random numbers replace it, which
// are equal on all ranks. In the first step, they replace all columns.
void PowerSgd::set_directions(size_t i) {
  const size_t columns = decisions_[i].matrix.columns, stride = kernels::direction_stride(columns);
  const auto* warm = warm_[i];
  const bool has_warm = warm != nullptr && warm->size() == decisions_[i].factors * columns;
  const RandomStream stream{
      .seed = options_.seed, .step = step_, .tensor = tensors_[i].number, .purpose = RandomStream::Purpose::sketch};
  for (size_t row = 0; row < decisions_[i].factors; ++row) {
    const std::span to(directions_.data() + row * stride, columns);
    const auto from = has_warm ? std::span(*warm).subspan(row * columns, columns) : std::span<const float>();
    for (const float value : from) start_.add(std::bit_cast<uint32_t>(value));
    if (std::all_of(from.begin(), from.end(), [](float value) { return value == 0; })) stream.normals(row * columns, to);
    else std::copy(from.begin(), from.end(), to.begin());
  }
}

std::span<float> PowerSgd::begin(uint64_t step, std::span<const CompressorInput> inputs) {
  UNISONO_CHECK(inputs.size() == tensors_.size());
  step_ = step;
  start_ = {};
  residual_energy_ = 0;
  float* out = first_.data();
  for (size_t i = 0; i < inputs.size(); ++i) {
    UNISONO_CHECK(!inputs[i].difference && inputs[i].cleared == nullptr);
    const auto& [rows, columns] = decisions_[i].matrix;
    warm_[i] = inputs[i].warm;
    kernels::SketchTask task{.values = inputs[i].values,
                             .residual = inputs[i].residual,
                             .moved = inputs[i].moved,
                             .far = inputs[i].far,
                             .rows = rows,
                             .columns = columns};
    if (compressed(i)) {
      set_directions(i);
      task.directions = directions_.data();
      task.stride = kernels::direction_stride(columns);
      task.rank = static_cast<uint32_t>(decisions_[i].factors);
      task.sketch = out;
      out += rows * task.rank;
    }
    // If the tensor is sent whole, the kernel only adds the residual.
    if (task.rank > 0 || task.residual != nullptr) residual_energy_ += kernels::sketch(task);
  }
  return first_;
}

Status PowerSgd::choose() {
  // If a number in a row is not finite, the product of the row is not finite either. The caller's side values need not be
  // finite.
  if (!all_finite(std::span(first_).first(first_.size() - side_value_count_))) return not_finite("the first factor");
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (compressed(i)) orthonormal_.make(first_.data() + offset_of_first(i), decisions_[i].matrix.rows, decisions_[i].factors);
  }
  return {};
}

// Computes Q' = P' X.
void PowerSgd::project(size_t i, const float* values) {
  const auto& [rows, columns] = decisions_[i].matrix;
  const size_t rank = decisions_[i].factors;
  const float* const left = first_.data() + offset_of_first(i);
  for (size_t k = 0; k < rows * rank; ++k) transposed_[k % rank * rows + k / rank] = left[k];
  multiply({.a = transposed_.data(),
            .b = values,
            .c = second_.data() + offset_of_second(i),
            .rows = rank,
            .inner = rows,
            .columns = columns,
            .scratch = scratch_.data()});
}

std::span<float> PowerSgd::pack(std::span<const float* const> values) {
  UNISONO_CHECK(values.size() == tensors_.size());
  float* to = second_.data() + dense_offset();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (compressed(i)) project(i, values[i]);
    if (decisions_[i].treatment == Treatment::dense) to = std::copy_n(values[i], decisions_[i].matrix.elements(), to);
  }
  return second_;
}

Status PowerSgd::accept() {
  if (!all_finite(second_)) return not_finite("the average");
  const float* from = second_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t count = decisions_[i].factors * decisions_[i].matrix.columns;
    if (compressed(i) && warm_[i] != nullptr) warm_[i]->assign(from, from + count);
    from += count;
  }
  return {};
}

void PowerSgd::unpack(std::span<float* const> outputs) const {
  UNISONO_CHECK(outputs.size() == tensors_.size());
  const float* dense = second_.data() + dense_offset();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [rows, columns] = decisions_[i].matrix;
    if (compressed(i) && outputs[i] != nullptr) {
      multiply({.a = first_.data() + offset_of_first(i),
                .b = second_.data() + offset_of_second(i),
                .c = outputs[i],
                .rows = rows,
                .inner = decisions_[i].factors,
                .columns = columns,
                .scratch = scratch_.data()});
    }
    if (decisions_[i].treatment != Treatment::dense) continue;
    if (outputs[i] != nullptr) std::copy_n(dense, decisions_[i].matrix.elements(), outputs[i]);
    dense += decisions_[i].matrix.elements();
  }
}

void PowerSgd::subtract_sent(size_t i, float* values, bool averaged) {
  if (!compressed(i)) return;
  const auto& [rows, columns] = decisions_[i].matrix;
  if (!averaged) project(i, values);
  const float* const left = first_.data() + offset_of_first(i);
  std::transform(left, left + rows * decisions_[i].factors, transposed_.begin(), std::negate<>());
  multiply({.a = transposed_.data(),
            .b = second_.data() + offset_of_second(i),
            .c = values,
            .rows = rows,
            .inner = decisions_[i].factors,
            .columns = columns,
            .adds = true,
            .scratch = scratch_.data()});
}

// The hash includes the warm factors. They can differ between ranks: for example, the caller may have loaded a checkpoint on
// some ranks only.
uint64_t PowerSgd::fingerprint() const {
  Fingerprint fingerprint = start_;
  for (const uint32_t word : {static_cast<uint32_t>(step_), static_cast<uint32_t>(step_ >> 32), group_}) fingerprint.add(word);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!compressed(i)) continue;
    fingerprint.add(tensors_[i].number);
    fingerprint.add(static_cast<uint32_t>(decisions_[i].factors));
  }
  return fingerprint.value();
}

}  // namespace

uint64_t rank_of_equal_bytes(const RowRule& rule, Matrix matrix) {
  const auto [rows, columns] = matrix;
  if (rows + columns == 0) return 1;
  const auto payload = static_cast<Wide>(kept_rows(rule, rows)) * columns + static_cast<Wide>(rows) * rule.rank;
  return std::max<uint64_t>(1, static_cast<uint64_t>(payload / (rows + columns)));
}

Decision decide(const PowerOptions& options, std::span<const uint64_t> shape) {
  Decision decision{.treatment = Treatment::dense, .matrix = matrix_of(shape)};
  const auto [rows, columns] = decision.matrix;
  const auto elements = decision.matrix.elements();
  if (elements == 0) {
    decision.treatment = Treatment::skipped;
    decision.reason = "it has no elements";
    return decision;
  }
  const auto rank =
      std::min({options.rank == 0 ? rank_of_equal_bytes(options.rule, decision.matrix) : options.rank, rows, columns});
  const bool large =
      static_cast<Wide>(rank) * (rows + columns) * million > static_cast<Wide>(options.rule.max_payload_ppm) * elements;
  decision.reason = shape.size() < 2                       ? "it has less than two dimensions"
                    : elements < options.rule.min_elements ? "it is small"
                    : large                                ? "its factors are nearly as large"
                                                           : "";
  if (*decision.reason != '\0') return decision;
  decision.treatment = Treatment::compressed;
  decision.factors = rank;
  return decision;
}

Result<std::unique_ptr<Compressor>> make_power_sgd(const PowerOptions& options, uint32_t group,
                                                   std::vector<GroupTensor> tensors, uint32_t side_value_count) {
  if (auto status = check(options.rule); !status.ok()) return status;
  std::vector<Decision> decisions;
  for (const auto& tensor : tensors) {
    const auto& decision = decisions.emplace_back(decide(options, tensor.shape));
    const auto [rows, columns] = decision.matrix;
    if (decision.treatment == Treatment::compressed &&
        (rows > UINT32_MAX || columns > UINT32_MAX || static_cast<Wide>(decision.factors) * columns > normals_max)) {
      return Status(Code::invalid, concat("bad_option: tensor ", tensor.number, " of ", rows, " x ", columns,
                                          " is too large for factors of ", decision.factors, " columns"));
    }
  }
  const auto sizes = sizes_of(decisions);
  return std::unique_ptr<Compressor>(
      std::make_unique<PowerSgd>(options, group, std::move(tensors), std::move(decisions), sizes, side_value_count));
}

}  // namespace unisono
