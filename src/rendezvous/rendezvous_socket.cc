#include "rendezvous/rendezvous_socket.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>

#include "base/random.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_server.h"
#include "rendezvous/rendezvous_socket_dialer.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "rendezvous/rendezvous_socket_server.h"

namespace unisono {

namespace {

using rendezvous::Client;
using rendezvous::Hello;
using rendezvous::Role;

constexpr Nanos server_grace = second;            // after the deadline, for a server to report the missing ranks
constexpr Nanos verdict_time = second;            // how long rank 0 still tells late ranks why there is no group
constexpr Nanos answer_time = 50 * millisecond;   // for answer_joiner to hand its bytes to the kernel
constexpr Nanos goodbye_time = 50 * millisecond;  // for close to hand its bytes to the kernel
constexpr uint32_t ignored_max = 3;               // connections that a program at a taken port may end without an answer

Status random_bytes(void* out, size_t size) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const auto count = getrandom(at, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {Code::internal, "getrandom: " + error_text(errno)};
    at += count;
    size -= static_cast<size_t>(count);
  }
  return {};
}

}  // namespace

Result<PeerId> random_peer_id() {
  PeerId id;
  if (auto status = random_bytes(&id, sizeof(id)); !status.ok()) return status;
  return id;
}

std::string this_host_name() {
  std::array<char, host_bytes_max + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

uint64_t this_machine() {
  std::array<char, 36> boot{};
  const Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file.open() || read(file.get(), boot.data(), boot.size()) != static_cast<ssize_t>(boot.size())) return 0;
  uint64_t hash = 0;
  for (const char c : boot) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return std::max<uint64_t>(hash, 1);
}

Nanos monotonic_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RosterKey random_roster_key() {
  RosterKey key{};
  // Without a random source the key is zero, and the group still works: the key only keeps unauthenticated peers apart.
  (void)random_bytes(key.data(), key.size());
  return key;
}

struct RendezvousSession::State {
  State(const ResolvedOptions& o, PeerId id, MemberRecord r) : options(o), self(id), record(std::move(r)) {}

  const ResolvedOptions options;
  const PeerId self;
  const MemberRecord record;
  PeerId server_identity;  // of our own server
  Descriptor epoll;        // server, dialer and timer together; wait_handle() returns it
  Descriptor timer;
  std::unique_ptr<SocketServer> server;
  std::optional<Client> client;
  std::optional<Dialer> dialer;
  std::string taken;          // why we could not serve, if another program listens at our port
  uint32_t served_round = 0;  // the dialer's round in which we last tried to serve
  bool keep_serving = false;  // attending after rank 0 was lost: open the server again when nobody answers
  bool closed = false;

  bool here() const { return !options.join_running && record.rank == 0; }
  bool dialing() const {
    if (!client || closed) return false;
    const auto phase = client->phase();
    return phase != Client::Phase::met && phase != Client::Phase::refused && phase != Client::Phase::unauthenticated;
  }
  Hello hello() const;
  Status try_serve();
  void stop_serving();
  void start_dialing(Nanos deadline);
  void pump(Nanos now);
  void set_timer(Nanos now);
  void wait(Nanos now, Nanos until);
  Nanos next_deadline() const;
  Status check_own_server();
  Status verdict(Nanos now, Nanos deadline);
  Status too_late(Nanos now) const;
  void drain(Nanos until);
  std::string place() const { return options.rendezvous.to_string(); }
};

Hello RendezvousSession::State::hello() const {
  Hello hello;
  hello.host = record.host;
  hello.pid = record.pid;
  hello.job = options.job;
  hello.role = options.join_running ? Role::joiner : Role::member;
  hello.world_size = options.join_running ? 0 : options.world_size;
  hello.transport = options.transport;
  hello.member = record;
  return hello;
}

// Opens the server. Also ok if another program listens there: it may be a standalone server, and dialling will show that.
Status RendezvousSession::State::try_serve() {
  auto listening = options.listen_fd >= 0 ? Listening::adopt(options.listen_fd) : Listening::open(options.rendezvous);
  if (!listening.ok()) {
    if (listening.status().code() != Code::unavailable)
      return {listening.status().code(), place() + ": " + listening.status().message()};
    taken = listening.status().message();
    return {};
  }
  rendezvous::ServerSettings settings;
  settings.identity = server_identity;
  settings.only_job = options.job;
  settings.label = label(record);
  settings.make_key = random_roster_key;
  settings.keep_verdicts = true;
  auto made = SocketServer::make(std::move(*listening), std::move(settings));
  if (!made.ok()) return made.status();
  server = std::move(*made);
  taken.clear();
  if (!watch(epoll.get(), server->wait_handle(), EPOLLIN, 0))
    return {Code::unavailable, "rendezvous: epoll: " + error_text(errno)};
  return {};
}

void RendezvousSession::State::stop_serving() {
  if (!server) return;
  unwatch(epoll.get(), server->wait_handle());
  server.reset();
}

void RendezvousSession::State::start_dialing(Nanos deadline) {
  client.emplace(hello(), deadline);
  dialer.emplace(options.rendezvous, *client, epoll.get());
}

void RendezvousSession::State::pump(Nanos now) {
  uint64_t expirations = 0;
  if (timer.open()) (void)!read(timer.get(), &expirations, sizeof(expirations));
  // Twice: on one host, a message from one to the other arrives at once, and the second round saves a sleep.
  for (int i = 0; i < 2; ++i) {
    if (dialing()) dialer->poll(now);
    if (server) {
      server->poll(now);
      (void)server->machine().take_events();
    }
  }
}

Nanos RendezvousSession::State::next_deadline() const {
  Nanos deadline = dialing() ? dialer->next_deadline() : never;
  if (server) deadline = std::min(deadline, server->next_deadline());
  return deadline;
}

// Makes the epoll descriptor readable at the next deadline, for owners that watch only that descriptor.
void RendezvousSession::State::set_timer(Nanos now) {
  const Nanos deadline = next_deadline();
  itimerspec when{};
  if (deadline != never) {
    const Nanos left = std::max<Nanos>(deadline - now, 1);  // zero would disarm it
    when.it_value.tv_sec = left / second;
    when.it_value.tv_nsec = left % second;
  }
  (void)timerfd_settime(timer.get(), 0, &when, nullptr);
}

void RendezvousSession::State::wait(Nanos now, Nanos until) {
  const Nanos left = std::clamp<Nanos>(std::min(until, next_deadline()) - now, 0, second);
  epoll_event event{};
  (void)epoll_wait(epoll.get(), &event, 1, static_cast<int>((left + millisecond - 1) / millisecond));
}

// Rank 0 serves unless another server answers at the address; then its own server would only confuse processes that found it.
Status RendezvousSession::State::check_own_server() {
  if (server && client->server() && *client->server() != server_identity) stop_serving();
  if (server || !here() || client->times_registered() > 0 || dialer->rounds() == served_round) return {};
  served_round = dialer->rounds();
  return try_serve();  // the port was taken; the program that had it may have ended
}

// The reason why meeting has failed; ok while it goes on.
Status RendezvousSession::State::verdict(Nanos now, Nanos deadline) {
  if (auto status = check_own_server(); !status.ok()) return status;
  const auto& error = client->error();
  if (client->phase() == Client::Phase::refused) return {error.code(), place() + ": " + error.message()};
  const std::string port = options.rendezvous.kind == RendezvousAddress::Kind::tcp
                               ? "port " + std::to_string(options.rendezvous.port)
                               : "the address";
  if (client->phase() == Client::Phase::unauthenticated) {
    return {Code::unavailable, place() + ": " + port + " is taken by another program: " + error.message() + " answered there"};
  }
  if (!taken.empty() && dialer->times_ignored() >= ignored_max) {
    return {Code::unavailable, place() + ": " + port + " is taken by another program (" + taken +
                                   "), which does not speak our protocol: " + dialer->history(now)};
  }
  const bool registered = client->phase() == Client::Phase::waiting;
  const Nanos end = registered ? deadline + server_grace : deadline;
  return now < end ? Status() : too_late(now);
}

Status RendezvousSession::State::too_late(Nanos now) const {
  if (client->phase() == Client::Phase::waiting) {
    return {Code::late, place() + ": registered, but the rendezvous server has said nothing since; it may be stopped"};
  }
  std::string text = place() + ": " + dialer->history(now);
  if (server) {
    text += "; this process, rank 0, listens at " + server->address().to_string() + " of host " + record.host +
            ", but the address does not lead here";
  } else if (!taken.empty()) {
    text += "; this process, rank 0, could not serve: " + taken;
  } else {
    text += options.join_running ? "; is the group's rank 0, or its rendezvous server, up?" : "; is rank 0 up?";
  }
  return {Code::unavailable, std::move(text)};
}

// The group failed. Rank 0 knows why, and others may still be on their way to ask.
void RendezvousSession::State::drain(Nanos until) {
  for (Nanos now = monotonic_now(); server && now < until; now = monotonic_now()) {
    server->poll(now);
    (void)server->machine().take_events();
    const auto* job = server->machine().job(options.job);
    if (job == nullptr || (job->told >= options.world_size && server->flushed())) return;
    wait(now, until);
  }
}

RendezvousSession::RendezvousSession(std::unique_ptr<State> state) : state_(std::move(state)) {}

RendezvousSession::~RendezvousSession() { close(); }

Result<std::unique_ptr<RendezvousSession>> RendezvousSession::make(const ResolvedOptions& options, PeerId self,
                                                                   std::vector<std::string> endpoints) {
  MemberRecord record{.id = self,
                      .rank = options.join_running ? 0 : options.rank,
                      .host = this_host_name(),
                      .pid = getpid(),
                      .machine = this_machine(),
                      .endpoints = std::move(endpoints)};
  if (auto status = check_member(record); !status.ok()) return status;
  auto state = std::make_unique<State>(options, self, std::move(record));
  auto identity = random_peer_id();
  if (!identity.ok()) return identity.status();
  state->server_identity = *identity;
  state->epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  state->timer = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!state->epoll.open() || !state->timer.open() || !watch(state->epoll.get(), state->timer.get(), EPOLLIN, 0)) {
    return Status(Code::unavailable, "rendezvous: no descriptors: " + error_text(errno));
  }
  return std::unique_ptr<RendezvousSession>(new RendezvousSession(std::move(state)));
}

Result<Roster> RendezvousSession::meet(Nanos deadline) {
  auto& s = *state_;
  if (s.options.rendezvous.kind == RendezvousAddress::Kind::none) {
    if (s.options.world_size != 1)
      return Status(Code::invalid, "a world of " + std::to_string(s.options.world_size) + " needs a rendezvous address");
    return Roster{.epoch = 1, .key = random_roster_key(), .members = {s.record}};
  }
  if (s.here()) {
    if (auto status = s.try_serve(); !status.ok()) return status;
  }
  s.start_dialing(deadline);
  for (;;) {
    const Nanos now = monotonic_now();
    s.pump(now);
    if (auto roster = s.client->take_roster()) {
      (void)s.check_own_server();
      // Waits until the others' tables are on their way: after the return, perhaps nobody drives the server.
      while (s.server && !s.server->flushed() && monotonic_now() < deadline) {
        s.wait(monotonic_now(), deadline);
        s.pump(monotonic_now());
      }
      s.set_timer(monotonic_now());
      return std::move(*roster);
    }
    if (auto why = s.verdict(now, deadline); !why.ok()) {
      // Ranks whose requests disagree may still be on their way; missing ranks are not.
      const bool others_come = s.server && s.client->phase() == Client::Phase::refused && why.code() != Code::late;
      if (others_come) s.drain(std::min(deadline + server_grace, monotonic_now() + verdict_time));
      close();
      return why;
    }
    s.wait(now, s.client->phase() == Client::Phase::waiting ? deadline + server_grace : deadline);
  }
}

bool RendezvousSession::attending() const { return state_->client && state_->client->phase() == Client::Phase::attending; }

int RendezvousSession::wait_handle() const { return state_->epoll.get(); }

std::vector<MemberRecord> RendezvousSession::poll_joiners() {
  auto& s = *state_;
  if (!s.client || s.closed) return {};
  const Nanos now = monotonic_now();
  s.pump(now);
  if (s.keep_serving && !s.server && s.dialing() && s.client->phase() == Client::Phase::apart &&
      s.dialer->rounds() != s.served_round) {
    s.served_round = s.dialer->rounds();
    if (s.dialer->leads_here()) (void)s.try_serve();
  }
  if (s.server && s.client->server() && *s.client->server() != s.server_identity && attending()) s.stop_serving();
  s.set_timer(now);
  return attending() ? s.client->joiners() : std::vector<MemberRecord>();
}

void RendezvousSession::answer_joiner(const PeerId& joiner, const Result<Roster>& answer) {
  auto& s = *state_;
  if (!s.client || s.closed) return;
  const auto bytes = s.client->answer(joiner, answer);
  if (!bytes) return;
  const Nanos until = monotonic_now() + answer_time;
  s.dialer->send(*bytes, monotonic_now());
  for (;;) {
    const Nanos now = monotonic_now();
    s.pump(now);
    const auto* job = s.server ? s.server->machine().job(s.options.job) : nullptr;
    const bool pending =
        !s.dialer->flushed() || (s.server && !s.server->flushed()) || (job != nullptr && job->joiners.contains(joiner));
    if (!pending || now >= until) break;
    s.wait(now, until);
  }
  s.set_timer(monotonic_now());
}

void RendezvousSession::attend(const Roster& roster) {
  auto& s = *state_;
  const auto rank = roster.rank_of(s.self);
  if (!rank || s.closed || s.options.rendezvous.kind == RendezvousAddress::Kind::none) return;
  if (!s.client) s.start_dialing(never);
  s.keep_serving = true;
  const Nanos now = monotonic_now();
  if (const auto bytes = s.client->attend(roster, *rank)) {
    s.dialer->send(*bytes, now);
  } else {
    s.dialer->hang_up();
  }
  s.set_timer(now);
}

void RendezvousSession::close() {
  auto& s = *state_;
  if (s.closed) return;
  s.closed = true;
  if (s.server) {
    const Nanos until = monotonic_now() + goodbye_time;
    s.server->shut_down(
        {Code::unavailable, "job '" + s.options.job + "' has ended: " + label(s.record) + ", which served it, is gone"},
        monotonic_now());
    while (!s.server->flushed() && monotonic_now() < until) {
      s.wait(monotonic_now(), until);
      s.server->poll(monotonic_now());
    }
  }
  s.dialer.reset();
  s.stop_serving();
}

std::string RendezvousSession::describe() const {
  const auto& s = *state_;
  std::string text = s.place();
  if (!s.server) return text;
  const auto& counters = s.server->machine().counters();
  text += ", served here; " + std::to_string(counters.connections) +
          " connections, turned away: " + std::to_string(counters.refused) + " processes, " + std::to_string(counters.http) +
          " HTTP clients, " + std::to_string(counters.garbage) + " other programs, " + std::to_string(counters.silent) +
          " silent";
  return text;
}

}  // namespace unisono
