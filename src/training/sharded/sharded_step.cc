// The public class calls internal::ShardedStepper, and turns std::bad_alloc into the error `unavailable`.
#include "unisono/sharded_step.h"

#include <new>
#include <utility>

#include "training/sharded/sharded_stepper.h"

namespace unisono {
namespace {

template <typename Call>
auto guarded(const char* what, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, std::string("sharded step: out of memory while ") + what);
  }
}

}  // namespace

ShardedStep::ShardedStep(std::unique_ptr<internal::ShardedStepper> stepper) : stepper_(std::move(stepper)) {}
ShardedStep::ShardedStep(ShardedStep&&) noexcept = default;
ShardedStep& ShardedStep::operator=(ShardedStep&&) noexcept = default;
ShardedStep::~ShardedStep() = default;

Result<ShardedStep> ShardedStep::make(const Group& group, std::span<const float> parameters,
                                      std::unique_ptr<ShardOptimizer> optimizer, const ShardedOptions& options) {
  return guarded("starting", [&]() -> Result<ShardedStep> {
    auto made = internal::ShardedStepper::make(group, parameters, std::move(optimizer), options);
    if (!made.ok()) return made.status();
    return ShardedStep(std::move(*made));
  });
}

std::span<const float> ShardedStep::parameters() const { return stepper_->parameters(); }
Result<ShardedReport> ShardedStep::run(std::span<const float> gradient) {
  return guarded("running a step", [&] { return stepper_->run(gradient); });
}
Status ShardedStep::resync() {
  return guarded("sending all values", [&] { return stepper_->resync(); });
}
Status ShardedStep::owners_values(std::span<float> values) {
  return guarded("gathering values", [&] { return stepper_->owners_values(values); });
}
void ShardedStep::set_rate(double rate) { stepper_->optimizer().set_rate(rate); }
uint32_t ShardedStep::step() const { return stepper_->step(); }
std::vector<std::byte> ShardedStep::save() const { return stepper_->save(); }
Status ShardedStep::load(std::span<const std::byte> bytes) {
  return guarded("loading", [&] { return stepper_->load(bytes); });
}
Result<ShardedResumed> ShardedStep::resume(const Group& group) {
  return guarded("resuming", [&] { return stepper_->resume(group); });
}
const ShardedResumed& ShardedStep::resumed() const { return stepper_->resumed(); }

}  // namespace unisono
