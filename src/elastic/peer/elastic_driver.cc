#include "elastic/peer/elastic_driver.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/seeds/elastic_options.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/security_options.h"

static_assert(unisono::offered_addresses_max < unisono::peer_addresses_max, "a peer may add the address that others see");

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
  bool is_out(const PeerId& peer) const override { return links_.is_out(peer); }
  void close(const PeerId& peer) override { links_.close(peer); }

  Nanos now = 0;
  // Peers and addresses for which a message could not be queued. When this happens, the peer is in the middle of a call, so
  // poll() tells the peer later.
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
  return concat(host.data(), ':', ::getpid());
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
  const auto begin = monotonic_now();  // everything below counts towards join_timeout
  const auto self = random_peer_id();
  if (!self.ok()) return self.status();
  const auto security = resolve_security({.key = options.key, .security = options.security, .key_name = "ElasticOptions::key"},
                                         process_environment());
  if (!security.ok()) return security.status();
  const auto tls = load_tls(security->key);
  if (!tls.ok()) return tls.status();
  auto links = ElasticLinks::make(
      {.self = *self, .run_id = options.run_id, .tls = *tls, .interface = options.interface, .port = options.port});
  if (!links.ok()) return links.status();
  const auto join_timeout = std::max<Nanos>(options.join_timeout.count(), 1) * millisecond;
  SeedFinderOptions seeds{.seeds = options.seeds,
                          .dht = {.run_id = options.run_id, .seed = mix64(self->high ^ mix64(self->low))}};
  // Waits for the hash table for at most half of join_timeout. If the table gives an error, this comes in time for the message
  // of a failed join.
  seeds.dht_wait = std::min(seeds.dht_wait, std::max(join_timeout / 2, millisecond));
  if (options.role != ElasticOptions::Role::client) seeds.dht.addresses = (*links)->endpoints();
  if (!options.interface.empty()) seeds.dht.bind = addresses_of((*links)->endpoints());
  auto finder = std::make_unique<SeedFinder>(std::move(seeds));
  const auto left = [&] { return std::max(join_timeout - (monotonic_now() - begin), millisecond); };
  if (auto status = finder->start(left()); !status.ok()) return status;
  std::unique_ptr<ElasticDriver> driver(
      new ElasticDriver(options, settings_of(options, *self), std::move(*links), std::move(finder)));
  driver->join_timeout_ = left();
  driver->set_security(*tls, security->security);
  return driver;
}

void ElasticDriver::set_security(std::shared_ptr<const TlsContext> tls, Security security) {
  tls_ = std::move(tls);
  const auto addresses = addresses_of(links_->endpoints());
  unprotected_ = tls_ == nullptr && security == Security::automatic &&
                 std::ranges::any_of(addresses, [](const TcpAddress& address) { return !address.is_loopback(); });
}

void ElasticDriver::start(Nanos now) {
  now_ = port_->now = now;
  join_until_ = now + join_timeout_;
  next_look_up_ = now + settings_.times.heal_period;
  make_peer();
}

std::vector<std::string> ElasticDriver::other_seeds(std::string& failures) {
  // The version is read before the seeds. If newer seeds arrive in between, the seeds are read again later.
  seeds_version_ = finder_->version();
  auto seeds = finder_->found();
  for (const auto& failure : seeds.failures) failures += (failures.empty() ? "" : "; ") + failure;
  const auto own = links_->endpoints();
  std::erase_if(seeds.addresses, [&](const std::string& seed) { return std::ranges::find(own, seed) != own.end(); });
  return seeds.addresses;
}

// Returns how long an attempt to join may last that begins now. After a heal_period without an answer, another attempt looks up
// the seeds again. The last attempt is the longest one: a short one would call seeds silent that had no time to answer.
Nanos ElasticDriver::attempt_timeout() const {
  const auto left = std::max(join_until_ - now_, millisecond), usual = settings_.times.heal_period;
  return left < 2 * usual ? left : usual;
}

void ElasticDriver::make_peer() {
  retry_at_ = never;
  // This is read before the results of the look-up, because results may arrive in between.
  const bool looking_up = finder_->busy();
  std::string failures;
  settings_.seeds = other_seeds(failures);
  settings_.join_timeout = attempt_timeout();
  peer_ = std::make_unique<MoshpitPeer>(settings_, *port_);
  if (!settings_.seeds.empty() || options_.found) {
    failure_ = peer_->start(now_);
    return;
  }
  retry_at_ = now_ + (looking_up ? look_up_poll_period : retry_join);
  if (looking_up && failures.empty()) failures = "they are still being looked up";
  failure_ = {Code::unavailable, "NO_SEED: the seeds name no other process" + (failures.empty() ? "" : ": " + failures)};
  finder_->look_again();
}

// While no seed answers, tries to join again and again, until join_timeout is over.
void ElasticDriver::watch_joining(Nanos now) {
  if (now >= retry_at_) {
    if (now >= join_until_) {
      retry_at_ = join_until_;  // poll() came too late for another attempt
      return;
    }
    if (!settings_.seeds.empty() || !finder_->busy() || finder_->version() != seeds_version_) return make_peer();
    retry_at_ = now + look_up_poll_period;
  }
  const auto& status = peer_->join_status();
  if (retry_at_ != never || peer_->joined() || status.ok()) return;
  failure_ = status;
  // If a seed belongs to another run, joining fails for good. But if the address may have come from the hash table, the driver
  // tries again, because anybody can write to the table.
  const bool other_run = status.message().starts_with("RUN_ID_MISMATCH") && finder_->by_table();
  if (!status.message().starts_with("NO_SEED") && !other_run) return;
  std::string failures;
  (void)other_seeds(failures);
  if (!failures.empty()) failure_ = {status.code(), status.message() + "; " + failures};
  if (now >= join_until_) return;
  retry_at_ = std::min(now + retry_join, join_until_);
  finder_->look_again();  // names and files may have changed by the next attempt
}

// Looks up the seeds from time to time, because names, files and hash tables may change. After a network cut, the two parts of
// a run may find each other only through new seeds.
void ElasticDriver::refresh_seeds(Nanos now) {
  if (retry_at_ == never && finder_->version() != seeds_version_) {
    std::string failures;
    peer_->set_seeds(other_seeds(failures), now);
  }
  if (now < next_look_up_) return;
  next_look_up_ = now + settings_.times.heal_period;
  if (peer_->keeper().join_state() == JoinState::joined &&
      random_.below(peer_->keeper().roster().present().size()) < peers_looking_up)
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
  if (const bool waiting = links_->draining(); meter_.needs_update(now, waiting)) {
    const auto counters = links_->counters();
    meter_.update(now, counters.sent_bytes, counters.received_bytes, waiting);
    peer_->set_sending_rate(meter_.sending());
  }
  if (const auto rate = meter_.take_change()) peer_->set_bandwidth(*rate, now);
  watch_joining(now);
  refresh_seeds(now);
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
