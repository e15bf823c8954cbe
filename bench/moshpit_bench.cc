// One peer of bench/moshpit and bench/moshpit_kills. It makes averaging steps in an elastic run, and prints a line of JSON for
// each step. It flushes each line at once, so the output of a peer that is killed is complete up to its death. With --flat, the
// processes also form a group, and make a flat all-reduce before every averaging step.
//
// Tensors consist of equal tiles. A tile shows which peers contributed to an average, and with which shares. Its elements are:
// - one element for each peer: that peer writes a one, and every other peer writes a zero
// - an element in which every peer writes a one
// - an element in which every peer writes a zero
// - a number that depends on the peer and on the averaging step
//
// This program checks that the shares add up to one, even if peers were absent. It cannot check that the average of the numbers
// is their mean, weighted by the shares. bench/moshpit and bench/moshpit_kills check that, because they read the lines of all
// peers.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "unisono/elastic.h"
#include "unisono/unisono.h"

namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;

constexpr size_t tile_elements = 32, tile_slots = 28, tile_one = 28, tile_zero = 29, tile_own = 30;
constexpr size_t kinds_max = 12;   // A line of output has at most this many kinds of tiles.
constexpr double rounding = 4e-6;  // An average over several rounds may have this rounding error.

volatile std::sig_atomic_t stop_requested = 0;

struct Settings {
  unisono::ElasticOptions run;
  uint32_t slot = 0;
  uint64_t elements = 1 << 20, steps = 10, warmup = 0, check_every = 1, seed = 0, blob_bytes = 0;
  double seconds = 0;
  bool flat = false, load_only = false;
};

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the CPU time that all threads of this process used, in user space and in the kernel.
double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_mb() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return 1e-6 * static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

void print_line(const std::string& line) {
  fmt::print("{{{}}}\n", line);
  std::fflush(stdout);
}

// --- tiles ---

// Returns a pseudo-random number in [1/4, 3/4). It has so few bits that fp32 holds it exactly.
float own_number(uint64_t seed, uint32_t slot, uint64_t call) {
  uint64_t z = seed * 0x9E3779B97F4A7C15ull + slot * 0xD1342543DE82EF95ull + call * 0xA0761D6478BD642Full;
  z = (z ^ (z >> 32)) * 0xE9846AF9B1A615Dull;
  return 0.25f + 0.5f * static_cast<float>((z >> 40) & 0xFFFF) / 65536.0f;
}

void fill(std::vector<float>& values, uint32_t slot, float number) {
  std::array<float, tile_elements> tile{};
  tile[slot] = tile[tile_one] = 1;
  tile[tile_own] = number;
  for (size_t at = 0; at < values.size(); ++at) values[at] = tile[at % tile_elements];
}

struct Kind {
  std::array<float, tile_elements> tile{};
  uint64_t tiles = 0;
};

struct Content {
  // The tiles that are different from each other, in the order in which they first occur. There are at most kinds_max of them.
  std::vector<Kind> kinds;
  uint64_t others = 0;  // number of tiles that are not in `kinds`
  uint64_t digest = 14695981039346656037ull;
  double one_off = 0;  // the largest |x - 1|, where x is the element in which every peer writes a one
  std::string wrong;
};

std::string wrong_with(const std::array<float, tile_elements>& tile) {
  double shares = 0;
  for (size_t slot = 0; slot < tile_slots; ++slot) {
    if (!(tile[slot] >= 0)) return fmt::format("slot {} has the share {}", slot, tile[slot]);
    shares += static_cast<double>(tile[slot]);
  }
  if (!(std::abs(shares - 1) <= rounding)) return fmt::format("shares add up to {:.9g}", shares);
  if (!(std::abs(static_cast<double>(tile[tile_one]) - 1) <= rounding))
    return fmt::format("a one became {:.9g}", tile[tile_one]);
  if (tile[tile_zero] != 0) return fmt::format("a zero became {:.9g}", tile[tile_zero]);
  return {};
}

Content look_at(const std::vector<float>& values) {
  Content content;
  size_t last = 0;
  for (size_t at = 0; at + tile_elements <= values.size(); at += tile_elements) {
    for (size_t i = 0; i < tile_elements; i += 2) {
      uint64_t word = 0;
      std::memcpy(&word, &values[at + i], sizeof word);
      content.digest = (content.digest ^ word) * 1099511628211ull;
    }
    const auto same = [&](const Kind& kind) { return std::memcmp(kind.tile.data(), &values[at], sizeof kind.tile) == 0; };
    if (last >= content.kinds.size() || !same(content.kinds[last])) {
      last = static_cast<size_t>(std::ranges::find_if(content.kinds, same) - content.kinds.begin());
      if (last == content.kinds.size()) {
        Kind kind;
        std::memcpy(kind.tile.data(), &values[at], sizeof kind.tile);
        content.one_off = std::max(content.one_off, std::abs(static_cast<double>(kind.tile[tile_one]) - 1));
        if (content.wrong.empty()) content.wrong = wrong_with(kind.tile);
        if (last == kinds_max) {
          ++content.others;
          continue;
        }
        content.kinds.push_back(kind);
      }
    }
    ++content.kinds[last].tiles;
  }
  return content;
}

std::string text_of(const Content& content) {
  std::string kinds;
  for (const auto& kind : content.kinds) {
    std::string shares;
    for (size_t slot = 0; slot < tile_slots; ++slot) {
      if (kind.tile[slot] != 0) shares += fmt::format("{}\"{}\":{:.9g}", shares.empty() ? "" : ",", slot, kind.tile[slot]);
    }
    kinds += fmt::format("{}{{\"tiles\":{},\"shares\":{{{}}},\"number\":{:.9g}}}", kinds.empty() ? "" : ",", kind.tiles, shares,
                         kind.tile[tile_own]);
  }
  return fmt::format("\"digest\":\"{:016x}\",\"one_off\":{:.3g},\"wrong\":{},\"other_tiles\":{},\"kinds\":[{}]", content.digest,
                     content.one_off, quoted(content.wrong), content.others, kinds);
}

// --- averaging steps ---

std::string text_of(const unisono::RoundSummary& round) {
  std::string absent;
  for (const auto& name : round.absent) absent += (absent.empty() ? "" : ",") + quoted(name);
  return fmt::format(
      "{{\"outcome\":{},\"group\":{},\"contributors_min\":{},\"contributors_max\":{},\"committed\":{},\"kept_local\":{},"
      "\"voided\":{},\"undecided\":{},"
      "\"lost\":{},\"gather_s\":{:.9g},\"contribute_s\":{:.9g},\"result_s\":{:.9g},\"verdict_s\":{:.9g},\"sent\":{},"
      "\"received\":{},\"model\":{},\"absent\":[{}]}}",
      quoted(round.outcome), round.group, round.contributors_min, round.contributors_max, round.committed, round.kept_local,
      round.voided, round.undecided, round.lost, round.gather_s, round.contribute_s, round.result_s, round.verdict_s,
      round.sent_bytes, round.received_bytes, round.model_bytes, absent);
}

struct Moment {
  double time = now(), cpu = cpu_seconds();
};

std::string text_of(const Moment& begin, const Moment& end) {
  return fmt::format("\"begin\":{:.9f},\"end\":{:.9f},\"cpu_s\":{:.6f},\"cpu_total_s\":{:.6f},\"rss_mb\":{:.3f}", begin.time,
                     end.time, end.cpu - begin.cpu, end.cpu, resident_mb());
}

class Peer {
 public:
  explicit Peer(const Settings& settings) : settings_(settings), values_(settings.load_only ? 0 : settings.elements) {}

  Status run() {
    const Moment begin;
    auto joined = unisono::Elastic::join(settings_.run);
    if (!joined.ok()) return joined.status();
    print_joined(*joined, begin, Moment());
    if (settings_.load_only) return joined->leave();
    if (settings_.blob_bytes > 0) {
      const auto given = joined->set_state({{"optimizer", std::vector<std::byte>(settings_.blob_bytes, std::byte{7})}});
      if (!given.ok()) return given;
    }
    if (!joined->ready(unisono::Milliseconds{60'000})) return {Code::unavailable, "the run has no layout after 60 s"};
    const auto status = average_all(*joined);
    if (const auto left = joined->leave(); !left.ok()) return left;
    if (status.ok()) print_line("\"kind\":\"ended\"");
    return status;
  }

 private:
  void print_joined(const unisono::Elastic& run, const Moment& begin, const Moment& end) const {
    const auto& state = run.state();
    std::string endpoints;
    for (const auto& endpoint : run.status().endpoints) endpoints += (endpoints.empty() ? "" : ",") + quoted(endpoint);
    // A state that was loaded consists of tiles of an average. Only the first state of a founder is different: all its values
    // are zero.
    const bool has_tiles = state.loaded && std::ranges::any_of(state.values, [](float value) { return value != 0; });
    print_line(
        fmt::format("\"kind\":\"joined\",\"endpoints\":[{}],{},\"loaded\":{},\"load_s\":{:.9g},\"load_bytes\":{},\"donors\":{},"
                    "\"mixed\":{},\"step\":{},\"note\":{},\"wrong\":{}",
                    endpoints, text_of(begin, end), state.loaded, state.seconds, state.bytes, state.donors, state.mixed,
                    state.step, quoted(state.note), quoted(has_tiles ? look_at(state.values).wrong : "")));
  }

  Status average_all(unisono::Elastic& run) {
    std::optional<unisono::Group> group;
    if (settings_.flat) {
      auto joined = unisono::Group::join();
      if (!joined.ok()) return joined.status();
      group = std::move(*joined);
    }
    const auto begun = now();
    for (uint64_t turn = 0; turn < settings_.warmup + settings_.steps && stop_requested == 0; ++turn) {
      if (settings_.seconds > 0 && now() - begun > settings_.seconds) break;
      const bool counts = turn >= settings_.warmup;
      if (group.has_value()) {
        if (auto flat = reduce_flat(*group, counts); !flat.ok()) return flat;
      }
      if (auto swept = step(run, turn, counts); !swept.ok()) return swept;
    }
    return group.has_value() ? group->barrier().status() : Status();
  }

  // Makes a flat all-reduce. Because of the first barrier, all ranks begin it together. Because of the second barrier, they
  // also begin the following averaging step together.
  Status reduce_flat(unisono::Group& group, bool counts) {
    const auto number = own_number(settings_.seed, settings_.slot, 0);
    fill(values_, settings_.slot, number);
    if (auto ready = group.barrier(); !ready.ok()) return ready.status();
    const Moment begin;
    if (auto done = group.all_reduce(std::span(values_), {.op = unisono::ReduceOp::avg}); !done.ok()) return done.status();
    const Moment end;
    if (counts) print_line(fmt::format("\"kind\":\"flat\",{},{}", text_of(begin, end), text_of(look_at(values_))));
    return group.barrier().status();
  }

  Status step(unisono::Elastic& run, uint64_t turn, bool counts) {
    const bool checked = settings_.flat || turn % settings_.check_every == 0;
    const auto number = own_number(settings_.seed, settings_.slot, turn);
    if (checked) fill(values_, settings_.slot, number);
    if (checked) print_line(fmt::format("\"kind\":\"enter\",\"time\":{:.9f},\"number\":{:.9g}", now(), number));
    const Moment begin;
    const auto report = run.average(std::span(values_));
    const Moment end;
    if (!report.ok()) return report.status();
    if (!counts) return {};
    std::string rounds, dims;
    for (const auto& round : report->rounds) rounds += (rounds.empty() ? "" : ",") + text_of(round);
    for (const auto size : report->dims) dims += (dims.empty() ? "" : ",") + fmt::to_string(size);
    print_line(fmt::format(
        "\"kind\":\"step\",\"step\":{},\"exact\":{},{},\"seconds\":{:.9g},\"layout\":{},\"dims\":[{}],\"peers\":{},\"note\":{},"
        "\"number\":{:.9g},{}\"rounds\":[{}]",
        report->step, report->exact, text_of(begin, end), report->seconds, report->layout, dims, report->peers,
        quoted(report->note), number, checked ? text_of(look_at(values_)) + "," : "", rounds));
    return {};
  }

  const Settings& settings_;
  std::vector<float> values_;
};

Settings settings_of(int argc, char** argv) {
  Settings s;
  s.run.run_id = "moshpit-bench";
  s.run.max_group = 4;
  uint64_t gather_ms = 0;
  CLI::App app("One peer of bench/moshpit and bench/moshpit_kills");
  app.add_option("--run", s.run.run_id, "name of the run");
  app.add_option("--join", s.run.seeds, "addresses of peers of the run: host:port, or file:PATH");
  app.add_flag("--found", s.run.found, "begin the run");
  app.add_option("--name", s.run.name, "name of this peer");
  app.add_option("--interface", s.run.interface, "interface to listen at");
  app.add_option("--peers", s.run.min_peers, "number of peers that the first averaging step waits for");
  app.add_option("--max-group", s.run.max_group, "members of a group");
  app.add_option("--rounds", s.run.rounds, "rounds of an averaging step; 0: one along each axis");
  app.add_option("--gather-ms", gather_ms, "how long a group waits for absent members; 0: value of the profile");
  app.add_option("--slot", s.slot, "slot of this peer in tiles")->check(CLI::Range(size_t{0}, tile_slots - 1));
  app.add_option("--elements", s.elements, "fp32 elements of the tensor; a multiple of 32");
  app.add_option("--averaging-steps", s.steps, "averaging steps that are measured");
  app.add_option("--warmup", s.warmup, "averaging steps before the measured ones");
  app.add_option("--seconds", s.seconds, "seconds after which no averaging step begins; 0: no limit");
  app.add_option("--check-every", s.check_every, "interval, in averaging steps, at which values are renewed and checked")
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--seed", s.seed, "seed of the numbers of the peers");
  app.add_option("--blob-bytes", s.blob_bytes, "bytes that joiners receive in addition to the values");
  app.add_flag("--flat", s.flat, "run a flat all-reduce in the group of the environment before each averaging step");
  app.add_flag("--load-only", s.load_only, "load the state as a joiner does, and leave");
  try {
    app.parse(argc, argv);
    if (s.elements == 0 || s.elements % tile_elements != 0)
      throw CLI::ValidationError("--elements", "must be a multiple of 32");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  s.run.tensor_elements = {s.elements};
  s.run.gather_timeout = unisono::Milliseconds{gather_ms};
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = settings_of(argc, argv);
  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  const auto status = Peer(settings).run();
  if (!status.ok()) print_line(fmt::format("\"kind\":\"failed\",\"why\":{}", quoted(status.to_string())));
  return status.ok() ? 0 : 1;
}
