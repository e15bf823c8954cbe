#include "training/moshpit_sgd/moshpit_stepper.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/concat.h"
#include "base/hash.h"

namespace unisono::internal {
namespace {

constexpr uint32_t blob_magic = 0x4D534744;  // "DGSM"
constexpr uint32_t blob_version = 1;
constexpr uint32_t last_averaging_steps_max = 3;  // finish() makes at most this many averaging steps.

// Calls call(offset, tensor) for each tensor. `offset` is where the tensor begins when all tensors are concatenated.
template <typename Call>
void for_each_tensor(std::span<const std::span<float>> tensors, Call&& call) {
  size_t offset = 0;
  for (const auto& tensor : tensors) call(offset, tensor), offset += tensor.size();
}

}  // namespace

AveragingSummary summary_of(const AveragingReport& report) {
  AveragingSummary summary;
  bool first = true;
  for (const auto& round : report.rounds) {
    if (std::exchange(first, first && round.group < 2) && round.group >= 2)
      summary.spread = std::sqrt(std::max(0.0, round.variance));
    summary.mixed |= round.committed > 0;
    summary.settled |= round.committed > 0 && round.kept_local + round.voided + round.undecided + round.lost == 0;
  }
  return summary;
}

// Measures the time from its construction to its destruction, subtracts the time spent waiting for averaging steps, and adds
// the rest to handled_.
class MoshpitStepper::Stopwatch {
 public:
  explicit Stopwatch(MoshpitStepper& of) : of_(of), began_(of.averager_->now()), waited_before_(of.waited_) {}
  ~Stopwatch() { of_.handled_ += of_.averager_->now() - began_ - waited(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  Nanos waited() const { return of_.waited_ - waited_before_; }

 private:
  MoshpitStepper& of_;
  const Nanos began_, waited_before_;
};

Result<std::unique_ptr<MoshpitStepper>> MoshpitStepper::make(std::unique_ptr<Averager> averager, const MoshpitStart& start,
                                                             Parameters parameters, const MoshpitSgdOptions& options) {
  if (auto checked = options.check(); !checked.ok()) return checked;
  std::vector<size_t> sizes;
  for (const auto& tensor : parameters) sizes.push_back(tensor.size());
  std::unique_ptr<MoshpitStepper> stepper(new MoshpitStepper(std::move(averager), start, std::move(sizes), options));
  if (auto begun = stepper->begin_at(start, parameters); !begun.ok()) return begun;
  return stepper;
}

MoshpitStepper::MoshpitStepper(std::unique_ptr<Averager> averager, const MoshpitStart& start, std::vector<size_t> sizes,
                               const MoshpitSgdOptions& options)
    : options_(options),
      averager_(std::move(averager)),
      sizes_(std::move(sizes)),
      outer_(options, std::accumulate(sizes_.begin(), sizes_.end(), size_t{0})),
      base_(std::accumulate(sizes_.begin(), sizes_.end(), size_t{0})),
      origin_(base_.size()),
      late_(start.late),
      made_at_(averager_->now()) {
  size_t offset = 0;
  for (const auto size : sizes_) base_views_.push_back(std::span(base_).subspan(offset, size)), offset += size;
  report_.peers = std::max(1u, start.peers);
}

Status MoshpitStepper::begin_at(const MoshpitStart& start, Parameters parameters) {
  if (!start.values.empty() && start.values.size() != base_.size()) {
    return {Code::invalid,
            concat("bad_option: the run's tensors have ", start.values.size(), " elements, and the parameters ", base_.size())};
  }
  for_each_tensor(parameters, [&](size_t offset, std::span<float> tensor) {
    const auto base = std::span(base_).subspan(offset, tensor.size());
    if (start.values.empty()) std::ranges::copy(tensor, base.begin());
    else std::ranges::copy(std::span(start.values).subspan(offset, tensor.size()), base.begin());
  });
  outer_.begin(base_);
  if (start.values.empty()) return {};
  // Donors write their blob before an averaging step, so the blob holds the base of the step before. The joining peer also has
  // the averaged values of the donors' last averaging step. It computes the reference of the donors from both. If the blob is
  // not readable, the peer uses the averaged values without momentum.
  const auto found = std::ranges::find(start.blobs, std::string_view(blob_name),
                                       [](const auto& blob) { return std::string_view(blob.first); });
  const bool read_blob = found != start.blobs.end() && read(found->second, false).ok();
  if (start.averaging >= 0) outer_.accept(base_, read_blob && last_averaging_ < start.averaging);
  last_averaging_ = start.averaging;
  for_each_tensor(parameters, [&](size_t offset, std::span<float> tensor) {
    std::ranges::copy(std::span(base_).subspan(offset, tensor.size()), tensor.begin());
  });
  return {};
}

Status MoshpitStepper::check(Parameters parameters) const {
  const auto same =
      parameters.size() == sizes_.size() && std::equal(sizes_.begin(), sizes_.end(), parameters.begin(),
                                                       [](size_t size, const auto& tensor) { return size == tensor.size(); });
  return same ? Status()
              : Status(Code::invalid, "parameters differ from those of make() in the number of tensors or of their elements");
}

bool MoshpitStepper::is_due() const {
  if (options_.target_samples == 0) return fresh_steps_ >= options_.local_steps;
  return fresh_samples_ >= (options_.target_samples + report_.peers - 1) / report_.peers;
}

Status MoshpitStepper::begin_averaging(Parameters parameters, MoshpitStep& step) {
  for_each_tensor(parameters, [&](size_t offset, std::span<float> tensor) {
    std::ranges::copy(tensor, origin_.begin() + static_cast<ptrdiff_t>(offset));
  });
  outer_.propose(origin_, base_);
  // One value that is not finite would spoil the mean of all peers. A peer with such a value takes part with weight 0: it
  // contributes nothing, but receives the mean.
  const bool finite = std::ranges::all_of(base_, [](float value) { return std::isfinite(value); });
  Flight flight{
      .began = averager_->now(), .samples = late_ || !finite ? 0 : uncounted_samples_, .weightless = late_ || !finite};
  auto blobs = give_ ? give_() : StateBlobs();
  blobs.emplace_back(blob_name, encode_state(false));
  if (auto begun = averager_->begin(base_views_, static_cast<double>(flight.samples), std::move(blobs)); !begun.ok())
    return begun;
  report_.not_finite += !finite;
  // If the weight is 0, the samples up to now are never counted, because they led to values that no peer uses.
  uncounted_samples_ = 0;
  flight_ = flight;
  step.began = true;
  return {};
}

Status MoshpitStepper::end_averaging(Parameters parameters, Milliseconds timeout, MoshpitStep& step) {
  const Nanos before = averager_->now();
  auto ended = averager_->end(timeout);
  const Nanos now = averager_->now();
  waited_ += now - before;
  if (!ended.ok() && ended.status().code() == Code::late) return ended.status();
  const Flight flight = *std::exchange(flight_, std::nullopt);
  averaging_time_ += now - flight.began;
  fresh_steps_ = fresh_samples_ = 0;
  if (!ended.ok()) {
    uncounted_samples_ += flight.samples;
    return ended.status();
  }
  auto averaging = std::make_shared<const AveragingReport>(*std::move(ended));
  const auto summary = summary_of(*averaging);
  ++report_.averaging_steps;
  report_.exact += averaging->exact;
  report_.alone += !summary.mixed;
  report_.without_weight += flight.weightless;
  report_.peers = std::max(1u, averaging->peers);
  if (summary.mixed) {
    report_.spread = summary.spread;
    apply_result(parameters, *averaging, summary);
  } else {
    uncounted_samples_ += flight.samples;
  }
  step.averaging = std::move(averaging);
  return {};
}

void MoshpitStepper::apply_result(Parameters parameters, const AveragingReport& averaging, const AveragingSummary& summary) {
  const auto number = static_cast<int64_t>(averaging.step);
  // If this peer missed averaging steps, its previous base is too old. The difference between the new base and that one then
  // spans several averaging steps, so it must not be used as momentum.
  outer_.accept(base_, number == last_averaging_ + 1);
  last_averaging_ = number;
  if (summary.settled) late_ = false;
  for_each_tensor(parameters, [&](size_t offset, std::span<float> tensor) {
    for (size_t i = 0; i < tensor.size(); ++i) {
      const float reference = base_[offset + i], origin = origin_[offset + i];
      // In two cases the parameter becomes exactly the reference, as at the other peers: this peer made no local steps during
      // the averaging step, or the difference is not finite.
      const float moved = tensor[i] - origin;
      tensor[i] = moved == 0 || !std::isfinite(moved) ? reference : reference + moved;
    }
  });
}

Result<MoshpitStep> MoshpitStepper::after_step(Parameters parameters, uint64_t samples) {
  if (auto checked = check(parameters); !checked.ok()) return checked;
  MoshpitStep step;
  const Stopwatch stopwatch(*this);
  ++report_.steps, report_.samples += samples;
  ++fresh_steps_, fresh_samples_ += samples, uncounted_samples_ += samples;
  if (flight_) {
    ++report_.overlapped_steps;
    if (averager_->done()) {
      if (auto ended = end_averaging(parameters, Milliseconds{0}, step); !ended.ok()) return ended;
    }
  }
  if (!flight_ && is_due()) {
    if (auto begun = begin_averaging(parameters, step); !begun.ok()) return begun;
    if (!options_.overlap) {
      if (auto ended = end_averaging(parameters, Milliseconds{0}, step); !ended.ok()) return ended;
    }
  }
  step.waited_s = seconds_of(stopwatch.waited());
  return step;
}

Result<MoshpitStep> MoshpitStepper::drain(Parameters parameters, Milliseconds timeout) {
  if (auto checked = check(parameters); !checked.ok()) return checked;
  MoshpitStep step;
  const Stopwatch stopwatch(*this);
  if (flight_) {
    if (auto ended = end_averaging(parameters, timeout, step); !ended.ok()) return ended;
  }
  step.waited_s = seconds_of(stopwatch.waited());
  return step;
}

Result<MoshpitStep> MoshpitStepper::finish(Parameters parameters) {
  auto step = drain(parameters, Milliseconds{0});
  double waited_s = 0;
  // Another peer that is finishing may be one averaging step behind. Then it contributes its last local steps only to the next
  // averaging step. When no other peer contributes any more, all peers have equal parameters.
  for (uint32_t last = 0; step.ok() && last < last_averaging_steps_max; ++last) {
    waited_s += step->waited_s;
    if (auto begun = begin_averaging(parameters, *step); !begun.ok()) return begun;
    step = drain(parameters, Milliseconds{0});
    if (step.ok() && !summary_of(*step->averaging).mixed) break;
  }
  if (!step.ok()) return step;
  step->began = true;
  step->waited_s += waited_s;
  return step;
}

void MoshpitStepper::abandon() {
  if (!flight_) return;
  averager_->abandon();
  uncounted_samples_ += flight_->samples;
  flight_.reset();
}

MoshpitSgdReport MoshpitStepper::report() const {
  auto report = report_;
  const Nanos now = averager_->now();
  report.total_s = seconds_of(now - made_at_);
  report.waited_s = seconds_of(waited_);
  report.handled_s = seconds_of(handled_);
  report.averaging_s = seconds_of(averaging_time_ + (flight_ ? now - flight_->began : 0));
  return report;
}

std::vector<std::byte> MoshpitStepper::encode_state(bool whole) const {
  ByteWriter writer;
  writer.write(blob_magic).write(blob_version).write(static_cast<uint8_t>(whole));
  writer.write(last_averaging_).write(steps()).write(whole ? uncounted_samples_ : uint64_t{0});
  outer_.write(writer, whole);
  writer.write(hash_of(writer.view()));
  return std::move(writer).take();
}

Status MoshpitStepper::read(std::span<const std::byte> bytes, bool whole) {
  uint64_t hash = 0;
  const auto content = bytes.first(bytes.size() - std::min(bytes.size(), sizeof hash));
  if (bytes.size() >= sizeof hash) std::memcpy(&hash, bytes.data() + content.size(), sizeof hash);
  if (content.empty() || hash != hash_of(content))
    return {Code::corrupt, concat("the saved state of a Moshpit SGD, of ", bytes.size(), " bytes, is truncated or damaged")};
  ByteReader reader(content);
  const bool known = reader.read<uint32_t>() == blob_magic && reader.read<uint32_t>() == blob_version &&
                     reader.read<uint8_t>() == static_cast<uint8_t>(whole);
  const auto last_averaging = reader.read<int64_t>();
  const auto steps = reader.read<uint64_t>(), uncounted = reader.read<uint64_t>();
  if (!known || !reader.ok() || !outer_.read(reader, whole))
    return {Code::invalid,
            "the saved state of a Moshpit SGD has another number of parameters, another outer optimizer, or another version"};
  last_averaging_ = last_averaging;
  steps_before_ = steps - report_.steps;
  uncounted_samples_ = uncounted;
  return {};
}

Status MoshpitStepper::load(std::span<const std::byte> bytes) {
  if (flight_) return {Code::invalid, "an averaging step is under way: call drain() first"};
  return read(bytes, true);
}

}  // namespace unisono::internal
