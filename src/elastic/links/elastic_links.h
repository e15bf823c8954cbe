// The links of one process of an elastic run: messages to and from peers that come and go, over TCP, by PeerId or by address.
//
// Sending makes a link, unless the other side has made one; both sides may make it at the same time. Messages of a pair of
// peers arrive whole, once and in order. Otherwise `lost` reports that everything sent before it may be gone; later messages go
// over a new link. Links that end in order (close(), idle ones) lose nothing and are not reported. With a run key every message
// is authenticated (elastic/links/run_key.h).
//
// Not thread-safe: one thread makes all calls. Upcalls come from poll() only, and may call everything except poll().
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
#include "elastic/links/run_key.h"
#include "transports/tcp/tcp_transport.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinksOptions {
  PeerId self{};
  std::string run_id{};
  std::string run_key{};     // a secret that all peers share; empty: nothing is authenticated
  std::string interface {};  // as in TcpOptions
  uint16_t port = 0;         // 0: the kernel chooses
  // Limit of bytes that wait for one peer. A member that owns all chunks of a round may have to send a whole result at once,
  // and 16 million elements are 64 MiB. A peer with a longer queue is too slow to take part.
  size_t queue_bytes_max = 64u << 20;
  // The limit of credit(). It keeps 10 Gbit/s busy for 3 ms, longer than the pause between polls. On 1 Gbit/s a control message
  // waits at most 34 ms behind it.
  size_t bulk_bytes = 4u << 20;
  Nanos dial_timeout = 5 * second;
  // While there are more than links_kept_max links, those that carried nothing for this long are closed. 4096 peers would need
  // as many file descriptors.
  Nanos idle_close = 60 * second;
  size_t links_kept_max = 256;
  // Limit of known or linked peers: twice the largest roster, to leave room for dead peers and their successors.
  size_t peers_max = 8192;
};

class ElasticSink {
 public:
  virtual ~ElasticSink() = default;
  virtual void received(const PeerId& from, SharedBuffer message) = 0;
  // Everything sent to this peer before now may not have arrived, and messages that waited for it are dropped. refused: no
  // process listens there any more, or another one does, so the peer is dead. Called after an attempt to make a new link, which
  // may have succeeded.
  virtual void lost(const PeerId& peer, const Status& why, bool refused) = 0;
  // Messages sent to this address have not arrived. invalid: another run, run key or version is there, so a new attempt is
  // pointless. unavailable: no answer, or this process itself listens there.
  virtual void address_failed(const std::string& address, const Status& why) = 0;
  // credit(peer) was false and now is true.
  virtual void credit(const PeerId& peer) = 0;
};

struct ElasticLinkCounters {
  uint64_t sent_messages = 0, sent_bytes = 0;  // handed to the transport; headers not counted
  uint64_t received_messages = 0, received_bytes = 0;
  uint64_t refused_messages = 0;     // wrong tag or number, or not an elastic message; ends the link
  uint64_t refused_connections = 0;  // of other runs, other run keys, unauthenticated peers
  uint64_t dropped_messages = 0;     // waited for a peer that was lost, or for an address that failed
  uint64_t dials = 0, links_made = 0, links_lost = 0, links_idled = 0;
};

class ElasticLinks final : private Sink, private InboundRegistry {
 public:
  static constexpr size_t message_bytes_max = payload_bytes_max;  // 16 MiB
  // Limit of addresses asked at the same time, such as seeds.
  static constexpr size_t addresses_max = 64;
  // After a loss, the report is delayed by at most this time, during which a new link is attempted.
  static constexpr Nanos redial_patience = 1 * second;
  // How long the other side may take to agree to an orderly end.
  static constexpr Nanos parting_patience = 5 * second;

  // Errors. invalid: no such interface, or an invalid secret. unavailable: the port is taken.
  static Result<std::unique_ptr<ElasticLinks>> make(const LinksOptions& options);
  ~ElasticLinks() override = default;
  ElasticLinks(const ElasticLinks&) = delete;
  ElasticLinks& operator=(const ElasticLinks&) = delete;

  // Where this process listens, best first: "tcp://10.0.0.1:4000".
  std::vector<std::string> endpoints() const { return transport_->endpoints(); }
  uint16_t port() const { return transport_->port(); }

  // Sets the addresses of a peer; call it on each change. dialable false: a client, which makes its links itself. Invalid
  // addresses are ignored.
  void know(const PeerId& peer, const std::vector<std::string>& addresses, bool dialable);
  // Queues a message, and makes a link if there is none. Returns false and sends nothing if the queue is full, the message is
  // too long, or the peer has no link and cannot be dialled.
  [[nodiscard]] bool send(const PeerId& peer, SharedMessage message, Nanos now);
  // Sends to the process that listens at this address. False: an invalid address, too many addresses at a time, or as for
  // send().
  [[nodiscard]] bool send_to_address(const std::string& address, SharedBuffer message, Nanos now);
  // True: little waits for this peer, so bulk data may be sent. After false, ElasticSink::credit follows, or lost.
  bool credit(const PeerId& peer);
  bool linked(const PeerId& peer) const;
  // Ends a link in order: waiting messages are sent, then both sides part. The peer and its addresses are forgotten; no `lost`
  // follows.
  void close(const PeerId& peer);
  void close_all();
  // True while messages wait to be sent or a link is being closed. A leaving process polls until it is false, or until it runs
  // out of time.
  bool draining() const;

  // True if anything happened.
  bool poll(Nanos now, ElasticSink& sink);
  Nanos next_deadline() const;
  // As Transport::wait_handle, arm and disarm.
  int wait_handle() const { return transport_->wait_handle(); }
  bool arm();
  void disarm() { transport_->disarm(); }

  ElasticLinkCounters counters() const;
  // The last refused message and the last refused connection, with their senders; empty: none.
  std::string last_refusal() const;
  // "tcp 127.0.0.1:1234 -> 127.0.0.1:999 (eth0)", or the reason why there is no link.
  std::string describe(const PeerId& peer) const;

 private:
  // Added to a waiting message's bytes in the limits, so that many small messages are limited too.
  static constexpr size_t overhead_bytes = 256;

  struct Event {
    enum class Kind : uint8_t { lost, address_failed, credit } kind = Kind::lost;
    PeerId peer;
    std::string address;
    Status why;
    bool refused = false;
  };
  // A message that the transport has not written yet.
  struct Flight {
    PeerIndex index = 0;
    uint64_t serial = 0;
    size_t bytes = 0;
    SharedBuffer message;
  };

  ElasticLinks(const LinksOptions& options, RunKey key) : options_(options), key_(std::move(key)) {}

  // Connections.
  ElasticConnection* at(PeerIndex index) const { return index < connections_.size() ? connections_[index].get() : nullptr; }
  ElasticConnection* find(const PeerId& id) const;
  ElasticConnection& add_connection(const PeerId& id);
  void forget(ElasticConnection& connection);
  void touch(ElasticConnection& connection);
  static std::string label(const ElasticConnection& connection);
  [[nodiscard]] bool enqueue(ElasticConnection& connection, SharedMessage message, Nanos now);
  void drop_queue(ElasticConnection& connection);

  // Event loop.
  bool act(Nanos now);
  void act_on(ElasticConnection& connection, Nanos now);
  void dial(ElasticConnection& connection, Nanos now);
  void look_at_clocks(Nanos now);
  void close_idle_links(Nanos now);
  bool tell(ElasticSink& sink);

  // The life of a link.
  void made(ElasticConnection& connection);
  void came_up(ElasticConnection& connection);
  void pump(ElasticConnection& connection);
  // bytes: how many waiting bytes end once the frame is written.
  void send_frame(ElasticConnection& connection, ElasticFrame kind, SharedBuffer payload, size_t bytes);
  void send_parting(ElasticConnection& connection, Nanos now);
  void ended(ElasticConnection& connection, const Status& why);
  void failed(ElasticConnection& connection, const Status& why, bool refused);
  void refuse(ElasticConnection& connection, const char* what);
  void landed(ElasticConnection& connection, const FrameHeader& header, SharedBuffer payload);
  void settle(ElasticConnection& connection, size_t bytes);

  // Sink
  std::byte* place(PeerIndex from, const FrameHeader& header) override;
  void received(PeerIndex from, const FrameHeader& header, const View& view) override;
  void sent(uint64_t id) override;
  void lost(PeerIndex peer, const Status& why) override;
  void credit(PeerIndex peer) override;
  // InboundRegistry
  bool admit(LinkRequest& inbound) override;
  void answered(PeerIndex peer, const PeerId& id, bool goes_on) override;

  const LinksOptions options_;
  const RunKey key_;
  std::vector<std::unique_ptr<ElasticConnection>> connections_;  // by PeerIndex
  std::vector<PeerIndex> free_;
  std::map<PeerId, PeerIndex> by_id_;
  size_t asked_ = 0;   // connections without a PeerId
  size_t linked_ = 0;  // connections whose link is up
  std::unordered_map<uint64_t, Flight> flights_;
  uint64_t next_flight_ = 1, next_serial_ = 1;
  std::vector<PeerIndex> due_;
  std::vector<Event> events_;
  ElasticSink* sink_ = nullptr;  // during poll()
  Nanos now_ = 0;
  Nanos next_clock_ = never;
  ElasticLinkCounters counters_;
  std::string last_refused_message_;
  std::unique_ptr<TcpTransport> transport_;  // destroyed first
};

}  // namespace unisono
