// One side of an established link over UDP: frames, acknowledgements, reports, probes and the goodbye. The streams of lossy
// groups share its sequence numbers, rate and address.
//
// There are two series of sequence numbers. Datagrams that ask for an answer or a report (fragments, data, ends, control) use
// the first, so losses show as gaps. Answers use the second; otherwise reports would ask for reports. Every datagram passed to
// heard() has passed all checks including its tag. No clock: `now` comes with every call that needs it.
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
#include "transports/udp/lossy/udp_streams.h"
#include "transports/udp/path/udp_path_probe.h"
#include "transports/udp/path/udp_rate_control.h"
#include "transports/udp/path/udp_rtt.h"
#include "transports/udp/reliable/udp_loss_detector.h"
#include "transports/udp/reliable/udp_outbox.h"
#include "transports/udp/reliable/udp_reassembler.h"
#include "transports/udp/reliable/udp_replay.h"
#include "transports/udp/udp_frames.h"

namespace unisono {

struct UdpFlowOptions {
  PeerIndex peer = 0;
  DatagramGroup group{};      // of the link: two ranks
  TcpAddress address{};       // of the peer
  uint32_t window_bytes = 0;  // how much the peer can buffer, as it announced
  uint32_t datagram_bytes_max = 8972;
  uint64_t rate_limit = 0;  // bytes/s; 0: none
  Nanos keep_alive = 500 * millisecond;
  Nanos silence = 10 * second;
  Nanos started = 0;
};

// A peer of one group: its streams, and the seals of the group's links between the two.
struct UdpGroupPeer {
  DatagramGroup group;
  Rank rank = 0;
  DatagramSeal out_seal, in_seal;
  UdpStreams streams;
  uint64_t received = 0, ends_sent = 0;
  uint64_t dropped[datagram_fault_count] = {};
  uint64_t firewalled_before = 0, refused_before = 0;
};

// now: when the datagram was found in the socket. came: when the network delivered it.
struct UdpArrival {
  Nanos now = 0, came = 0;
};

// Memory of one flow is bounded, whatever its peer does:
//   tables              at most table_bytes_max: datagrams in flight 640 KiB, fragment bits of 256 frames in each direction
//                       1 MiB, 4160 waiting frames (UdpOptions: queue_frames_max, extra_frames_max; one more ends the link)
//                       850 KiB, repair requests, sequence numbers and the rest 100 KiB
//   arriving payloads   PayloadPoolLimits::owner_bytes_max, or one frame. A fragment without memory is not acknowledged, and
//                       comes again
//   leaving payloads    4 KiB of each waiting frame, in pages; and frames in flight whose operation was cancelled: 40 MiB, in
//                       powers of two
// Streams add 16 bytes per range of this process's own operations. An unauthenticated peer gets no memory at all.
class UdpFlow {
 public:
  static constexpr size_t table_bytes_max = 4u << 20;

  // all: the rate control of everything that goes to all peers together.
  UdpFlow(const UdpFlowOptions& options, PayloadPool& pool, RateControl& all, size_t destination);

  // Frames.
  UdpFrames& frames() { return frames_; }
  const UdpFrames& frames() const { return frames_; }
  Reassembler& reassembler() { return reassembler_; }
  // Ids of frames whose payloads have arrived at the peer since the last call; the caller clears it.
  std::vector<uint64_t>& sent() { return sent_; }

  // Handles an authentic datagram of the link's own epoch. May call sink.place and sink.received. Returns duplicate for a copy,
  // which changes nothing and above all is no sign of life.
  DatagramFault heard(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival, Sink& sink);
  // Handles an authentic datagram of a group: it is a sign of life, and counts in reports. Returns duplicate for a copy, which
  // the caller must ignore.
  DatagramFault on_group_datagram(const DatagramHeader& header, const UdpArrival& arrival);
  // The network reported that nobody listens at the peer's address.
  void refused(Nanos now);

  // Sends everything that is not paced: acknowledgements, reports, answers, probes, and repetitions that are due. False: the
  // outbox is full.
  bool speak(Nanos now, uint32_t own_drops, UdpOutbox& outbox);
  // Size of the next fragment or stream datagram; 0: there is none now.
  uint32_t wanted(Nanos now);
  // Sends it; requires outbox.credit() > 0. Returns its size, or 0 if there was nothing after all.
  uint32_t send_next(Nanos now, UdpOutbox& outbox);
  // Queues a repair request to be sent as soon as possible. If there are too many, the oldest is dropped.
  void say(const UdpGroupPeer& group, const DatagramHeader& header, uint32_t first, std::span<const std::byte> bitmap);
  // Detects losses by time, and a dead peer. True if anything was done.
  bool step(Nanos now);
  // The next time for step() or speak(). Ends of streams that are due already wait for the pacer, not for a time.
  Nanos next_deadline(Nanos now) const;

  // Sends a goodbye until it is answered. Call it when all frames have arrived.
  void say_goodbye(Nanos now);
  // Sends one goodbye at once, and waits for no answer.
  void say_last_goodbye(Nanos now, UdpOutbox& outbox);
  bool goodbye_answered() const { return goodbye_answered_; }
  // The goodbye was repeated long enough, or nobody listens there: a peer that missed it will find this port closed.
  bool goodbye_abandoned(Nanos now) const {
    return goodbye_.active &&
           (goodbye_refused_ || (goodbye_.tries > goodbye_tries_min && now - goodbye_.since >= goodbye_patience));
  }
  // The peer has sent a goodbye.
  bool heard_goodbye() const { return heard_goodbye_; }
  static bool is_goodbye(const DatagramHeader& header, std::span<const std::byte> payload);
  // The reason why the link must end; ok if it need not.
  const Status& end() const { return end_; }
  FrameFault fault() const { return reassembler_.fault(); }

  void attach(UdpGroupPeer& group) { groups_.push_back(&group); }
  void detach(const UdpGroupPeer& group);

  const TcpAddress& address() const { return options_.address; }
  const DatagramGroup& group() const { return options_.group; }
  const DatagramSeal& in_seal() const { return in_seal_; }
  const RttEstimator& rtt() const { return rtt_; }
  uint64_t rate() const { return rate_.rate(); }
  void held_back(Nanos now) { rate_.held_back(now); }
  const RateControl& rate_control() const { return rate_; }
  const LossDetector& losses() const { return losses_; }
  uint32_t datagram_bytes() const { return probe_.datagram_bytes(); }
  bool datagram_bytes_known() const { return probe_.sizes_known(); }
  size_t destination() const { return destination_; }
  UdpSendCounters& sending() { return sending_; }
  uint64_t refusals() const { return refusals_; }
  uint64_t received_frames() const { return received_frames_; }
  uint64_t received_bytes() const { return received_bytes_; }
  std::string numbers(Nanos now) const;

 private:
  enum class Word : uint8_t { ping = 1, goodbye = 2 };
  // A control message, repeated until it is answered.
  struct Control {
    bool active = false;
    uint32_t id = 0;
    Nanos since = 0, next = 0, interval = 0;
    uint32_t tries = 0;
  };
  struct Message {
    DatagramHeader header;
    DatagramSeal seal;
    uint32_t bytes = 0;
    std::array<std::byte, sizeof(uint32_t) + repair_bitmap_bytes_max> payload{};
  };
  static constexpr size_t messages_max = 32;
  // If three of ten datagrams are lost, one goodbye in 1400 does not arrive in 6 tries; a fast link makes 12 tries in that
  // time.
  static constexpr uint32_t goodbye_tries_min = 6;
  static constexpr Nanos goodbye_patience = 300 * millisecond;
  static uint32_t clock_us(Nanos now) { return static_cast<uint32_t>(now / microsecond); }

  DatagramHeader numbered(DatagramKind kind, Nanos now);
  DatagramHeader answering(DatagramKind kind, Nanos now);
  void address_header(DatagramHeader& header, const DatagramGroup& group, Rank to) const;
  void put(DatagramHeader header, std::span<const std::byte> payload, UdpOutbox& outbox);
  bool is_new(const DatagramHeader& header);
  void measure(const DatagramHeader& header, const UdpArrival& arrival);
  DatagramFault fragment(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                         Sink& sink);
  DatagramFault acknowledgement(const DatagramHeader& header, std::span<const std::byte> payload, Nanos now);
  DatagramFault probe(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival);
  DatagramFault control(std::span<const std::byte> payload, Nanos now);
  void settle(Nanos now);
  void confirm(Nanos now);
  void start(Control& control, Nanos now);
  void speak_control(Control& control, Word word, Nanos now, UdpOutbox& outbox);
  void put_control(uint32_t id, Word word, Nanos now, UdpOutbox& outbox);
  bool speak_probe(Nanos now, UdpOutbox& outbox);
  bool speak_messages(Nanos now, UdpOutbox& outbox);
  uint32_t send_fragment(const FragmentPlace& place, Nanos now, UdpOutbox& outbox);
  uint32_t send_stream(Nanos now, UdpOutbox& outbox);
  void count_sent(size_t bytes);
  std::optional<FragmentPlace> next_fragment();
  bool stream_waits(Nanos now) const;

  UdpFlowOptions options_;
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
  TrainMeter train_;
  UdpFrames frames_;
  Reassembler reassembler_;
  UdpSendCounters sending_;
  std::vector<UdpGroupPeer*> groups_;
  std::vector<uint64_t> sent_;
  std::vector<FragmentName> arrived_, lost_;  // from one acknowledgement
  std::vector<Message> messages_;             // ring of messages_max
  size_t first_message_ = 0, message_count_ = 0;
  std::vector<uint32_t> control_answers_;  // ids
  Control ping_, goodbye_;
  uint32_t next_seq_ = 1, next_answer_seq_ = 1, next_control_ = 1;
  uint32_t newest_report_ = 0, reported_ = 0;  // reported_: the count that the peer last reported as received
  bool report_heard_ = false;
  bool goodbye_answered_ = false, goodbye_refused_ = false, heard_goodbye_ = false;
  int64_t stream_share_ = 0;  // bytes; frames and streams get equal shares while both wait
  size_t group_turn_ = 0;
  Nanos last_heard_ = 0, silent_since_ = 0, last_step_ = 0, first_refusal_ = 0, confirmed_at_ = 0;
  uint32_t refusals_in_row_ = 0;
  uint64_t refusals_ = 0, received_frames_ = 0, received_bytes_ = 0;
  Status end_;
};

}  // namespace unisono
