#include "training/moshpit_sgd/outer_optimizer.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

namespace unisono::internal {
namespace {

using Average = MoshpitSgdOptions::Average;
using Outer = MoshpitSgdOptions::Outer;

float rate_of(const MoshpitSgdOptions& options) {
  if (options.average == Average::parameters) return 1;
  return static_cast<float>(options.outer_rate >= 0 ? options.outer_rate : options.outer == Outer::sgd ? 1 : 0.7);
}

float momentum_of(const MoshpitSgdOptions& options) {
  if (options.average == Average::parameters) return 0;
  return static_cast<float>(options.outer == Outer::sgd ? 0 : options.outer_momentum >= 0 ? options.outer_momentum : 0.9);
}

std::string_view bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Returns false unless the next string holds exactly `elements` values.
bool read_values(ByteReader& reader, std::vector<float>& values, size_t elements) {
  const auto text = reader.read_string(elements * sizeof(float));
  if (!reader.ok() || text.size() != elements * sizeof(float)) return false;
  values.resize(elements);
  if (elements > 0) std::memcpy(values.data(), text.data(), text.size());
  return true;
}

}  // namespace

OuterOptimizer::OuterOptimizer(const MoshpitSgdOptions& options, size_t elements)
    : rate_(rate_of(options)), momentum_(momentum_of(options)), elements_(elements) {
  if (!plain()) reference_.resize(elements);
  if (momentum_ != 0) before_.resize(elements);
}

void OuterOptimizer::begin(std::span<const float> reference) {
  UNISONO_CHECK(reference.size() == elements_);
  if (!plain()) std::ranges::copy(reference, reference_.begin());
  if (momentum_ != 0) std::ranges::copy(reference, before_.begin());
}

void OuterOptimizer::propose(std::span<const float> values, std::span<float> base) const {
  UNISONO_CHECK(values.size() == elements_ && base.size() == elements_);
  // With a rate of 1, the base equals the values. The formula below would give the values only up to rounding errors.
  if (rate_ == 1) {
    std::ranges::copy(values, base.begin());
    return;
  }
  for (size_t i = 0; i < elements_; ++i) base[i] = reference_[i] + rate_ * (values[i] - reference_[i]);
}

void OuterOptimizer::accept(std::span<float> base, bool momentum) {
  UNISONO_CHECK(base.size() == elements_);
  if (plain()) return;
  for (size_t i = 0; i < before_.size(); ++i) {
    const float mean = base[i];
    if (momentum) base[i] = mean + momentum_ * (mean - before_[i]);
    before_[i] = mean;
  }
  std::ranges::copy(base, reference_.begin());
}

void OuterOptimizer::write(ByteWriter& writer, bool whole) const {
  writer.write(rate_).write(momentum_).write(static_cast<uint64_t>(elements_));
  writer.write_string(whole ? bytes_of(reference_) : std::string_view());
  writer.write_string(bytes_of(before_));
}

bool OuterOptimizer::read(ByteReader& reader, bool whole) {
  const bool same = reader.read<float>() == rate_ && reader.read<float>() == momentum_ && reader.read<uint64_t>() == elements_;
  std::vector<float> reference, before;
  if (!same || !read_values(reader, reference, whole ? reference_.size() : 0) || !read_values(reader, before, before_.size()))
    return false;
  if (whole) reference_ = std::move(reference);
  before_ = std::move(before);
  return true;
}

}  // namespace unisono::internal
