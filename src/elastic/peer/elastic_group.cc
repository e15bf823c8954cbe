#include "elastic/peer/elastic_group.h"

#include <condition_variable>
#include <mutex>

#include "rendezvous/rendezvous_socket.h"

namespace unisono {

ElasticRendezvous::~ElasticRendezvous() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

Result<std::string> ElasticRendezvous::serve(const std::string& host) {
  const std::lock_guard one_at_a_time(mutex_);
  if (address_) return *address_;
  struct News {
    std::mutex mutex;
    std::condition_variable told;
    std::optional<uint16_t> port;
    std::optional<Status> ended;
  };
  const auto news = std::make_shared<News>();
  thread_ = std::thread([this, news] {
    const StandaloneOptions options{.listen = {.kind = RendezvousAddress::Kind::tcp, .host = "", .port = 0, .path = ""}};
    auto status = serve_rendezvous(options, stop_, [&](const RendezvousEvent& event) {
      if (event.kind != RendezvousEvent::Kind::listening) return;
      const std::lock_guard lock(news->mutex);
      news->port = event.address.port;
      news->told.notify_all();
    });
    const std::lock_guard lock(news->mutex);
    news->ended = std::move(status);
    news->told.notify_all();
  });
  std::unique_lock lock(news->mutex);
  news->told.wait(lock, [&] { return news->port || news->ended; });
  if (!news->port) {
    auto status = *news->ended;
    lock.unlock();
    thread_.join();
    return status.ok() ? Status(Code::unavailable, "the rendezvous of the group ended at once") : status;
  }
  const bool brackets = host.find(':') != std::string::npos;
  address_ = std::string(group_address_begin) + (brackets ? "[" + host + "]" : host) + ':' + std::to_string(*news->port);
  return *address_;
}

std::string host_of_endpoint(std::string_view endpoint) {
  if (const auto scheme = endpoint.find("://"); scheme != std::string_view::npos) endpoint.remove_prefix(scheme + 3);
  auto host = endpoint.substr(0, endpoint.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::string(host);
}

Options group_options(const ElasticGroupLocation& place, const std::string& run_id, const Options& base) {
  auto options = base;
  options.rank = static_cast<int32_t>(place.rank);
  options.world_size = static_cast<int32_t>(place.layout.peers.size());
  options.rendezvous = "tcp://" + place.rendezvous.substr(group_address_begin.size());
  options.job = run_id + '/' + std::to_string(place.layout.version) + '/' + std::to_string(place.layout.digest) + '/' +
                std::to_string(place.step);
  return options;
}

}  // namespace unisono
