#include "node/elastic_driver.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/random.h"
#include "node/elastic_options.h"
#include "node/rendezvous_socket.h"

namespace unisono {

class ElasticDriver::Port final : public ElasticPort {
 public:
  explicit Port(ElasticLinks& links) : links_(links) {}
  void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) override { links_.know(peer, addresses, dialable); }
  void send(const PeerId& to, SharedMessage message) override {
    if (!links_.send(to, std::move(message), now)) undeliverable.push_back(to);
  }
  void send_to_address(const std::string& address, SharedBuffer message) override {
    if (!links_.send_to_address(address, std::move(message), now)) failed_addresses.push_back(address);
  }
  bool room(const PeerId& to) override { return links_.room(to); }
  void close(const PeerId& peer) override { links_.close(peer); }

  Nanos now = 0;
  // The peer is told after its call has ended.
  std::vector<PeerId> undeliverable;
  std::vector<std::string> failed_addresses;

 private:
  ElasticLinks& links_;
};

namespace {

std::string own_name(const ElasticOptions& options) {
  if (!options.name.empty()) return options.name;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return std::string(host.data()) + ':' + std::to_string(::getpid());
}

MoshpitSettings settings_of(const ElasticOptions& options, const PeerId& self) {
  return {.self = self, .run_id = options.run_id, .name = own_name(options), .found = options.found, .role = static_cast<ElasticRole>(options.role),
          .times = elastic_times(options), .elements = total_elements(options), .schema = schema_hash(options), .max_group = options.max_group,
          .rounds = options.rounds, .min_peers = options.min_peers, .min_chunks = options.min_chunks, .max_peers = options.max_peers,
          .grid = static_cast<GridKind>(options.grid), .commit = static_cast<CommitRule>(options.commit), .contribute = options.contribute,
          .result = options.result, .seed = mix64(self.low ^ mix64(self.high))};
}

}  // namespace

ElasticDriver::ElasticDriver(const ElasticOptions& options, const MoshpitSettings& settings, std::unique_ptr<ElasticLinks> links)
    : options_(options), settings_(settings), links_(std::move(links)), port_(std::make_unique<Port>(*links_)) {
  settings_.addresses = links_->endpoints();
}

ElasticDriver::~ElasticDriver() = default;

Result<std::unique_ptr<ElasticDriver>> ElasticDriver::make(const ElasticOptions& options) {
  if (auto status = check_elastic_options(options); !status.ok()) return status;
  const auto seeds = resolve_seeds(options.seeds);
  if (!seeds.ok()) return seeds.status();
  const auto self = random_peer_id();
  if (!self.ok()) return self.status();
  auto links = ElasticLinks::make({.self = *self, .run_id = options.run_id, .run_key = options.run_key, .interface = options.interface, .port = options.port});
  if (!links.ok()) return links.status();
  return std::unique_ptr<ElasticDriver>(new ElasticDriver(options, settings_of(options, *self), std::move(*links)));
}

void ElasticDriver::start(Nanos now) {
  now_ = port_->now = now;
  join_until_ = now + std::max<Nanos>(options_.join_timeout.count(), 1) * millisecond;
  make_peer();
}

// Names and files may say more than before.
void ElasticDriver::make_peer() {
  retry_at_ = never;
  if (const auto seeds = resolve_seeds(options_.seeds); seeds.ok()) {
    settings_.seeds = seeds->addresses;
    const auto own = links_->endpoints();
    std::erase_if(settings_.seeds, [&](const std::string& seed) { return std::ranges::find(own, seed) != own.end(); });
    if (settings_.seeds.empty() && !options_.found) {
      retry_at_ = now_ + retry_join;
      std::string failures;
      for (const auto& failure : seeds->failures) failures += (failures.empty() ? ": " : "; ") + failure;
      failure_ = {Code::unavailable, "NO_SEED: the seeds name no other process" + failures};
    }
  }
  peer_ = std::make_unique<MoshpitPeer>(settings_, *port_);
  if (retry_at_ != never) return;
  failure_ = peer_->start(now_);
}

// A seed that does not answer yet is asked again, until the time for joining is over.
void ElasticDriver::watch_joining(Nanos now) {
  if (now >= retry_at_ && now < join_until_) return make_peer();
  const auto& status = peer_->join_status();
  if (retry_at_ != never || peer_->joined() || status.ok()) return;
  failure_ = status;
  if (status.message().starts_with("NO_SEED") && now < join_until_) retry_at_ = std::min(now + retry_join, join_until_);
}

bool ElasticDriver::poll(Nanos now) {
  now_ = port_->now = now;
  bool acted = links_->poll(now, *this);
  if (now >= peer_->next_deadline()) peer_->woke(now), acted = true;
  for (const auto& peer : std::exchange(port_->undeliverable, {})) {
    acted = true;
    peer_->link_lost(peer, {Code::unavailable, "what was to be sent to it cannot be: too much waits for it already, or it cannot be dialled"}, false, now);
  }
  for (const auto& address : std::exchange(port_->failed_addresses, {})) {
    acted = true;
    peer_->address_failed(address, {Code::unavailable, address + " cannot be dialled"}, now);
  }
  if (const bool waiting = links_->lingers(); meter_.wants(now, waiting)) {
    const auto counters = links_->counters();
    meter_.update(now, counters.sent_bytes, counters.received_bytes, waiting);
  }
  if (const auto rate = meter_.take_news()) peer_->set_bandwidth(*rate, now);
  watch_joining(now);
  return acted;
}

Nanos ElasticDriver::next_deadline() const {
  return std::min({links_->next_deadline(), peer_->next_deadline(), next_attempt()});
}

ElasticStatus ElasticDriver::status(Nanos now) const {
  auto status = peer_->status(now);
  const auto counters = links_->counters();
  status.sent_bytes = counters.sent_bytes;
  status.received_bytes = counters.received_bytes;
  status.refused += counters.refused_connections + counters.refused_messages;
  status.endpoints = links_->endpoints();
  for (const auto& id : peer_->keeper().roster().present()) status.links += links_->linked(id) ? 1 : 0;
  return status;
}

}  // namespace unisono
