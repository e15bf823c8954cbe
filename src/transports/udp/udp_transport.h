// UDP: whole frames, repeated until they have arrived, and the streams of lossy operations, each datagram sent once.
//
// This class composes. Sockets carry datagrams, handshakes make links, and a flow per peer decides what to send. One pacer
// decides when, and poll() drives all of them and reports. It has no thread, nothing blocks, and the only clock is the one in
// the options. It works over any DatagramSocket: the kernel's, or a virtual network's in virtual time. With TCP the kernel
// answers for a process that does not poll; here nobody does. So draining() is true while there are links.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/losing_socket.h"
#include "net/tcp_socket.h"
#include "transports/connector.h"
#include "transports/datagram_service.h"
#include "transports/payload_pool.h"
#include "transports/transport.h"
#include "transports/udp/path/udp_pacer.h"
#include "transports/udp/reliable/udp_flow.h"
#include "transports/udp/reliable/udp_outbox.h"
#include "transports/udp/udp_handshake.h"

namespace unisono {

struct UdpOptions {
  PeerId self{};
  std::string interface {};               // as TcpOptions::interface
  uint16_t port = 0;                      // 0 = the kernel chooses
  bool payload_checksum = false;          // for sent frames
  uint32_t datagram_bytes_max = 0;        // 0: 8972, with IPv6 8952; less where the path takes less
  uint64_t rate_limit = 0;                // bytes/s of this process in all; 0: none
  DatagramAuth auth = DatagramAuth::mac;  // what this process accepts for frames; checksums only if both ends say so
  uint32_t window_bytes = 0;              // how much a peer may have in flight to this process; 0: computed from the sockets
  size_t queue_frames_max = 64, extra_frames_max = 4096;  // as TcpLinkOptions
  Nanos keep_alive = 500 * millisecond;                   // a silent peer is asked after this
  Nanos silence = 10 * second;                            // a peer that does not answer is lost after this
  Nanos drain = 2 * second;                               // after close(), how long queued frames are still sent
  PurposeLoss loss{};                                     // of arriving datagrams, on purpose; describe() reports it
  PayloadPoolLimits pool{};
  // The clock that poll() is given. Without it, datagrams leave with the next poll(), and the time that the kernel takes stays
  // invisible: a thread suspended between poll()'s time and a system call would measure wrong delays, even negative ones.
  std::function<Nanos()> clock{};
};

class UdpTransport final : public Transport, public Connector, public DatagramService {
 public:
  // Returns invalid if there is no such interface, and unavailable if the port is taken or the kernel has no such sockets.
  static Result<std::unique_ptr<UdpTransport>> make(const UdpOptions& options);
  // A transport over existing sockets.
  static std::unique_ptr<UdpTransport> over(const UdpOptions& options, std::vector<std::unique_ptr<DatagramSocket>> sockets);
  // The sockets that make() would use, for a caller that wants to wrap them.
  static Result<std::vector<std::unique_ptr<DatagramSocket>>> sockets(const UdpOptions& options);
  ~UdpTransport() override;

  // Connector
  std::vector<std::string> endpoints() const override;
  void set_job(const JobKey& key) override { job_ = key; }
  Status add_peer(const LinkRequest& request) override;
  LinkState state(PeerIndex peer) const override;

  // Transport
  const char* name() const override { return "udp"; }
  size_t credit(PeerIndex peer) override;
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release(const View& view) override { pool_.give(view.handle); }
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  bool draining() const override { return !live_.empty() || !drains_.empty(); }
  // Unconfirmed frames, and drains until the goodbye is answered, refused or abandoned.
  bool has_pending() const override;
  int wait_handle() const override { return epoll_.get(); }
  bool arm() override;
  void disarm() override {}
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override;

  // DatagramService
  DatagramService* datagrams() override { return this; }
  Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex> peers, DatagramSink& sink) override;
  void close_group(uint32_t group) override;
  uint32_t datagram_bytes(std::span<const PeerIndex> peers) const override;
  bool datagram_bytes_known(std::span<const PeerIndex> peers) const override;
  void send_stream(uint32_t group, const OutStream& stream) override;
  void drop_stream(uint32_t group, Rank to, StreamName stream) override;
  void ask(uint32_t group, Rank from, StreamName stream, uint16_t slice, uint32_t first,
           std::span<const std::byte> bitmap) override;
  bool stream_wanted(uint32_t group, Rank to, StreamName stream) const override;
  Nanos answer_time(uint32_t group, Rank rank) const override;
  // Datagrams that claim to come from the rank. For this rank itself: datagrams whose sender could not be determined.
  DatagramCounters datagram_counters(uint32_t group, Rank rank) const override;

  // Datagrams of no link and no group, those that failed a check before their sender was known, and all that links dropped.
  uint64_t dropped(DatagramFault fault) const { return dropped_[static_cast<size_t>(fault)]; }
  const UdpFlow* flow(PeerIndex peer) const;
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
    bool drained = true;
  };
  struct Candidate {
    TcpAddress address;
    size_t port = 0;
  };
  // One peer, from add_peer to close.
  struct Link {
    LinkRequest request;
    LinkState state = LinkState::connecting;
    std::optional<UdpHandshake> handshake;
    std::vector<Candidate> candidates;  // for the dialling side
    Candidate at;                       // the address from which the peer has answered
    std::unique_ptr<UdpFlow> flow;      // once up
    UdpSendCounters sending;            // for hellos
    std::optional<Status> lost;         // to be reported
    bool credit_refused = true, overflowed = false;
    Nanos leaves_at = 0;   // closed: when it is abandoned; 0 until poll has set it
    uint64_t refused = 0;  // while connecting
    bool drain = false;    // closed on this side, with frames still to be confirmed
  };
  struct Group {
    uint32_t number = 0;
    DatagramGroup what;
    std::vector<PeerIndex> peers;
    std::vector<std::unique_ptr<UdpGroupPeer>> ranks;
    DatagramSink* sink = nullptr;
    uint64_t dropped[datagram_fault_count] = {};
  };
  // The owner of datagrams with a run id and epoch.
  struct Context {
    uint64_t run_id = 0;
    uint32_t epoch = 0;
    Link* link = nullptr;
    Group* group = nullptr;
  };
  // The link or group that a datagram claims, and the first check that it failed. With neither it is a hello, or foreign.
  struct Claim {
    DatagramHeader header;
    DatagramFault fault = DatagramFault::none;
    Link* link = nullptr;
    Group* group = nullptr;
    UdpGroupPeer* peer = nullptr;  // the sender, in the group
    UdpFlow* flow = nullptr;       // to the sender
    const DatagramSeal* seal = nullptr;
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

  // Receiving
  void arrived(Port& port, std::span<const InDatagram> batch);
  void check(std::span<const InDatagram> datagrams, std::span<Claim> claims);
  void identify(const InDatagram& datagram, Claim& claim) const;
  void take(Port& port, const InDatagram& datagram, const Claim& claim);
  void refused(Port& port, const TcpAddress& to);
  void hello(Port& port, const DatagramHeader& header, std::span<const std::byte> datagram, const TcpAddress& from);
  DatagramFault of_link(Link& link, const DatagramHeader& header, std::span<const std::byte> payload,
                        const UdpArrival& arrival);
  DatagramFault of_group(const Claim& claim, std::span<const std::byte> payload, const UdpArrival& arrival);
  DatagramFault deliver(Group& group, UdpGroupPeer& peer, const DatagramHeader& header, std::span<const std::byte> payload);

  // Life of links
  void step_handshake(Link& link, Nanos now);
  void send_hello(Link& link, const Candidate& to);
  void bring_up(Link& link, Nanos now);
  void lose(Link& link, const Status& why);
  void retire(Link& link);
  void step_drains(Nanos now);
  Status unreachable(const Link& link) const;
  Status ended(const Link& link, const Status& why, Nanos now) const;

  void refresh();

  // Sending
  bool step_links(Nanos now);
  void speak(Link& link, Nanos now);
  void offer(Link& link, Nanos now);
  bool send_paced(Nanos now);
  bool flush();
  bool receive(Sink& sink);
  bool report(Sink& sink);
  bool report_streams();

  UdpOptions options_;
  uint32_t window_bytes_ = 0;
  Descriptor epoll_, timer_;
  std::vector<InterfaceAddress> interfaces_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::optional<JobKey> job_;
  PayloadPool pool_;
  Pacer pacer_;
  RateControl all_;                                  // for all peers together
  std::vector<std::unique_ptr<Link>> links_;         // by PeerIndex
  std::vector<Link*> live_;                          // connecting, up, or lost and not yet reported
  std::map<PeerId, PeerIndex> by_id_;                // of live_
  std::vector<std::unique_ptr<Link>> drains_;        // closed, with frames or a goodbye still to be sent
  std::vector<std::unique_ptr<Link>> closed_links_;  // closed during poll
  std::vector<Link*> by_destination_;
  std::vector<std::unique_ptr<Group>> groups_, closed_groups_;
  std::unordered_map<uint64_t, Context> contexts_;
  uint64_t changes_ = 0;  // changes of links and groups; claims made before one may be wrong
  std::array<Claim, datagrams_per_batch> claims_;
  std::array<DatagramTagged, datagrams_per_batch> tagged_;
  std::vector<uint64_t> sent_, reporting_;
  std::vector<StreamSent> streams_sent_;
  uint64_t attempts_ = 0;
  TransportCounters retired_;
  uint64_t refused_connections_ = 0;
  uint64_t refused_frames_[frame_fault_count] = {};
  uint64_t dropped_[datagram_fault_count] = {};
  Nanos now_ = 0;
  bool stale_ = false;    // no datagram was read yet in this turn
  Sink* sink_ = nullptr;  // during poll
  bool polling_ = false;
};

}  // namespace unisono
