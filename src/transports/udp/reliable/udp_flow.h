// One process's side of an established UDP link. It handles frames, acknowledgements, reports, probes and the goodbye. The
// streams of lossy groups share the link's sequence numbers, its rate and its address.
//
// There are two series of sequence numbers. The first series numbers the datagrams that need an answer or a report (fragments,
// data, ends, control), and a gap in it shows a loss. The second series numbers the answers. If answers had numbers of the
// first series, reports would cause reports. A datagram that is passed to on_datagram() has passed all checks, including the
// check of its tag. There is no clock: calls that need the time get it as the argument `now`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/transport.h"
#include "transports/udp/path/udp_black_hole.h"
#include "transports/udp/path/udp_path_probe.h"
#include "transports/udp/path/udp_rate_control.h"
#include "transports/udp/path/udp_rtt.h"
#include "transports/udp/path/udp_size_change.h"
#include "transports/udp/reliable/udp_group_peer.h"
#include "transports/udp/reliable/udp_link_seal.h"
#include "transports/udp/reliable/udp_loss_detector.h"
#include "transports/udp/reliable/udp_outbox.h"
#include "transports/udp/reliable/udp_reassembler.h"
#include "transports/udp/reliable/udp_replay.h"
#include "transports/udp/udp_frames.h"

namespace unisono {

struct UdpFlowOptions {
  PeerIndex peer = 0;
  DatagramGroup group{};      // the link, seen as a group of two ranks
  TcpAddress address{};       // address of the peer
  uint32_t window_bytes = 0;  // the peer can buffer this many bytes, as its hello says
  uint32_t datagram_bytes_max = 8972;
  uint64_t rate_limit = 0;  // in bytes/s; 0: no limit
  Nanos keep_alive = 500 * millisecond;
  Nanos silence = 10 * second;
  Nanos started = 0;
  std::optional<UdpLinkSecret> secret{};  // with it, the link is encrypted
  uint64_t numbers_per_key = numbers_per_key_max;
};

// Two times of a received datagram. now: when it was found in the socket. came: when the network delivered it to this host.
struct UdpArrival {
  Nanos now = 0, came = 0;
};

// Memory of one flow is bounded, whatever its peer does:
//   tables              at most table_bytes_max:
//                       640 KiB  datagrams in flight
//                         1 MiB  fragment bits of 256 frames in each direction
//                       850 KiB  4160 waiting frames (UdpOptions: queue_frames_max, extra_frames_max); one more ends the link
//                       100 KiB  repair requests, sequence numbers and the rest
//   received payloads   PayloadPoolLimits::owner_bytes_max, or one frame. A fragment without memory is not acknowledged, so the
//                       sender repeats it
//   sent payloads       4 KiB for each waiting frame (whole pages), and 40 MiB (in powers of two) for copies of frames in
//                       flight whose operation was cancelled
// Streams add 16 bytes per range of this process's operations, and RangeParts::bytes_max per rank of a group while ranges come
// in parts. An unauthenticated peer gets no memory at all.
class UdpFlow {
 public:
  static constexpr size_t table_bytes_max = 4u << 20;

  // `all` is the rate control for all peers together. `destination` is the number that the flow has in the pacer.
  UdpFlow(const UdpFlowOptions& options, PayloadPool& pool, RateControl& all, size_t destination);

  // frames() holds the frames to the peer, reassembler() the frames from the peer.
  UdpFrames& frames() { return frames_; }
  const UdpFrames& frames() const { return frames_; }
  Reassembler& reassembler() { return reassembler_; }
  // Returns the ids of frames whose payloads have arrived at the peer. The caller must report the ids and clear the vector.
  std::vector<uint64_t>& sent() { return sent_; }

  // Handles an authentic datagram of the link's own epoch. May call sink.receive_buffer and sink.received. Returns `duplicate`
  // if the datagram is a copy of an earlier one. A copy changes nothing; above all, it does not show that the peer is alive.
  DatagramFault on_datagram(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                            Sink& sink);
  // Handles an authentic datagram of a group: it shows that the peer is alive, and is counted for the reports. Returns
  // `duplicate` if it is a copy of an earlier datagram; the caller must ignore a copy.
  DatagramFault on_group_datagram(const DatagramHeader& header, const UdpArrival& arrival);
  // Call when the network has reported that nobody listens at the peer's address.
  void refused(Nanos now);

  // Sends all datagrams that are not paced: acknowledgements, reports, answers, probes, and control messages that must be
  // repeated now. Returns false if the outbox is full.
  bool send_unpaced(Nanos now, uint32_t own_drops, UdpOutbox& outbox);
  // Returns the size of the next paced datagram, which is a fragment or a datagram of a stream. 0 means that there is none now.
  uint32_t next_datagram_bytes(Nanos now);
  // Sends the next paced datagram, and returns its size; 0: there was none. Call this only if outbox.credit() > 0.
  uint32_t send_next(Nanos now, UdpOutbox& outbox);
  // Queues a repair request. It is sent as soon as possible. If too many requests are queued, the oldest is dropped.
  void queue_repair(const UdpGroupPeer& group, const DatagramHeader& header, uint32_t first, std::span<const std::byte> bitmap);
  // Checks whether the time has come to declare fragments lost, or the peer dead. Returns true if it checked fragments.
  bool step(Nanos now);
  // Returns the time at which step() or send_unpaced() must be called next. `end` datagrams whose time has already come do not
  // count, because they wait for the pacer.
  Nanos next_deadline(Nanos now) const;

  // Begins to send a goodbye, which is repeated until it is answered. Call this when all frames have arrived.
  void start_goodbye(Nanos now);
  // These send one message at once, and do not wait for an answer. send_given_up(): this process ends the link, and lives.
  void send_last_goodbye(Nanos now, UdpOutbox& outbox);
  void send_given_up(Nanos now, UdpOutbox& outbox);
  bool goodbye_answered() const { return goodbye_answered_; }
  // Returns true if the goodbye was repeated for long enough, or if nobody listens at the peer's address. If the peer missed
  // the goodbye, it will find that our port is closed.
  bool goodbye_abandoned(Nanos now) const {
    return goodbye_.active &&
           (goodbye_refused_ || (goodbye_.tries > goodbye_tries_min && now - goodbye_.since >= goodbye_timeout));
  }
  // Returns true if the peer has sent a goodbye, or has given up the link.
  bool goodbye_received() const { return goodbye_received_; }
  static bool is_goodbye(const DatagramHeader& header, std::span<const std::byte> payload);
  // Returns why the link must end; ok if it need not end.
  const Status& end() const { return end_; }
  PeerFate fate() const { return fate_; }
  FrameFault fault() const { return reassembler_.fault(); }

  void attach(UdpGroupPeer& group) { groups_.push_back(&group); }
  void detach(const UdpGroupPeer& group);

  const TcpAddress& address() const { return options_.address; }
  const DatagramGroup& group() const { return options_.group; }
  const DatagramSeal& in_seal() const { return in_seal_; }
  // Null: the link is not encrypted.
  UdpLinkSeal* encryption() { return encryption_.get(); }
  const UdpLinkSeal* encryption() const { return encryption_.get(); }
  // The size of the header of this link's datagrams, and of those of its groups.
  uint32_t header_bytes() const { return encryption_ ? encrypted_header_bytes : datagram_header_bytes; }
  const RttEstimator& rtt() const { return rtt_; }
  uint64_t rate() const { return rate_.rate(); }
  // Measures the rate of the path, once (PathProbe).
  void measure_rate(Nanos now) { probe_.measure_rate(now); }
  bool measures_rate() const { return probe_.measures_rate(); }
  bool rate_asked() const { return probe_.rate_asked(); }
  void held_back(Nanos now) { rate_.held_back(now); }
  const RateControl& rate_control() const { return rate_; }
  const LossDetector& losses() const { return losses_; }
  uint32_t datagram_bytes() const { return probe_.datagram_bytes(); }
  bool datagram_bytes_known() const { return probe_.sizes_known(); }
  // Returns the last change of datagram_bytes() since the first search for the size ended. The transport reports each change.
  const DatagramSizeChange& size_change() const { return size_change_; }
  size_t destination() const { return destination_; }
  UdpSendCounters& sending() { return sending_; }
  uint64_t refusals() const { return refusals_; }
  uint64_t received_frames() const { return received_frames_; }
  uint64_t received_bytes() const { return received_bytes_; }
  std::string numbers(Nanos now) const;

 private:
  enum class ControlKind : uint8_t { ping = 1, goodbye = 2, given_up = 3 };
  // A control message that is repeated until it is answered.
  struct Control {
    bool active = false;
    uint32_t id = 0;
    Nanos since = 0, next = 0, interval = 0;
    uint32_t tries = 0;
  };
  struct RepairRequest {
    DatagramHeader header;
    DatagramSeal seal;  // for a link without encryption
    uint32_t bytes = 0;
    std::array<std::byte, sizeof(uint32_t) + repair_bitmap_bytes_max> payload{};
  };
  static constexpr size_t requests_max = 32;
  // If 30 % of the datagrams are lost, one goodbye in 1400 gets lost in all of 6 tries. A fast link makes 12 tries in
  // goodbye_timeout.
  static constexpr uint32_t goodbye_tries_min = 6;
  static constexpr Nanos goodbye_timeout = 300 * millisecond;
  static uint32_t clock_us(Nanos now) { return static_cast<uint32_t>(now / microsecond); }

  DatagramHeader numbered_header(DatagramKind kind, uint64_t number, Nanos now) const;
  DatagramHeader make_header(DatagramKind kind, Nanos now);
  DatagramHeader make_answer_header(DatagramKind kind, Nanos now);
  void address_header(DatagramHeader& header, const DatagramGroup& group, Rank to) const;
  void put(DatagramHeader header, std::span<const std::byte> payload, UdpOutbox& outbox);
  void add(const DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal, UdpOutbox& outbox);
  bool is_new(const DatagramHeader& header);
  void measure(const DatagramHeader& header, const UdpArrival& arrival);
  DatagramFault fragment(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                         Sink& sink);
  DatagramFault acknowledgement(const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  DatagramFault probe(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival);
  DatagramFault control(std::span<const std::byte> payload, Nanos now);
  void note_alive(Nanos now);
  void confirm_next_hop(Nanos now);
  void start(Control& control, Nanos now);
  void send_control(Control& control, ControlKind kind, Nanos now, UdpOutbox& outbox);
  void add_control(uint32_t id, ControlKind kind, Nanos now, UdpOutbox& outbox);
  bool send_probes(Nanos now, UdpOutbox& outbox);
  bool send_questions(Nanos now, UdpOutbox& outbox);
  void take_refused_size(Nanos now);
  void follow_size(uint32_t before, bool refused);
  bool send_repair_requests(Nanos now, UdpOutbox& outbox);
  uint32_t send_fragment(const FragmentPosition& position, Nanos now, UdpOutbox& outbox);
  uint32_t send_stream(Nanos now, UdpOutbox& outbox);
  void count_sent(size_t bytes);
  std::optional<FragmentPosition> next_fragment();
  bool stream_is_ready(Nanos now) const;

  UdpFlowOptions options_;
  std::unique_ptr<UdpLinkSeal> encryption_;
  size_t destination_;
  DatagramSeal out_seal_, in_seal_;
  RttEstimator rtt_;
  RateControl& all_;
  RateControl rate_;
  ArrivalMeter meter_;
  AckBuilder acks_;
  UdpReplayWindow numbers_seen_, answers_seen_;
  LossDetector losses_;
  PathProbe probe_;
  BlackHoleWatch watch_;
  DatagramSizeChange size_change_;
  TrainMeter train_;
  UdpFrames frames_;
  Reassembler reassembler_;
  UdpSendCounters sending_;
  std::vector<UdpGroupPeer*> groups_;
  std::vector<uint64_t> sent_;
  std::vector<FragmentName> arrived_, lost_;    // filled when an acknowledgement is handled
  std::vector<RepairRequest> repair_requests_;  // circular buffer of queued repair requests; it has space for requests_max
  size_t first_request_ = 0, request_count_ = 0;
  std::vector<uint32_t> control_answers_;  // ids of the control messages that must be answered
  Control ping_, goodbye_;
  // The next numbers of the two series. A datagram carries the low half as its flow_seq.
  uint64_t next_seq_ = 1, next_answer_seq_ = 1;
  uint32_t next_control_ = 1;
  // newest_report_: flow_seq of the newest report. reported_: the number of received datagrams in that report.
  uint32_t newest_report_ = 0, reported_ = 0;
  bool report_received_ = false;
  bool goodbye_answered_ = false, goodbye_refused_ = false, goodbye_received_ = false;
  int64_t stream_debt_bytes_ = 0;  // Streams are behind frames by this many bytes. While both wait, they get equal shares.
  size_t next_group_ = 0;
  Nanos last_received_at_ = 0, silent_since_ = 0, last_step_ = 0, first_refusal_ = 0, confirmed_at_ = 0;
  uint32_t refusals_in_row_ = 0;
  uint64_t refusals_ = 0, received_frames_ = 0, received_bytes_ = 0;
  Status end_;
  PeerFate fate_ = PeerFate::unknown;
};

}  // namespace unisono
