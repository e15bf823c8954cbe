// Prints, as JSON, the curves and the table of docs/design/schedules.md: what the cost model predicts and `choose` takes, from
// the starting values of src/schedules/cost.cc. tools/plots/draw makes pictures of them, and checks that the documents show
// this.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "schedules/choose.h"

namespace {

using namespace unisono;
using Json = nlohmann::ordered_json;

constexpr uint64_t kib = 1024, mib = 1024 * kib;

struct Place {
  uint32_t hosts = 1;
  uint32_t ranks = 1;  // of each host
  uint32_t cores = 1;  // likewise
  Order order = Order::any;
};

Choice ask(const Place& place, uint64_t bytes) {
  std::vector<uint32_t> host_groups;
  for (uint32_t rank = 0; rank < place.hosts * place.ranks; ++rank) host_groups.push_back(rank / place.ranks);
  const auto choice = choose({.bytes = bytes,
                              .world = place.hosts * place.ranks,
                              .host_groups = host_groups,
                              .order = place.order,
                              .inside = shared_memory_profile(place.cores),
                              .between = network_tcp_profile(place.cores)});
  if (choice.ok()) return *choice;
  std::fprintf(stderr, "%s\n", choice.status().to_string().c_str());
  std::exit(1);
}

struct Axes {
  std::string name, title, x, y;
};

Json plot(const Axes& axes) {
  return {{"name", axes.name}, {"title", axes.title}, {"x", axes.x}, {"y", axes.y}, {"series", Json::object()}};
}

constexpr const char* ratio = "predicted time ÷ that of the schedule that is chosen";

// Every kind that takes part at one place on the x axis: its time, or its time as a multiple of the shortest one.
void add_kinds(Json& plot, uint64_t x, const Choice& choice) {
  const double unit = plot["y"] == ratio ? choice.predicted_us : 1;
  for (uint32_t i = 0; i < choice.candidate_count; ++i) {
    const auto& candidate = choice.candidates[i];
    if (!candidate.excluded) plot["series"][name(candidate.kind)].push_back({x, candidate.predicted_us / unit});
  }
}

Json by_size(const std::string& name, const std::string& title, const Place& place) {
  auto json = plot({name, title, "bytes", ratio});
  for (uint64_t bytes = 256; bytes <= 256 * mib; bytes *= 2) add_kinds(json, bytes, ask(place, bytes));
  return json;
}

// Over the number of hosts, one rank each.
Json by_world(const Axes& axes, uint64_t bytes) {
  auto json = plot(axes);
  for (uint32_t hosts = 2; hosts <= 256; hosts *= 2) add_kinds(json, hosts, ask({.hosts = hosts}, bytes));
  return json;
}

// The predicted cost of rank order on four hosts, by ranks per host.
Json price_of_order() {
  auto json = plot({"rank_order", "4 hosts of 1 to 8 ranks, TCP 10 Gbit/s between them", "bytes",
                    "predicted time in rank order ÷ that in any order"});
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    auto& series = json["series"][std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks")];
    for (uint64_t bytes = kib; bytes <= 256 * mib; bytes *= 2) {
      const Place any{.hosts = 4, .ranks = ranks, .cores = ranks};
      auto strict = any;
      strict.order = Order::in_rank_order;
      series.push_back({bytes, ask(strict, bytes).predicted_us / ask(any, bytes).predicted_us});
    }
  }
  return json;
}

std::string cell(const Place& place, uint64_t bytes) {
  const auto choice = ask(place, bytes);
  std::string text = name(choice.kind);
  if (choice.kind == ScheduleKind::hierarchical)
    text += std::string(" (") + name(choice.inner) + ", " + name(choice.outer) + ")";
  if (choice.relayed) text += ", relayed";
  char number[32];
  std::snprintf(number, sizeof(number), choice.predicted_us < 100 ? " %.1f" : " %.0f", choice.predicted_us);
  return text + number;
}

Json table() {
  const Place columns[] = {{.ranks = 2, .cores = 2},
                           {.ranks = 4, .cores = 4},
                           {.ranks = 4, .cores = 2},
                           {.hosts = 16},
                           {.hosts = 64},
                           {.hosts = 4, .ranks = 8, .cores = 8},
                           {.hosts = 4, .ranks = 8, .cores = 8, .order = Order::in_rank_order}};
  const std::pair<const char*, uint64_t> rows[] = {
      {"1 KiB", kib}, {"64 KiB", 64 * kib}, {"1 MiB", mib}, {"16 MiB", 16 * mib}, {"64 MiB", 64 * mib}};
  auto lines = Json::array();
  for (const auto& [title, bytes] : rows) {
    std::string line = std::string("| ") + title + " |";
    for (const auto& column : columns) line += " " + cell(column, bytes) + " |";
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

int main() {
  Json plots = {
      by_size("size_shm_4", "4 ranks, shared memory, 4 cores", {.ranks = 4, .cores = 4}),
      by_size("size_tcp_16", "16 hosts of 1 rank, TCP 10 Gbit/s", {.hosts = 16}),
      by_size("size_tcp_64", "64 hosts of 1 rank, TCP 10 Gbit/s", {.hosts = 64}),
      by_size("size_hosts_4x8", "4 hosts of 8 ranks, TCP 10 Gbit/s between them", {.hosts = 4, .ranks = 8, .cores = 8}),
      by_world({"world_1k", "1 KiB, hosts of 1 rank, TCP 10 Gbit/s", "hosts", "predicted time"}, kib),
      by_world({"world_16m", "16 MiB, hosts of 1 rank, TCP 10 Gbit/s", "hosts", ratio}, 16 * mib),
      price_of_order()};
  std::printf("%s\n", Json{{"plots", plots}, {"table", table()}}.dump(1).c_str());
  return 0;
}
