#include "sim/elastic/elastic_cluster.h"

#include <utility>

#include "base/check.h"
#include "base/concat.h"

namespace unisono::sim {

namespace {

constexpr std::string_view address_begin = "sim://";

std::string address_of(uint32_t index) { return concat(address_begin, index); }

}  // namespace

struct ElasticMember final : ElasticActor, ElasticPort {
  ElasticMember(ElasticCluster& owner, const MoshpitSettings& settings, uint32_t number)
      : cluster(owner), index(number), peer(settings, *this) {}

  // Implementation of ElasticPort.
  void know(const PeerId&, const std::vector<std::string>&, bool) override {}
  void send(const PeerId& to, SharedMessage message) override {
    if (const auto found = cluster.indices_.find(to); found != PeerSlots::none)
      cluster.network_.send(index, found, message.whole());
  }
  void send_to_address(const std::string& address, SharedBuffer message) override {
    cluster.network_.send(index, static_cast<uint32_t>(std::stoul(address.substr(address_begin.size()))), std::move(message));
  }
  bool credit(const PeerId& to) override {
    const auto found = cluster.indices_.find(to);
    return found == PeerSlots::none || cluster.network_.credit(index, found);
  }
  void close(const PeerId&) override {}

  // Implementation of ElasticActor.
  void started(Nanos now) override {
    (void)peer.start(now);
    step(now);
  }
  void received(uint32_t from, SharedBuffer message, Nanos now) override {
    peer.received(cluster.members_[from]->id, std::move(message), now);
    step(now);
  }
  void link_lost(uint32_t other, bool refused, Nanos now) override {
    peer.link_lost(cluster.members_[other]->id, {refused ? Code::peer_lost : Code::unavailable, "the link is gone"}, refused,
                   now);
    if (refused) peer.address_failed(address_of(other), {Code::unavailable, "connection refused"}, now);
    step(now);
  }
  void credit(uint32_t other, Nanos now) override {
    peer.credit(cluster.members_[other]->id, now);
    step(now);
  }
  void woke(Nanos now) override {
    peer.woke(now);
    step(now);
  }
  void prefetch() const override {
    constexpr size_t line = 64;
    const auto* begin = reinterpret_cast<const char*>(this);
    for (size_t at = 0; at < sizeof(*this); at += line) __builtin_prefetch(begin + at);
  }
  Nanos next_deadline() const override { return peer.left() ? never : std::min(peer.next_deadline(), train_until); }

  // Continues the training loop: train, average, train, …
  void step(Nanos now) {
    if (const auto loaded = peer.take_state(); loaded && loaded->loaded) {
      values = loaded->values;
      if (cluster.on_loaded) cluster.on_loaded(index, *loaded);
    }
    if (auto done = peer.take_step()) {
      values = done->values.all();
      if (cluster.on_step) cluster.on_step(index, *done);
      train_until = now + cluster.options_.compute +
                    static_cast<Nanos>(cluster.random_.below(static_cast<uint64_t>(cluster.options_.compute_jitter)));
      started_step = false;
    }
    if (started_step || !peer.ready() || peer.left() || (train_until != never && now < train_until)) return;
    train_until = never;
    if (cluster.should_continue && !cluster.should_continue(index)) return;
    const double weight = cluster.prepare ? cluster.prepare(index, values) : 1;
    started_step = peer.begin_step({.values = peer_values(), .weight = weight}, now).ok();
  }
  SharedBuffer peer_values() const {
    return role == ElasticRole::reducer ? SharedBuffer{} : SharedBuffer::copy(std::as_bytes(std::span(values)));
  }

  ElasticCluster& cluster;
  uint32_t index;
  PeerId id;
  ElasticRole role = ElasticRole::peer;
  MoshpitPeer peer;
  std::vector<float> values;
  Nanos train_until = never;
  bool started_step = false;
};

ElasticCluster::ElasticCluster(const ElasticClusterOptions& options)
    : options_(options), network_(options.links, options.seed), random_(mix64(options.seed ^ 0xe1a571c)) {}

ElasticCluster::~ElasticCluster() = default;

uint32_t ElasticCluster::add(Nanos at) { return add(options_.settings, at); }

uint32_t ElasticCluster::add(const MoshpitSettings& settings, Nanos at) {
  const auto index = static_cast<uint32_t>(members_.size());
  auto own = settings;
  own.self = {random_.next(), random_.next()};
  own.name = concat("peer ", index);
  own.addresses = {address_of(index)};
  own.seed = random_.next();
  own.found = index == 0;
  own.seeds.clear();
  for (uint32_t one = index; one-- > 0 && own.seeds.size() < options_.seeds_given;) {
    if (network_.alive(one)) own.seeds.push_back(address_of(one));
  }
  members_.push_back(std::make_unique<ElasticMember>(*this, own, index));
  auto& member = *members_.back();
  member.id = own.self;
  member.role = own.role;
  member.values = initial ? initial(index) : std::vector<float>(own.elements, static_cast<float>(index));
  indices_.insert(own.self, index);
  network_.add(&member, at);
  return index;
}

void ElasticCluster::kill(uint32_t index) { network_.kill(index); }

void ElasticCluster::leave(uint32_t index) {
  members_[index]->peer.leave(network_.now());
  network_.schedule_wake_up(index);
}

void ElasticCluster::check_continue(uint32_t index) {
  members_[index]->step(network_.now());
  network_.schedule_wake_up(index);
}

MoshpitPeer* ElasticCluster::peer(uint32_t index) { return network_.alive(index) ? &members_[index]->peer : nullptr; }

size_t ElasticCluster::size() const { return members_.size(); }

PeerId ElasticCluster::id_of(uint32_t index) const { return members_[index]->id; }

uint32_t ElasticCluster::index_of(const PeerId& id) const {
  const auto index = indices_.find(id);
  UNISONO_CHECK(index != PeerSlots::none);
  return index;
}

const std::vector<float>& ElasticCluster::values(uint32_t index) const { return members_[index]->values; }

bool ElasticCluster::settled() {
  std::set<PeerId> live;
  for (uint32_t index = 0; index < members_.size(); ++index) {
    if (network_.alive(index) && !members_[index]->peer.left()) live.insert(members_[index]->id);
  }
  for (const auto& id : live) {
    const auto* layout = members_[index_of(id)]->peer.keeper().newest_layout();
    if (layout == nullptr || std::set<PeerId>(layout->peers.begin(), layout->peers.end()) != live) return false;
  }
  return true;
}

}  // namespace unisono::sim
