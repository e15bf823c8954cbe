// A MoshpitPeer together with its links, driven in real time. Not thread-safe: one thread must make all calls. The argument
// `now` of a call is the current time.
//
// While no seed answers, the driver tries again to join, because other processes may still be starting. Before each attempt it
// looks up the seeds again. No attempt lasts beyond join_timeout. After joining it looks them up from time to time, for
// healing.
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
  // During an attempt to join, it is checked this often whether the running look-up of seeds has ended.
  static constexpr Nanos look_up_poll_period = 10 * millisecond;
  // In each heal_period, about this many peers of the run look up their seeds. One peer on each side of a network cut would be
  // enough. If more peers did so, they would burden name servers and hash tables, which serve others, too.
  static constexpr uint64_t peers_looking_up = 32;

  // Checks the options, begins to look up the seeds, and listens. Returns the same errors as Elastic::join.
  static Result<std::unique_ptr<ElasticDriver>> make(const ElasticOptions& options);
  ~ElasticDriver() override;

  void start(Nanos now);
  // Handles all pending events. Returns true if anything happened.
  bool poll(Nanos now);
  Nanos next_deadline() const;
  int wait_handle() const { return links_->wait_handle(); }
  bool arm() { return links_->arm(); }
  void disarm() { links_->disarm(); }

  // After calling functions of the peer, the caller must call poll().
  MoshpitPeer& peer() { return *peer_; }
  const MoshpitPeer& peer() const { return *peer_; }
  // Returns why the latest attempt to join has failed. While an attempt is running, or if it has succeeded, returns ok.
  const Status& failure() const { return failure_; }
  // Returns when the next attempt to join begins, or `never` if there will be none.
  Nanos next_attempt() const { return retry_at_ < join_until_ ? retry_at_ : never; }
  ElasticStatus status(Nanos now) const;
  // Returns the run's key; null: there is none.
  const std::shared_ptr<const TlsContext>& tls() const { return tls_; }
  // Returns true if whoever reaches the ports of this process can join the run, and the caller has not said that this is right:
  // there is no key, security is automatic, and this process listens at an address that other hosts may reach.
  bool is_unprotected() const { return unprotected_; }
  // Returns true while messages wait to be sent.
  bool draining() const { return links_->draining(); }
  void close_links() { links_->close_all(); }
  // Ends look-ups of seeds, and removes this process's addresses from hash tables. No other call may follow.
  void stop_look_ups() { finder_.reset(); }

 private:
  // The peer's ElasticPort. It passes messages on to the links.
  class Port;

  ElasticDriver(const ElasticOptions& options, const MoshpitSettings& settings, std::unique_ptr<ElasticLinks> links,
                std::unique_ptr<SeedFinder> finder);
  void set_security(std::shared_ptr<const TlsContext> tls, Security security);
  void make_peer();
  Nanos attempt_timeout() const;
  void watch_joining(Nanos now);
  void refresh_seeds(Nanos now);
  // Returns the addresses of the seeds that the finder knows now, except this process's own addresses. If the look-up of some
  // seeds failed, appends the reasons to `failures`.
  std::vector<std::string> other_seeds(std::string& failures);

  void received(const PeerId& from, SharedBuffer message) override { peer_->received(from, std::move(message), now_); }
  void lost(const PeerId& peer, const Status& why, bool refused) override { peer_->link_lost(peer, why, refused, now_); }
  void address_failed(const std::string& address, const Status& why) override { peer_->address_failed(address, why, now_); }
  void credit(const PeerId& peer) override { peer_->credit(peer, now_); }

  const ElasticOptions options_;
  std::shared_ptr<const TlsContext> tls_;
  bool unprotected_ = false;
  MoshpitSettings settings_;
  std::unique_ptr<ElasticLinks> links_;
  std::unique_ptr<Port> port_;
  std::unique_ptr<MoshpitPeer> peer_;
  std::unique_ptr<SeedFinder> finder_;
  BandwidthMeter meter_;
  Random random_;
  uint64_t seeds_version_ = 0;  // SeedFinder::version() of those seeds that the peer has
  Nanos next_look_up_ = never;
  Nanos now_ = 0;
  Nanos join_timeout_ = 0;  // joining may take this long from start() on
  Nanos join_until_ = never;
  Nanos retry_at_ = never;
  Status failure_;
};

}  // namespace unisono
