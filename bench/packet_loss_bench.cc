// One rank of bench/packet_loss. It makes all-reduces of one size, one after the other. All ranks begin each of them together.
// Rank 0 prints a line of JSON. With --shards, a round is a lossy training step without repair instead: reduce_shards, and then
// gather_shards.
//
// A round begins when the last rank begins, and ends when the last rank is done. All ranks read the same clock. The barrier
// between two rounds is not part of a round. If no loss is allowed, the results must be exact. Otherwise the results of all
// ranks must have the same bits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "unisono/unisono.h"

namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string delivery;  // options of a lossy call; empty: the call is reliable
  bool lossy = false, shards = false;
  uint64_t elements = 262'144, rounds = 300, warmup = 30, seconds = 60;
};

// These numbers are sums over all ranks and over all rounds after the warm-up.
struct Counts {
  double expected = 0, missing = 0, repaired = 0, cut = 0, short_ranges = 0, sent_mb = 0;
  double inexact = 0;  // In each round, this counts the ranks whose results lacked contributions.
};

struct Times {
  std::vector<double> begins, ends;  // milliseconds on the monotonic clock of this host
  std::vector<double> rounds;        // durations in milliseconds
  Counts counts;
};

float value_of(uint64_t element, uint32_t rank) { return static_cast<float>((element * 7 + rank * 13) % 64); }

// Checks that the result is exactly the sum. All contributions are small whole numbers, so the sum is exact in any order.
Status check(const std::vector<float>& got, uint32_t world) {
  for (uint64_t i = 0; i < got.size(); ++i) {
    float sum = 0;
    for (uint32_t rank = 0; rank < world; ++rank) sum += value_of(i, rank);
    if (got[i] != sum) return {Code::internal, fmt::format("element {} is {}, should be {}", i, got[i], sum)};
  }
  return {};
}

struct Tensors {
  std::vector<float> input, output, shard;
};

Status make_round(unisono::Group& group, const Settings& s, const unisono::CallOptions& call, Tensors& tensors, Counts& counts);

void add(Counts& counts, const unisono::Report& report) {
  counts.sent_mb += 1e-6 * static_cast<double>(report.sent_bytes);
  if (report.delivery == nullptr) return;
  for (const auto* phase : {&report.delivery->contribute, &report.delivery->result}) {
    for (const auto& stream : phase->streams) {
      counts.expected += static_cast<double>(stream.expected);
      counts.missing += static_cast<double>(stream.missing);
      counts.repaired += static_cast<double>(stream.repaired);
      counts.cut += stream.end == unisono::DeliveryReport::End::soft || stream.end == unisono::DeliveryReport::End::hard;
    }
  }
  counts.short_ranges += static_cast<double>(report.delivery->short_ranges);
}

void add(Counts& to, const Counts& more) {
  to.expected += more.expected, to.missing += more.missing, to.repaired += more.repaired, to.cut += more.cut,
      to.short_ranges += more.short_ranges, to.sent_mb += more.sent_mb, to.inexact += more.inexact;
}

Status make_round(unisono::Group& group, const Settings& s, const unisono::CallOptions& call, Tensors& tensors,
                  Counts& counts) {
  const std::span<const float> input(tensors.input);
  auto report = s.shards ? group.reduce_shards(input, std::span(tensors.shard), call)
                         : group.all_reduce(input, std::span(tensors.output), call);
  if (!report.ok()) return report.status();
  add(counts, *report);
  if (!s.shards) return {};
  report = group.gather_shards(unisono::ConstTensor(std::span<const float>(tensors.shard)), std::span(tensors.output), call);
  if (report.ok()) add(counts, *report);
  return report.status();
}

// Checks that the results of all ranks have the same bits. That is the case if the smallest hash of all ranks equals the
// largest.
Status compare_bits(unisono::Group& group, const std::vector<float>& got) {
  uint64_t hash = 14695981039346656037ull;
  for (const float value : got) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ull;
  }
  uint64_t low = hash, high = hash;
  if (auto status = group.all_reduce(std::span(&low, 1), {.op = unisono::ReduceOp::min}); !status.ok()) return status.status();
  if (auto status = group.all_reduce(std::span(&high, 1), {.op = unisono::ReduceOp::max}); !status.ok()) return status.status();
  return low == high ? Status() : Status(Code::internal, "ranks have different results");
}

Result<Times> measure(unisono::Group& group, const Settings& s) {
  unisono::CallOptions call{.schedule = unisono::ScheduleKind::two_step};
  bool exact = true;
  if (s.lossy) {
    const auto options = unisono::DeliveryOptions::parse(s.delivery);
    if (!options.ok()) return options.status();
    call.delivery = unisono::Delivery::lossy;
    call.lossy = *options;
    exact = options->loss_budget == 0;
  }
  Tensors tensors{.input = std::vector<float>(s.elements), .output = std::vector<float>(s.elements), .shard = {}};
  for (uint64_t i = 0; i < s.elements; ++i) tensors.input[i] = value_of(i, group.rank());
  if (s.shards) {
    const auto layout = group.shard_layout(unisono::ConstTensor(std::span<const float>(tensors.input)));
    if (!layout.ok()) return layout.status();
    tensors.shard.resize(layout->count(group.rank()));
  }
  Times times;
  uint32_t more_rounds = 1;
  auto begun = Clock::now();
  for (uint64_t round = 0; round < s.warmup + s.rounds && more_rounds != 0; ++round) {
    if (auto ready = group.barrier(); !ready.ok()) return ready.status();
    const auto start = Clock::now();
    Counts counts;
    if (auto made = make_round(group, s, call, tensors, counts); !made.ok()) return made;
    const auto end = Clock::now();
    const auto right = check(tensors.output, group.world_size());
    counts.inexact = right.ok() ? 0 : 1;
    if (exact && !right.ok()) return right;
    if (round < s.warmup) {
      begun = Clock::now();
      continue;
    }
    const auto ms_of = [](Clock::time_point when) {
      return std::chrono::duration<double, std::milli>(when.time_since_epoch()).count();
    };
    times.begins.push_back(ms_of(start));
    times.ends.push_back(ms_of(end));
    add(times.counts, counts);
    // In every tenth round, rank 0 decides for all ranks whether to go on, so that all of them stop after the same round.
    if (round % 10 != 0) continue;
    more_rounds = Clock::now() - begun < std::chrono::seconds(s.seconds) ? 1 : 0;
    if (auto sent = group.broadcast(std::span(&more_rounds, 1), 0); !sent.ok()) return sent.status();
  }
  if (auto same = s.shards ? Status() : compare_bits(group, tensors.output); !same.ok()) return same;
  for (auto* moments : {&times.begins, &times.ends}) {
    if (auto last = group.all_reduce(std::span(*moments), {.op = unisono::ReduceOp::max}); !last.ok()) return last.status();
  }
  for (size_t i = 0; i < times.ends.size(); ++i) times.rounds.push_back(times.ends[i] - times.begins[i]);
  auto& c = times.counts;
  double sums[]{c.expected, c.missing, c.repaired, c.cut, c.short_ranges, c.sent_mb, c.inexact};
  if (auto all = group.all_reduce(std::span<double>(sums)); !all.ok()) return all.status();
  c = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6]};
  return times;
}

Status run(const Settings& s) {
  auto group = unisono::Group::join();
  if (!group.ok()) return group.status();
  const auto times = measure(*group, s);
  if (!times.ok()) return times.status();
  const auto& c = times->counts;
  if (group->rank() == 0) {
    fmt::print(
        "{{\"times_ms\":[{:.5g}],\"expected\":{},\"missing\":{},\"repaired\":{},\"cut\":{},\"short_ranges\":{},\"inexact\":{},"
        "\"sent_mb\":{:.6g}}}\n",
        fmt::join(times->rounds, ","), c.expected, c.missing, c.repaired, c.cut, c.short_ranges, c.inexact, c.sent_mb);
  }
  return group->barrier().status();
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app("All-reduces over links that lose packets");
  app.add_option("--lossy", s.delivery, "options of lossy calls, e.g. loss_budget=0.2; without it calls are reliable")
      ->expected(0, 1)
      ->each([&s](const std::string&) { s.lossy = true; });
  app.add_flag("--shards", s.shards, "make both phases lossy; each is repaired only as far as the options require");
  app.add_option("--elements", s.elements, "fp32 elements of a tensor");
  app.add_option("--rounds", s.rounds, "rounds that are measured");
  app.add_option("--warmup", s.warmup, "rounds before the measured ones");
  app.add_option("--seconds", s.seconds, "seconds after which no new round begins");
  CLI11_PARSE(app, argc, argv);
  const auto status = run(s);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.to_string());
  return status.ok() ? 0 : 1;
}
