#include "unisono/drop_compute.h"

#include <new>

#include "training/drop_compute/dropper.h"

namespace unisono {
namespace {

// Runs the call. If it throws std::bad_alloc, returns the error `unavailable`.
template <typename Call>
auto guarded(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, "out of memory");
  }
}

// The same, but in a child made by fork(), returns an error without running the call.
template <typename Call>
auto guarded(const internal::Dropper& dropper, const Call& call) -> decltype(call()) {
  if (auto status = dropper.process().check(); !status.ok()) return status;
  return guarded(call);
}

}  // namespace

DropCompute::DropCompute(std::unique_ptr<internal::Dropper> dropper) : dropper_(std::move(dropper)) {}
DropCompute::DropCompute(DropCompute&&) noexcept = default;
DropCompute& DropCompute::operator=(DropCompute&&) noexcept = default;
DropCompute::~DropCompute() = default;

Result<DropCompute> DropCompute::make(const Group& group, uint32_t micro_batches, const DropOptions& options,
                                      const std::optional<Group>& replica) {
  auto dropper = guarded([&] { return internal::Dropper::make(group, micro_batches, options, replica); });
  if (!dropper.ok()) return dropper.status();
  return DropCompute(*std::move(dropper));
}

Status DropCompute::begin_step() {
  return guarded(*dropper_, [&] { return dropper_->begin_step(); });
}
bool DropCompute::next() { return !dropper_->process().forked() && dropper_->next(); }
uint64_t DropCompute::position() const { return dropper_->position(); }
bool DropCompute::last() const { return dropper_->last(); }
bool DropCompute::should_stop() const { return dropper_->should_stop(); }
void DropCompute::abandon() { dropper_->abandon(); }
Result<DropStep> DropCompute::end_step() {
  return guarded(*dropper_, [&] { return dropper_->end_step(); });
}
void DropCompute::pause() { dropper_->pause(); }
Result<DropStep> DropCompute::run(std::span<float> gradients, const DropWork& work) {
  return guarded(*dropper_, [&] { return dropper_->run(gradients, work); });
}
Status DropCompute::drain(const DropWork& work) {
  return guarded(*dropper_, [&] { return dropper_->drain(work); });
}
const DropReport& DropCompute::report() const { return dropper_->report(); }
DropReport DropCompute::total() const { return dropper_->total(); }
Result<DropReport> DropCompute::finish() {
  return guarded(*dropper_, [&] { return dropper_->finish(); });
}
std::string DropCompute::recorded() const { return dropper_->recorded(); }
std::vector<std::byte> DropCompute::save() { return dropper_->save(); }
Status DropCompute::load(std::span<const std::byte> bytes) {
  return guarded([&] { return dropper_->load(bytes); });
}
Status DropCompute::resume(const Group& group, const std::optional<Group>& replica) {
  return guarded(*dropper_, [&] { return dropper_->resume(group, replica); });
}

std::string DropCompute::recorded_head(uint32_t micro_batches) { return ComputeTrace::head(micro_batches) + "\n"; }

}  // namespace unisono
