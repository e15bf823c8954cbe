// TCP: one listening port per process, links of one or more connections to each peer, payloads read into their receive buffers.
//
// This class composes: the listener and the dialers make connections, links carry frames, and poll() drives all of them and
// reports. It has no thread and no clock, and nothing blocks. With few streams poll() tries to read each of them, which takes
// one system call less than asking first. With many it asks epoll which ones are ready.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/connector.h"
#include "transports/payload_pool.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/tcp_listener.h"
#include "transports/transport.h"

namespace unisono {

struct TcpOptions {
  PeerId self{};
  std::string interface {};       // name ("eth0") or address ("10.0.0.7", "::1") to listen at and dial from; empty = all
  uint16_t port = 0;              // 0 = the kernel chooses
  uint32_t streams = 1;           // connections per link that this side dials, 1 … tcp_streams_max
  bool payload_checksum = false;  // for sent frames; a received frame is checked if it has one
  TcpLinkOptions link{};
  PayloadPoolLimits pool{};
  Nanos hello_timeout = 5 * second;     // a connection without a hello is closed after it
  Nanos inbound_timeout = 10 * second;  // how long a good hello waits for its peer to be added
  size_t unauthenticated_max = 64;      // connections without a good hello; the oldest is closed
  // With an InboundRegistry: how long the new connection of a linked peer waits. The end of the peer's old link may be on the
  // way, or the old link may belong to a dial that is being withdrawn. After that the new connection replaces the old link.
  Nanos replace_after = 300 * millisecond;
  // With an InboundRegistry: when two processes dial each other, the connection of the larger id waits this long for the one of
  // the smaller id. The time covers a handshake over a long path. After it the larger id's connection is taken.
  Nanos yield_after = 1 * second;
};

class TcpTransport final : public Transport, public Connector, private TcpAcceptor {
 public:
  // Returns invalid if there is no such interface or `streams` is out of range, and unavailable if the port is taken.
  static Result<std::unique_ptr<TcpTransport>> make(const TcpOptions& options);
  ~TcpTransport() override;

  // Connector
  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override;
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;

  // Transport
  const char* name() const override { return "tcp"; }
  size_t credit(PeerIndex peer) override;
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release(const View& view) override;
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override;
  int wait_handle() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override { slept_ = true; }
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;

  // From now on, processes that nobody added may connect, too (a hello to PeerId{} is for any process), and links are
  // symmetric. If two processes dial each other, the connection of the smaller id survives, and no `lost` follows. A linked
  // peer that connects again replaces its link, which is lost then. A dial that meets another job or version is lost with the
  // code invalid. Call this before any link is made; `registry` must outlive the transport. Links have one stream, so that a
  // payload is placed and received before the next one is placed.
  void accept_inbound(InboundRegistry& registry) { registry_ = &registry; }
  // The remote address of this link, also after its end; empty if it was never up.
  TcpAddress remote(PeerIndex peer) const;

  uint16_t port() const { return listener_->port(); }
  // How many connections were refused and why the last one was; empty if none.
  std::string last_refusal() const { return listener_->last_refusal(); }

 private:
  explicit TcpTransport(const TcpOptions& options);
  Status open();
  TcpLink* find(PeerIndex peer) const { return peer < links_.size() ? links_[peer].get() : nullptr; }

  // TcpAcceptor
  Verdict judge(const TcpHello& hello, Nanos waited) override;
  PeerId introduction() const override { return options_.self; }
  void enter(const TcpHello& hello, Descriptor socket) override;

  // Defined in tcp_transport_inbound.cc.
  Verdict admit(const TcpHello& hello);
  std::optional<Verdict> judge_rival(const TcpHello& hello, TcpLink& link, Nanos waited);
  void identify_peer(TcpLink& link, const PeerId& id);

  bool control_is_due(Nanos now);
  bool step_control(Nanos now);
  bool step_connecting(TcpLink& link, Nanos now);
  void finish_dialling(TcpLink& link);
  bool step_drains(Nanos now);
  bool move_bytes(Nanos now, Sink& sink);
  bool move_ready(Sink& sink);
  bool report(Sink& sink);
  void count_streams();
  void mark_up(TcpLink& link);
  Status unreachable(const TcpLink& link, const char* what) const;
  Result<std::unique_ptr<TcpDialer>> make_dialer(const LinkRequest& request) const;

  TcpOptions options_;
  Descriptor epoll_;                          // control_ and all streams; what a sleeper waits on
  Descriptor control_;                        // listening sockets, unauthenticated peers, dialled sockets, drains
  std::vector<InterfaceAddress> interfaces_;  // of this host, best first
  std::vector<InterfaceAddress> listening_;   // the part of them to listen at
  std::optional<TcpListener> listener_;
  std::optional<JobKey> job_;
  InboundRegistry* registry_ = nullptr;
  PayloadPool pool_;
  std::vector<std::unique_ptr<TcpLink>> links_;         // by PeerIndex
  std::vector<TcpLink*> live_;                          // connecting, up, or lost and not yet reported
  std::map<PeerId, PeerIndex> by_id_;                   // of live_
  std::vector<std::unique_ptr<TcpLink>> closed_links_;  // closed during poll
  std::vector<TcpDrain> drains_;
  std::vector<PeerIndex> over_;      // dials without an id that led to an existing link or to this process
  std::vector<uint64_t> sent_;       // ids to report
  std::vector<uint64_t> reporting_;  // being reported
  TcpTraffic retired_;               // traffic of closed links
  uint64_t refused_frames_[frame_fault_count] = {};
  size_t stream_count_ = 0;
  size_t connecting_ = 0;
  uint32_t polls_ = 0;
  Nanos now_ = 0;  // of the last poll()
  Nanos last_control_ = 0;
  Nanos control_deadline_ = never;
  bool check_control_ = true;  // control_ has work
  bool slept_ = false;         // control_ may have work
  bool polling_ = false;
};

}  // namespace unisono
