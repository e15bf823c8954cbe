#include "cli/doctor/doctor_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/common/monotonic.h"
#include "cli/doctor/doctor_exchange.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono::cli {
namespace {

constexpr Nanos send_timeout = 3 * second;
constexpr Nanos measuring_max = 60 * second;  // measuring all pairs takes at most this long
constexpr Nanos goodbye_timeout = 500 * millisecond;

JobKey key_from(const std::string& text) {
  JobKey key{};
  for (size_t i = 0; i < key.size() && i < text.size(); ++i) key[i] = static_cast<std::byte>(text[i]);
  return key;
}

class Leader {
 public:
  Leader(Prober& prober, ClusterFacts& cluster, std::map<uint32_t, Inbound> inbound)
      : prober_(prober), cluster_(cluster), inbound_(std::move(inbound)) {}

  void run() {
    if (!send_ranks()) return;
    reach();
    measure();
    share();
    const nlohmann::json end = {{"kind", "end"}};
    for (auto& [rank, inbound] : inbound_) (void)inbound.stream.send_line(end.dump(), monotonic_now() + goodbye_timeout);
  }

 private:
  bool send_ranks() {
    const auto text = prober_.facts().key.substr(0, sizeof(JobKey));
    const auto pairs = cluster_.ranks.size() * cluster_.ranks.size();
    prober_.set_ranks(cluster_.ranks, key_from(text));
    // A rank may have to wait this long for its next order.
    const auto timeout = prober_.reach_timeout() + measuring_max + Prober::measure_timeout +
                         static_cast<Nanos>(pairs) * (Prober::share_timeout + second);
    const nlohmann::json roster = {
        {"kind", "ranks"}, {"ranks", cluster_.ranks}, {"key", text}, {"patience_ms", timeout / millisecond}};
    for (auto& [rank, inbound] : inbound_) {
      if (!inbound.stream.send_line(roster.dump(), monotonic_now() + send_timeout).ok()) mark_silent(rank);
    }
    drop_silent();
    return !inbound_.empty();
  }

  void mark_silent(uint32_t rank) {
    if (std::find(cluster_.silent.begin(), cluster_.silent.end(), rank) == cluster_.silent.end())
      cluster_.silent.push_back(rank);
  }
  void drop_silent() {
    for (const auto rank : cluster_.silent) inbound_.erase(rank);
  }
  bool is_there(uint32_t rank) const { return rank == 0 || inbound_.contains(rank); }

  bool send(uint32_t rank, const nlohmann::json& order) {
    if (inbound_.at(rank).stream.send_line(order.dump(), monotonic_now() + send_timeout).ok()) return true;
    mark_silent(rank);
    drop_silent();
    return false;
  }

  // Reads the field `name` of the rank's answer. A rank whose answer is missing or wrong is not asked again.
  template <typename T>
  bool receive(uint32_t rank, const char* name, Nanos deadline, T& value) {
    auto line = inbound_.at(rank).stream.receive_line(deadline);
    try {
      if (line.ok()) {
        value = parse_line(*line).at(name).template get<T>();
        return true;
      }
    } catch (const nlohmann::json::exception&) {
      line = Status(Code::corrupt, "not an answer");
    }
    mark_silent(rank);
    drop_silent();
    return false;
  }

  void reach() {
    cluster_.reaches = prober_.reach_others();
    const auto deadline = monotonic_now() + prober_.reach_timeout();
    for (const auto& rank : cluster_.ranks) {
      std::vector<Reach> reaches;
      if (rank.rank == 0 || !is_there(rank.rank) || !receive(rank.rank, "reaches", deadline, reaches)) continue;
      for (auto& reach : reaches) cluster_.reaches.push_back(std::move(reach));
    }
  }

  std::optional<Measured> measure_from(uint32_t from, uint32_t to) {
    const auto* reach = cluster_.reach(from, to);
    if (reach == nullptr || first_reached(*reach) == nullptr || !is_there(from)) return std::nullopt;
    if (from == 0) return prober_.measure(*reach);
    Measured measured;
    const auto deadline = monotonic_now() + Prober::measure_timeout;
    if (!send(from, {{"kind", "measure"}, {"reach", *reach}}) || !receive(from, "measured", deadline, measured))
      return std::nullopt;
    measured.from = from;
    measured.to = to;
    return measured;
  }

  void measure() {
    const auto end = monotonic_now() + measuring_max;
    const auto& ranks = cluster_.ranks;
    // Measures neighbouring ranks first, and then pairs of ranks that are further and further apart. So even if time is short,
    // every rank is measured with some other rank.
    for (size_t distance = 1; distance < ranks.size(); ++distance) {
      for (size_t i = 0; i + distance < ranks.size(); ++i) {
        const auto a = ranks[i].rank, b = ranks[i + distance].rank;
        if (monotonic_now() > end) {
          ++cluster_.pairs_skipped;
          continue;
        }
        auto measured = measure_from(a, b);
        if (!measured) measured = measure_from(b, a);
        if (measured) cluster_.measured.push_back(*std::move(measured));
      }
    }
  }

  void share() {
    for (const auto& a : cluster_.ranks) {
      for (const auto& b : cluster_.ranks) {
        const bool able = a.rank < b.rank && !a.memory.empty() && a.machine.memory_place == b.machine.memory_place;
        if (able && is_there(a.rank) && is_there(b.rank)) share_pair(a.rank, b.rank);
      }
    }
  }

  void share_pair(uint32_t a, uint32_t b) {
    const auto deadline = monotonic_now() + Prober::share_timeout + 2 * second;
    if (!send(b, {{"kind", "share"}, {"with", a}})) return;
    if (a != 0 && !send(a, {{"kind", "share"}, {"with", b}})) return;
    Shared shared{.from = a, .to = b, .error = {}};
    std::string there;
    if (a == 0) shared.error = prober_.share(b).error;
    else if (!receive(a, "shared", deadline, shared.error)) return;
    if (!receive(b, "shared", deadline, there)) return;
    if (shared.error.empty()) shared.error = there;
    cluster_.shared.push_back(std::move(shared));
  }

  Prober& prober_;
  ClusterFacts& cluster_;
  std::map<uint32_t, Inbound> inbound_;
};

// Carries out one order of rank 0. Returns the answer, or null if the order needs no answer.
nlohmann::json execute_order(const nlohmann::json& order, Prober& prober) {
  const auto kind = order.at("kind").get<std::string>();
  if (kind == "ranks") {
    prober.set_ranks(order.at("ranks").get<std::vector<RankFacts>>(), key_from(order.at("key").get<std::string>()));
    return {{"reaches", prober.reach_others()}};
  }
  if (kind == "measure") return {{"measured", prober.measure(order.at("reach").get<Reach>())}};
  if (kind == "share") return {{"shared", prober.share(order.at("with").get<uint32_t>()).error}};
  return nullptr;
}

}  // namespace

ClusterFacts lead(const Examination& examination, Prober& prober) {
  ClusterFacts cluster;
  const auto& options = examination.options;
  cluster.world_size = options.world_size;
  cluster.rendezvous = options.rendezvous.to_string();
  cluster.ranks = {prober.facts()};
  if (options.world_size == 1) return cluster;
  const auto began = monotonic_now();
  auto inbound = gather(options, prober.facts(), began + examination.timeout, cluster);
  cluster.waited_seconds = static_cast<double>(monotonic_now() - began) / second;
  if (!inbound.ok()) {
    cluster.rendezvous_failure = RendezvousFailure{};
    cluster.rendezvous_failure->taken = inbound.status().message();
    return cluster;
  }
  Leader(prober, cluster, *std::move(inbound)).run();
  return cluster;
}

std::optional<RendezvousFailure> follow(const Examination& examination, Prober& prober) {
  RendezvousFailure failure;
  ByteStream stream;
  const auto began = monotonic_now();
  if (!dial_rank_0(examination.options, prober.facts(), began + examination.timeout, stream, failure)) return failure;
  failure.tries.clear();
  // Rank 0 may have started later than this rank, and then it waits just as long for the other ranks.
  auto timeout = 2 * examination.timeout + send_timeout;
  for (bool received = false;; received = true) {
    auto line = stream.receive_line(monotonic_now() + timeout);
    failure.seconds = static_cast<double>(monotonic_now() - began) / second;
    failure.broken_off = true;
    if (!line.ok()) {
      failure.said = line.status().message();
      if (!received) failure.said += "; it sent nothing, so another program may have that port";
      return failure;
    }
    try {
      const auto order = parse_line(*line);
      const auto kind = order.at("kind").get<std::string>();
      if (kind == "end") return std::nullopt;
      if (kind == "refused") {
        failure.broken_off = false;
        failure.said = order.at("why").get<std::string>();
        return failure;
      }
      if (kind == "ranks") timeout = order.at("patience_ms").get<int64_t>() * millisecond;
      const auto answer = execute_order(order, prober);
      if (!answer.is_null() && !stream.send_line(answer.dump(), monotonic_now() + send_timeout).ok()) {
        failure.said = "the answer could not be sent";
        return failure;
      }
    } catch (const nlohmann::json::exception& problem) {
      failure.said = fmt::format("its message is not understood: {}", problem.what());
      return failure;
    }
  }
}

}  // namespace unisono::cli
