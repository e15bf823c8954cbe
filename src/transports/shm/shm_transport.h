// Shared memory between processes of one host: the sender writes a payload once into its own memory, and every receiver reads
// it there. The data path needs no system call unless a side sleeps.
//
// Each process has one arena (shm_arena.h), which it alone writes. A link consists of a region in each of two arenas, a sending
// half (shm_outbound.h), a receiving half (shm_inbound.h), and a unix socket whose end shows the peer's death.
//
// Flow control. Each peer may hold up to slots_per_peer large slots of ours with contributions, as many with results, and four
// times as many small ones. Two (eight small) are guaranteed to each, so no peer can starve another, and contributions cannot
// block results. acquire() for more than slot_bytes always gives null: such payloads go through send(), in pieces. credit()
// counts frames of any size.
//
// End of a link. After the last frame, each side tells the other that it no longer reads the other's memory (it shuts the
// socket down, or its process ends). Only then is that memory used again. So a process that was stopped and wakes up late finds
// the frames for it, never another peer's bytes.
//
// Memory. regions = peers_max; large slots = max(4 * peers_max, address_bytes_max / slot_bytes); small slots = 32 * peers_max
// of 4 KiB. All of it is address space; a page is used when it is first touched. The memory in use is the peak of the payloads
// in flight, at most 2 * slots_per_peer times their size for each peer. In any case up to so many slots, or 1 MiB of them, are
// used in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/connector.h"
#include "transports/shm/shm_handshake.h"
#include "transports/shm/shm_host.h"
#include "transports/shm/shm_link.h"
#include "transports/transport.h"

namespace unisono {

struct ShmOptions {
  PeerId self;
  uint32_t peers_max = 64;                // linked processes on this host at one time; at most 256
  uint32_t slot_bytes = 1u << 20;         // largest payload in one slot; larger ones go in pieces
  uint32_t slots_per_peer = 16;           // large slots that one peer may hold, for each of contributions and results
  uint64_t address_bytes_max = 1u << 30;  // address space for large slots, unless 4 * peers_max of them need more
  bool payload_checksum = false;          // CRC-32C over payloads
};

class ShmTransport final : public Transport, public Connector {
 public:
  static Result<std::unique_ptr<ShmTransport>> make(const ShmOptions& options);
  ~ShmTransport() override;

  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override;
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;

  const char* name() const override { return "shm"; }
  size_t credit(PeerIndex peer) override;
  size_t slot_bytes() const override { return options_.slot_bytes; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release(const View& view) override;
  bool looks_ahead() const override { return !options_.payload_checksum; }
  bool send_copies(std::span<const PeerIndex> peers, const FrameHeader& header, const std::byte* payload) override;
  Next next(PeerIndex from, const FrameHeader& expected, const std::byte*& payload) override;
  void take_next(std::span<const PeerIndex> from) override;
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override;
  int wait_handle() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override;
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;

  // How many regions of the arena are in use, including ended links whose peer still reads.
  size_t regions_in_use() const;

 private:
  using Link = shm::Link;
  struct Peer {
    Link* link = nullptr;  // connecting or up
    LinkState state = LinkState::unknown;
  };

  ShmTransport(const ShmOptions& options, shm::Arena arena, shm::Reception reception, std::string endpoint_prefix);
  Status open_handles();

  // shm_transport.cc
  Link* link_of(PeerIndex peer) const { return peer < peers_.size() ? peers_[peer].link : nullptr; }
  Link* up_link(PeerIndex peer) const;
  bool hold(std::span<const PeerIndex> peers);
  bool take_slot(shm::Place place, shm::Purpose purpose, size_t bytes, uint32_t& ref);
  void publish(const FrameHeader& header, uint32_t ref);
  void want_slots(shm::Place place, shm::Purpose purpose);
  bool poll_link(Link& link, Sink& sink);
  bool report_sent(Sink& sink);
  bool has_work();
  // shm_connect.cc
  bool check_sockets(Nanos now, Sink& sink);
  void take_event(uint64_t tag);
  void step_connecting(Link& link, Nanos now, Sink& sink);
  void step_dial(Link& link, Sink& sink);
  void step_wait(Link& link, Sink& sink);
  Status bring_up(Link& link, shm::Arrival& arrival);
  shm::Hello make_hello(const Link& link) const;
  bool watch(int fd, uint64_t tag, uint32_t events);
  void unwatch(int fd);
  void end_link(Link& link);
  void lose(Link& link, const Status& why, Sink& sink);
  Status loss_of(const Link& link) const;
  bool may_reap(Link& link);
  void reap();

  shm::Host host_;
  shm::Reception reception_;
  ShmOptions options_;
  std::string endpoint_prefix_;  // "shm://<host>/"
  shm::UniqueFd epoll_;
  shm::UniqueFd bell_;  // peers ring it when we sleep
  int process_ = 0;     // the process that made the transport; a forked child that destroys its copy must not end our links
  JobKey key_{};
  bool has_key_ = false;
  std::vector<std::unique_ptr<Link>> links_;  // by region
  std::vector<Link*> active_;                 // all links; changed only outside of upcalls
  std::vector<Peer> peers_;                   // by PeerIndex
  std::vector<uint16_t> holders_;             // regions that hold the slot being acquired
  Nanos checked_at_ = 0;
  uint32_t polls_unchecked_ = 0;
  bool check_now_ = true;
  bool polling_ = false;
  uint32_t sleeps_ = 0;
};

}  // namespace unisono
