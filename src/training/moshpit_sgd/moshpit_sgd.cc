// The public class calls internal::MoshpitStepper, and turns std::bad_alloc into the error `unavailable`.
#include "unisono/moshpit_sgd.h"

#include <new>
#include <utility>

#include "training/moshpit_sgd/elastic_averager.h"
#include "training/moshpit_sgd/moshpit_stepper.h"

namespace unisono {
namespace {

template <typename Call>
auto guarded(const char* what, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, std::string("Moshpit SGD: out of memory, ") + what);
  }
}

}  // namespace

MoshpitSgd::MoshpitSgd(std::unique_ptr<internal::MoshpitStepper> stepper) : stepper_(std::move(stepper)) {}
MoshpitSgd::MoshpitSgd(MoshpitSgd&&) noexcept = default;
MoshpitSgd& MoshpitSgd::operator=(MoshpitSgd&&) noexcept = default;
MoshpitSgd::~MoshpitSgd() = default;

Result<MoshpitSgd> MoshpitSgd::make(Elastic& run, std::span<const std::span<float>> parameters,
                                    const MoshpitSgdOptions& options) {
  return guarded("in make()", [&]() -> Result<MoshpitSgd> {
    const auto start = internal::start_state_of(run);
    auto made = internal::MoshpitStepper::make(internal::make_elastic_averager(run), start, parameters, options);
    if (!made.ok()) return made.status();
    // Peers that join before the first averaging step start with the values of the first peer.
    if (!start.late && !start.loaded) {
      if (auto offered = run.offer_values(parameters); !offered.ok()) return offered;
    }
    return MoshpitSgd(std::move(*made));
  });
}
Result<MoshpitSgd> MoshpitSgd::make(Elastic& run, std::span<float> parameters, const MoshpitSgdOptions& options) {
  return make(run, std::span(&parameters, 1), options);
}

Result<MoshpitStep> MoshpitSgd::after_step(std::span<const std::span<float>> parameters, uint64_t samples) {
  return guarded("in after_step()", [&] { return stepper_->after_step(parameters, samples); });
}
Result<MoshpitStep> MoshpitSgd::after_step(std::span<float> parameters, uint64_t samples) {
  return after_step(std::span(&parameters, 1), samples);
}
Result<MoshpitStep> MoshpitSgd::drain(std::span<const std::span<float>> parameters, Milliseconds timeout) {
  return guarded("in drain()", [&] { return stepper_->drain(parameters, timeout); });
}
Result<MoshpitStep> MoshpitSgd::drain(std::span<float> parameters, Milliseconds timeout) {
  return drain(std::span(&parameters, 1), timeout);
}
Result<MoshpitStep> MoshpitSgd::finish(std::span<const std::span<float>> parameters) {
  return guarded("in finish()", [&] { return stepper_->finish(parameters); });
}
Result<MoshpitStep> MoshpitSgd::finish(std::span<float> parameters) { return finish(std::span(&parameters, 1)); }
void MoshpitSgd::abandon() { stepper_->abandon(); }

void MoshpitSgd::give_state(GiveState give) { stepper_->give_state(std::move(give)); }
uint64_t MoshpitSgd::steps() const { return stepper_->steps(); }
MoshpitSgdReport MoshpitSgd::report() const { return stepper_->report(); }
std::vector<std::byte> MoshpitSgd::save() const { return stepper_->save(); }
Status MoshpitSgd::load(std::span<const std::byte> bytes) {
  return guarded("in load()", [&] { return stepper_->load(bytes); });
}

}  // namespace unisono
