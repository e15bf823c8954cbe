// `unisono tune` measures which schedules, slice sizes and numbers of streams are the quickest on these machines. It writes the
// results to a file, which groups read when they form.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "cli/bench/bench_ranks.h"
#include "cli/bench/bench_run.h"
#include "cli/common/commands.h"
#include "cli/common/monotonic.h"
#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "cli/common/version.h"
#include "cli/tune/tune_options.h"
#include "group/lifecycle/tuning_file.h"

namespace unisono::cli {
namespace {

// An all-reduce of this size is used to compare numbers of streams. If all requested sizes are smaller, the largest requested
// size is used instead.
constexpr uint64_t stream_bytes_max = 16u << 20;

int failed(const Group& group, const std::string& what, const Status& status) {
  return bench_failed(tune_text.name, group, what, status);
}

// A key-value store that is used to form another group of the same ranks. The existing group broadcasts the address of rank 0.
class GroupStore final : public KeyValueStore {
 public:
  explicit GroupStore(Group& group) : group_(group) {}
  Status set(const std::string&, const std::string& value) override {
    uint64_t size = value.size();
    if (auto sent = group_.broadcast(std::span(&size, 1), 0); !sent.ok()) return sent.status();
    auto copy = value;
    return group_.broadcast(bytes_of(copy), 0).status();
  }
  Result<std::string> get(const std::string&, std::chrono::milliseconds) override {
    uint64_t size = 0;
    if (auto sent = group_.broadcast(std::span(&size, 1), 0); !sent.ok()) return sent.status();
    std::string value(size, '\0');
    if (auto sent = group_.broadcast(bytes_of(value), 0); !sent.ok()) return sent.status();
    return value;
  }

 private:
  static std::span<uint8_t> bytes_of(std::string& text) { return {reinterpret_cast<uint8_t*>(text.data()), text.size()}; }
  Group& group_;
};

std::vector<uint32_t> host_groups_of(const Group& group) {
  std::map<std::string, uint32_t> hosts;
  std::vector<uint32_t> host_groups;
  for (const auto& member : group.members())
    host_groups.push_back(hosts.emplace(member.host, static_cast<uint32_t>(hosts.size())).first->second);
  return host_groups;
}

// Returns the transport that a group uses if its options do not name one.
std::string transport(const TunePlan& plan) {
  const char* known = std::getenv("UNISONO_TRANSPORT");
  return !plan.group.transport.empty() ? plan.group.transport : known != nullptr && *known != 0 ? known : "auto";
}

class Tuner {
 public:
  Tuner(Group& group, const TunePlan& plan, Sink& sink, Progress& progress)
      : group_(group), plan_(plan), sink_(sink), progress_(progress), host_groups_(host_groups_of(group)) {}
  // Compares numbers of streams, and returns a group that uses the quickest number. If there is nothing to compare, returns the
  // existing group.
  Result<Group> choose_streams(uint32_t& chosen);
  Result<TunedGroup> tune(Group& group);

 private:
  Result<std::vector<TunedCall>> tune_collective(Group& group, Collective collective);
  Result<Trial> tune_size(Group& group, Collective collective, uint64_t bytes);
  // Removes the trials that this group cannot run. Checks the results of those that remain.
  Status keep_possible(Group& group, Collective collective, uint64_t bytes, std::vector<Trial>& trials);
  // In each round, runs every trial once. So slow changes of the machine affect all trials in the same way.
  Status run_rounds(Group& group, Collective collective, uint64_t bytes, std::vector<Trial>& trials);
  Result<Measurement> run(Group& group, Collective collective, uint64_t bytes, const Trial& trial, uint32_t iterations);
  bool several_hosts() const {
    return std::any_of(host_groups_.begin(), host_groups_.end(), [](uint32_t host) { return host != 0; });
  }

  Group& group_;
  const TunePlan& plan_;
  Sink& sink_;
  Progress& progress_;
  const std::vector<uint32_t> host_groups_;
  uint64_t sizes_done_ = 0;
  std::string model_schedule_;  // the schedule that the cost model chooses for the current size
};

Result<Measurement> Tuner::run(Group& group, Collective collective, uint64_t bytes, const Trial& trial, uint32_t iterations) {
  RunOptions options{.data = {.collective = collective, .world_size = group.world_size()},
                     .call = {.schedule = trial.kind, .slice_bytes = trial.slice_bytes},
                     .iterations = iterations,
                     .warmup = iterations == 1 ? 0u : 1u,
                     .row_time = plan_.round_time,
                     .checks = iterations == 1 ? 1u : 0u,
                     .across = Across::max,
                     .on_progress = {}};
  auto measured = measure(group, options, bytes, facts_of(collective).in_place);
  progress_.update(sizes_done_, fmt::format("{} {}", facts_of(collective).name, format_bytes(bytes)), monotonic_now());
  return measured;
}

Status Tuner::keep_possible(Group& group, Collective collective, uint64_t bytes, std::vector<Trial>& trials) {
  std::vector<Trial> possible;
  for (const auto& trial : trials) {
    const auto once = run(group, collective, bytes, trial, 1);
    if (once.status().code() == Code::unsupported) continue;
    if (!once.ok()) return once.status();
    if (once->wrong > 0)
      return {Code::internal, fmt::format("{} {} of {}: {} wrong values", once->report.schedule, facts_of(collective).name,
                                          format_bytes(bytes), once->wrong)};
    if (possible.empty()) model_schedule_ = once->report.schedule;
    // The cost model has chosen the schedule of this trial, so this schedule has already been tried.
    else if (trial.slice_bytes == 0 && once->report.schedule == model_schedule_) continue;
    possible.push_back(trial);
  }
  trials = std::move(possible);
  return {};
}

Status Tuner::run_rounds(Group& group, Collective collective, uint64_t bytes, std::vector<Trial>& trials) {
  std::vector<std::vector<double>> times(trials.size());
  for (uint32_t round = 0; round < plan_.rounds; ++round) {
    for (size_t i = 0; i < trials.size(); ++i) {
      const auto measured = run(group, collective, bytes, trials[i], 0);
      if (!measured.ok()) return measured.status();
      times[i].push_back(measured->timing.p50_us);
    }
  }
  for (size_t i = 0; i < trials.size(); ++i) {
    const auto rounds = summarise(times[i]);
    trials[i].us = rounds.p50_us, trials[i].low_us = rounds.p25_us, trials[i].high_us = rounds.p75_us;
  }
  return {};
}

Result<Trial> Tuner::tune_size(Group& group, Collective collective, uint64_t bytes) {
  auto trials = schedule_trials(*parse_tuned(facts_of(collective).name), host_groups_);
  if (auto status = keep_possible(group, collective, bytes, trials); !status.ok()) return status;
  if (auto status = run_rounds(group, collective, bytes, trials); !status.ok()) return status;
  auto quickest = *std::min_element(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.us < b.us; });
  if (const auto slices = slice_trials(quickest, bytes); !slices.empty()) {
    trials = {trials.front()};
    if (quickest.kind != ScheduleKind::automatic) trials.push_back(quickest);
    trials.insert(trials.end(), slices.begin(), slices.end());
    if (auto status = run_rounds(group, collective, bytes, trials); !status.ok()) return status;
  }
  const auto& won = winner(trials, plan_.gain);
  progress_.clear();
  const auto& model = trials.front();
  const bool kept = &won == &model;
  sink_.table(fmt::format("{:<15} {:>10}  {:<17} {:>10.1f}  {:<17} {:>8} {:>10.1f} {:>6.1f} %\n", facts_of(collective).name,
                          format_bytes(bytes), model_schedule_, model.us,
                          kept                                  ? "="
                          : won.kind == ScheduleKind::automatic ? model_schedule_
                                                                : name(won.kind),
                          won.slice_bytes == 0 ? "" : format_bytes(won.slice_bytes), won.us, 100 * (1 - won.us / model.us)));
  return won;
}

Result<std::vector<TunedCall>> Tuner::tune_collective(Group& group, Collective collective) {
  std::vector<TunedSize> sizes;
  for (const auto bytes : plan_.sizes) {
    auto won = tune_size(group, collective, bytes);
    progress_.clear();
    if (!won.ok())
      return Status(won.status().code(),
                    fmt::format("{} {}: {}", facts_of(collective).name, format_bytes(bytes), won.status().message()));
    ++sizes_done_;
    sizes.push_back({.bytes = extent_of(collective, bytes, DType::f32, group.world_size()).bytes, .winner = *won});
  }
  return calls_of(*parse_tuned(facts_of(collective).name), sizes);
}

Result<TunedGroup> Tuner::tune(Group& group) {
  sink_.table(fmt::format("{:<15} {:>10}  {:<17} {:>10}  {:<17} {:>8} {:>10} {:>8}\n", "# collective", "size", "the model's",
                          "us", "quickest", "slice", "us", "less"));
  TunedGroup tuned{.host_groups = host_groups_, .transport = transport(plan_)};
  for (const auto collective : plan_.collectives) {
    const auto calls = tune_collective(group, collective);
    if (!calls.ok()) return calls.status();
    tuned.calls.insert(tuned.calls.end(), calls->begin(), calls->end());
  }
  return tuned;
}

Result<Group> Tuner::choose_streams(uint32_t& chosen) {
  chosen = 0;
  if (plan_.streams.empty() || !several_hosts() || transport(plan_) == "shm" || transport(plan_) == "udp") return group_;
  std::vector<Group> groups;
  std::vector<std::vector<double>> times(plan_.streams.size());
  for (const auto streams : plan_.streams) {
    auto options = plan_.group;
    options.rank = static_cast<int32_t>(group_.rank());
    options.world_size = static_cast<int32_t>(group_.world_size());
    options.rendezvous.clear();
    options.store = std::make_shared<GroupStore>(group_);
    options.job += fmt::format("-streams-{}", streams);
    options.streams_per_link = streams;
    auto group = Group::join(options);
    if (!group.ok())
      return Status(group.status().code(),
                    fmt::format("a group with {} streams per link: {}", streams, group.status().message()));
    groups.push_back(*std::move(group));
  }
  const auto bytes = std::min(stream_bytes_max, plan_.sizes.back());
  for (uint32_t round = 0; round < plan_.rounds; ++round) {
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto measured = run(groups[i], Collective::all_reduce, bytes, {}, 0);
      if (!measured.ok()) return measured.status();
      times[i].push_back(measured->timing.p50_us);
    }
  }
  progress_.clear();
  std::vector<StreamTrial> trials;
  for (size_t i = 0; i < groups.size(); ++i) trials.push_back({.streams = plan_.streams[i], .us = summarise(times[i]).p50_us});
  chosen = best_streams(trials, plan_.gain);
  for (const auto& trial : trials)
    sink_.table(fmt::format("# all_reduce of {} with {} connections per pair of hosts: {:.1f} us{}\n", format_bytes(bytes),
                            trial.streams, trial.us, trial.streams == chosen ? "  <" : ""));
  return groups[static_cast<size_t>(std::find(plan_.streams.begin(), plan_.streams.end(), chosen) - plan_.streams.begin())];
}

// Returns the contents of the tuning file that exists already. The result is empty if there is no file.
Result<Tuning> tuning_before(const std::string& path) {
  if (!std::filesystem::exists(path)) return Tuning();
  return read_tuning(path);
}

// Writes this group to the file, and keeps the other groups that are in the file. The file is either replaced completely or not
// changed at all.
Status write_file(const std::string& path, const TunedGroup& group, uint32_t streams, const std::string& comment) {
  auto tuning = tuning_before(path);
  if (!tuning.ok()) return tuning.status();
  tuning->put(group);
  if (streams != 0) tuning->streams_per_link = streams;
  const auto text = to_text(*tuning, comment);
  if (text.size() > tuning_bytes_max)
    return {Code::invalid,
            fmt::format("with this group {} would have {} bytes, of {} that a tuning file may have: name another with --output",
                        path, text.size(), tuning_bytes_max)};
  const OutputFile whole{"--output", path + ".new"};
  if (auto written = write_output_file(whole, text); !written.ok()) return written;
  return std::rename(whole.path.c_str(), path.c_str()) == 0 ? Status() : not_writable({"--output", path}, errno);
}

int run_part(const TuneOptions& options, const TunePlan& plan, Group& group, std::optional<EmulatedRank>& emulated_rank) {
  Sink sink(OutputOptions{});
  if (group.rank() == 0) {
    if (auto status = sink.open(true); !status.ok()) return failed(group, "output", status);
    if (const auto before = tuning_before(options.output); !before.ok())
      return failed(group, "results", of_option("--output", before.status()));
  }
  if (emulated_rank) {
    if (const auto zero = emulated_rank->announce_formed(); !zero.ok()) return failed(group, "start", zero.status());
  }
  Progress progress(
      progress_options("tune", plan.collectives.size() * plan.sizes.size(), group.rank() == 0 ? options.progress : "off"),
      monotonic_now());
  const auto host_groups = host_groups_of(group);
  const auto what =
      fmt::format("{} ranks as {}, transport {}, {}; unisono {} ({})", group.world_size(), placement_text(host_groups),
                  transport(plan), group.link_speeds().to_string(), version_text, commit_text());
  sink.table("# " + what + "\n");
  Tuner tuner(group, plan, sink, progress);
  uint32_t streams = 0;
  auto with_streams = tuner.choose_streams(streams);
  if (!with_streams.ok()) return failed(group, "streams", with_streams.status());
  const auto tuned = tuner.tune(*with_streams);
  if (!tuned.ok()) return failed(group, "measurement", tuned.status());
  if (auto shown = show_links(plan.limits, emulated_rank, sink); !shown.ok()) return failed(group, "links", shown);
  if (group.rank() == 0) {
    if (auto written = write_file(options.output, *tuned, streams, what); !written.ok())
      return failed(group, "results", written);
    sink.table(tuned->calls.empty()
                   ? fmt::format("# the cost model's choices are the quickest; {} names no others\n", options.output)
                   : fmt::format("# {} names the quicker choices; processes with UNISONO_TUNING={} use them\n", options.output,
                                 options.output));
  }
  return leave_bench(tune_text.name, group, sink);
}

}  // namespace

CommandSyntax tune_syntax() { return syntax_of(tune_text, add_tune_options); }

int run_tune(const Arguments& arguments) {
  TuneOptions options;
  const auto app = make_app(tune_text);
  add_tune_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  // The trials are compared with the cost model. Without this, the library would use an existing tuning file instead of the
  // model.
  ::unsetenv("UNISONO_TUNING");
  const auto plan = make_tune_plan(options);
  if (!plan.ok()) return usage_error(tune_text.name, plan.status().message());
  BenchRanks ranks{.name = tune_text.name,
                   .command = {"tune"},
                   .launch = options.launch,
                   .limits = plan->limits,
                   .faults = {},
                   .group = plan->group,
                   .progress = options.progress,
                   .outputs = {{"--output", options.output}}};
  return run_bench_ranks(ranks, arguments, [&](Group& group, std::optional<EmulatedRank>& emulated_rank) {
    return run_part(options, *plan, group, emulated_rank);
  });
}

}  // namespace unisono::cli
