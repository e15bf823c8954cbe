#include "lab/compressors/compress_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/hash.h"

namespace unisono::cli {
namespace {

struct Entrant {
  CompressRow row;
  std::unique_ptr<CompressMethod> method;
  std::vector<double> us{};  // of each timed step: its phases and their sum
  uint64_t sent_bytes = 0;   // in all of them
};

std::vector<std::pair<Method, Codec>> entries_of(const CompressPlan& plan) {
  std::vector<std::pair<Method, Codec>> entries;
  for (const auto method : plan.methods) {
    entries.emplace_back(method, Codec{});
    if (takes_codec(method) && !plan.codec.is_plain()) entries.emplace_back(method, plan.codec);
  }
  return entries;
}

Result<std::vector<Entrant>> make_entrants(const CompressPlan& plan) {
  std::vector<Entrant> entrants;
  for (const auto& [method, codec] : entries_of(plan)) {
    auto made = make_compress_method(plan, method, codec);
    if (!made.ok()) return Status(made.status().code(), fmt::format("{}: {}", name(method), made.status().message()));
    Entrant entrant{.row = {}, .method = *std::move(made)};
    entrant.row.method = method;
    entrant.row.codec = codec;
    for (size_t i = 0; i < plan.gradients.shapes.size(); ++i) entrant.row.treatments.push_back(entrant.method->treatment(i));
    entrants.push_back(std::move(entrant));
  }
  return entrants;
}

Status run_timed(Group& group, const MethodStep& step, Entrant& entrant, bool counts) {
  if (auto met = group.barrier(); !met.ok()) return met.status();
  StepCost cost;
  if (auto status = entrant.method->run(group, step, cost); !status.ok()) return status;
  if (!counts) return {};
  entrant.us.insert(entrant.us.end(), cost.us.begin(), cost.us.end());
  entrant.us.push_back(cost.total_us());
  entrant.sent_bytes += cost.sent_bytes;
  entrant.row.payload_bytes = cost.payload_bytes;
  entrant.row.collectives = cost.collectives;
  return {};
}

// One more step: its result is compared with the mean of its inputs. Its time does not count.
Status examine(Group& group, const CompressPlan& plan, uint64_t number, std::span<float> gradients, Entrant& entrant) {
  std::vector<float> mean;
  const auto copy = [&](std::span<const float* const> compensated) {
    for (size_t i = 0; i < compensated.size(); ++i)
      mean.insert(mean.end(), compensated[i], compensated[i] + matrix_of(plan.gradients.shapes[i]).elements());
  };
  StepCost cost;
  if (auto status = entrant.method->run(group, {.number = number, .gradients = gradients, .compensated = copy}, cost);
      !status.ok())
    return status;
  if (auto done = group.all_reduce(std::span<float>(mean), {.op = ReduceOp::avg, .timeout = plan.timeout, .codec = Codec{}});
      !done.ok())
    return done.status();
  double energy = 0, out = 0, off = 0;
  for (size_t k = 0; k < mean.size(); ++k) {
    const double x = mean[k], y = gradients[k];
    energy += x * x;
    out += y * y;
    off += (y - x) * (y - x);
  }
  entrant.row.captured = energy > 0 ? out / energy : 0;
  entrant.row.error = energy > 0 ? off / energy : 0;
  const auto bits = hash_of(std::as_bytes(gradients));
  uint64_t least[] = {bits, ~bits};
  if (auto done = group.all_reduce(std::span<uint64_t>(least), {.op = ReduceOp::min}); !done.ok()) return done.status();
  entrant.row.alike = least[0] == ~least[1];
  return {};
}

// From this rank's times to the row that all ranks hold.
Status sum_up(Group& group, const CompressPlan& plan, Entrant& entrant) {
  if (auto done = group.all_reduce(std::span<double>(entrant.us), {.op = ReduceOp::avg}); !done.ok()) return done.status();
  if (auto done = group.all_reduce(std::span<uint64_t>(&entrant.sent_bytes, 1)); !done.ok()) return done.status();
  entrant.row.sent_bytes = entrant.sent_bytes / group.world_size() / plan.steps;
  constexpr size_t columns = phase_count + 1;
  for (size_t column = 0; column < columns; ++column) {
    std::vector<double> durations;
    for (size_t at = column; at < entrant.us.size(); at += columns) durations.push_back(entrant.us[at]);
    (column < phase_count ? entrant.row.phases[column] : entrant.row.total) = summarise(durations);
  }
  return {};
}

}  // namespace

uint64_t turns_of(const CompressPlan& plan) { return entries_of(plan).size() * (uint64_t{plan.warmup} + plan.steps + 1); }

Result<std::vector<CompressRow>> measure_methods(Group& group, const CompressPlan& plan, const CompressProgress& on_progress) {
  const auto gradients = Gradients::make(plan.gradients, group.rank());
  if (!gradients.ok()) return gradients.status();
  auto entrants = make_entrants(plan);
  if (!entrants.ok()) return entrants.status();
  std::vector<float> values(plan.gradients.elements());
  const uint64_t last = uint64_t{plan.warmup} + plan.steps;
  uint64_t done = 0;
  for (uint64_t number = 0; number <= last; ++number) {
    for (auto& entrant : *entrants) {
      on_progress(done++, entrant.row.label());
      gradients->fill(number, values);
      const auto status = number == last
                              ? examine(group, plan, number, values, entrant)
                              : run_timed(group, {.number = number, .gradients = values}, entrant, number >= plan.warmup);
      if (!status.ok())
        return Status(status.code(), fmt::format("{}, step {}: {}", entrant.row.label(), number, status.message()));
    }
  }
  std::vector<CompressRow> rows;
  for (auto& entrant : *entrants) {
    if (auto status = sum_up(group, plan, entrant); !status.ok()) return status;
    rows.push_back(std::move(entrant.row));
  }
  return rows;
}

}  // namespace unisono::cli
