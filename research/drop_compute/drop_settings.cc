#include "research/drop_compute/drop_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/concat.h"

namespace language_model {

using unisono::Code;
using unisono::DropOptions;
using unisono::Result;
using unisono::Status;

namespace {

constexpr const char* record_head = "step,k,M,compute_ns,wall_ns,dropped";

Status refused(const std::string& why) { return {Code::invalid, why}; }

bool records(const DropOptions& options) {
  return options.threshold == DropOptions::Threshold::automatic ||
         (options.threshold == DropOptions::Threshold::fixed && options.rule == DropOptions::Rule::before);
}

Status check(const MicroBatchSettings& s, const DropOptions& options) {
  if (s.random_drop > 0 && !s.replay.empty())
    return refused("--random-drop and --replay both choose the micro-batches to compute: give one of them");
  if (s.random_drop > 0 && options.threshold != DropOptions::Threshold::off)
    return refused(
        "--random-drop drops micro-batches whichever rank is late: with it, --drop-compute must be off:..., without a "
        "threshold");
  if (!s.trace.empty() && !records(options))
    return refused(
        "--trace writes the times that are recorded for a threshold: it needs --drop-compute auto; auto:calibration=STEPS "
        "sets the number of recorded steps");
  return options.check(s.count);
}

// Reads the next number from a line of comma-separated numbers, and removes the number from the line.
bool take(std::string_view& line, uint64_t& number) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error != std::errc()) return false;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  if (!line.empty() && line.front() != ',') return false;
  line.remove_prefix(std::min<size_t>(1, line.size()));
  return true;
}

}  // namespace

Result<MicroBatchOptions> parse_micro_batches(const MicroBatchSettings& s) {
  MicroBatchOptions options{.count = s.count, .delay_base = s.delay_base};
  if (!s.delay.empty()) {
    auto delay = unisono::sim::DelayModel::parse(s.delay);
    if (!delay.ok()) return Status(delay.status().code(), "--delay-model " + s.delay + ": " + delay.status().message());
    options.delay = *delay;
  }
  if (s.drop.empty() && s.random_drop == 0 && (s.record + s.replay + s.trace).empty()) return options;
  auto drop = DropOptions::parse(s.drop.empty() ? "off" : s.drop);
  if (!drop.ok()) return Status(drop.status().code(), "--drop-compute " + s.drop + ": " + drop.status().message());
  if (auto checked = check(s, *drop); !checked.ok()) return checked;
  options.drop = *std::move(drop);
  return options;
}

// Draws the micro-batches to drop at random, so that every possible choice is equally likely (Knuth, The Art of Computer
// Programming, 3.4.2, algorithm S).
std::vector<uint32_t> random_drop_counts(double share, uint32_t micro_batches, const RankOfRun& run) {
  // These random numbers are independent of those for the delays.
  auto random = unisono::sim::random_of(~run.seed, 0, run.rank, 0);
  uint64_t places = run.steps * micro_batches;
  auto dropped = static_cast<uint64_t>(std::llround(share * static_cast<double>(places)));
  std::vector<uint32_t> counts(run.steps, micro_batches);
  for (uint32_t& count : counts) {
    for (uint32_t i = 0; i < micro_batches; ++i, --places) {
      if (random.below(places) >= dropped) continue;
      --dropped;
      --count;
    }
  }
  return counts;
}

Result<MicroBatchOptions> with_counts(MicroBatchOptions options, const MicroBatchSettings& settings, const RankOfRun& run) {
  if (settings.random_drop > 0) options.drop->replay = random_drop_counts(settings.random_drop, options.count, run);
  if (settings.replay.empty()) return options;
  const auto path = record_path(settings.replay, run.rank);
  std::ifstream file(path, std::ios::binary);
  if (!file) return refused("--replay: cannot read " + path);
  auto counts = read_record({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, options.count, run.steps);
  if (!counts.ok()) return Status(counts.status().code(), path + counts.status().message());
  options.drop->replay = *std::move(counts);
  return options;
}

std::string record_path(const std::string& beginning, uint32_t rank) { return unisono::concat(beginning, ".", rank, ".csv"); }

std::string record_text(std::span<const DropRecord> steps) {
  std::string text = record_head + std::string("\n");
  for (const auto& step : steps) {
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{}\n", step.step, step.computed, step.planned, step.compute_ns,
                   step.wall_ns, step.planned - step.computed);
  }
  return text;
}

Result<std::vector<uint32_t>> read_record(const std::string& text, uint32_t micro_batches, uint64_t steps) {
  std::vector<uint32_t> counts;
  std::string_view rest = text;
  for (uint64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    const auto wrong = [&](const std::string& why) { return refused(fmt::format(":{}: {}", number, why)); };
    if (number == 1) {
      if (line != record_head) return wrong(fmt::format("does not begin with the line \"{}\"", record_head));
      continue;
    }
    uint64_t step = 0, computed = 0, planned = 0;
    if (!take(line, step) || !take(line, computed) || !take(line, planned)) return wrong("does not begin with three numbers");
    if (step != number - 1) return wrong(fmt::format("is of step {}, not of step {}", step, number - 1));
    if (planned != micro_batches)
      return wrong(fmt::format("is of {} micro-batches, and --micro-batches says {}", planned, micro_batches));
    if (computed > planned) return wrong(fmt::format("{} of {} micro-batches were computed", computed, planned));
    counts.push_back(static_cast<uint32_t>(computed));
  }
  if (counts.size() < steps) return refused(fmt::format(": has {} steps, and the training {}", counts.size(), steps));
  return counts;
}

Result<std::string> trace_of(GradientExchange& exchange, const DropTraining& drop, uint32_t micro_batches) {
  const std::string mine = drop.compute().recorded();
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(exchange.world_size());
  if (auto gathered = exchange.gather({&length, 1}, lengths); !gathered.ok()) return gathered;
  const size_t words = *std::max_element(lengths.begin(), lengths.end()) / sizeof(uint64_t) + 1;
  std::vector<uint64_t> own(words), all(words * lengths.size());
  std::memcpy(own.data(), mine.data(), mine.size());
  if (auto gathered = exchange.gather(own, all); !gathered.ok()) return gathered;
  std::string text = unisono::DropCompute::recorded_head(micro_batches);
  for (size_t rank = 0; rank < lengths.size(); ++rank)
    text.append(reinterpret_cast<const char*>(&all[rank * words]), lengths[rank]);
  return text;
}

}  // namespace language_model
