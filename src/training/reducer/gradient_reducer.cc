#include "training/reducer/reducer.h"
#include "unisono/training.h"

namespace unisono {

GradientReducer::GradientReducer(std::unique_ptr<internal::Reducer> reducer) : reducer_(std::move(reducer)) {}
GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;
GradientReducer& GradientReducer::operator=(GradientReducer&&) noexcept = default;
GradientReducer::~GradientReducer() = default;

Result<GradientReducer> GradientReducer::make(const Group& group, std::span<const Parameter> parameters,
                                              const Compression& compression) {
  auto reducer = internal::Reducer::make(group, parameters, compression);
  if (!reducer.ok()) return reducer.status();
  return GradientReducer(*std::move(reducer));
}

Status GradientReducer::reduce(std::span<const Gradient> bucket) {
  if (auto status = reducer_->process().check(); !status.ok()) return status;
  return reducer_->reduce(bucket);
}
Result<CompressionReport> GradientReducer::finish() {
  if (auto status = reducer_->process().check(); !status.ok()) return status;
  return reducer_->finish();
}
void GradientReducer::step_skipped() { reducer_->step_skipped(); }
void GradientReducer::flush() { reducer_->flush(); }
Result<Resumed> GradientReducer::resume(const Group& group) {
  if (auto status = reducer_->process().check(); !status.ok()) return status;
  return reducer_->resume(group);
}
const Resumed& GradientReducer::resumed() const { return reducer_->resumed(); }
std::vector<std::byte> GradientReducer::save() { return reducer_->save(); }
Status GradientReducer::load(std::span<const std::byte> bytes) { return reducer_->load(bytes); }
const CompressionReport& GradientReducer::total() const { return reducer_->total(); }
uint64_t GradientReducer::step() const { return reducer_->step(); }

}  // namespace unisono
