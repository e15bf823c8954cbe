#include "rendezvous/rendezvous_socket.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/concat.h"
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

constexpr Nanos server_grace = second;  // After the deadline, a server gets this much more time to report the missing ranks.
// After a failure, rank 0 serves for this long, so that late ranks can learn the reason.
constexpr Nanos failure_time = second;
// If rank 0 could not accept connections for this long, because it has no free descriptor, the job fails.
constexpr Nanos exhausted_time = second / 2;
constexpr Nanos answer_time = 50 * millisecond;   // answer_joiner() takes at most this long to pass its bytes to the kernel.
constexpr Nanos reason_time = second / 4;         // failed() waits at most this long for what the server says.
constexpr Nanos epoll_pause = second;             // If no descriptor is free for an epoll set, this process tries again then.
constexpr Nanos goodbye_time = 50 * millisecond;  // close() takes at most this long to pass its bytes to the kernel.
// If another program has the port and does not answer on this many connections, it does not count as a rendezvous server.
constexpr uint32_t ignored_max = 3;

}  // namespace

struct RendezvousSession::State {
  State(const ResolvedOptions& o, PeerId id, MemberRecord r, std::shared_ptr<const TlsContext> t)
      : options(o), self(id), record(std::move(r)), tls(std::move(t)) {}

  const ResolvedOptions options;
  const PeerId self;
  const MemberRecord record;
  const std::shared_ptr<const TlsContext> tls;  // null: connections are in clear
  std::function<void(const std::string&)> on_refusal;
  rendezvous::RefusalLog refusals;  // bounds what on_refusal gets
  PeerId server_identity;           // the identity of the server that this process runs
  // It watches the server and the dialer. wait_handle() returns it. A process that has the table and does not attend the
  // rendezvous needs neither of them, and closes it.
  Descriptor epoll;
  Nanos open_again = never;  // when to try again to open it
  std::unique_ptr<SocketServer> server;
  std::optional<Client> client;
  std::optional<Dialer> dialer;
  // If this process attends its own server, this is the number of its connection there, which has no socket (make_local).
  std::optional<uint64_t> local;
  // If another program listens at the port, this text says so, and this process cannot serve there. Otherwise it is empty.
  std::string taken;
  Status exhausted;           // the error if the server had no free descriptor for other ranks
  uint32_t served_round = 0;  // the value of dialer->rounds() when this process last tried to serve
  bool keep_serving = false;  // It is set by attend(). If no server answers at the port, this process serves there again.
  bool closed = false;
  bool lacks_descriptors = false;  // true: meet() has failed, because no descriptor was free to dial

  bool here() const { return !options.join_running && record.rank == 0; }
  bool dialing() const {
    if (!client || closed || local) return false;
    const auto phase = client->phase();
    return phase != Client::Phase::met && phase != Client::Phase::refused && phase != Client::Phase::unauthenticated;
  }
  Hello hello() const;
  Status try_serve();
  void stop_serving();
  void start_dialing(Nanos deadline);
  bool open_epoll(Nanos now);
  void send(const Bytes& bytes, Nanos now);
  bool flushed() const;
  void pump(Nanos now);
  void serve(Nanos now);
  void move_local(Nanos now);
  void release_descriptors();
  void wait(Nanos now, Nanos until);
  Nanos next_deadline() const;
  Status check_own_server();
  Status meet_error(Nanos now, Nanos deadline);
  Status too_late(Nanos now) const;
  void check_descriptors(Nanos now);
  std::string itself_text() const;
  void drain(Nanos until);
  std::string address_text() const { return options.rendezvous.to_string(); }
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

// Opens the server. Returns ok even if another program listens at the port, because this may be a standalone server. The dialer
// will find that out.
Status RendezvousSession::State::try_serve() {
  auto listening = options.listen_fd >= 0 ? Listening::adopt(options.listen_fd) : Listening::open(options.rendezvous);
  if (!listening.ok()) {
    if (listening.status().code() != Code::unavailable)
      return {listening.status().code(), address_text() + ": " + listening.status().message()};
    taken = listening.status().message();
    return {};
  }
  rendezvous::ServerSettings settings;
  settings.identity = server_identity;
  settings.key_count = tls ? 1 : 0;
  settings.only_job = options.job;
  settings.label = label(record);
  settings.make_key = random_roster_key;
  settings.keep_failures = true;
  auto made = SocketServer::make(std::move(*listening), std::move(settings), epoll.get(), tls);
  if (!made.ok()) return made.status();
  server = std::move(*made);
  taken.clear();
  return {};
}

void RendezvousSession::State::stop_serving() { server.reset(); }

void RendezvousSession::State::start_dialing(Nanos deadline) { client.emplace(hello(), deadline); }

// Opens what dialing needs. Returns false if no descriptor is free.
bool RendezvousSession::State::open_epoll(Nanos now) {
  open_again = never;
  if (!epoll.open()) epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.open()) {
    open_again = now + epoll_pause;
    return false;
  }
  if (!dialer) {
    dialer.emplace(options.rendezvous, *client, epoll.get(), tls);
    served_round = 0;
  }
  return true;
}

void RendezvousSession::State::send(const Bytes& bytes, Nanos now) {
  if (local) server->receive_local(*local, bytes, now);
  else if (dialer) dialer->send(bytes, now);
}

bool RendezvousSession::State::flushed() const { return (!dialer || dialer->flushed()) && (!server || server->flushed()); }

// When this process attends its own server, it gives up the connection to it, which takes two descriptors. (It dials first,
// because only a connection shows whether the address leads to this process.) Then takes what the server sends to it.
void RendezvousSession::State::move_local(Nanos now) {
  const bool own = server && client->phase() == Client::Phase::attending && client->server() == server_identity;
  if (!local && own && dialer && dialer->flushed()) {
    const auto* job = server->machine().job(options.job);
    const auto number = job == nullptr ? 0 : job->attending_member;
    if (!server->make_local(number, dialer->sent_bytes(), dialer->received_bytes())) return;
    local = number;
    dialer->hang_up();
  }
  if (!local) return;
  bool ended = false;
  const auto bytes = server->take_local(*local, ended, now);
  client->received(bytes, now);
  if (!ended) return;
  local.reset();
  (void)client->disconnected();
}

// A process that has the table, and does not attend the rendezvous, needs no descriptor until attend().
void RendezvousSession::State::release_descriptors() {
  if (server || client->phase() != Client::Phase::met) return;
  dialer.reset();
  epoll.reset();
}

void RendezvousSession::State::serve(Nanos now) {
  server->poll(now);
  for (const auto& event : server->machine().take_events()) {
    if (event.kind != rendezvous::ServerEvent::Kind::refused || !on_refusal) continue;
    if (const auto text = refusals.add(event.text, now)) on_refusal(*text);
  }
}

void RendezvousSession::State::pump(Nanos now) {
  if (!client || ((dialing() || server) && !open_epoll(now))) return;
  // If the dialer and the server are on the same host, a message between them arrives at once. The second pass handles it
  // without a sleep in between.
  for (int i = 0; i < 2; ++i) {
    if (dialing()) dialer->poll(now);
    if (server) serve(now);
    move_local(now);
  }
  release_descriptors();
}

Nanos RendezvousSession::State::next_deadline() const {
  Nanos deadline = dialing() && dialer ? dialer->next_deadline() : open_again;
  if (server) deadline = std::min(deadline, server->next_deadline());
  return deadline;
}

void RendezvousSession::State::wait(Nanos now, Nanos until) {
  const Nanos left = std::clamp<Nanos>(std::min(until, next_deadline()) - now, 0, second);
  epoll_event event{};
  (void)epoll_wait(epoll.get(), &event, 1, static_cast<int>((left + millisecond - 1) / millisecond));
}

// If the client has reached the server of another process, this process stops its own server, because two servers would split
// the job. If no server has answered, this process tries again to serve.
Status RendezvousSession::State::check_own_server() {
  if (server && client->server() && *client->server() != server_identity) stop_serving();
  if (server || !here() || client->times_registered() > 0 || dialer->rounds() == served_round) return {};
  served_round = dialer->rounds();
  return try_serve();  // The program that had the port may have ended.
}

// If this process has no descriptor for its server, or for its own connection to it, ends the job for all ranks. The ranks that
// have registered then free descriptors, so that those whose connections still wait get the reason, too.
void RendezvousSession::State::check_descriptors(Nanos now) {
  if (!server || !exhausted.ok()) return;
  if (dialer->exhausted()) {
    exhausted = {Code::unavailable, label(record) + " cannot reach its own rendezvous server: " + dialer->history(now)};
    return server->machine().fail_job(options.job, exhausted, now);
  }
  if (server->exhausted_since() > now - exhausted_time) return;
  const auto* job = server->machine().job(options.job);
  exhausted = {Code::unavailable,
               concat(label(record), " cannot accept the connections of the other ranks: ", server->accept_error(), "; ",
                      job == nullptr ? 0 : job->members().size(), " of ", options.world_size, " ranks have registered")};
  server->machine().fail_job(options.job, exhausted, now);
}

// Returns why the meeting has failed. Returns ok as long as it has not failed.
Status RendezvousSession::State::meet_error(Nanos now, Nanos deadline) {
  if (auto status = check_own_server(); !status.ok()) return status;
  if (!exhausted.ok()) return {exhausted.code(), address_text() + ": " + exhausted.message()};
  lacks_descriptors = dialer->exhausted();
  if (lacks_descriptors) return {Code::unavailable, address_text() + ": " + dialer->history(now)};
  const auto& error = client->error();
  if (client->phase() == Client::Phase::refused) return {error.code(), address_text() + ": " + error.message()};
  const std::string port =
      options.rendezvous.kind == RendezvousAddress::Kind::tcp ? concat("port ", options.rendezvous.port) : "the address";
  if (client->phase() == Client::Phase::unauthenticated) {
    return {Code::unavailable, address_text() + ": " + port + " is taken by another program: " + error.message() +
                                   " answered there" + itself_text()};
  }
  if (!taken.empty() && dialer->times_ignored() >= ignored_max) {
    return {Code::unavailable, address_text() + ": " + port + " is taken by another program (" + taken +
                                   "), which does not speak our protocol: " + dialer->history(now)};
  }
  const bool registered = client->phase() == Client::Phase::waiting;
  const Nanos end = registered ? deadline + server_grace : deadline;
  return now < end ? Status() : too_late(now);
}

// Returns a text if rank 0 is another process, and its address leads to this host only. The address may be a name that each
// host looks up as itself. Returns an empty text otherwise.
std::string RendezvousSession::State::itself_text() const {
  if (here() || !dialer->leads_only_here()) return {};
  return "; this address is this host itself: if rank 0 runs on another host, give its address as this host sees it "
         "(MASTER_ADDR, UNISONO_RENDEZVOUS), or correct the name's line in /etc/hosts";
}

Status RendezvousSession::State::too_late(Nanos now) const {
  if (client->phase() == Client::Phase::waiting) {
    return {Code::late, address_text() + ": registered, but the rendezvous server has sent nothing since; it may be stopped"};
  }
  std::string text = address_text() + ": " + dialer->history(now);
  if (server) {
    text += "; this process, rank 0, listens at " + server->address().to_string() + " of host " + record.host +
            ", but connections to the address do not reach it";
  } else if (!taken.empty()) {
    text += "; this process, rank 0, could not serve: " + taken;
  } else {
    text += options.join_running ? "; is rank 0 of the group, or its rendezvous server, running?" : "; is rank 0 running?";
  }
  return {Code::unavailable, text + itself_text()};
}

// Called when the group could not form. Goes on serving for a while, so that late processes can learn the reason from rank 0.
void RendezvousSession::State::drain(Nanos until) {
  for (Nanos now = monotonic_now(); server && now < until; now = monotonic_now()) {
    serve(now);
    const auto* job = server->machine().job(options.job);
    if (job == nullptr || (job->notified_count >= options.world_size && server->flushed())) return;
    wait(now, until);
  }
}

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
