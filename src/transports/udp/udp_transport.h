// The UDP transport. It repeats frames until they arrive; ranges of lossy streams are repeated only on request. Sockets carry
// datagrams, handshakes make links, a flow per peer decides what to send, and one pacer decides when. poll() drives them all
// and reports events. The transport has no thread and never blocks. Its only clock is UdpOptions::clock. It works over any
// DatagramSocket: the kernel's, or a virtual one in virtual time. With TCP the kernel answers for a process that does not poll;
// with UDP nobody does, so draining() is true as long as there are links.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/tcp_socket.h"
#include "transports/connector.h"
#include "transports/datagram_service.h"
#include "transports/payload_pool.h"
#include "transports/transport.h"
#include "transports/udp/path/udp_pacer.h"
#include "transports/udp/reliable/udp_flow.h"
#include "transports/udp/reliable/udp_outbox.h"
#include "transports/udp/udp_handshake.h"
#include "transports/udp/udp_options.h"

namespace unisono {

class UdpTransport final : public Transport, public Connector, public DatagramService {
 public:
  // Returns invalid if there is no such interface; unavailable if the port is taken or the kernel cannot make the sockets.
  static Result<std::unique_ptr<UdpTransport>> make(const UdpOptions& options);
  // Makes a transport that uses the given sockets.
  static std::unique_ptr<UdpTransport> from_sockets(const UdpOptions& options, DatagramSockets sockets);
  // Returns the sockets that make() would use, for a caller that wants to wrap them.
  static Result<DatagramSockets> sockets(const UdpOptions& options);
  ~UdpTransport() override;

  // Functions of Connector.
  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override { hello_keys_ = hello_keys(key, options_.tls.get()); }
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;
  bool is_reconnecting(PeerIndex) const override { return false; }
  bool is_host_silent(PeerIndex, Nanos) const override { return false; }
  void stop_listening() override {}  // the sockets at which it listens carry the links

  // Functions of Transport.
  const char* name() const override { return "udp"; }
  size_t credit(PeerIndex peer) override;
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release(const View& view) override { pool_.give(view.handle); }
  void cancel(const Cancellation& what) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override { return !live_.empty() || !drains_.empty(); }
  // Returns true while a frame is unconfirmed, or a closed link repeats its goodbye.
  bool has_pending() const override;
  int wait_handle() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override {}
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;
  std::string link_state(PeerIndex peer) const override;

  // Functions of DatagramService.
  DatagramService* datagrams() override { return this; }
  Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex> peers, DatagramSink& sink) override;
  void close_group(uint32_t group) override;
  uint32_t header_bytes() const override { return options_.tls ? encrypted_header_bytes : datagram_header_bytes; }
  uint32_t datagram_bytes(std::span<const PeerIndex> peers) const override;
  bool datagram_bytes_known(std::span<const PeerIndex> peers) const override;
  void measure_rate(PeerIndex peer) override;
  void send_stream(uint32_t group, const OutStream& stream) override;
  void drop_stream(uint32_t group, Rank to, StreamName stream) override;
  void request_repair(uint32_t group, Rank from, StreamName stream, uint16_t slice, uint32_t first,
                      std::span<const std::byte> bitmap) override;
  bool stream_unconfirmed(uint32_t group, Rank to, StreamName stream) const override;
  Nanos answer_time(uint32_t group, Rank rank) const override;
  // Counts datagrams that claim to come from the rank. Own rank: counts those whose sender is unknown.
  DatagramCounters datagram_counters(uint32_t group, Rank rank) const override;

  // Returns how many received datagrams were dropped for this reason. They may belong to a link, to a group, or to neither.
  uint64_t dropped(DatagramFault fault) const { return dropped_[static_cast<size_t>(fault)]; }
  const UdpFlow* flow(PeerIndex peer) const;
  // Returns the last change of the size of the datagrams to this peer. Sink::noticed() reports each change.
  DatagramSizeChange size_change(PeerIndex peer) const;
  const RateControl& all_rate() const { return all_; }

 private:
  struct Port final : DatagramInbox {
    Port(UdpTransport& transport, std::unique_ptr<DatagramSocket> with, size_t number);
    void arrived(std::span<const InDatagram> batch) override { owner.arrived(*this, batch); }
    void refused(const TcpAddress& to) override { owner.refused(*this, to); }
    UdpTransport& owner;
    std::unique_ptr<DatagramSocket> socket;
    UdpOutbox outbox;
    size_t index;
    bool drained = true;  // the last receive() has emptied the socket
    bool ready = true;    // the socket may have datagrams
  };
  struct Candidate {
    TcpAddress address;
    size_t port = 0;
  };
  // The state of one peer, kept from add_peer() to close().
  struct Link {
    LinkRequest request;
    LinkState state = LinkState::connecting;
    std::optional<UdpHandshake> handshake;
    std::vector<Candidate> candidates;       // addresses to dial
    Candidate at;                            // the peer has answered from this address
    std::unique_ptr<UdpFlow> flow;           // null until the link is up
    UdpSendCounters sending;                 // counters of hello datagrams
    std::optional<Status> lost;              // status that report() passes to Sink::lost
    PeerFate fate = PeerFate::unknown;       // if the link is lost
    std::optional<TcpAddress> answered_at;   // an earlier link to this process was there
    uint64_t refused_where_it_answered = 0;  // how many of our hellos were refused there
    bool credit_refused = true, overflowed = false;
    uint64_t noticed_size_changes = 0;  // so many changes of the size of datagrams have been reported to the sink
    Nanos drain_deadline = 0;           // A closed link is given up at this time; 0 until the first poll() after close().
    uint64_t refused = 0;               // how many of our hellos a host has refused
    bool is_key_foreign = false;        // hellos that name the peer were sealed with another key
    bool drain = false;                 // this process has closed the link, and it is in drains_
  };
  struct Group {
    uint32_t number = 0;
    DatagramGroup what;
    std::vector<PeerIndex> peers;
    std::vector<std::unique_ptr<UdpGroupPeer>> ranks;
    DatagramSink* sink = nullptr;
    uint64_t dropped[datagram_fault_count] = {};
  };
  // The link or group to which datagrams with this run id and epoch belong.
  struct Context {
    uint64_t run_id = 0;
    uint32_t epoch = 0;
    Link* link = nullptr;
    Group* group = nullptr;
  };
  // The first check that a datagram failed, and the link or group to which it claims to belong. A hello belongs to neither.
  struct Classified {
    DatagramHeader header;
    DatagramFault fault = DatagramFault::none;
    Link* link = nullptr;
    Group* group = nullptr;
    UdpGroupPeer* peer = nullptr;        // the sender, if the datagram belongs to a group
    UdpFlow* flow = nullptr;             // the flow to the sender
    const DatagramSeal* seal = nullptr;  // null: a hello, or a datagram that is encrypted
  };
  struct StreamSent {
    uint32_t group = 0;
    Rank to = 0;
    StreamName name;
  };

  explicit UdpTransport(const UdpOptions& options);
  Status watch_ports();
  Link* find(PeerIndex peer) const { return peer < links_.size() ? links_[peer].get() : nullptr; }
  Group* find_group(uint32_t number) const;
  UdpGroupPeer* find_peer(uint32_t group, Rank rank) const;
  UdpFlow* flow_of(const Group& group, Rank rank) const;
  static uint64_t context_key(uint64_t run_id, uint32_t epoch);
  const Context* find_context(uint64_t run_id, uint32_t epoch) const;
  bool knows_run(uint64_t run_id) const;

  // Receiving.
  void arrived(Port& port, std::span<const InDatagram> batch);
  void check(std::span<const InDatagram> datagrams, std::span<Classified> classified_batch);
  void classify(const InDatagram& datagram, Classified& classified) const;
  void handle(Port& port, const InDatagram& datagram, const Classified& classified);
  void refused(Port& port, const TcpAddress& to);
  void on_hello(Port& port, const DatagramHeader& header, std::span<const std::byte> datagram, const TcpAddress& from);
  bool read_hello_of_job(const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello,
                         UdpHelloTls& tls) const;
  void note_foreign_hello(std::span<const std::byte> datagram);
  DatagramFault on_link_datagram(Link& link, const DatagramHeader& header, std::span<const std::byte> payload,
                                 const UdpArrival& arrival);
  DatagramFault on_group_datagram(const Classified& classified, std::span<const std::byte> payload, const UdpArrival& arrival);
  DatagramFault deliver(Group& group, UdpGroupPeer& peer, const DatagramHeader& header, std::span<const std::byte> payload);

  // Beginning and end of links.
  void step_handshake(Link& link, Nanos now);
  // `to` must be a member of the link, because the outbox reads it later.
  void send_hello(Link& link, const Candidate& to);
  void bring_up(Link& link, Nanos now);
  void lose(Link& link, const Status& why, PeerFate fate);
  void retire(Link& link);
  void step_drains(Nanos now);
  Status unreachable(const Link& link, const char* what) const;
  Status ended(const Link& link, const Status& why, Nanos now) const;

  void refresh();

  // Sending.
  bool step_links(Nanos now);
  void notice_size(Link& link);
  void send_unpaced(Link& link, Nanos now);
  void update_pacer(Link& link, Nanos now);
  bool send_paced(Nanos now);
  void hold_back(Nanos now);
  bool flush();
  void find_ready_ports();
  bool receive(Sink& sink);
  bool report(Sink& sink);
  bool report_streams();

  UdpOptions options_;
  uint32_t window_bytes_ = 0;
  Descriptor epoll_, timer_;
  std::vector<InterfaceAddress> interfaces_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<JobKey> hello_keys_;  // empty until set_job()
  PayloadPool pool_;
  Pacer pacer_;
  RateControl all_;                            // rate control for all peers together
  std::vector<std::unique_ptr<Link>> links_;   // indexed by PeerIndex
  std::vector<Link*> live_;                    // links that are connecting or up, and lost links that are not yet reported
  std::map<PeerId, PeerIndex> by_id_;          // for each link in live_: its peer index
  std::vector<std::unique_ptr<Link>> drains_;  // closed links that still have to send frames or a goodbye
  std::vector<std::unique_ptr<Link>> closed_links_;  // links that were closed during poll(); deleted when poll() ends
  std::vector<Link*> by_destination_;
  std::vector<std::unique_ptr<Group>> groups_, closed_groups_;
  std::unordered_map<uint64_t, Context> contexts_;
  // Counts changes of links and groups. Datagrams that were classified before a change must be classified again.
  uint64_t changes_ = 0;
  std::array<Classified, datagrams_per_batch> classified_;
  std::array<DatagramTagged, datagrams_per_batch> tagged_;
  std::vector<uint64_t> sent_, reporting_;
  std::vector<StreamSent> streams_sent_;
  uint64_t attempts_ = 0;
  TransportCounters retired_;
  uint64_t refused_connections_ = 0;
  uint64_t refused_frames_[frame_fault_count] = {};
  uint64_t dropped_[datagram_fault_count] = {};
  Nanos now_ = 0;
  bool now_is_stale_ = false;  // now_ must be refreshed before the next datagram is handled
  Sink* sink_ = nullptr;       // set while poll() runs
  bool polling_ = false;
};

}  // namespace unisono
