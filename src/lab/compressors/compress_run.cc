#include "lab/compressors/compress_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/hash.h"

namespace unisono::lab {

using cli::summarise;

namespace {

struct MeasuredMethod {
  CompressRow row;
  std::unique_ptr<CompressMethod> method;
  std::vector<double> us{};  // durations in µs: for each timed step, first the duration of each phase, then their sum
  uint64_t sent_bytes = 0;   // number of bytes sent in all timed steps together
};

std::vector<std::pair<Method, Codec>> methods_and_codecs(const CompressPlan& plan) {
  std::vector<std::pair<Method, Codec>> entries;
  for (const auto method : plan.methods) {
    entries.emplace_back(method, Codec{});
    if (takes_codec(method) && !plan.codec.is_plain()) entries.emplace_back(method, plan.codec);
  }
  return entries;
}

Result<std::vector<MeasuredMethod>> make_measured_methods(const CompressPlan& plan) {
  std::vector<MeasuredMethod> measured_methods;
  for (const auto& [method, codec] : methods_and_codecs(plan)) {
    auto made = make_compress_method(plan, method, codec);
    if (!made.ok()) return Status(made.status().code(), fmt::format("{}: {}", name(method), made.status().message()));
    MeasuredMethod measured{.row = {}, .method = *std::move(made)};
    measured.row.method = method;
    measured.row.codec = codec;
    for (size_t i = 0; i < plan.gradients.shapes.size(); ++i) measured.row.treatments.push_back(measured.method->treatment(i));
    measured_methods.push_back(std::move(measured));
  }
  return measured_methods;
}

Status run_timed(Group& group, const MethodStep& step, MeasuredMethod& measured, bool counts) {
  if (auto met = group.barrier(); !met.ok()) return met.status();
  StepCost cost;
  if (auto status = measured.method->run(group, step, cost); !status.ok()) return status;
  if (!counts) return {};
  measured.us.insert(measured.us.end(), cost.us.begin(), cost.us.end());
  measured.us.push_back(cost.total_us());
  measured.sent_bytes += cost.sent_bytes;
  measured.row.payload_bytes = cost.payload_bytes;
  measured.row.collectives = cost.collectives;
  return {};
}

// Runs one more step without timing it, and compares its result with the mean of its inputs.
Status measure_error(Group& group, const CompressPlan& plan, uint64_t number, std::span<float> gradients,
                     MeasuredMethod& measured) {
  std::vector<float> mean;
  const auto copy = [&](std::span<const float* const> compensated) {
    for (size_t i = 0; i < compensated.size(); ++i)
      mean.insert(mean.end(), compensated[i], compensated[i] + matrix_of(plan.gradients.shapes[i]).elements());
  };
  StepCost cost;
  if (auto status = measured.method->run(group, {.number = number, .gradients = gradients, .compensated = copy}, cost);
      !status.ok())
    return status;
  if (auto done = group.all_reduce(std::span<float>(mean), {.op = ReduceOp::avg, .timeout = plan.timeout, .codec = Codec{}});
      !done.ok())
    return done.status();
  double energy = 0, out = 0, error_energy = 0;
  for (size_t k = 0; k < mean.size(); ++k) {
    const double x = mean[k], y = gradients[k];
    energy += x * x;
    out += y * y;
    error_energy += (y - x) * (y - x);
  }
  measured.row.captured = energy > 0 ? out / energy : 0;
  measured.row.error = energy > 0 ? error_energy / energy : 0;
  const auto bits = hash_of(std::as_bytes(gradients));
  uint64_t least[] = {bits, ~bits};
  if (auto done = group.all_reduce(std::span<uint64_t>(least), {.op = ReduceOp::min}); !done.ok()) return done.status();
  measured.row.alike = least[0] == ~least[1];
  return {};
}

// Averages the measurements over the ranks. Afterwards all ranks have the same row.
Status average_over_ranks(Group& group, const CompressPlan& plan, MeasuredMethod& measured) {
  if (auto done = group.all_reduce(std::span<double>(measured.us), {.op = ReduceOp::avg}); !done.ok()) return done.status();
  if (auto done = group.all_reduce(std::span<uint64_t>(&measured.sent_bytes, 1)); !done.ok()) return done.status();
  measured.row.sent_bytes = measured.sent_bytes / group.world_size() / plan.steps;
  constexpr size_t columns = phase_count + 1;
  for (size_t column = 0; column < columns; ++column) {
    std::vector<double> durations;
    for (size_t at = column; at < measured.us.size(); at += columns) durations.push_back(measured.us[at]);
    (column < phase_count ? measured.row.phases[column] : measured.row.total) = summarise(durations);
  }
  return {};
}

}  // namespace

uint64_t turns_of(const CompressPlan& plan) {
  return methods_and_codecs(plan).size() * (uint64_t{plan.warmup} + plan.steps + 1);
}

Result<std::vector<CompressRow>> measure_methods(Group& group, const CompressPlan& plan, const CompressProgress& on_progress) {
  const auto gradients = Gradients::make(plan.gradients, group.rank());
  if (!gradients.ok()) return gradients.status();
  auto measured_methods = make_measured_methods(plan);
  if (!measured_methods.ok()) return measured_methods.status();
  std::vector<float> values(plan.gradients.elements());
  const uint64_t last = uint64_t{plan.warmup} + plan.steps;
  uint64_t done = 0;
  for (uint64_t number = 0; number <= last; ++number) {
    for (auto& measured : *measured_methods) {
      on_progress(done++, measured.row.label());
      gradients->fill(number, values);
      const auto status = number == last
                              ? measure_error(group, plan, number, values, measured)
                              : run_timed(group, {.number = number, .gradients = values}, measured, number >= plan.warmup);
      if (!status.ok())
        return Status(status.code(), fmt::format("{}, step {}: {}", measured.row.label(), number, status.message()));
    }
  }
  std::vector<CompressRow> rows;
  for (auto& measured : *measured_methods) {
    if (auto status = average_over_ranks(group, plan, measured); !status.ok()) return status;
    rows.push_back(std::move(measured.row));
  }
  return rows;
}

}  // namespace unisono::lab
