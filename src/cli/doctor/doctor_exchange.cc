#include "cli/doctor/doctor_exchange.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <nlohmann/json.hpp>

#include "cli/common/monotonic.h"
#include "cli/common/version.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono::cli {
namespace {

constexpr size_t unauthenticated_max = 256;
constexpr Nanos line_timeout = 5 * second;
constexpr Nanos dial_timeout = 2500 * millisecond;
// The orders of rank 0 and the answers are sent in short segments. So they arrive even if the network loses full segments; the
// doctor must be able to report this fault.
constexpr uint32_t segment_bytes_max = 536;
constexpr Nanos pause_between_rounds = 200 * millisecond;

struct Unauthenticated {
  ByteStream stream;
  std::string from;
  Nanos until = 0;
};

// Returns the reason for which the process that sent `hello` is refused as a rank. The text is empty if the process is
// accepted.
std::string refusal_reason(const nlohmann::json& hello, const ResolvedOptions& options,
                           const std::map<uint32_t, Inbound>& inbound, RankFacts& facts) {
  if (hello.value("doctor", 0) != doctor_protocol) {
    return fmt::format("a process that runs unisono {}, not {}", hello.value("version", "of an unknown version"),
                       UNISONO_VERSION);
  }
  facts = hello.at("facts").get<RankFacts>();
  const auto who = fmt::format("{}, pid {}", name_of(facts), facts.pid);
  if (facts.job != options.job) return fmt::format("{}, of job '{}', not '{}'", who, facts.job, options.job);
  if (facts.world_size != options.world_size)
    return fmt::format("{}, of a world of {}, not {}", who, facts.world_size, options.world_size);
  if (facts.rank >= options.world_size) return fmt::format("{}, beyond a world of {}", who, options.world_size);
  const auto other = inbound.find(facts.rank);
  if (facts.rank == 0 || other != inbound.end()) return "a second " + who;
  return {};
}

void admit(Unauthenticated& unauthenticated, const std::string& line, const ResolvedOptions& options,
           std::map<uint32_t, Inbound>& inbound, ClusterFacts& cluster) {
  RankFacts facts;
  std::string why;
  try {
    why = refusal_reason(parse_line(line), options, inbound, facts);
  } catch (const nlohmann::json::exception&) {
    why = "another program, at " + unauthenticated.from;
  }
  if (why.empty()) {
    const auto rank = facts.rank;
    inbound.emplace(rank, Inbound{std::move(unauthenticated.stream), std::move(facts)});
    return;
  }
  const nlohmann::json answer = {{"kind", "refused"}, {"why", why}};
  (void)unauthenticated.stream.send_line(answer.dump(), monotonic_now() + second);
  if (std::find(cluster.turned_away.begin(), cluster.turned_away.end(), why) == cluster.turned_away.end())
    cluster.turned_away.push_back(why);
}

void accept_all(int listening, std::list<Unauthenticated>& unauthenticated) {
  for (;;) {
    unisono::Descriptor socket(::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) return;
    auto from = remote_address(socket.get()).to_string();
    if (unauthenticated.size() >= unauthenticated_max) unauthenticated.pop_front();
    unauthenticated.push_back({ByteStream(std::move(socket)), std::move(from), monotonic_now() + line_timeout});
  }
}

// Dials `address`. If `address` is null, dials the address in the rendezvous file.
Dialled dial_one(const ResolvedOptions& options, const SocketAddress* address, Nanos deadline) {
  Dialled dialled;
  if (address == nullptr) {
    dialled.attempt.address = options.rendezvous.to_string();
    auto socket = dial_file(options.rendezvous.path);
    dialled.attempt.outcome = socket.ok() ? Outcome::reached : Outcome::refused;
    if (socket.ok()) dialled.stream = ByteStream(std::move(*socket));
    else dialled.attempt.error = socket.status().message();
    return dialled;
  }
  DialRequest request;
  request.to.storage = address->storage;
  request.to.bytes = address->size;
  request.segment_bytes_max = segment_bytes_max;
  auto all = dial_all(std::span(&request, 1), std::min(deadline, monotonic_now() + dial_timeout));
  return std::move(all.front());
}

// Sends `hello`. Returns false if the process that answers is certainly not rank 0 of a doctor.
bool greet_rank_0(Dialled& dialled, const std::string& hello) {
  auto status = dialled.stream.send_line(hello, monotonic_now() + line_timeout);
  // Rank 0 answers only after it has gathered all ranks, but most other servers close the connection at once. So if the
  // connection is closed after a short wait, the server is not a doctor.
  pollfd ready{dialled.stream.get(), POLLIN, 0};
  if (status.ok() && ::poll(&ready, 1, 300) == 1) {
    char byte = 0;
    const auto count = ::recv(dialled.stream.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count == 0) status = Status(Code::peer_lost, "the other side closed the connection");
    else if (count < 0) status = Status(Code::peer_lost, error_text(errno));
    else if (byte != '{') status = Status(Code::corrupt, "another program answers there");
  }
  if (status.ok()) return true;
  dialled.attempt.outcome = Outcome::unauthenticated;
  dialled.attempt.error = status.message();
  return false;
}

void remember(const AddressTry& attempt, RendezvousFailure& failure) {
  const auto same =
      std::find_if(failure.tries.begin(), failure.tries.end(), [&](const auto& t) { return t.address == attempt.address; });
  if (same == failure.tries.end()) failure.tries.push_back(attempt);
  else *same = attempt;
}

std::vector<SocketAddress> resolve(const ResolvedOptions& options, Nanos deadline, RendezvousFailure& failure) {
  auto resolver = Resolver::start(options.rendezvous.host, options.rendezvous.port);
  if (!resolver.ok()) {
    failure.resolve_error = resolver.status().message();
    return {};
  }
  pollfd ready{resolver->ready(), POLLIN, 0};
  if (::poll(&ready, 1, poll_milliseconds(deadline, monotonic_now())) != 1) {
    failure.resolve_error = "no answer from the name service";
    return {};
  }
  auto addresses = resolver->take();
  failure.resolve_error = addresses.ok() ? "" : addresses.status().message();
  return addresses.ok() ? *std::move(addresses) : std::vector<SocketAddress>{};
}

}  // namespace

nlohmann::json parse_line(const std::string& line) { return nlohmann::json::parse(line, nullptr, false); }

Result<std::map<uint32_t, Inbound>> gather(const ResolvedOptions& options, const RankFacts& own, Nanos deadline,
                                           ClusterFacts& cluster) {
  auto listening = options.listen_fd >= 0 ? Listening::adopt(options.listen_fd) : Listening::open(options.rendezvous);
  if (!listening.ok()) return listening.status();
  std::map<uint32_t, Inbound> inbound;
  std::list<Unauthenticated> unauthenticated;
  for (auto now = monotonic_now(); inbound.size() + 1 < options.world_size && now < deadline; now = monotonic_now()) {
    std::vector<pollfd> waiting{{listening->socket(), POLLIN, 0}};
    for (const auto& unauthenticated : unauthenticated) waiting.push_back({unauthenticated.stream.get(), POLLIN, 0});
    (void)::poll(waiting.data(), waiting.size(), poll_milliseconds(std::min(deadline, now + second), now));
    accept_all(listening->socket(), unauthenticated);
    std::erase_if(unauthenticated, [&](Unauthenticated& unauthenticated) {
      if (auto line = unauthenticated.stream.poll_line()) {
        admit(unauthenticated, *line, options, inbound, cluster);
        return true;
      }
      return unauthenticated.stream.ended() || monotonic_now() > unauthenticated.until;
    });
  }
  cluster.ranks = {own};
  for (const auto& [rank, inbound] : inbound) cluster.ranks.push_back(inbound.facts);
  return inbound;
}

bool dial_rank_0(const ResolvedOptions& options, const RankFacts& own, Nanos deadline, ByteStream& stream,
                 RendezvousFailure& failure) {
  const auto began = monotonic_now();
  failure.rank = own.rank;
  const nlohmann::json hello = {{"doctor", doctor_protocol}, {"version", UNISONO_VERSION}, {"facts", own}};
  const bool file = options.rendezvous.kind == RendezvousAddress::Kind::file;
  for (auto now = began; now < deadline; now = monotonic_now()) {
    std::vector<SocketAddress> addresses;
    if (!file) addresses = resolve(options, deadline, failure);
    for (size_t i = 0; i < (file ? 1 : addresses.size()); ++i) {
      auto dialled = dial_one(options, file ? nullptr : &addresses[i], deadline);
      if (dialled.attempt.outcome == Outcome::reached && greet_rank_0(dialled, hello.dump())) {
        stream = std::move(dialled.stream);
        return true;
      }
      remember(dialled.attempt, failure);
    }
    failure.seconds = static_cast<double>(monotonic_now() - began) / second;
    (void)::poll(nullptr, 0, poll_milliseconds(std::min(deadline, monotonic_now() + pause_between_rounds), monotonic_now()));
  }
  failure.seconds = static_cast<double>(monotonic_now() - began) / second;
  return false;
}

}  // namespace unisono::cli
