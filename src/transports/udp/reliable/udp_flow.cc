#include "transports/udp/reliable/udp_flow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"

namespace unisono {
namespace {

constexpr size_t datagrams_outstanding_max = 8192;
// A port counts as closed when two conditions hold: there were at least refusals_min refusals over at least refusals_time_min,
// and nothing came from the peer meanwhile. A single refusal may be forged, or may come from a restart.
constexpr uint32_t refusals_min = 3;
constexpr Nanos refusals_time_min = 100 * millisecond;
// However long the peer is silent, it is lost only after this many pings that got no answer.
constexpr uint32_t unanswered_pings_min = 8;
// Hints to the kernel (confirm_next_hop) are at least this far apart. Without hints it asks the hop; a lost question costs 1 s.
constexpr Nanos confirm_interval = 250 * millisecond;

}  // namespace

UdpFlow::UdpFlow(const UdpFlowOptions& options, PayloadPool& pool, RateControl& all, size_t destination)
    : options_(options),
      encryption_(options.secret ? std::make_unique<UdpLinkSeal>(*options.secret, options.group.self, options.numbers_per_key)
                                 : nullptr),
      destination_(destination),
      out_seal_{
          link_key(options.group.key, options.group.self, 1 - options.group.self, options.group.epoch, options.group.run_id),
          options.group.auth},
      in_seal_{
          link_key(options.group.key, 1 - options.group.self, options.group.self, options.group.epoch, options.group.run_id),
          options.group.auth},
      all_(all),
      rate_({.limit = options.rate_limit}),
      acks_(AckSettings{}),
      losses_(datagrams_outstanding_max),
      probe_({.bytes_max = options.datagram_bytes_max,
              .headers_bytes = options.address.family() == AF_INET6 ? ipv6_headers_bytes : ipv4_headers_bytes}),
      frames_(pool, recut_fragment_bytes_with(header_bytes())),
      reassembler_(options.peer, pool, recut_fragment_bytes_with(header_bytes())),
      last_received_at_(options.started),
      silent_since_(options.started),
      last_step_(options.started) {
  options_.secret.reset();
  sent_.reserve(fragment_frames_max);
  control_answers_.reserve(64);
}

// Datagrams in -------------------------------------------------------------------------------------------------------

bool UdpFlow::is_new(const DatagramHeader& header) {
  switch (header.kind) {
    case DatagramKind::data:
    case DatagramKind::end:
    case DatagramKind::fragment:
    case DatagramKind::control: return numbers_seen_.take(header.flow_seq);
    default: return answers_seen_.take(header.flow_seq);
  }
}

void UdpFlow::note_alive(Nanos now) {
  last_received_at_ = silent_since_ = now;
  ping_.active = false;
  refusals_in_row_ = 0;
}

// Tells the kernel that the next hop exists, because our datagrams arrive. Datagrams from the peer would not prove this.
void UdpFlow::confirm_next_hop(Nanos now) {
  if (now - confirmed_at_ < confirm_interval) return;
  confirmed_at_ = now;
  sending_.confirm = true;
}

void UdpFlow::refused(Nanos now) {
  ++refusals_;
  if (refusals_in_row_++ == 0) first_refusal_ = now;
  if (!ping_.active) start(ping_, now);
  // One refusal ends a goodbye. A forged refusal does no harm: its only effect is that the goodbye is not repeated.
  goodbye_refused_ |= goodbye_.active && goodbye_.tries > 0;
}

DatagramFault UdpFlow::on_datagram(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                                   Sink& sink) {
  if (!is_new(header)) return DatagramFault::duplicate;
  const auto now = arrival.now;
  note_alive(now);
  switch (header.kind) {
    case DatagramKind::fragment: return fragment(header, payload, arrival, sink);
    case DatagramKind::fragment_ack:
    case DatagramKind::feedback: return acknowledgement(header, payload, now);
    case DatagramKind::path_probe: return probe(header, payload, arrival);
    case DatagramKind::control:
      measure(header, arrival);
      (void)acks_.received(header.flow_seq, false, now);
      return control(payload, now);
    case DatagramKind::control_ack: {
      uint32_t id = 0;
      if (payload.size() != sizeof id) return DatagramFault::size;
      std::memcpy(&id, payload.data(), sizeof id);
      confirm_next_hop(now);
      if (goodbye_.active && goodbye_.id == id) {
        goodbye_.active = false;
        goodbye_answered_ = true;
      }
      return DatagramFault::none;
    }
    default: return DatagramFault::kind;
  }
}

DatagramFault UdpFlow::on_group_datagram(const DatagramHeader& header, const UdpArrival& arrival) {
  if (!is_new(header)) return DatagramFault::duplicate;
  note_alive(arrival.now);
  if (header.kind == DatagramKind::repair_request) return DatagramFault::none;
  measure(header, arrival);
  (void)acks_.received(header.flow_seq, false, arrival.now);
  return DatagramFault::none;
}

// Counts an arrival at the time it reached the host: the time in our own socket is not a delay of the network.
void UdpFlow::measure(const DatagramHeader& header, const UdpArrival& arrival) {
  meter_.arrived(header.flow_seq, header.sent_at_us, clock_us(arrival.came), arrival.now);
}

DatagramFault UdpFlow::fragment(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                                Sink& sink) {
  FragmentPosition position;
  if (!read_position(header, position)) return DatagramFault::place;
  measure(header, arrival);
  const auto now = arrival.now;
  const auto result = reassembler_.add(position, payload, sink);
  if (to_be_acknowledged(result)) {
    (void)acks_.received(header.flow_seq, true, now);
    if (result == FragmentResult::whole) acks_.make_due(now);
  }
  if (result == FragmentResult::no_memory) acks_.refused(now);
  switch (result) {
    case FragmentResult::whole:
      ++received_frames_;
      received_bytes_ += position.frame_bytes;
      return DatagramFault::none;
    case FragmentResult::stored:
    case FragmentResult::no_memory: return DatagramFault::none;
    case FragmentResult::duplicate: return DatagramFault::duplicate;
    case FragmentResult::outdated: return DatagramFault::late;
    case FragmentResult::ahead: return DatagramFault::op_ahead;
    case FragmentResult::inconsistent: return DatagramFault::size;
    case FragmentResult::corrupt: break;
  }
  end_ = Status(Code::corrupt, std::string("a frame was damaged: ") + unisono::name(reassembler_.fault()));
  return DatagramFault::none;
}

DatagramFault UdpFlow::acknowledgement(const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  if (report_received_ && !sequence_before(newest_report_, header.flow_seq) && header.kind == DatagramKind::feedback)
    return DatagramFault::duplicate;
  Acknowledgement ack;
  if (header.kind == DatagramKind::feedback) {
    if (payload.size() != sizeof ack.feedback) return DatagramFault::size;
    std::memcpy(&ack.feedback, payload.data(), sizeof ack.feedback);
  } else if (const auto fault = read_ack(payload, static_cast<uint32_t>(next_seq_ - 1), ack); fault != AckFault::none) {
    return fault == AckFault::never_sent ? DatagramFault::op_ahead : DatagramFault::size;
  }
  // An acknowledgement that comes late still confirms fragments, but the report in it is out of date.
  if (!report_received_ || sequence_before(newest_report_, header.flow_seq)) {
    report_received_ = true;
    newest_report_ = header.flow_seq;
    if (std::exchange(reported_, ack.feedback.received) != ack.feedback.received) confirm_next_hop(now);
    if (ack.feedback.received > 0) rtt_.echoed(clock_us(now), ack.feedback.echo_sent_at_us, ack.feedback.echo_held_us);
    watch_.reported(ack.feedback);
    (void)rate_.feedback(ack.feedback, rtt_, now, &all_);
  }
  if (header.kind == DatagramKind::feedback) return DatagramFault::none;
  arrived_.clear();
  lost_.clear();
  losses_.acknowledged(ack, rtt_, now, arrived_, lost_);
  for (const auto name : arrived_) frames_.arrived(name, sent_);
  for (const auto name : lost_) frames_.lost(name);
  return DatagramFault::none;
}

DatagramFault UdpFlow::probe(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival) {
  if (header.phase == static_cast<uint8_t>(PathPhase::question)) {
    PathQuestion question;
    if (!get_question(header, question)) return DatagramFault::place;
    question.bytes = static_cast<uint32_t>(header_bytes() + payload.size());
    train_.question(question, arrival.came);
    return DatagramFault::none;
  }
  PathAnswer answer;
  if (!read_answer(payload, answer)) return DatagramFault::size;
  const auto bytes_before = datagram_bytes();
  const auto rate_before = probe_.dispersion_rate();
  if (!probe_.answered(header.op, answer, rtt_, arrival.now)) return DatagramFault::duplicate;
  if (probe_.take_checked()) watch_.checked();
  follow_size(bytes_before, false);
  rate_.set_datagram_bytes(datagram_bytes());
  if (rate_before == 0 && probe_.dispersion_rate() > 0) {
    rate_.probed(probe_.dispersion_rate());
    all_.destination_probed(rate_.rate(), probe_.dispersion_rate());
  }
  all_.set_datagram_bytes(datagram_bytes());
  return DatagramFault::none;
}

bool UdpFlow::is_goodbye(const DatagramHeader& header, std::span<const std::byte> payload) {
  if (header.kind != DatagramKind::control || payload.size() != sizeof(uint32_t) + 1) return false;
  const auto kind = static_cast<ControlKind>(payload.back());
  return kind == ControlKind::goodbye || kind == ControlKind::given_up;
}

DatagramFault UdpFlow::control(std::span<const std::byte> payload, Nanos now) {
  uint32_t id = 0;
  if (payload.size() != sizeof id + 1) return DatagramFault::size;
  std::memcpy(&id, payload.data(), sizeof id);
  const auto kind = static_cast<ControlKind>(payload[sizeof id]);
  const bool leaves = kind == ControlKind::goodbye, gives_up = kind == ControlKind::given_up;
  if (kind != ControlKind::ping && !leaves && !gives_up) return DatagramFault::place;
  if (control_answers_.size() < control_answers_.capacity()) control_answers_.push_back(id);
  goodbye_received_ |= leaves || gives_up;
  if (end_.ok() && leaves) {
    end_ = Status(Code::peer_lost, "the peer closed the link");
    fate_ = PeerFate::ended;
  } else if (end_.ok() && gives_up) {
    end_ = Status(Code::peer_lost, "the peer had given up the link");
  }
  return DatagramFault::none;
}

// Time ---------------------------------------------------------------------------------------------------------------

bool UdpFlow::step(Nanos now) {
  bool any = false;
  if (losses_.due() <= now) {
    lost_.clear();
    losses_.expire(rtt_, now, lost_);
    for (const auto name : lost_) frames_.lost(name);
    any = true;
  }
  // If step() was not called for a time, this time is not silence: datagrams may have waited in the socket.
  if (now - last_step_ > 2 * options_.keep_alive) silent_since_ += now - last_step_;
  last_step_ = now;
  if (!ping_.active && now - last_received_at_ >= options_.keep_alive) start(ping_, now);
  if (!end_.ok()) return any;
  if (refusals_in_row_ >= refusals_min && now - first_refusal_ >= refusals_time_min) {
    end_ = Status(Code::peer_lost, concat("the peer's process is gone: its host refused ", refusals_in_row_, " datagrams"));
    fate_ = PeerFate::ended;
  } else if (now - silent_since_ > options_.silence && ping_.active && ping_.tries >= unanswered_pings_min) {
    end_ = Status(Code::peer_lost,
                  concat("no answer for ", (now - last_received_at_) / millisecond, " ms to ", ping_.tries, " pings"));
  }
  return any;
}

Nanos UdpFlow::next_deadline(Nanos now) const {
  if (request_count_ > 0 || !control_answers_.empty()) return 0;
  Nanos next = std::min({acks_.due(), meter_.due(), train_.due(), losses_.due()});
  next = std::min(next, probe_.due());
  if (probe_.can_check()) next = std::min(next, watch_.due(rtt_));
  next = std::min(next, ping_.active ? ping_.next : last_received_at_ + options_.keep_alive);
  if (goodbye_.active) next = std::min(next, goodbye_.next);
  for (const auto* group : groups_) {
    if (const auto end = group->streams.next_deadline(); end > now) next = std::min(next, end);
  }
  return next;
}

void UdpFlow::start_goodbye(Nanos now) {
  if (!goodbye_.active && !goodbye_answered_) start(goodbye_, now);
}

void UdpFlow::send_last_goodbye(Nanos now, UdpOutbox& outbox) {
  if (outbox.credit() > 0) add_control(next_control_++, ControlKind::goodbye, now, outbox);
}

void UdpFlow::send_given_up(Nanos now, UdpOutbox& outbox) {
  if (outbox.credit() > 0) add_control(next_control_++, ControlKind::given_up, now, outbox);
}

void UdpFlow::detach(const UdpGroupPeer& group) {
  std::erase(groups_, &group);
  next_group_ = 0;
}

std::string UdpFlow::numbers(Nanos now) const {
  return concat(frames_.sent_bytes(), " bytes sent, ", received_bytes_, " received, ", frames_.count(),
                " frames not confirmed, last datagram ", (now - last_received_at_) / millisecond, " ms ago, rtt ",
                rtt_.smoothed() / microsecond, " us, ", losses_.lost_count(), " datagrams lost");
}

}  // namespace unisono
