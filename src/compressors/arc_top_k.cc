#include "compressors/arc_top_k.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "compressors/finite.h"
#include "compressors/row_selection.h"
#include "kernels/sketch.h"

namespace unisono {
namespace {

class ArcTopK final : public Compressor {
 public:
  ArcTopK(const ArcOptions& options, uint32_t group, std::vector<GroupTensor> tensors, std::vector<Decision> decisions,
          uint32_t side_value_count)
      : options_(options),
        group_(group),
        tensors_(std::move(tensors)),
        decisions_(std::move(decisions)),
        rows_(tensors_.size()),
        exact_scores_(tensors_.size()) {
    size_t sketched = 0, sent = 0, columns = 0, rows = 0;
    for (size_t i = 0; i < decisions_.size(); ++i) {
      const auto& decision = decisions_[i];
      if (decision.treatment == Treatment::compressed) {
        columns = std::max<size_t>(columns, decision.matrix.columns);
        rows = std::max<size_t>(rows, decision.matrix.rows);
        rows_[i].reserve(decision.kept);
      }
      sketched += decision.sketch_elements(options.rule);
      sent += decision.value_elements();
    }
    const bool needs_sketch = sketched > 0 && !options.random && !options.exact;
    // One more number, a flag, is averaged with the sketch. It is NaN if this rank has values that are not finite. The flag is
    // needed because the second all-reduce carries only the rows that are sent, and such values may be in other rows.
    sketch_.resize(needs_sketch ? sketched + 1 + side_value_count : 0);
    side_value_count_ = needs_sketch ? side_value_count : 0;
    zeros_.resize(columns);
    // All memory is allocated here. Therefore the steps do not allocate.
    if (needs_sketch)
      normals_.resize(columns * options.rule.rank), directions_.resize(kernels::direction_stride(columns) * options.rule.rank);
    if (needs_sketch) scores_.reserve(rows);
    flagged_ = sketched > 0 && !needs_sketch;
    sent_.resize(sent + (flagged_ ? 1 : 0));
  }

  std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) override;
  double residual_energy() const override { return residual_energy_; }
  std::span<float> side_values() override { return std::span(sketch_).last(side_value_count_); }
  Status choose() override;
  std::span<float> pack(std::span<const float* const> values) override;
  Status accept() override;
  void unpack(std::span<float* const> outputs) const override;
  size_t dense_offset() const override;
  bool sends_rows() const override { return true; }
  void subtract_sent(size_t, float*, bool) override {}
  double captured() const override {
    return !compresses() ? 1 : options_.random ? -1 : all_scores_ > 0 ? chosen_scores_ / all_scores_ : 1;
  }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::span<const uint32_t> rows(size_t i) const override { return rows_[i]; }
  size_t buffer_bytes() const override {
    return sizeof(float) *
               (sketch_.capacity() + sent_.capacity() + normals_.capacity() + directions_.capacity() + zeros_.capacity()) +
           sizeof(double) * scores_.capacity();
  }
  std::span<const Decision> decisions() const override { return decisions_; }

 private:
  void make_directions(uint32_t tensor, size_t columns);
  void score_exactly(size_t i, const CompressorInput& input);
  void choose(size_t i, const float* sketch);
  bool compresses() const { return flagged_ || !sketch_.empty(); }
  float& flag() { return sketch_[sketch_.size() - side_value_count_ - 1]; }

  const ArcOptions options_;
  const uint32_t group_;
  const std::vector<GroupTensor> tensors_;
  const std::vector<Decision> decisions_;
  uint64_t step_ = 0;
  // True if there is no first all-reduce. The second all-reduce then carries the flag for values that are not finite.
  bool flagged_ = false;
  bool finite_ = true;  // True if all values of this rank's tensors are finite.
  size_t side_value_count_ = 0;
  double residual_energy_ = 0;
  double chosen_scores_ = 0, all_scores_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<std::vector<uint32_t>> rows_;
  std::vector<float> sketch_, sent_;  // the buffers of the first and of the second all-reduce
  // The random directions of the current tensor: normals_ in the order in which they were drawn, directions_ in the order that
  // the kernel needs. Both are large enough for the widest tensor.
  std::vector<float> normals_, directions_;
  std::vector<float> zeros_;  // one row of zeros, as wide as the widest compressed tensor
  std::vector<double> scores_;
  // for each tensor: the squared lengths of its rows; only used with options_.exact
  std::vector<std::vector<double>> exact_scores_;
};

// Fills directions_. Component c of direction j is the random number c * rank + j of the stream.
void ArcTopK::make_directions(uint32_t tensor, size_t columns) {
  const size_t rank = options_.rule.rank, stride = kernels::direction_stride(columns);
  RandomStream{.seed = options_.seed, .step = step_, .tensor = tensor, .purpose = RandomStream::Purpose::sketch}.normals(
      0, std::span(normals_).first(columns * rank));
  for (size_t c = 0; c < columns; ++c) {
    for (size_t j = 0; j < rank; ++j) directions_[j * stride + c] = normals_[c * rank + j];
  }
}

std::span<float> ArcTopK::begin(uint64_t step, std::span<const CompressorInput> inputs) {
  UNISONO_CHECK(inputs.size() == tensors_.size());
  step_ = step;
  finite_ = true;
  residual_energy_ = 0;
  float* out = sketch_.data();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [rows, columns] = decisions_[i].matrix;
    kernels::SketchTask task{.values = inputs[i].values,
                             .residual = inputs[i].residual,
                             .difference = inputs[i].difference,
                             .moved = inputs[i].moved,
                             .far = inputs[i].far,
                             .cleared = inputs[i].cleared,
                             .zeros = zeros_.data(),
                             .rows = rows,
                             .columns = columns};
    if (decisions_[i].treatment == Treatment::compressed && !sketch_.empty()) {
      make_directions(tensors_[i].number, columns);
      task.directions = directions_.data();
      task.stride = kernels::direction_stride(columns);
      task.rank = options_.rule.rank;
      task.scale = 1 / std::sqrt(static_cast<float>(task.rank));
      task.sketch = out;
      residual_energy_ += kernels::sketch(task);
      // If a number in a row is not finite, the sketch of the row is not finite either.
      finite_ = finite_ && all_finite({out, rows * task.rank});
      out += rows * task.rank;
    } else if (decisions_[i].treatment != Treatment::skipped) {
      if (task.moved != nullptr || (task.residual != nullptr && !task.difference))
        residual_energy_ += kernels::sketch(task);  // No directions are given here, so the kernel only adds the residual.
      finite_ = finite_ && all_finite({task.moved != nullptr ? task.moved : task.values, rows * columns});
      if (options_.exact && decisions_[i].treatment == Treatment::compressed) score_exactly(i, inputs[i]);
    }
  }
  // The flag is NaN because every codec preserves NaN.
  if (!sketch_.empty()) flag() = finite_ ? 0 : NAN;
  return sketch_;
}

// Computes the exact scores of the rows. begin() calls this, because choose() no longer has the residual. (With `difference`,
// the values that are compressed are `values` - residual.)
void ArcTopK::score_exactly(size_t i, const CompressorInput& input) {
  const auto& [rows, columns] = decisions_[i].matrix;
  const float* const values = input.moved != nullptr ? input.moved : input.values;
  std::vector<float> row(columns);
  exact_scores_[i].resize(rows);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c)
      row[c] = values[r * columns + c] - (input.difference && input.residual != nullptr ? input.residual[r * columns + c] : 0);
    score_rows(row.data(), static_cast<uint32_t>(columns), std::span(exact_scores_[i]).subspan(r, 1));
  }
}

void ArcTopK::choose(size_t i, const float* sketch) {
  const auto& decision = decisions_[i];
  const auto count = static_cast<uint32_t>(decision.matrix.rows), kept = static_cast<uint32_t>(decision.kept);
  if (options_.random) {
    const RandomStream stream{
        .seed = options_.seed, .step = step_, .tensor = tensors_[i].number, .purpose = RandomStream::Purpose::random_k};
    return random_rows(stream, count, kept, rows_[i]);
  }
  scores_.resize(count);
  if (!options_.exact) score_rows(sketch, options_.rule.rank, scores_);
  const auto& scores = options_.exact ? exact_scores_[i] : scores_;
  select_rows(scores, kept, {.every = options_.refresh_every, .step = step_}, rows_[i]);
  for (const double score : scores) all_scores_ += score;
  for (const uint32_t row : rows_[i]) chosen_scores_ += scores[row];
}

Status ArcTopK::choose() {
  // The caller's side values need not be finite, so they are not checked.
  if (!sketch_.empty() && !all_finite(std::span(sketch_).first(sketch_.size() - side_value_count_)))
    return not_finite("the sketch");
  if (options_.exact && !finite_) return not_finite("a tensor");
  Fingerprint fingerprint;
  for (const uint32_t word : {static_cast<uint32_t>(step_), static_cast<uint32_t>(step_ >> 32), group_}) fingerprint.add(word);
  chosen_scores_ = all_scores_ = 0;
  const float* sketch = sketch_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& decision = decisions_[i];
    if (decision.treatment != Treatment::compressed) continue;
    choose(i, sketch);
    if (!sketch_.empty()) sketch += decision.sketch_elements(options_.rule);
    fingerprint.add(tensors_[i].number);
    fingerprint.add(static_cast<uint32_t>(decision.kept));
    for (const uint32_t row : rows_[i]) fingerprint.add(row);
  }
  fingerprint_ = fingerprint.value();
  return {};
}

std::span<float> ArcTopK::pack(std::span<const float* const> values) {
  UNISONO_CHECK(values.size() == tensors_.size());
  float* to = sent_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t columns = decisions_[i].matrix.columns;
    for (const uint32_t row : rows_[i]) to = std::copy_n(values[i] + row * columns, columns, to);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (decisions_[i].treatment == Treatment::dense) to = std::copy_n(values[i], decisions_[i].matrix.elements(), to);
  }
  if (flagged_) *to = finite_ ? 0 : NAN;
  return sent_;
}

size_t ArcTopK::dense_offset() const {
  size_t offset = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) offset += rows_[i].size() * decisions_[i].matrix.columns;
  return offset;
}

Status ArcTopK::accept() {
  if (!all_finite(sent_)) return not_finite("the average");
  return {};
}

void ArcTopK::unpack(std::span<float* const> outputs) const {
  UNISONO_CHECK(outputs.size() == tensors_.size());
  const float* from = sent_.data();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t columns = decisions_[i].matrix.columns;
    for (const uint32_t row : rows_[i]) {
      if (outputs[i] != nullptr) std::copy_n(from, columns, outputs[i] + row * columns);
      from += columns;
    }
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (decisions_[i].treatment != Treatment::dense) continue;
    if (outputs[i] != nullptr) std::copy_n(from, decisions_[i].matrix.elements(), outputs[i]);
    from += decisions_[i].matrix.elements();
  }
}

}  // namespace

Result<std::unique_ptr<Compressor>> make_arc_top_k(const ArcOptions& options, uint32_t group, std::vector<GroupTensor> tensors,
                                                   uint32_t side_value_count) {
  if (auto status = check(options.rule); !status.ok()) return status;
  std::vector<Decision> decisions;
  for (const auto& tensor : tensors) {
    const auto& decision = decisions.emplace_back(decide(options.rule, tensor.shape));
    const auto& [rows, columns] = decision.matrix;
    if (decision.treatment == Treatment::compressed &&
        (rows > UINT32_MAX || columns > UINT32_MAX || columns * options.rule.rank > uint64_t{1} << 34)) {
      return Status(Code::invalid, concat("bad_option: tensor ", tensor.number, " of ", rows, " x ", columns,
                                          " is too large for a sketch of rank ", options.rule.rank));
    }
  }
  return std::unique_ptr<Compressor>(
      std::make_unique<ArcTopK>(options, group, std::move(tensors), std::move(decisions), side_value_count));
}

}  // namespace unisono
