#include "elastic/peer/elastic_group.h"

#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/concat.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono {

ElasticRendezvous::~ElasticRendezvous() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

Result<std::string> ElasticRendezvous::serve(const std::string& host, const TlsContext* tls) {
  const std::lock_guard one_at_a_time(mutex_);
  if (address_) return *address_;
  std::vector<SecretKey> keys;
  if (tls != nullptr) keys.push_back(tls->key(0));
  struct ServerState {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<uint16_t> port;
    std::optional<Status> ended;
  };
  const auto server = std::make_shared<ServerState>();
  thread_ = std::thread([this, server, keys = std::move(keys)] {
    const StandaloneOptions options{.listen = {.kind = RendezvousAddress::Kind::tcp, .host = "", .port = 0, .path = ""},
                                    .keys = keys};
    auto status = serve_rendezvous(options, stop_, [&](const RendezvousEvent& event) {
      if (event.kind != RendezvousEvent::Kind::listening) return;
      const std::lock_guard lock(server->mutex);
      server->port = event.address.port;
      server->changed.notify_all();
    });
    const std::lock_guard lock(server->mutex);
    server->ended = std::move(status);
    server->changed.notify_all();
  });
  std::unique_lock lock(server->mutex);
  server->changed.wait(lock, [&] { return server->port || server->ended; });
  if (!server->port) {
    auto status = *server->ended;
    lock.unlock();
    thread_.join();
    return status.ok() ? Status(Code::unavailable, "the rendezvous of the group ended at once") : status;
  }
  const bool brackets = host.find(':') != std::string::npos;
  address_ = concat(group_address_begin, brackets ? "[" + host + "]" : host, ':', *server->port);
  return *address_;
}

std::string host_of_endpoint(std::string_view endpoint) {
  if (const auto scheme = endpoint.find("://"); scheme != std::string_view::npos) endpoint.remove_prefix(scheme + 3);
  auto host = endpoint.substr(0, endpoint.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::string(host);
}

Options group_options(const ElasticGroupLocation& location, const std::string& run_id, const TlsContext* tls,
                      const Options& base) {
  auto options = base;
  options.rank = static_cast<int32_t>(location.rank);
  options.world_size = static_cast<int32_t>(location.layout.peers.size());
  options.rendezvous = "tcp://" + location.rendezvous.substr(group_address_begin.size());
  // If the run has no key, it has said so. Its groups need not warn again, one after another.
  options.security = tls != nullptr ? Security::required : Security::off;
  options.key = tls != nullptr ? tls->key(0).hex() : "";
  options.job = concat(run_id, '/', location.layout.version, '/', location.layout.digest, '/', location.step);
  return options;
}

}  // namespace unisono
