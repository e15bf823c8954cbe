#include "compressors/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/random.h"
#include "compressors/counter_random.h"
#include "compressors/finite.h"
#include "compressors/matrix_product.h"
#include "compressors/row_selection.h"
#include "kernels/sketch.h"

namespace unisono {
namespace {

constexpr double lost = 1e-5;  // of a column's length; what is left below that is rounding

// How a tensor is sent, and the rank if it is compressed.
struct Shape {
  Decision decision;
  size_t rank = 0;
};

Shape shape_of(const PowerOptions& options, const GroupTensor& tensor) {
  Decision decision{.treatment = Treatment::dense, .matrix = matrix_of(tensor.shape)};
  const auto [rows, columns] = decision.matrix;
  const auto elements = decision.matrix.elements();
  if (elements == 0)
    return {{.treatment = Treatment::skipped, .matrix = decision.matrix, .kept = 0, .reason = "it has no elements"}};
  const auto rank =
      std::min({options.rank == 0 ? rank_of_equal_bytes(options.rule, decision.matrix) : options.rank, rows, columns});
  const bool large =
      static_cast<Wide>(rank) * (rows + columns) * million > static_cast<Wide>(options.rule.max_payload_ppm) * elements;
  decision.reason = tensor.shape.size() < 2                ? "it has less than two dimensions"
                    : elements < options.rule.min_elements ? "it is small"
                    : large                                ? "its factors are nearly as large"
                                                           : "";
  if (*decision.reason != '\0') return {decision};
  decision.treatment = Treatment::compressed;
  return {decision, rank};
}

// Gram and Schmidt, column by column from the left, the sums in double from above: the same bits wherever the matrix is the
// same.
void make_orthonormal(float* matrix, size_t rows, size_t columns) {
  std::vector<double> before(columns), along(columns);
  for (size_t i = 0; i < rows; ++i) {
    const float* const row = matrix + i * columns;
    for (size_t k = 0; k < columns; ++k) before[k] += double{row[k]} * row[k];
  }
  for (size_t j = 0; j < columns; ++j) {
    std::fill(along.begin(), along.end(), 0.0);
    for (size_t i = 0; i < rows; ++i) {
      const float* const row = matrix + i * columns;
      for (size_t k = j; k < columns; ++k) along[k] += double{row[j]} * row[k];
    }
    const double squared = along[j];
    const double by = squared > lost * lost * before[j] ? 1 / std::sqrt(squared) : 0;
    for (size_t i = 0; i < rows; ++i) {
      float* const row = matrix + i * columns;
      row[j] = static_cast<float>(row[j] * by);
      for (size_t k = j + 1; k < columns; ++k) row[k] = static_cast<float>(row[k] - row[j] * (along[k] * by));
    }
  }
}

class PowerSgd final : public Compressor {
 public:
  PowerSgd(const PowerOptions& options, uint32_t group, std::vector<GroupTensor> tensors, const std::vector<Shape>& shapes)
      : options_(options), group_(group), tensors_(std::move(tensors)), start_(tensors_.size()) {
    size_t first = 0, second = 0;
    for (const auto& [decision, rank] : shapes) {
      decisions_.push_back(decision);
      ranks_.push_back(rank);
      first += decision.matrix.rows * rank;
      second += decision.treatment == Treatment::dense ? decision.matrix.elements() : decision.matrix.columns * rank;
    }
    first_.resize(first);
    second_.resize(second);
  }

  std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) override;
  double residual_energy() const override { return 0; }
  std::span<float> notes() override { return {}; }
  Status choose() override;
  std::span<float> pack(std::span<const float* const> values) override;
  double captured() const override { return -1; }
  Status accept() override;
  void unpack(std::span<float* const> outputs) const override;
  uint64_t fingerprint() const override;
  std::span<const uint32_t> rows(size_t) const override { return {}; }
  size_t buffer_bytes() const override;
  std::span<const Decision> decisions() const override { return decisions_; }

 private:
  bool compressed(size_t i) const { return decisions_[i].treatment == Treatment::compressed; }
  void draw(size_t i, size_t row);

  const PowerOptions options_;
  const uint32_t group_;
  const std::vector<GroupTensor> tensors_;
  std::vector<Decision> decisions_;
  std::vector<size_t> ranks_;
  uint64_t step_ = 0;
  std::vector<std::vector<float>>
      start_;                          // by tensor: Q', rank x columns, from which the next step begins; empty before the first
  std::vector<float> directions_;      // Q' of the tensor in hand, with room between its rows
  std::vector<float> first_, second_;  // as the all-reduces have them: P, rows x rank; then Q' of all, and dense tensors behind
};

size_t PowerSgd::buffer_bytes() const {
  size_t numbers = first_.capacity() + second_.capacity() + directions_.capacity();
  for (const auto& start : start_) numbers += start.capacity();
  return sizeof(float) * numbers;
}

void PowerSgd::draw(size_t i, size_t row) {
  const size_t columns = decisions_[i].matrix.columns;
  const RandomStream stream{
      .seed = options_.seed, .step = step_, .tensor = tensors_[i].number, .purpose = RandomStream::Purpose::sketch};
  stream.normals(row * columns, std::span(start_[i]).subspan(row * columns, columns));
}

std::span<float> PowerSgd::begin(uint64_t step, std::span<const CompressorInput> inputs) {
  UNISONO_CHECK(inputs.size() == tensors_.size());
  step_ = step;
  float* out = first_.data();
  for (size_t i = 0; i < inputs.size(); ++i) {
    UNISONO_CHECK(!inputs[i].difference && inputs[i].moved == nullptr);
    const auto [rows, columns] = decisions_[i].matrix;
    if (compressed(i) && start_[i].empty()) {
      start_[i].resize(ranks_[i] * columns);
      for (size_t row = 0; row < ranks_[i]; ++row) draw(i, row);
    }
    kernels::SketchTask task{.values = inputs[i].values, .residual = inputs[i].residual, .rows = rows, .columns = columns};
    // As ARC-Top-K lays its directions (kernels/sketch.h).
    task.stride = kernels::direction_stride(columns);
    directions_.resize(std::max(directions_.size(), task.stride * ranks_[i]));
    for (size_t row = 0; row < ranks_[i]; ++row)
      std::copy_n(start_[i].begin() + static_cast<ptrdiff_t>(row * columns), columns,
                  directions_.begin() + static_cast<ptrdiff_t>(row * task.stride));
    task.directions = directions_.data();
    task.rank = static_cast<uint32_t>(ranks_[i]);  // 0 of tensors that are sent whole: only compensated
    task.sketch = out;
    if (task.rank > 0 || task.residual != nullptr) kernels::sketch(task);
    out += rows * ranks_[i];
  }
  return first_;
}

Status PowerSgd::choose() {
  // Whatever is not finite in a row, its product is not.
  if (!all_finite(first_)) return not_finite("the first factor");
  float* left = first_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t rows = decisions_[i].matrix.rows;
    if (compressed(i)) make_orthonormal(left, rows, ranks_[i]), left += rows * ranks_[i];
  }
  return {};
}

std::span<float> PowerSgd::pack(std::span<const float* const> values) {
  UNISONO_CHECK(values.size() == tensors_.size());
  float *left = first_.data(), *to = second_.data();
  std::vector<float> transposed;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!compressed(i)) continue;
    const auto [rows, columns] = decisions_[i].matrix;
    const size_t rank = ranks_[i];
    transposed.resize(rows * rank);
    for (size_t k = 0; k < transposed.size(); ++k) transposed[k % rank * rows + k / rank] = left[k];
    multiply({.a = transposed.data(), .b = values[i], .c = to, .rows = rank, .inner = rows, .columns = columns});
    left += rows * rank;
    to += rank * columns;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (decisions_[i].treatment == Treatment::dense) to = std::copy_n(values[i], decisions_[i].matrix.elements(), to);
  }
  return second_;
}

Status PowerSgd::accept() {
  if (!all_finite(second_)) return not_finite("the average");
  const float* from = second_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t columns = decisions_[i].matrix.columns;
    if (compressed(i)) start_[i].assign(from, from + ranks_[i] * columns);
    for (size_t row = 0; row < ranks_[i]; ++row, from += columns) {
      if (std::all_of(from, from + columns, [](float value) { return value == 0; })) draw(i, row);
    }
  }
  return {};
}

void PowerSgd::unpack(std::span<float* const> outputs) const {
  UNISONO_CHECK(outputs.size() == tensors_.size());
  const float *left = first_.data(), *right = second_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [rows, columns] = decisions_[i].matrix;
    if (!compressed(i)) continue;
    if (outputs[i] != nullptr)
      multiply({.a = left, .b = right, .c = outputs[i], .rows = rows, .inner = ranks_[i], .columns = columns});
    left += rows * ranks_[i];
    right += ranks_[i] * columns;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (decisions_[i].treatment != Treatment::dense) continue;
    if (outputs[i] != nullptr) std::copy_n(right, decisions_[i].matrix.elements(), outputs[i]);
    right += decisions_[i].matrix.elements();
  }
}

// Ranks have nothing to choose but the factors' columns, and those follow from the options.
uint64_t PowerSgd::fingerprint() const {
  Fingerprint fingerprint;
  for (const uint32_t word : {static_cast<uint32_t>(step_), static_cast<uint32_t>(step_ >> 32), group_}) fingerprint.add(word);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!compressed(i)) continue;
    fingerprint.add(tensors_[i].number);
    fingerprint.add(static_cast<uint32_t>(ranks_[i]));
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

Result<std::unique_ptr<Compressor>> make_power_sgd(const PowerOptions& options, uint32_t group,
                                                   std::vector<GroupTensor> tensors) {
  if (auto status = check(options.rule); !status.ok()) return status;
  std::vector<Shape> shapes;
  for (const auto& tensor : tensors) {
    const auto& [decision, rank] = shapes.emplace_back(shape_of(options, tensor));
    if (static_cast<Wide>(rank) * decision.matrix.columns > normals_max) {
      return Status(Code::invalid, "bad_option: tensor " + std::to_string(tensor.number) + " has " +
                                       std::to_string(decision.matrix.columns) + " columns, too many for factors of rank " +
                                       std::to_string(rank));
    }
  }
  return std::unique_ptr<Compressor>(std::make_unique<PowerSgd>(options, group, std::move(tensors), shapes));
}

}  // namespace unisono
