#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rendezvous/rendezvous_server.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/rendezvous_socket_listen.h"
#include "rendezvous/rendezvous_socket_server.h"

namespace unisono {

namespace {

constexpr Nanos stop_check = 50 * millisecond;
constexpr Nanos goodbye_time = 200 * millisecond;

RendezvousEvent::Kind kind_of(rendezvous::ServerEvent::Kind kind) {
  using From = rendezvous::ServerEvent::Kind;
  using To = RendezvousEvent::Kind;
  switch (kind) {
    case From::registered: return To::registered;
    case From::formed: return To::formed;
    case From::failed: return To::failed;
    case From::joiner: return To::joiner;
    case From::refused: return To::refused;
    case From::ended: return To::ended;
  }
  return To::refused;
}

}  // namespace

Status serve_rendezvous(const StandaloneOptions& options, std::atomic<bool>& stop,
                        const std::function<void(const RendezvousEvent&)>& on_event) {
  const std::string address_text = options.listen.to_string();
  if (options.listen.kind == RendezvousAddress::Kind::none) return {Code::invalid, "no address to listen at"};
  std::shared_ptr<const TlsContext> tls;
  if (!options.keys.empty()) {
    auto context = TlsContext::make(options.keys);
    if (!context.ok()) return context.status();
    tls = std::move(*context);
  }
  auto listening = Listening::open(options.listen);
  if (!listening.ok()) {
    const std::string taken = listening.status().code() == Code::unavailable ? " (taken by another program)" : "";
    return {listening.status().code(), address_text + ": " + listening.status().message() + taken};
  }
  auto identity = random_peer_id();
  if (!identity.ok()) return identity.status();
  rendezvous::ServerSettings settings;
  settings.identity = *identity;
  settings.key_count = options.keys.size();
  settings.label = "the rendezvous server at " + listening->address().to_string();
  settings.make_key = random_roster_key;
  const auto address = listening->address();
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.open()) return {Code::unavailable, address_text + ": epoll: " + error_text(errno)};
  auto made = SocketServer::make(std::move(*listening), std::move(settings), epoll.get(), std::move(tls));
  if (!made.ok()) return made.status();
  auto& server = **made;
  const auto report = [&](RendezvousEvent event) {
    if (on_event) on_event(event);
  };
  report({RendezvousEvent::Kind::listening, "", "listening at " + address.to_string(), address});
  const auto wait = [&](Nanos now, Nanos most) {
    const Nanos left = std::clamp<Nanos>(server.next_deadline() - now, 0, most);
    epoll_event event{};
    (void)epoll_wait(epoll.get(), &event, 1, static_cast<int>((left + millisecond - 1) / millisecond));
  };
  Nanos exhausted_before = never;
  while (!stop.load(std::memory_order_relaxed)) {
    const Nanos now = monotonic_now();
    server.poll(now);
    if (std::exchange(exhausted_before, server.exhausted_since()) == never && server.exhausted_since() != never)
      report({RendezvousEvent::Kind::refused, "", "connections cannot be accepted: " + server.accept_error(), {}});
    for (const auto& event : server.machine().take_events()) report({kind_of(event.kind), event.job, event.text, {}});
    wait(monotonic_now(), stop_check);
  }
  const Nanos until = monotonic_now() + goodbye_time;
  server.shut_down({Code::unavailable, "the rendezvous server at " + address.to_string() + " was stopped"}, monotonic_now());
  while (!server.flushed() && monotonic_now() < until) {
    server.poll(monotonic_now());
    wait(monotonic_now(), 10 * millisecond);
  }
  return {};
}

}  // namespace unisono
