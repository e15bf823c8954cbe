// The TCP transport. A process has one listening port, and a link has one or more connections. Payloads are read straight into
// their receive buffers.
//
// The listener and the dialers make connections, and links carry frames. poll() drives all of them and reports events. The
// transport has no thread and no clock, and it never blocks. Its connections come from a StreamNetwork: the kernel, or the
// simulator. With few streams, poll() tries to read each of them without asking which ones are ready. With many streams, poll()
// asks a StreamWatcher (epoll).
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
#include "transports/tcp/tcp_dial_back.h"
#include "transports/tcp/tcp_link.h"
#include "transports/tcp/tcp_listener.h"
#include "transports/transport.h"

namespace unisono {

struct TcpOptions {
  PeerId self{};
  // Interface name ("eth0") or address ("10.0.0.7", "::1") at which to listen and from which to dial. Empty: all interfaces.
  std::string interface {};
  uint16_t port = 0;  // 0: the network chooses
  // The job's key. Connections are encrypted, and only processes that know the key are peers. Null: none of this.
  std::shared_ptr<const TlsContext> tls{};
  // The transports of one process share a listening port. One that accepts connections which call no process in particular
  // needs a port of its own: they could be for another transport.
  bool shares_port = true;
  uint32_t streams = 1;  // number of connections for each link that is dialled, 1 … tcp_streams_max
  // If true, the frames that are sent carry a checksum of the payload. If a received frame carries one, it is always checked.
  bool payload_checksum = false;
  TcpLinkOptions link{};
  PayloadPoolLimits pool{};
  Nanos hello_timeout = 5 * second;     // A connection must send its hello within this time.
  Nanos inbound_timeout = 10 * second;  // A connection with a good hello waits this long for its peer to be added.
  // At most this many connections without a good hello may wait. If there are more, the oldest is closed.
  size_t unauthenticated_max = 64;
  // Used with an InboundRegistry. If a new connection comes from a peer that already has a link, the connection waits this
  // long. The old link may be about to end, or may belong to a dial that is being withdrawn. After this time, the new
  // connection replaces the old link.
  Nanos replace_after = 300 * millisecond;
  // Used with an InboundRegistry. If two processes dial each other, the process with the smaller id keeps the peer's connection
  // waiting for this long. In this time its own dial can succeed, even over a long path. After this time it accepts the waiting
  // connection.
  Nanos accept_other_after = 1 * second;
};

// A link that has ended in order. The peer may lack the confirmation of its last frame, so its hellos are answered for a while.
struct TcpDeparture {
  PeerId peer{};
  uint64_t session = 0;
  std::vector<uint64_t> positions{};  // of the streams: up to here they were read
  Nanos until = 0;
};

class TcpTransport final : public Transport, public Connector, private TcpAcceptor {
 public:
  // Returns the error invalid if there is no such interface or `streams` is out of range. Returns unavailable if the port is
  // taken.
  static Result<std::unique_ptr<TcpTransport>> make(const TcpOptions& options);
  // Uses `network` instead of the kernel's sockets. It must live longer than the transport.
  static Result<std::unique_ptr<TcpTransport>> make(const TcpOptions& options, StreamNetwork& network);
  ~TcpTransport() override;

  // Functions of Connector.
  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override;
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;
  bool is_reconnecting(PeerIndex peer) const override;
  bool is_host_silent(PeerIndex peer, Nanos silence) const override;
  void stop_listening() override;
  void members_linked() override;

  // Functions of Transport.
  const char* name() const override { return "tcp"; }
  size_t credit(PeerIndex peer) override;
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  bool release_acknowledged(uint64_t match, uint64_t mask) override;
  void release_early(uint64_t match, uint64_t mask) override;
  void release(const View& view) override;
  void cancel(const Cancellation& what) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override;
  bool awaits_confirmations() const override;
  bool has_pending() const override;
  int wait_handle() const override { return watcher_ ? watcher_->wait_handle() : -1; }
  int idle_handle() const override { return control_ ? control_->wait_handle() : -1; }
  bool arm() override;
  void disarm() override { slept_ = true; }
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;
  std::string link_state(PeerIndex peer) const override;

  // After this call the transport accepts processes that nobody added, and hellos that are for any process (PeerId{}). Call it
  // before any link is made. `registry` must live longer than the transport.
  // - Both processes of a pair may dial. The connection that the process with the smaller id dialled survives, and no `lost`
  //   follows.
  // - If a peer with a link connects again, its old link is lost, and the new connection replaces it.
  // - If a dial reaches another job or version, it is lost with the code invalid.
  // - A link has one stream; a hello for several streams is refused. Therefore the sink receives each payload completely before
  //   it is asked for the next receive buffer.
  void accept_inbound(InboundRegistry& registry) {
    registry_ = &registry;
    listener_->answer_anyone();
  }
  // Does what members_linked() does for one link. Call it if the peer may be dialled. Does nothing if a dial was answered
  // before.
  void dial_back(PeerIndex peer);
  // Like close(), but sends nothing more, and closes the connections at once: the peer is not what it says, or breaks the
  // rules.
  void abort(PeerIndex peer);
  // Returns the peer's address on this link, even if the link has ended. The address is empty if the link was never up.
  TcpAddress remote(PeerIndex peer) const;

  uint16_t port() const { return listener_->port(); }
  // Returns how many blocks of memory hold views that were not released, and payloads that are half sent or received.
  size_t blocks_out() const { return pool_.blocks_out(); }
  // Returns a text that says how many connections were refused, and why the last one was. The text is empty if none was
  // refused.
  std::string last_refusal() const { return listener_->last_refusal(); }

 private:
  static constexpr PeerIndex peers_max = 1u << 16;
  static constexpr uint64_t leaving_tag_base = peers_max;  // links that leave are named by numbers above all peer indexes

  TcpTransport(const TcpOptions& options, StreamNetwork& network);
  Status open();
  Status open_watchers();
  TcpLink* find(PeerIndex peer) const { return peer < links_.size() ? links_[peer].get() : nullptr; }

  // Functions of TcpAcceptor.
  Decision decide(const TcpInbound& inbound, Nanos waited) override;
  void take_connection(const TcpInbound& inbound, std::unique_ptr<StreamSocket> socket) override;

  // The following functions are in tcp_transport_inbound.cc.
  Decision admit(const TcpSessionHello& hello);
  std::optional<Decision> choose_connection(const TcpSessionHello& hello, TcpLink& link, Nanos waited);
  Decision replace_link(TcpLink& link, Nanos waited);
  void identify_peer(TcpLink& link, const PeerId& id);

  bool control_is_due(Nanos now);
  bool step_control(Nanos now);
  bool step_connecting(TcpLink& link, Nanos now);
  void finish_dialling(TcpLink& link, Nanos now);
  TcpLink* find_leaving(const PeerId& id, uint64_t session) const;
  TcpLink* find_tag(uint64_t tag) const;
  bool step_leaving(Nanos now, Sink& sink);
  void remember_departure(const TcpLink& link);
  const TcpDeparture* find_departure(const PeerId& id, uint64_t session) const;
  void retire(const TcpLink& link);
  bool move_bytes(Nanos now, Sink& sink);
  bool move_ready(Nanos now, Sink& sink);
  bool keep_up(TcpLink& link, Nanos now, Sink& sink);
  bool report(Sink& sink);
  void count_streams();
  void mark_up(TcpLink& link);
  Status unreachable(const TcpLink& link, const char* what) const;
  Result<std::unique_ptr<TcpDialer>> make_dialer(const TcpLink& link) const;
  std::unique_ptr<TcpDialer> make_redialer(const TcpLink& link, uint16_t stream, bool only_asks = false) const;
  TcpDialRequest dial_request(const TcpLink& link) const;

  TcpOptions options_;
  StreamNetwork& network_;
  // Watches control_ and all streams; wait_handle() returns its handle. There is none, and no control_, while this process
  // neither listens nor has links. The watchers stand before all that has sockets, because they must live longer.
  std::unique_ptr<StreamWatcher> watcher_;
  std::unique_ptr<StreamWatcher> control_;    // watches listening sockets, unauthenticated peers and sockets that dial
  std::vector<InterfaceAddress> interfaces_;  // all interfaces of this host, best first
  std::vector<InterfaceAddress> listening_;   // the interfaces at which to listen
  std::optional<TcpListener> listener_;
  std::optional<JobKey> job_;
  InboundRegistry* registry_ = nullptr;
  PayloadPool pool_;
  std::vector<std::unique_ptr<TcpLink>> links_;  // indexed by PeerIndex
  std::vector<TcpLink*> live_;                   // links that are connecting or up, and lost links that are not yet reported
  std::map<PeerId, PeerIndex> by_id_;            // for each link in live_ whose id is known: its peer index
  // links that were closed during poll(); they are deleted when poll() ends
  std::vector<std::unique_ptr<TcpLink>> closed_links_;
  // Links that were closed, and whose peers have not confirmed everything yet. Sorted by `number`.
  struct LeavingLink {
    uint64_t number = 0;  // names the link in tags
    std::unique_ptr<TcpLink> link{};
  };
  std::vector<LeavingLink> leaving_;
  uint64_t leaving_numbers_ = 0;
  TcpDialBack dial_back_;
  std::vector<TcpDeparture> departures_;  // oldest first
  // Peers that were dialled without an id, and whose dial is over because this process itself answered, or a process that has a
  // link.
  std::vector<PeerIndex> finished_dials_;
  std::vector<uint64_t> sent_;       // ids that must be reported by Sink::sent
  std::vector<uint64_t> reporting_;  // ids that report() is passing to Sink::sent at the moment
  TcpTraffic retired_;               // traffic of the links that are closed
  uint64_t refused_frames_[frame_fault_count] = {};
  size_t stream_count_ = 0;
  size_t connecting_ = 0;
  uint32_t polls_ = 0;
  uint64_t sessions_ = 0;  // number of links that this transport has had
  Nanos now_ = 0;          // `now` of the last poll()
  Sink* sink_ = nullptr;   // the sink of the present poll()
  Nanos last_control_ = 0;
  Nanos control_deadline_ = never;
  bool check_control_ = true;  // the next poll() must call step() of the listener and of the dialers
  bool slept_ = false;         // the process has slept, and control_ may have become readable meanwhile
  bool polling_ = false;
};

}  // namespace unisono
