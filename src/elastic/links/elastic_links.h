// The links of one process of an elastic run. They carry messages over TCP to and from peers that come and go. A message is
// addressed by PeerId or by address.
//
// The first message to a peer makes a link if there is none. Both sides may make it at the same time. Messages between two
// peers arrive whole, once and in order. If a link breaks, `lost` reports that earlier messages may be lost, and later messages
// use a new link. A link may also end in order, by close() or because it is idle; then no message is lost, and the end is not
// reported. With a key, all connections are encrypted, and only processes that have the key are peers (tls/tls_context.h).
//
// Not thread-safe: one thread must make all calls. Upcalls come only from poll(), and may call everything except poll().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "elastic/links/connection_state.h"
#include "transports/tcp/tcp_transport.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinksOptions {
  PeerId self{};
  std::string run_id{};
  std::shared_ptr<const TlsContext> tls{};  // has the run's key; null: nothing is encrypted or authenticated
  std::string interface {};                 // network interface, as in TcpOptions
  uint16_t port = 0;                        // the port at which to listen; 0: the kernel chooses
  // At most this many bytes may wait for one peer. A member that owns all chunks of a round may send all results at once, which
  // are 64 MiB for 16 million elements. If more bytes wait, the peer is too slow to take part.
  size_t queue_bytes_max = 64u << 20;
  // credit() is true while fewer bytes than this wait. So many bytes keep a link of 10 Gbit/s busy for 3 ms, which is longer
  // than the pause between polls. On a link of 1 Gbit/s, they delay a control message by at most 34 ms.
  size_t bulk_bytes = 4u << 20;
  Nanos dial_timeout = 5 * second;
  // If there are more than links_kept_max links, those that have carried no message for this long are closed. Otherwise a run
  // of 4096 peers would need as many file descriptors.
  Nanos idle_close = 60 * second;
  size_t links_kept_max = 256;
  // Limit of the number of peers that are known or linked. It is twice the largest roster, because dead peers count as well as
  // the peers that replace them.
  size_t peers_max = 8192;
};

class ElasticSink {
 public:
  virtual ~ElasticSink() = default;
  virtual void received(const PeerId& from, SharedBuffer message) = 0;
  // The link to the peer is lost. Messages that were sent to it before this call may be lost, and waiting messages are dropped.
  // If `refused` is true, the peer is dead: at its address no process listens any more, or another process does. If a new link
  // is attempted, this call comes after the attempt, even if the attempt has succeeded.
  virtual void lost(const PeerId& peer, const Status& why, bool refused) = 0;
  // Messages that were sent to this address were not delivered. With the error invalid, the process there has another run, key
  // or version, so a retry is useless. With the error unavailable, no process answers there, or this process itself listens
  // there.
  virtual void address_failed(const std::string& address, const Status& why) = 0;
  // Called when credit(peer) has returned false and would now return true.
  virtual void credit(const PeerId& peer) = 0;
};

struct ElasticLinkCounters {
  uint64_t sent_messages = 0, sent_bytes = 0;  // messages that the transport has got, and their size without headers
  uint64_t received_messages = 0, received_bytes = 0;
  // Received frames that had an invalid form. Each of them ended its link.
  uint64_t refused_messages = 0;
  uint64_t refused_connections = 0;  // connections of another run, of another key, or of no Unisono process
  // Messages that were dropped while they waited, because their peer was lost or their address failed.
  uint64_t dropped_messages = 0;
  uint64_t dials = 0, links_made = 0, links_lost = 0, links_idled = 0;
};

// Returns the key that tells runs apart: a hash of the run id. With a key, it depends on the key, too, and tells nothing about
// the run id.
JobKey job_key_of(const std::string& run_id, const TlsContext* tls);

class ElasticLinks final : private Sink, private InboundRegistry {
 public:
  static constexpr size_t message_bytes_max = payload_bytes_max;  // 16 MiB
  // So many addresses (for example of seeds) may be waiting for the answer of their process.
  static constexpr size_t addresses_max = 64;
  // After a loss, a new link is attempted for at most this long. If the attempt fails, the loss is reported then.
  static constexpr Nanos redial_timeout = 1 * second;
  // The other side must confirm the end of a link within this time.
  static constexpr Nanos parting_timeout = 5 * second;

  // Returns the error invalid if the interface does not exist, and unavailable if the port is in use.
  static Result<std::unique_ptr<ElasticLinks>> make(const LinksOptions& options);
  ~ElasticLinks() override = default;
  ElasticLinks(const ElasticLinks&) = delete;
  ElasticLinks& operator=(const ElasticLinks&) = delete;

  // Returns the addresses at which this process listens, best first, for example "tcp://10.0.0.1:4000".
  std::vector<std::string> endpoints() const { return transport_->endpoints(); }
  uint16_t port() const { return transport_->port(); }

  // Sets a peer's addresses; call it again whenever they change. If `dialable` is false, the peer is a client, and only the
  // client makes links. Invalid addresses are ignored.
  void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable);
  // Queues a message, and makes a link if there is none. Returns false and sends nothing in three cases: the queue is full, the
  // message is too long, or the peer has no link and cannot be dialled.
  [[nodiscard]] bool send(const PeerId& peer, SharedMessage message, Nanos now);
  // Sends a message to whichever process listens at this address. Returns false and sends nothing if the address is invalid,
  // the message is too long, the queue is full, or addresses_max addresses are waiting for an answer.
  [[nodiscard]] bool send_to_address(const std::string& address, SharedBuffer message, Nanos now);
  // Returns true if fewer than bulk_bytes wait for this peer, so that bulk data may be sent. If it has returned false, a call
  // of ElasticSink::credit or ElasticSink::lost follows.
  bool credit(const PeerId& peer);
  bool linked(const PeerId& peer) const;
  // Returns true if the link is up, and Connector::is_reconnecting() or Connector::is_host_silent() is true.
  bool is_out(const PeerId& peer) const;
  // Ends a link in order: sends the waiting messages, and then both sides part. Forgets the peer and its addresses.
  // ElasticSink::lost is not called.
  void close(const PeerId& peer);
  void close_all();
  // Returns true while messages wait to be sent or a link is being closed. A process that leaves should call poll() until
  // draining() is false, or until its own deadline.
  bool draining() const;

  // Moves data, reports events to the sink, and returns true if anything happened.
  bool poll(Nanos now, ElasticSink& sink);
  Nanos next_deadline() const;
  // See Transport::wait_handle, Transport::arm and Transport::disarm.
  int wait_handle() const { return transport_->wait_handle(); }
  bool arm();
  void disarm() { transport_->disarm(); }

  ElasticLinkCounters counters() const;
  // Returns a text about the last refused message and the last refused connection, with their senders. The text is empty if
  // nothing was refused.
  std::string last_refusal() const;
  // Returns for example "tcp 127.0.0.1:1234 -> 127.0.0.1:999 (eth0)", or the reason why there is no link.
  std::string describe(const PeerId& peer) const;

 private:
  // For each waiting message this is added to its size, so that many small messages reach the limits, too.
  static constexpr size_t overhead_bytes = 256;

  struct Event {
    enum class Kind : uint8_t { lost, address_failed, credit } kind = Kind::lost;
    PeerId peer;
    std::string address;
    Status why;
    bool refused = false;
  };
  // A message that the transport has got but has not written yet.
  struct Flight {
    PeerIndex index = 0;
    uint64_t serial = 0;
    size_t bytes = 0;
    SharedBuffer message;
  };

  explicit ElasticLinks(const LinksOptions& options) : options_(options) {}

  // Handling of connections.
  ElasticConnection* at(PeerIndex index) const { return index < connections_.size() ? connections_[index].get() : nullptr; }
  ElasticConnection* find(const PeerId& id) const;
  ElasticConnection& add_connection(const PeerId& id);
  void forget(ElasticConnection& connection);
  void touch(ElasticConnection& connection);
  static std::string label(const ElasticConnection& connection);
  [[nodiscard]] bool enqueue(ElasticConnection& connection, SharedMessage message, Nanos now);
  void drop_queue(ElasticConnection& connection);

  // Parts of the event loop in poll().
  bool act(Nanos now);
  void act_on(ElasticConnection& connection, Nanos now);
  void dial(ElasticConnection& connection, Nanos now);
  void check_deadlines(Nanos now);
  void close_idle_links(Nanos now);
  bool notify(ElasticSink& sink);

  // How a link is made, used and ended.
  void on_connected(ElasticConnection& connection);
  void pump(ElasticConnection& connection);
  // Sends a frame. Once it is written, `bytes` are subtracted from waiting_bytes.
  void send_frame(ElasticConnection& connection, ElasticFrame kind, SharedBuffer payload, size_t bytes);
  void send_parting(ElasticConnection& connection, Nanos now);
  void end_link(ElasticConnection& connection, const Status& why);
  void fail_connection(ElasticConnection& connection, const Status& why, bool refused);
  void refuse(ElasticConnection& connection, const char* what);
  void on_frame(ElasticConnection& connection, const FrameHeader& header, SharedBuffer payload);
  void settle(ElasticConnection& connection, size_t bytes);

  // Functions of Sink, called by the transport.
  std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override;
  void received(PeerIndex from, const FrameHeader& header, const View& view) override;
  void sent(uint64_t id) override;
  void lost(PeerIndex peer, const Status& why, PeerFate) override;
  void credit(PeerIndex peer) override;
  // Functions of InboundRegistry, called by the transport.
  bool admit(LinkRequest& inbound) override;
  void answered(PeerIndex peer, const PeerId& id, bool goes_on) override;

  const LinksOptions options_;
  std::vector<std::unique_ptr<ElasticConnection>> connections_;  // indexed by PeerIndex; null: the index is not used
  std::vector<PeerIndex> free_;
  std::map<PeerId, PeerIndex> by_id_;
  size_t unidentified_ = 0;  // how many connections have no PeerId yet
  size_t linked_ = 0;        // how many connections have a link that is up
  std::unordered_map<uint64_t, Flight> flights_;
  uint64_t next_flight_ = 1, next_serial_ = 1;
  std::vector<PeerIndex> due_;
  std::vector<Event> events_;
  ElasticSink* sink_ = nullptr;  // null except during poll()
  Nanos now_ = 0;
  Nanos next_check_ = never;
  ElasticLinkCounters counters_;
  std::string last_refused_message_;
  std::unique_ptr<TcpTransport> transport_;  // the last member, so that it is destroyed first
};

}  // namespace unisono
