#include "elastic/peer/elastic_driver.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/random.h"
#include "elastic/seeds/elastic_options.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono {

class ElasticDriver::Port final : public ElasticPort {
 public:
  explicit Port(ElasticLinks& links) : links_(links) {}
  void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable) override {
    links_.know(peer, addresses, dialable);
  }
  void send(const PeerId& to, SharedMessage message) override {
    if (!links_.send(to, std::move(message), now)) undeliverable.push_back(to);
  }
  void send_to_address(const std::string& address, SharedBuffer message) override {
    if (!links_.send_to_address(address, std::move(message), now)) failed_addresses.push_back(address);
  }
  bool credit(const PeerId& to) override { return links_.credit(to); }
  void close(const PeerId& peer) override { links_.close(peer); }

  Nanos now = 0;
  // Reported to the peer after its call has returned.
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
  return {.self = self,
          .run_id = options.run_id,
          .name = own_name(options),
          .found = options.found,
          .role = static_cast<ElasticRole>(options.role),
          .times = elastic_times(options),
          .elements = total_elements(options),
          .schema = schema_hash(options),
          .max_group = options.max_group,
          .rounds = options.rounds,
          .min_peers = options.min_peers,
          .min_chunks = options.min_chunks,
          .max_peers = options.max_peers,
          .grid = static_cast<GridKind>(options.grid),
          .commit = static_cast<CommitRule>(options.commit),
          .contribute = options.contribute,
          .result = options.result,
          .seed = mix64(self.low ^ mix64(self.high))};
}

std::vector<TcpAddress> addresses_of(const std::vector<std::string>& endpoints) {
  std::vector<TcpAddress> addresses;
  for (const auto& endpoint : endpoints) {
    if (const auto address = parse_tcp_endpoint(endpoint); address.ok()) addresses.push_back(*address);
  }
  return addresses;
}

}  // namespace

ElasticDriver::ElasticDriver(const ElasticOptions& options, const MoshpitSettings& settings,
                             std::unique_ptr<ElasticLinks> links, std::unique_ptr<SeedFinder> finder)
    : options_(options),
      settings_(settings),
      links_(std::move(links)),
      port_(std::make_unique<Port>(*links_)),
      finder_(std::move(finder)),
      random_(mix64(settings.seed)) {
  settings_.addresses = links_->endpoints();
}

ElasticDriver::~ElasticDriver() = default;

Result<std::unique_ptr<ElasticDriver>> ElasticDriver::make(const ElasticOptions& options) {
  if (auto status = check_elastic_options(options); !status.ok()) return status;
  const auto self = random_peer_id();
  if (!self.ok()) return self.status();
  auto links = ElasticLinks::make({.self = *self,
                                   .run_id = options.run_id,
                                   .run_key = options.run_key,
                                   .interface = options.interface,
                                   .port = options.port});
  if (!links.ok()) return links.status();
  const auto patience = std::max<Nanos>(options.join_timeout.count(), 1) * millisecond;
  SeedFinderOptions seeds{.seeds = options.seeds,
                          .dht = {.run_id = options.run_id, .seed = mix64(self->high ^ mix64(self->low))}};
  // Half of the time for joining, so that an error can still report the table's answer.
  seeds.dht_wait = std::min(seeds.dht_wait, std::max(patience / 2, millisecond));
  if (options.role != ElasticOptions::Role::client) seeds.dht.addresses = (*links)->endpoints();
  if (!options.interface.empty()) seeds.dht.bind = addresses_of((*links)->endpoints());
  auto finder = std::make_unique<SeedFinder>(std::move(seeds));
  const auto begin = monotonic_now();
  if (auto status = finder->start(patience); !status.ok()) return status;
  std::unique_ptr<ElasticDriver> driver(
      new ElasticDriver(options, settings_of(options, *self), std::move(*links), std::move(finder)));
  driver->patience_ = std::max(patience - (monotonic_now() - begin), millisecond);
  return driver;
}

void ElasticDriver::start(Nanos now) {
  now_ = port_->now = now;
  join_until_ = now + patience_;
  look_at_ = now + settings_.times.heal_period;
  make_peer();
}

std::vector<std::string> ElasticDriver::other_seeds(std::string& failures) {
  seeds_version_ = finder_->version();  // read before the seeds: what arrives in between is read again
  auto seeds = finder_->found();
  for (const auto& failure : seeds.failures) failures += (failures.empty() ? "" : "; ") + failure;
  const auto own = links_->endpoints();
  std::erase_if(seeds.addresses, [&](const std::string& seed) { return std::ranges::find(own, seed) != own.end(); });
  return seeds.addresses;
}

void ElasticDriver::make_peer() {
  retry_at_ = never;
  const bool looking = finder_->busy();  // read before the results
  std::string failures;
  settings_.seeds = other_seeds(failures);
  peer_ = std::make_unique<MoshpitPeer>(settings_, *port_);
  if (!settings_.seeds.empty() || options_.found) {
    failure_ = peer_->start(now_);
    return;
  }
  retry_at_ = now_ + (looking ? look_period : retry_join);
  if (looking && failures.empty()) failures = "they are still being looked up";
  failure_ = {Code::unavailable, "NO_SEED: the seeds name no other process" + (failures.empty() ? "" : ": " + failures)};
  finder_->look_again();
}

// A seed that does not answer yet is asked again until the time for joining is over.
void ElasticDriver::watch_joining(Nanos now) {
  if (now >= retry_at_) {
    if (now >= join_until_) {
      retry_at_ = join_until_;  // it woke after the end of that time, so there is no other attempt
      return;
    }
    if (!settings_.seeds.empty() || !finder_->busy() || finder_->version() != seeds_version_) return make_peer();
    retry_at_ = now + look_period;
  }
  const auto& status = peer_->join_status();
  if (retry_at_ != never || peer_->joined() || status.ok()) return;
  failure_ = status;
  // A seed of another run is an error that stays, unless the address came from the hash table, where anybody can put addresses.
  const bool misled = status.message().starts_with("RUN_ID_MISMATCH") && finder_->by_table();
  if (!status.message().starts_with("NO_SEED") && !misled) return;
  std::string failures;
  (void)other_seeds(failures);
  if (!failures.empty()) failure_ = {status.code(), status.message() + "; " + failures};
  if (now >= join_until_) return;
  retry_at_ = std::min(now + retry_join, join_until_);
  finder_->look_again();  // names and files may have changed by then
}

// Names, files and tables may have changed since this process joined. The parts of a run that was cut in two may find each
// other only through them.
void ElasticDriver::watch_seeds(Nanos now) {
  if (retry_at_ == never && finder_->version() != seeds_version_) {
    std::string failures;
    peer_->set_seeds(other_seeds(failures), now);
  }
  if (now < look_at_) return;
  look_at_ = now + settings_.times.heal_period;
  if (peer_->keeper().join_state() == JoinState::joined && random_.below(peer_->keeper().roster().present().size()) < lookers)
    finder_->look_again();
}

bool ElasticDriver::poll(Nanos now) {
  now_ = port_->now = now;
  bool acted = links_->poll(now, *this);
  if (now >= peer_->next_deadline()) peer_->woke(now), acted = true;
  for (const auto& peer : std::exchange(port_->undeliverable, {})) {
    acted = true;
    peer_->link_lost(peer, {Code::unavailable, "a message to it could not be sent: its queue is full, or it cannot be dialled"},
                     false, now);
  }
  for (const auto& address : std::exchange(port_->failed_addresses, {})) {
    acted = true;
    peer_->address_failed(address, {Code::unavailable, address + " cannot be dialled"}, now);
  }
  if (const bool waiting = links_->draining(); meter_.wants(now, waiting)) {
    const auto counters = links_->counters();
    meter_.update(now, counters.sent_bytes, counters.received_bytes, waiting);
    peer_->set_sending_rate(meter_.sending());
  }
  if (const auto rate = meter_.take_news()) peer_->set_bandwidth(*rate, now);
  watch_joining(now);
  watch_seeds(now);
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
  if (const auto refusal = links_->last_refusal(); !refusal.empty())
    status.last_refusal += (status.last_refusal.empty() ? "" : "; ") + refusal;
  status.endpoints = links_->endpoints();
  for (const auto& id : peer_->keeper().roster().present()) status.links += links_->linked(id) ? 1 : 0;
  return status;
}

}  // namespace unisono
