#include "rendezvous/rendezvous_socket_state.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/concat.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono {

namespace {

using rendezvous::Client;
using rendezvous::Hello;
using rendezvous::Role;

// If rank 0 could not accept connections for this long, because it has no free descriptor, the job fails.
constexpr Nanos exhausted_time = second / 2;
constexpr Nanos epoll_pause = second;  // If no descriptor is free for an epoll set, this process tries again then.
// If another program has the port and does not answer on this many connections, it does not count as a rendezvous server.
constexpr uint32_t ignored_max = 3;

}  // namespace

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

}  // namespace unisono
