// A MoshpitPeer and its links, put together for real time. Not thread-safe: one thread makes all calls and tells the time.
//
// It also goes on trying to join while no seed answers: others may still be about to start. Seeds are looked up again for each
// attempt, and later for healing.
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
  // Who joins, and waits for a look-up that is under way, looks so often whether it is over.
  static constexpr Nanos look_period = 10 * millisecond;
  // In a heal_period about so many of all peers look their seeds up again: one on each side of a cut would do, and name servers
  // and tables are shared with others.
  static constexpr uint64_t lookers = 32;

  // Checks the options, looks up the seeds, listens. Errors as Elastic::join.
  static Result<std::unique_ptr<ElasticDriver>> make(const ElasticOptions& options);
  ~ElasticDriver() override;

  void start(Nanos now);
  // True if anything happened.
  bool poll(Nanos now);
  Nanos next_deadline() const;
  int wait_handle() const { return links_->wait_handle(); }
  bool arm() { return links_->arm(); }
  void disarm() { links_->disarm(); }

  // After calls into it poll() is due.
  MoshpitPeer& peer() { return *peer_; }
  const MoshpitPeer& peer() const { return *peer_; }
  // Why joining has failed for good; ok while it may still succeed.
  const Status& failure() const { return failure_; }
  // When it will be tried again; `never`: it will not.
  Nanos next_attempt() const { return retry_at_ < join_until_ ? retry_at_ : never; }
  ElasticStatus status(Nanos now) const;
  // What was said last is still on its way.
  bool draining() const { return links_->draining(); }
  void part() { links_->close_all(); }
  // The last call: seeds are looked up no longer, and nobody can find this process by a table any more.
  void stop_looking() { finder_.reset(); }

 private:
  // What the peer says goes to the links.
  class Port;

  ElasticDriver(const ElasticOptions& options, const MoshpitSettings& settings, std::unique_ptr<ElasticLinks> links,
                std::unique_ptr<SeedFinder> finder);
  void make_peer();
  void watch_joining(Nanos now);
  void watch_seeds(Nanos now);
  // Those that the finder knows now, without this process; and why others name nobody.
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
  uint64_t seeds_version_ = 0;  // that the peer was told
  Nanos look_at_ = never;
  Nanos now_ = 0;
  Nanos patience_ = 0;  // what is left of the time for joining when it starts
  Nanos join_until_ = never;
  Nanos retry_at_ = never;
  Status failure_;
};

}  // namespace unisono
