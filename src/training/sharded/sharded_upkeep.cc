// The reliable calls of a sharded step. These calls measure drift, exchange backups, or send all values again. All ranks make
// the same calls after the same steps.
#include <algorithm>
#include <string>

#include "base/concat.h"
#include "training/sharded/sharded_stepper.h"

namespace unisono::internal {
namespace {

// Drift is compared with its expectation only if at least this many ranges were lost since the last measurement. The mean over
// fewer ranges is too noisy.
constexpr double stale_ranges_min = 100;
// When this many successive measurements have found too much drift, all values are sent again.
constexpr uint32_t excess_drift_max = 2;

Status named(const char* what, const Status& status) {
  return status.ok() ? status : Status(status.code(), std::string("sharded step, ") + what + ": " + status.message());
}

}  // namespace

Status ShardedStepper::run_upkeep(ShardedReport& report) {
  const auto is_due = [&](uint32_t every) { return every > 0 && report.step % every == 0; };
  if (is_lossy() && is_due(options_.drift_every)) {
    if (auto status = named("measuring drift", measure_drift(report)); !status.ok()) return status;
  }
  if (world_ > 1 && is_due(options_.backup_every) && state_->optimizer().state_count() > 0) {
    if (auto status = named("backing up the optimizer's state", exchange_backups()); !status.ok()) return status;
  }
  if (is_lossy() && is_due(options_.resync_every)) return resync();
  return {};
}

Status ShardedStepper::measure_drift(ShardedReport& report) {
  const auto& statistics = updates_->statistics();
  const DriftInputs inputs{
      .loss = expected_ranges_ == 0 ? 0 : static_cast<double>(missing_ranges_) / static_cast<double>(expected_ranges_),
      .recovery = recovery_from_ages(
          std::span(ages_).first(options_.stale_max == 0 ? ages_.size()
                                                         : std::min<size_t>(ages_.size(), options_.stale_max + 1)),
          options_.stale_max),
      .second_moment = statistics.steps() == 0 ? 0 : statistics.second_moment(),
      .rho = statistics.autocorrelation()};
  std::vector<float> buffer(probe_->buffer_elements()), gathered(buffer.size() * world_);
  probe_->pack(*state_, inputs, buffer);
  if (auto done = group_->all_gather(ConstTensor(std::span<const float>(buffer)), Tensor(std::span(gathered)), {},
                                     {.timeout = options_.timeout, .codec = Codec()});
      !done.ok())
    return done.status();
  const auto found = probe_->evaluate(gathered, options_.stale_max);
  if (!found.ok()) return found.status();
  ages_ = {};
  expected_ranges_ = missing_ranges_ = 0;
  const auto& all = found->all;
  report.drift = {.owner = all.owner,
                  .owner_expected = all.owner_expected,
                  .pair = all.pair,
                  .pair_expected = all.pair_expected,
                  .paper_form = all.paper,
                  .gap = all.gap,
                  .second_moment = all.second_moment,
                  .rho = all.rho,
                  .loss = found->law.loss,
                  .recovery = found->law.recovery};
  // These numbers are equal on all ranks. Therefore either all ranks send their values again, or none does.
  const auto ranges = static_cast<double>(state_->geometry().ranges(0)) * world_ * options_.drift_every;
  excess_drift_count_ = found->is_excessive() && found->law.loss * ranges >= stale_ranges_min ? excess_drift_count_ + 1 : 0;
  if (excess_drift_count_ < excess_drift_max) return {};
  excess_drift_count_ = 0;
  report.warnings.push_back(concat("the drift between replicas and owners is ", all.owner, ", but loss explains only ",
                                   all.owner_expected, ": all values were sent again"));
  return resync();
}

// Sends the backup of this rank to the next rank, and receives the backup of the previous rank. First, all ranks exchange the
// sizes of their backups. Therefore no rank continues before all of them have reached this point.
Status ShardedStepper::exchange_backups() {
  const auto own = encode_backup(*state_);
  const Rank next = (rank_ + 1) % world_, before = (rank_ + world_ - 1) % world_;
  const auto reliable = CallOptions{.timeout = options_.timeout, .codec = Codec()};
  uint64_t bytes = own.size();
  std::vector<uint64_t> all(world_);
  if (auto done = group_->all_gather(ConstTensor(std::span<const uint64_t>(&bytes, 1)), Tensor(std::span(all)), {}, reliable);
      !done.ok())
    return done.status();
  const auto most =
      sizeof(float) * (uint64_t{state_->optimizer().state_count()} + 1) * (state_->geometry().shard_elements() + 64);
  if (all[before] > most)
    return {Code::invalid,
            concat("rank ", before, " sent a backup of ", all[before], " bytes; at most ", most, " are expected")};
  Bytes received(all[before]);
  auto receiving = group_->recv_async(Tensor(received.data(), received.size(), DType::u8), before, 0, reliable);
  auto sending = group_->send_async(ConstTensor(own.data(), own.size(), DType::u8), next, 0, reliable);
  const auto recv_status = receiving.wait().status(), send_status = sending.wait().status();
  if (!recv_status.ok() || !send_status.ok()) return recv_status.ok() ? send_status : recv_status;
  auto backup = decode_backup(received, state_->geometry());
  if (!backup.ok()) return {backup.status().code(), concat("backup of rank ", before, ": ", backup.status().message())};
  backup_ = std::move(*backup);
  return {};
}

Status ShardedStepper::gather_reliably(const StepCodec& codec, std::span<float> to) {
  auto call = call_options(codec);
  call.delivery = Delivery::reliable;
  call.schedule = ScheduleKind::direct;
  return group_->gather_shards(ConstTensor(state_->own_values()), Tensor(to), call).status();
}

Status ShardedStepper::resync() {
  if (!broken_.ok()) return broken_;
  if (auto status = gather_reliably(options_.values, state_->parameters()); !status.ok())
    return named("sending all values", status);
  state_->sent();
  for (Rank owner = 0; owner < world_; ++owner) {
    if (owner != rank_) state_->arrived(owner, {});
  }
  return {};
}

Status ShardedStepper::owners_values(std::span<float> values) {
  if (!broken_.ok()) return broken_;
  if (values.size() != state_->parameters().size())
    return {Code::invalid,
            concat("sharded step: the buffer has ", values.size(), " of ", state_->parameters().size(), " values")};
  return named("gathering the owners' values", gather_reliably({}, values));
}

}  // namespace unisono::internal
