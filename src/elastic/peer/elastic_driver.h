// A MoshpitPeer together with its links, driven in real time. Not thread-safe: one thread makes all calls and passes the time.
//
// While no seed answers it keeps trying to join, because other processes may still be starting. Seeds are looked up again for
// each attempt, and later for healing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "elastic/links/elastic_links.h"
#include "elastic/peer/elastic_port.h"
#include "elastic/peer/moshpit_peer.h"
#include "elastic/seeds/seed_finder.h"
#include "net/bandwidth_meter.h"
#include "unisono/elastic.h"

namespace unisono {

class ElasticDriver final : private ElasticSink {
 public:
  static constexpr Nanos retry_join = 250 * millisecond;
  // While joining waits for a look-up, it checks this often whether the look-up has ended.
  static constexpr Nanos look_period = 10 * millisecond;
  // About this many of all peers repeat their seed look-ups per heal_period. One on each side of a network cut would suffice;
  // more would load name servers and tables that others use too.
  static constexpr uint64_t lookers = 32;

  // Checks the options, starts the look-up of the seeds, and listens. Errors: as Elastic::join.
  static Result<std::unique_ptr<ElasticDriver>> make(const ElasticOptions& options);
  ~ElasticDriver() override;

  void start(Nanos now);
  // True if anything happened.
  bool poll(Nanos now);
  Nanos next_deadline() const;
  int wait_handle() const { return links_->wait_handle(); }
  bool arm() { return links_->arm(); }
  void disarm() { links_->disarm(); }

  // After calls into the peer, poll() must be called.
  MoshpitPeer& peer() { return *peer_; }
  const MoshpitPeer& peer() const { return *peer_; }
  // Why joining has failed for good; ok while it may still succeed.
  const Status& failure() const { return failure_; }
  // Time of the next attempt to join; `never`: there will be none.
  Nanos next_attempt() const { return retry_at_ < join_until_ ? retry_at_ : never; }
  ElasticStatus status(Nanos now) const;
  // Messages are still waiting to be sent.
  bool draining() const { return links_->draining(); }
  void part() { links_->close_all(); }
  // The last call: ends seed look-ups, and removes this process's addresses from look-up tables.
  void stop_looking() { finder_.reset(); }

 private:
  // Passes the peer's messages to the links.
  class Port;

  ElasticDriver(const ElasticOptions& options, const MoshpitSettings& settings, std::unique_ptr<ElasticLinks> links,
                std::unique_ptr<SeedFinder> finder);
  void make_peer();
  void watch_joining(Nanos now);
  void watch_seeds(Nanos now);
  // The seeds that the finder knows now, without this process. failures: why some gave no address.
  std::vector<std::string> other_seeds(std::string& failures);

  void received(const PeerId& from, SharedBuffer message) override { peer_->received(from, std::move(message), now_); }
  void lost(const PeerId& peer, const Status& why, bool refused) override { peer_->link_lost(peer, why, refused, now_); }
  void address_failed(const std::string& address, const Status& why) override { peer_->address_failed(address, why, now_); }
  void credit(const PeerId& peer) override { peer_->credit(peer, now_); }

  const ElasticOptions options_;
  MoshpitSettings settings_;
  std::unique_ptr<ElasticLinks> links_;
  std::unique_ptr<Port> port_;
  std::unique_ptr<MoshpitPeer> peer_;
  std::unique_ptr<SeedFinder> finder_;
  BandwidthMeter meter_;
  Random random_;
  uint64_t seeds_version_ = 0;  // version of the seeds that the peer has
  Nanos look_at_ = never;
  Nanos now_ = 0;
  Nanos patience_ = 0;  // time left for joining when start() is called
  Nanos join_until_ = never;
  Nanos retry_at_ = never;
  Status failure_;
};

}  // namespace unisono
