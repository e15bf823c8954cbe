#include "cli/bench/bench_run.h"

#include <algorithm>

#include "cli/bench/bench_subject.h"
#include "cli/common/monotonic.h"

namespace unisono::cli {
namespace {

constexpr uint32_t auto_iterations_min = 10;
constexpr uint32_t auto_iterations_max = 2000;

// Broadcasts the value of rank 0, and returns it on all ranks.
Result<uint64_t> agree(Group& group, uint64_t value) {
  auto done = group.broadcast(std::span<uint64_t>(&value, 1), 0);
  if (!done.ok()) return done.status();
  return value;
}

Result<uint32_t> choose_iterations(Group& group, const RunOptions& options, Subject& subject) {
  Nanos spent = 0;
  const auto warmup = std::max<uint32_t>(options.iterations == 0 ? 1 : 0, options.warmup);
  for (uint32_t i = 0; i < warmup; ++i) {
    const auto start = monotonic_now();
    auto done = subject.call();
    if (!done.ok()) return done.status();
    spent = monotonic_now() - start;
  }
  if (options.iterations != 0) return options.iterations;
  const auto fitting = static_cast<uint64_t>(options.row_time / std::max<Nanos>(spent, 1));
  auto agreed = agree(group, std::clamp<uint64_t>(fitting, auto_iterations_min, auto_iterations_max));
  if (!agreed.ok()) return agreed.status();
  return static_cast<uint32_t>(*agreed);
}

Status combine(Group& group, Across across, std::vector<double>& durations) {
  if (group.world_size() == 1) return {};
  const std::span<double> span(durations);
  const auto op = across == Across::mean ? ReduceOp::avg : across == Across::min ? ReduceOp::min : ReduceOp::max;
  return across == Across::rank_0 ? group.broadcast(span, 0).status() : group.all_reduce(span, {.op = op}).status();
}

Status check(Group& group, uint32_t times, Subject& subject, Measurement& measurement) {
  for (uint32_t i = 0; i < times; ++i) {
    subject.fill();
    auto done = subject.call_complete();
    if (!done.ok()) return done.status();
    measurement.wrong += subject.wrong();
  }
  auto summed = group.all_reduce(std::span<uint64_t>(&measurement.wrong, 1));
  measurement.checked = true;
  return summed.status();
}

// Checks results whose elements were encoded. Some collectives must give the same bits on all ranks. If the bits differ, this
// counts as one more wrong element.
Status check_encoded(Group& group, Subject& subject, Collective collective, Measurement& measurement) {
  subject.fill();
  auto done = subject.call_complete();
  if (!done.ok()) return done.status();
  const auto accuracy = subject.accuracy();
  double powers[] = {accuracy.signal, accuracy.noise};
  if (auto summed = group.all_reduce(std::span<double>(powers)); !summed.ok()) return summed.status();
  measurement.snr_db = Accuracy{.signal = powers[0], .noise = powers[1]}.snr_db();
  uint64_t bits[] = {accuracy.bits, ~accuracy.bits};
  if (auto least = group.all_reduce(std::span<uint64_t>(bits), {.op = ReduceOp::min}); !least.ok()) return least.status();
  const bool alike = collective == Collective::all_reduce || collective == Collective::all_gather;
  measurement.wrong = accuracy.wrong + (alike && bits[0] != ~bits[1]);
  measurement.checked = true;
  return group.all_reduce(std::span<uint64_t>(&measurement.wrong, 1)).status();
}

// Counts the contribution ranges (pieces of the other ranks' data) that this rank expected. `missing` of them had not arrived
// when this rank added up the data.
struct Contributions {
  uint64_t expected = 0, missing = 0;
  void add(const Report& report) {
    if (report.delivery == nullptr) return;
    for (const auto& stream : report.delivery->contribute.streams) expected += stream.expected, missing += stream.missing;
  }
};

Status combine(Group& group, const Contributions& here, Measurement& measurement) {
  uint64_t counts[] = {here.expected, here.missing};
  auto summed = group.all_reduce(std::span<uint64_t>(counts));
  if (!summed.ok()) return summed.status();
  if (counts[0] > 0) measurement.missing = static_cast<double>(counts[1]) / static_cast<double>(counts[0]);
  return {};
}

// Combines what the ranks report about the last timed call. The combined number of sent bytes is the mean, and the combined
// number of contributors is the smallest.
Status combine(Group& group, const Report& report, Measurement& measurement) {
  uint64_t sent = report.sent_bytes;
  if (auto summed = group.all_reduce(std::span<uint64_t>(&sent, 1)); !summed.ok()) return summed.status();
  uint32_t contributors = report.contributors;
  if (auto least = group.all_reduce(std::span<uint32_t>(&contributors, 1), {.op = ReduceOp::min}); !least.ok())
    return least.status();
  measurement.wire_bytes = sent / group.world_size();
  measurement.contributors = contributors;
  return {};
}

}  // namespace

Result<Measurement> measure(Group& group, const RunOptions& options, uint64_t bytes, bool in_place) {
  Measurement measurement;
  if (!options.data.codec.is_plain()) {
    auto without = options;
    without.data.codec = {};
    without.call.codec = Codec{};
    without.call.schedule = ScheduleKind::automatic;
    without.checks = 0;
    auto exact = measure(group, without, bytes, in_place);
    if (!exact.ok()) return exact;
    measurement.exact_us = exact->timing.p50_us;
  }
  measurement.extent = extent_of(options.data.collective, bytes, options.data.dtype, group.world_size());
  Subject subject(group, {options.data, options.call, measurement.extent, in_place});
  if (auto status = subject.allocate(); !status.ok()) return status;
  subject.fill();
  if (options.checks > 0 && !options.data.codec.is_plain()) {
    if (auto status = check_encoded(group, subject, options.data.collective, measurement); !status.ok()) return status;
  } else if (options.checks > 0 && options.data.collective != Collective::barrier) {
    if (auto status = check(group, options.checks, subject, measurement); !status.ok()) return status;
  }
  const auto iterations = choose_iterations(group, options, subject);
  if (!iterations.ok()) return iterations.status();
  measurement.iterations = *iterations;
  std::vector<double> durations(*iterations);
  Contributions contributions;
  for (uint32_t i = 0; i < *iterations; ++i) {
    if (options.barrier && options.data.collective != Collective::barrier) {
      if (auto met = group.barrier(); !met.ok()) return met.status();
    }
    const auto start = monotonic_now();
    auto done = subject.call();
    const auto end = monotonic_now();
    if (!done.ok()) return done.status();
    durations[i] = static_cast<double>(end - start) / static_cast<double>(microsecond);
    contributions.add(*done);
    if (options.on_progress) options.on_progress(i + 1, *iterations, end);
    if (i + 1 == *iterations) measurement.report = *std::move(done);
  }
  if (auto status = combine(group, options.across, durations); !status.ok()) return status;
  if (auto status = combine(group, measurement.report, measurement); !status.ok()) return status;
  if (options.call.delivery != Delivery::reliable) {
    if (auto status = combine(group, contributions, measurement); !status.ok()) return status;
  }
  measurement.timing = summarise(durations);
  return measurement;
}

}  // namespace unisono::cli
