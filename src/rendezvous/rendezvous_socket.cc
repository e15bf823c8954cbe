#include "rendezvous/rendezvous_socket.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/concat.h"
#include "rendezvous/rendezvous_socket_state.h"

namespace unisono {

namespace {

using rendezvous::Client;

// After a failure, rank 0 serves for this long, so that late ranks can learn the reason.
constexpr Nanos failure_time = second;
constexpr Nanos answer_time = 50 * millisecond;   // answer_joiner() takes at most this long to pass its bytes to the kernel.
constexpr Nanos reason_time = second / 4;         // failed() waits at most this long for what the server says.
constexpr Nanos goodbye_time = 50 * millisecond;  // close() takes at most this long to pass its bytes to the kernel.

}  // namespace

RendezvousSession::RendezvousSession(std::unique_ptr<State> state) : state_(std::move(state)) {}

RendezvousSession::~RendezvousSession() { close(); }

Result<std::unique_ptr<RendezvousSession>> RendezvousSession::make(const ResolvedOptions& options, PeerId self,
                                                                   std::vector<std::string> endpoints,
                                                                   std::shared_ptr<const TlsContext> tls) {
  MemberRecord record{.id = self,
                      .rank = options.join_running ? 0 : options.rank,
                      .host = this_host_name(),
                      .pid = getpid(),
                      .machine = this_machine(),
                      .network = this_network(),
                      .endpoints = std::move(endpoints)};
  if (auto status = check_member(record); !status.ok()) return status;
  auto state = std::make_unique<State>(options, self, std::move(record), std::move(tls));
  auto identity = random_peer_id();
  if (!identity.ok()) return identity.status();
  state->server_identity = *identity;
  if (options.rendezvous.kind != RendezvousAddress::Kind::none) state->epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (options.rendezvous.kind != RendezvousAddress::Kind::none && !state->epoll.open()) {
    return Status(Code::unavailable, "rendezvous: no descriptors: " + error_text(errno));
  }
  return std::unique_ptr<RendezvousSession>(new RendezvousSession(std::move(state)));
}

Result<Roster> RendezvousSession::meet(Nanos deadline) {
  auto& s = *state_;
  if (s.options.rendezvous.kind == RendezvousAddress::Kind::none) {
    if (s.options.world_size != 1)
      return Status(Code::invalid, concat("a world of ", s.options.world_size, " needs a rendezvous address"));
    return Roster{.epoch = 1, .key = random_roster_key(), .members = {s.record}};
  }
  if (s.here()) {
    if (auto status = s.try_serve(); !status.ok()) return status;
  }
  s.start_dialing(deadline);
  (void)s.open_epoll(monotonic_now());
  for (;;) {
    const Nanos now = monotonic_now();
    s.pump(now);
    s.check_descriptors(now);
    if (auto roster = s.client->take_roster()) {
      (void)s.check_own_server();
      // Before this function returns, the rosters of the other ranks must be passed to the kernel, because afterwards there may
      // be no thread that drives the server.
      while (s.server && !s.server->flushed() && monotonic_now() < deadline) {
        s.wait(monotonic_now(), deadline);
        s.pump(monotonic_now());
      }
      return std::move(*roster);
    }
    if (auto why = s.meet_error(now, deadline); !why.ok()) {
      // If the requests of the ranks disagree, more ranks may still come. Therefore this process goes on serving for a while,
      // and tells them the reason. If ranks are missing (Code::late), no more ranks are expected.
      const bool others_come =
          s.server && (!s.exhausted.ok() || (s.client->phase() == Client::Phase::refused && why.code() != Code::late));
      if (others_come) s.drain(std::min(deadline + server_grace, monotonic_now() + failure_time));
      close();
      return why;
    }
    s.wait(now, s.client->phase() == Client::Phase::waiting ? deadline + server_grace : deadline);
  }
}

Status RendezvousSession::formation_error() const { return state_->client ? state_->client->formation_error() : Status(); }

void RendezvousSession::joined() {
  auto& s = *state_;
  if (!s.client || s.closed) return;
  if (const auto bytes = s.client->joined()) s.send(*bytes, monotonic_now());
  s.pump(monotonic_now());
}

Status RendezvousSession::failed(const Status& why) {
  auto& s = *state_;
  if (!s.client || s.closed) return why;
  const auto wait_for_answer = [&](Nanos until) {
    for (;;) {
      const Nanos now = monotonic_now();
      s.pump(now);
      const bool answered = !s.client->failed(why) || !s.client->formation_error().ok();
      if ((answered && (!s.server || s.server->flushed())) || now >= until) return;
      s.wait(now, until);
    }
  };
  // If a link was lost, the member at its other end is about to say why.
  if (why.code() == Code::peer_lost) wait_for_answer(monotonic_now() + reason_time);
  if (const auto bytes = s.client->failed(why); bytes && s.client->formation_error().ok()) {
    s.send(*bytes, monotonic_now());
    wait_for_answer(monotonic_now() + reason_time);
  }
  const auto first = s.client->formation_error();
  return first.ok() ? why : first;
}

bool RendezvousSession::lacks_descriptors() const { return state_->lacks_descriptors; }

void RendezvousSession::tell_failure(const ResolvedOptions& options, PeerId self, const Status& why,
                                     std::shared_ptr<const TlsContext> tls) {
  if (options.join_running || options.rendezvous.kind == RendezvousAddress::Kind::none) return;
  auto session = make(options, self, {std::string(rendezvous::failing_endpoint)}, std::move(tls));
  if (!session.ok()) return;
  auto& s = *(*session)->state_;
  const Nanos until = monotonic_now() + failure_time;
  s.start_dialing(until);
  (void)s.open_epoll(monotonic_now());
  for (bool told = false;;) {
    const Nanos now = monotonic_now();
    s.pump(now);
    const auto bytes = s.client->failed(why);
    if (bytes && !std::exchange(told, true)) s.send(*bytes, now);
    // The server answers by ending the connection.
    if ((told && !bytes) || s.client->phase() == Client::Phase::refused || now >= until) return;
    s.wait(now, until);
  }
}

bool RendezvousSession::attending() const { return state_->client && state_->client->phase() == Client::Phase::attending; }

int RendezvousSession::wait_handle() const { return state_->closed ? -1 : state_->epoll.get(); }

Nanos RendezvousSession::next_deadline() const { return state_->client && !state_->closed ? state_->next_deadline() : never; }

std::vector<MemberRecord> RendezvousSession::poll_joiners() {
  auto& s = *state_;
  if (!s.client || s.closed) return {};
  const Nanos now = monotonic_now();
  s.pump(now);
  if (s.keep_serving && !s.server && s.dialing() && s.dialer && s.client->phase() == Client::Phase::unconnected &&
      s.dialer->rounds() != s.served_round) {
    s.served_round = s.dialer->rounds();
    if (s.dialer->is_this_host()) (void)s.try_serve();
  }
  if (s.server && s.client->server() && *s.client->server() != s.server_identity && attending()) s.stop_serving();
  return attending() ? s.client->joiners() : std::vector<MemberRecord>();
}

void RendezvousSession::answer_joiner(const PeerId& joiner, const Result<Roster>& answer) {
  auto& s = *state_;
  if (!s.client || s.closed) return;
  const auto bytes = s.client->answer(joiner, answer);
  if (!bytes) return;
  const Nanos until = monotonic_now() + answer_time;
  s.send(*bytes, monotonic_now());
  for (;;) {
    const Nanos now = monotonic_now();
    s.pump(now);
    const auto* job = s.server ? s.server->machine().job(s.options.job) : nullptr;
    const bool pending = !s.flushed() || (job != nullptr && job->joiners.contains(joiner));
    if (!pending || now >= until) break;
    s.wait(now, until);
  }
}

void RendezvousSession::attend(const Roster& roster) {
  auto& s = *state_;
  const auto rank = roster.rank_of(s.self);
  if (!rank || s.closed || s.options.rendezvous.kind == RendezvousAddress::Kind::none) return;
  if (!s.client) s.start_dialing(never);
  s.keep_serving = true;
  const Nanos now = monotonic_now();
  if (const auto bytes = s.client->attend(roster, *rank)) {
    s.send(*bytes, now);
  } else if (s.dialer) {
    s.dialer->hang_up();
  }
  (void)s.open_epoll(now);
}

void RendezvousSession::close() {
  auto& s = *state_;
  if (s.closed) return;
  s.closed = true;
  if (s.server) {
    const Nanos until = monotonic_now() + goodbye_time;
    s.server->shut_down(
        {Code::unavailable, "job '" + s.options.job + "' has ended: " + label(s.record) + ", which served it, has left"},
        monotonic_now());
    while (!s.server->flushed() && monotonic_now() < until) {
      s.wait(monotonic_now(), until);
      s.server->poll(monotonic_now());
    }
  }
  s.dialer.reset();
  s.local.reset();
  s.stop_serving();
  s.epoll.reset();
}

void RendezvousSession::on_refusal(std::function<void(const std::string&)> handler) { state_->on_refusal = std::move(handler); }

std::string RendezvousSession::describe() const {
  const auto& s = *state_;
  std::string text = s.address_text();
  if (!s.server) return text;
  const auto& counters = s.server->machine().counters();
  text += concat(", served here; ", counters.connections, " connections, refused: ", counters.refused, " processes, ",
                 counters.unauthenticated, " without our key, ", counters.http, " HTTP clients, ", counters.garbage,
                 " other programs, ", counters.silent, " silent");
  return text;
}

}  // namespace unisono
