// Shared memory between processes of one host. The sender writes a payload once into its arena (the memory that it shares), and
// every receiver reads the payload there. Sending and receiving need no system call unless a process sleeps.
//
// Each process has one arena (shm_arena.h), and no other process writes to it. A link consists of a region in each of the two
// arenas, a sending half (shm_outbound.h), a receiving half (shm_inbound.h), and a Unix socket. A byte on the socket wakes the
// peer. If the peer dies, the socket ends.
//
// Flow control. For each purpose (contributions, results), a peer may hold slots_per_peer large slots and four times as many
// small slots. Two large and eight small slots of these are guaranteed to the peer. Therefore no peer can starve another, and
// contributions cannot block results. For more than slot_bytes, acquire() always returns null; send() sends such payloads in
// pieces. credit() counts frames of any size.
//
// End of a link. When a process has stopped reading the peer's memory, it tells the peer by shutting down its socket. If the
// process ends, the socket shows that, too. The peer uses the region again only then. Therefore, if a process is stopped and
// continues late, it finds the frames that were sent to it, and never frames for another peer.
//
// Memory. An arena has peers_max regions, max(4 * peers_max, address_bytes_max / slot_bytes) large slots, and 32 * peers_max
// small slots of 4 KiB. All of this is only address space: a page is allocated when it is first touched. The memory in use is
// as large as the payloads that were in flight at one time at most: up to 2 * slots_per_peer payloads for each peer. Even if
// few payloads are in flight, up to 2 * slots_per_peer slots (or 1 MiB of slots) are used in turn.
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
  // At most this many processes of this host can be linked at one time. The largest allowed value is 256.
  uint32_t peers_max = 64;
  uint32_t slot_bytes = 1u << 20;         // largest payload that fits into one slot; larger payloads are sent in pieces
  uint32_t slots_per_peer = 16;           // A peer may hold this many large slots for contributions, and as many for results.
  uint64_t address_bytes_max = 1u << 30;  // Address space for large slots. If 4 * peers_max slots need more, more is used.
  bool payload_checksum = false;          // true: every payload has a CRC-32C
  // true: this process hands its memory only to a listener of its own user. Another user could listen at the name of a member
  // that has stopped listening.
  bool same_user = false;
};

class ShmTransport final : public Transport, public Connector {
 public:
  static Result<std::unique_ptr<ShmTransport>> make(const ShmOptions& options);
  ~ShmTransport() override;

  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override;
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;
  bool is_reconnecting(PeerIndex) const override { return false; }
  bool is_host_silent(PeerIndex, Nanos) const override { return false; }
  void stop_listening() override;

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
  void cancel(const Cancellation& what) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override;
  int wait_handle() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override;
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;

  // Returns how many regions of the arena are in use. A region of an ended link counts as long as the peer may still read it.
  size_t regions_in_use() const;

 private:
  using Link = shm::Link;
  struct Peer {
    Link* link = nullptr;  // null unless the link is connecting or up
    LinkState state = LinkState::unknown;
  };

  ShmTransport(const ShmOptions& options, shm::Arena arena, shm::Acceptor acceptor, std::string endpoint_prefix);
  Status open_handles();

  // The following functions are in shm_transport.cc.
  Link* link_of(PeerIndex peer) const { return peer < peers_.size() ? peers_[peer].link : nullptr; }
  Link* up_link(PeerIndex peer) const;
  bool set_holders(std::span<const PeerIndex> peers);
  bool take_slot(shm::SlotKind kind, shm::Purpose purpose, size_t bytes, uint32_t& ref);
  void publish(const FrameHeader& header, uint32_t ref);
  void want_slots(shm::SlotKind kind, shm::Purpose purpose);
  bool poll_link(Link& link, Sink& sink);
  bool report_sent(Sink& sink);
  bool has_work();
  // The following functions are in shm_connect.cc.
  bool check_sockets(Nanos now, Sink& sink);
  void handle_event(uint64_t tag);
  void step_connecting(Link& link, const Status& accepting, Nanos now, Sink& sink);
  void step_dial(Link& link, Sink& sink);
  // `accepting` is the error of the acceptor, if it had no free descriptor.
  void step_wait(Link& link, const Status& accepting, Sink& sink);
  Status bring_up(Link& link, shm::Arrival& arrival);
  shm::Hello make_hello(const Link& link) const;
  void handle_death(int handle);
  bool watch(int fd, uint64_t tag);
  void unwatch(int fd);
  bool is_shared(const Link& link) const;
  bool watch_process(const Link& link);
  void unwatch_process(const Link& link);
  void end_link(Link& link);
  void lose(Link& link, const Status& why, Sink& sink);
  Status loss_status(const Link& link) const;
  bool may_reap(Link& link);
  void reap();

  shm::Host host_;
  shm::Acceptor acceptor_;
  ShmOptions options_;
  std::string endpoint_prefix_;  // "shm://<host>/"
  shm::UniqueFd epoll_;
  int process_ = 0;  // The process that made the transport. In a forked child the destructor must do nothing.
  JobKey key_{};
  bool has_key_ = false;
  std::vector<std::unique_ptr<Link>> links_;  // indexed by region; null: the region is free
  std::vector<Link*> active_;                 // the links in links_; must not change during upcalls
  std::vector<Peer> peers_;                   // indexed by PeerIndex
  std::vector<uint16_t> holders_;             // regions of the links on which acquire(), commit() or send_copies() works
  Nanos checked_at_ = 0;
  uint32_t polls_unchecked_ = 0;
  bool check_now_ = true;
  bool polling_ = false;
  uint32_t sleeps_ = 0;
};

}  // namespace unisono
