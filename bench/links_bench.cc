// One rank of bench/links. It makes all-reduces of one size, one after the other, while bench/links breaks connections. It
// checks every result, bit by bit, and prints one line of JSON.
//
// In each round the ranks make an all-reduce, and then rank 0 tells the others whether to go on. The line has the time when
// each round began and when the last one ended, in seconds of CLOCK_MONOTONIC. So bench/links can find the rounds in which it
// broke something. With --until-lost, the rank goes on until a call fails, and prints when that was.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "unisono/unisono.h"

namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;

volatile std::sig_atomic_t stop_requested = 0;

struct Settings {
  uint64_t elements = 16'384;
  bool until_lost = false;
};

struct Times {
  std::vector<double> rounds;
  uint64_t wrong = 0;
  uint64_t noted = 0;  // all-reduces whose reports name a link that was connected anew
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// All contributions are small whole numbers, so their sum is exact in any order.
float value_of(uint64_t element, uint32_t rank) { return static_cast<float>((element * 7 + rank * 13) % 64); }

// Runs rounds until rank 0 is asked to stop.
Status make_rounds(unisono::Group& group, const Settings& s, Times& times) {
  std::vector<float> input(s.elements), output(s.elements), sum(s.elements);
  for (uint64_t i = 0; i < s.elements; ++i) {
    input[i] = value_of(i, group.rank());
    for (uint32_t rank = 0; rank < group.world_size(); ++rank) sum[i] += value_of(i, rank);
  }
  for (uint32_t more = 1; more != 0;) {
    // A result that was never written must not look right because of the round before.
    std::memset(output.data(), 0xFF, output.size() * sizeof(float));
    times.rounds.push_back(now());
    const auto report = group.all_reduce(std::span<const float>(input), std::span(output));
    if (!report.ok()) return report.status();
    more = stop_requested == 0 ? 1 : 0;
    if (auto told = group.broadcast(std::span(&more, 1), 0); !told.ok()) return told.status();
    times.wrong += std::memcmp(output.data(), sum.data(), output.size() * sizeof(float)) != 0 ? 1 : 0;
    times.noted += report->link_note.empty() ? 0 : 1;
    if (times.rounds.size() == 1) {
      fmt::print("{{\"kind\":\"begun\",\"seconds\":{:.6f}}}\n", now() - times.rounds[0]);
      std::fflush(stdout);
    }
  }
  times.rounds.push_back(now());
  return {};
}

// Returns the text as a JSON string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

int run(const Settings& s) {
  auto group = unisono::Group::join();
  Times times;
  const auto status = group.ok() ? make_rounds(*group, s, times) : group.status();
  const auto ended = now();
  if (s.until_lost && status.code() == Code::peer_lost) {
    fmt::print("{{\"kind\":\"lost\",\"at\":{:.6f},\"wrong\":{},\"why\":{}}}\n", ended, times.wrong, quoted(status.to_string()));
    return 0;
  }
  if (!status.ok()) {
    fmt::print("{{\"kind\":\"failed\",\"at\":{:.6f},\"why\":{}}}\n", ended, quoted(status.to_string()));
    return 1;
  }
  fmt::print("{{\"kind\":\"ended\",\"wrong\":{},\"noted\":{},\"rounds\":[{:.6f}]}}\n", times.wrong, times.noted,
             fmt::join(times.rounds, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app("All-reduces over links whose connections break");
  app.add_option("--elements", s.elements, "fp32 elements of a tensor")->check(CLI::PositiveNumber);
  app.add_flag("--until-lost", s.until_lost, "end well when a peer is lost, and print when it was noticed");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  return run(s);
}
