#include "transports/udp/reliable/udp_flow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace unisono {
namespace {

constexpr size_t datagrams_outstanding_max = 8192;
// A closed port is believed after this many reports over this time, if nothing came from the peer meanwhile. A single report
// may be forged, or come from a restart.
constexpr uint32_t refusals_believed = 3;
constexpr Nanos refusals_last = 100 * millisecond;
// However long the silence lasts, the peer must have been asked this often before it is lost.
constexpr uint32_t pings_in_vain = 8;
constexpr Nanos control_interval_max = 50 * millisecond;
// After some 30 s the kernel asks whether a silent neighbour exists; a lost question would stop all sending to it for a second.
constexpr Nanos confirm_interval = 250 * millisecond;
constexpr int64_t debt_max = 64 << 10;  // a flow that could not send for a while does not get back its whole share
constexpr std::array<std::byte, 65'536> zeros{};

}  // namespace

UdpFlow::UdpFlow(const UdpFlowOptions& options, PayloadPool& pool, RateControl& all, size_t destination)
    : options_(options),
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
      frames_(pool),
      reassembler_(options.peer, pool),
      messages_(messages_max),
      last_heard_(options.started),
      silent_since_(options.started),
      last_step_(options.started) {
  arrived_.reserve(datagrams_outstanding_max);
  lost_.reserve(datagrams_outstanding_max);
  sent_.reserve(fragment_frames_max);
  control_answers_.reserve(64);
}

// Datagrams out ------------------------------------------------------------------------------------------------------

void UdpFlow::address_header(DatagramHeader& header, const DatagramGroup& group, Rank to) const {
  header.run_id = group.run_id;
  header.epoch = group.epoch;
  header.sender = static_cast<uint16_t>(group.self);
  header.receiver = static_cast<uint16_t>(to);
}

DatagramHeader UdpFlow::numbered(DatagramKind kind, Nanos now) {
  DatagramHeader header;
  header.kind = kind;
  address_header(header, options_.group, 1 - options_.group.self);
  header.flow_seq = next_seq_++;
  header.sent_at_us = clock_us(now);
  return header;
}

void UdpFlow::count_sent(size_t bytes) {
  rate_.sent(bytes);
  all_.sent(bytes);
}

DatagramHeader UdpFlow::answering(DatagramKind kind, Nanos now) {
  DatagramHeader header;
  header.kind = kind;
  address_header(header, options_.group, 1 - options_.group.self);
  header.flow_seq = next_answer_seq_++;
  header.sent_at_us = clock_us(now);
  return header;
}

void UdpFlow::put(DatagramHeader header, std::span<const std::byte> payload, UdpOutbox& outbox) {
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  outbox.add(options_.address, header, payload, out_seal_, sending_);
}

void UdpFlow::start(Control& control, Nanos now) {
  control = {.active = true, .id = next_control_++, .since = now, .next = now, .interval = rtt_.repair_interval(), .tries = 0};
}

void UdpFlow::put_control(uint32_t id, Word word, Nanos now, UdpOutbox& outbox) {
  auto* message = outbox.scratch();
  std::memcpy(message, &id, sizeof id);
  message[sizeof id] = std::byte{static_cast<uint8_t>(word)};
  const auto header = numbered(DatagramKind::control, now);
  count_sent(datagram_header_bytes + sizeof id + 1);
  put(header, {message, sizeof id + 1}, outbox);
}

void UdpFlow::speak_control(Control& control, Word word, Nanos now, UdpOutbox& outbox) {
  if (!control.active || now < control.next) return;
  put_control(control.id, word, now, outbox);
  control.next = now + control.interval;
  control.interval = std::min(control.interval + control.interval / 2, std::max(control_interval_max, rtt_.repair_interval()));
  ++control.tries;
}

bool UdpFlow::speak_messages(Nanos now, UdpOutbox& outbox) {
  for (; message_count_ > 0; --message_count_, first_message_ = (first_message_ + 1) % messages_max) {
    if (outbox.credit() == 0 && !outbox.flush()) return false;
    auto& message = messages_[first_message_];
    message.header.flow_seq = next_answer_seq_++;
    message.header.sent_at_us = clock_us(now);
    // Copied: the ring may reuse the message before the outbox is flushed.
    std::memcpy(outbox.scratch(), message.payload.data(), message.bytes);
    const std::span<const std::byte> payload(outbox.scratch(), message.bytes);
    outbox.add(options_.address, message.header, payload, message.seal, sending_);
  }
  return true;
}

bool UdpFlow::speak_probe(Nanos now, UdpOutbox& outbox) {
  if (const auto bytes = std::exchange(sending_.too_long_bytes, 0); bytes != 0) {
    // Frames and streams that were cut for longer datagrams can never be finished.
    const bool streams =
        std::any_of(groups_.begin(), groups_.end(), [](const auto* group) { return group->streams.held() > 0; });
    if (bytes <= datagram_bytes() && (!frames_.empty() || streams) && end_.ok()) {
      end_ = Status(Code::peer_lost, "its path takes no datagrams of " + std::to_string(bytes) + " bytes any more");
    }
    probe_.too_long(bytes);
  }
  PathQuestion question;
  while (!probe_.done() && now >= probe_.due()) {
    if (outbox.credit() == 0 && !outbox.flush()) return false;
    if (!probe_.next(rtt_, now, question)) break;
    auto header = answering(DatagramKind::path_probe, now);
    put_question(question, header);
    put(header, std::span(zeros).first(question.bytes - datagram_header_bytes), outbox);
  }
  return true;
}

bool UdpFlow::speak(Nanos now, uint32_t own_drops, UdpOutbox& outbox) {
  const auto credit = [&] { return outbox.credit() > 0 || outbox.flush(); };
  if (acks_.due() <= now) {
    if (!credit()) return false;
    const auto bytes = acks_.write(meter_.report(own_drops, clock_us(now)), {outbox.scratch(), ack_bytes_max}, now);
    put(answering(DatagramKind::fragment_ack, now), {outbox.scratch(), bytes}, outbox);
  }
  if (meter_.due() <= now) {
    if (!credit()) return false;
    const auto report = meter_.report(own_drops, clock_us(now));
    std::memcpy(outbox.scratch(), &report, sizeof report);
    put(answering(DatagramKind::feedback, now), {outbox.scratch(), sizeof report}, outbox);
  }
  if (train_.due() <= now) {
    if (!credit()) return false;
    auto header = answering(DatagramKind::path_probe, now);
    header.phase = static_cast<uint8_t>(PathPhase::answer);
    const auto answer = train_.answer(now, header.op);
    std::memcpy(outbox.scratch(), &answer, sizeof answer);
    put(header, {outbox.scratch(), sizeof answer}, outbox);
  }
  for (; !control_answers_.empty(); control_answers_.pop_back()) {
    if (!credit()) return false;
    const auto id = control_answers_.back();
    std::memcpy(outbox.scratch(), &id, sizeof id);
    put(answering(DatagramKind::control_ack, now), {outbox.scratch(), sizeof id}, outbox);
  }
  if (!credit()) return false;
  speak_control(ping_, Word::ping, now, outbox);
  if (!credit()) return false;
  speak_control(goodbye_, Word::goodbye, now, outbox);
  return speak_messages(now, outbox) && speak_probe(now, outbox);
}

void UdpFlow::say(const UdpGroupPeer& group, const DatagramHeader& header, uint32_t first, std::span<const std::byte> bitmap) {
  if (message_count_ == messages_max) {
    first_message_ = (first_message_ + 1) % messages_max;
    --message_count_;
  }
  auto& message = messages_[(first_message_ + message_count_++) % messages_max];
  message.header = header;
  address_header(message.header, group.group, group.rank);
  message.seal = group.out_seal;
  UNISONO_CHECK(bitmap.size() <= repair_bitmap_bytes_max);
  std::memcpy(message.payload.data(), &first, sizeof first);
  if (!bitmap.empty()) std::memcpy(message.payload.data() + sizeof first, bitmap.data(), bitmap.size());
  message.bytes = static_cast<uint32_t>(sizeof first + bitmap.size());
  message.header.payload_bytes = static_cast<uint16_t>(message.bytes);
}

std::optional<FragmentPlace> UdpFlow::next_fragment() {
  const auto place = frames_.next(datagram_bytes() - datagram_header_bytes);
  if (!place) return place;
  const size_t bytes = datagram_header_bytes + place->bytes();
  if (!losses_.may_send(bytes, rate_.rate(), rtt_)) return std::nullopt;
  if (options_.window_bytes != 0 && losses_.outstanding_bytes() > 0 &&
      losses_.outstanding_bytes() + bytes > options_.window_bytes)
    return std::nullopt;
  return place;
}

bool UdpFlow::stream_waits(Nanos now) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const auto* group) { return group->streams.waits() || group->streams.next_deadline() <= now; });
}

uint32_t UdpFlow::wanted(Nanos now) {
  if (stream_share_ > 0 && stream_waits(now)) return datagram_bytes();
  if (const auto place = next_fragment()) return datagram_header_bytes + place->bytes();
  return stream_waits(now) ? datagram_bytes() : 0;
}

uint32_t UdpFlow::send_next(Nanos now, UdpOutbox& outbox) {
  const bool streams_first = stream_share_ > 0;
  uint32_t bytes = streams_first ? send_stream(now, outbox) : 0;
  if (bytes == 0) {
    if (streams_first) stream_share_ = 0;  // streams did not use their share, so they lose it
    if (const auto place = next_fragment()) {
      bytes = send_fragment(*place, now, outbox);
      stream_share_ = std::min(stream_share_ + bytes, debt_max);
      return bytes;
    }
    if (!streams_first) bytes = send_stream(now, outbox);
  }
  stream_share_ = frames_.empty() ? 0 : std::max(stream_share_ - bytes, -debt_max);
  return bytes;
}

uint32_t UdpFlow::send_fragment(const FragmentPlace& place, Nanos now, UdpOutbox& outbox) {
  const auto parts = frames_.parts(place);
  auto payload = parts.payload;
  if (!parts.header.empty()) {
    std::memcpy(outbox.scratch(), parts.header.data(), parts.header.size());
    if (!parts.payload.empty()) std::memcpy(outbox.scratch() + parts.header.size(), parts.payload.data(), parts.payload.size());
    payload = {outbox.scratch(), parts.header.size() + parts.payload.size()};
  }
  auto header = numbered(DatagramKind::fragment, now);
  put_place(place, header);
  put(header, payload, outbox);
  const auto bytes = static_cast<uint32_t>(datagram_header_bytes + payload.size());
  losses_.sent(header.flow_seq, place.name, bytes, rtt_, now);
  frames_.taken(place.name);
  count_sent(bytes);
  return bytes;
}

uint32_t UdpFlow::send_stream(Nanos now, UdpOutbox& outbox) {
  UdpStreams::Datagram datagram;
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto& group = *groups_[(group_turn_ + i) % groups_.size()];
    bool others_wait = !frames_.empty();
    for (const auto* other : groups_) others_wait |= other != &group && other->streams.waits();
    if (!group.streams.next({.now = now, .answer_time = rtt_.answer_time(), .others_wait = others_wait}, datagram)) continue;
    group_turn_ = (group_turn_ + i + 1) % groups_.size();
    auto& header = datagram.header;
    address_header(header, group.group, group.rank);
    header.flow_seq = next_seq_++;
    header.sent_at_us = clock_us(now);
    header.payload_bytes = static_cast<uint16_t>(datagram.payload.size());
    outbox.add(options_.address, header, datagram.payload, group.out_seal, sending_);
    if (header.kind == DatagramKind::end) ++group.ends_sent;
    const auto bytes = static_cast<uint32_t>(datagram_header_bytes + datagram.payload.size());
    count_sent(bytes);
    return bytes;
  }
  return 0;
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

void UdpFlow::settle(Nanos now) {
  last_heard_ = silent_since_ = now;
  ping_.active = false;
  refusals_in_row_ = 0;
}

// Our datagrams arrive. A sign of life of the peer would not be enough: the next hop on the way to it may have changed.
void UdpFlow::confirm(Nanos now) {
  if (now - confirmed_at_ < confirm_interval) return;
  confirmed_at_ = now;
  sending_.confirm = true;
}

void UdpFlow::refused(Nanos now) {
  ++refusals_;
  if (refusals_in_row_++ == 0) first_refusal_ = now;
  if (!ping_.active) start(ping_, now);
  // Believed at once: not repeating a goodbye costs nothing, even if the report is forged.
  goodbye_refused_ |= goodbye_.active && goodbye_.tries > 0;
}

DatagramFault UdpFlow::heard(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                             Sink& sink) {
  if (!is_new(header)) return DatagramFault::duplicate;
  const auto now = arrival.now;
  settle(now);
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
      confirm(now);
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
  settle(arrival.now);
  if (header.kind == DatagramKind::repair_request) return DatagramFault::none;
  measure(header, arrival);
  (void)acks_.received(header.flow_seq, false, arrival.now);
  return DatagramFault::none;
}

// Uses the arrival time at the host: time in this side's socket while its process computes is no queue of the network.
void UdpFlow::measure(const DatagramHeader& header, const UdpArrival& arrival) {
  meter_.arrived(header.flow_seq, header.sent_at_us, clock_us(arrival.came), arrival.now);
}

DatagramFault UdpFlow::fragment(const DatagramHeader& header, std::span<const std::byte> payload, const UdpArrival& arrival,
                                Sink& sink) {
  FragmentPlace place;
  if (!get_place(header, place)) return DatagramFault::place;
  measure(header, arrival);
  const auto now = arrival.now;
  const auto result = reassembler_.add(place, payload, sink);
  if (to_be_acknowledged(result)) {
    (void)acks_.received(header.flow_seq, true, now);
    if (result == FragmentResult::whole) acks_.ask(now);
  }
  if (result == FragmentResult::no_memory) acks_.refused(now);
  switch (result) {
    case FragmentResult::whole:
      ++received_frames_;
      received_bytes_ += place.frame_bytes;
      return DatagramFault::none;
    case FragmentResult::stored:
    case FragmentResult::no_memory: return DatagramFault::none;
    case FragmentResult::duplicate: return DatagramFault::duplicate;
    case FragmentResult::ahead: return DatagramFault::op_ahead;
    case FragmentResult::inconsistent: return DatagramFault::size;
    case FragmentResult::corrupt: break;
  }
  end_ = Status(Code::corrupt, std::string("a frame was damaged: ") + unisono::name(reassembler_.fault()));
  return DatagramFault::none;
}

DatagramFault UdpFlow::acknowledgement(const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  if (report_heard_ && !sequence_before(newest_report_, header.flow_seq) && header.kind == DatagramKind::feedback)
    return DatagramFault::duplicate;
  Acknowledgement ack;
  if (header.kind == DatagramKind::feedback) {
    if (payload.size() != sizeof ack.feedback) return DatagramFault::size;
    std::memcpy(&ack.feedback, payload.data(), sizeof ack.feedback);
  } else if (const auto fault = read_ack(payload, next_seq_ - 1, ack); fault != AckFault::none) {
    return fault == AckFault::never_sent ? DatagramFault::op_ahead : DatagramFault::size;
  }
  // A late acknowledgement still confirms fragments, but its report is out of date.
  if (!report_heard_ || sequence_before(newest_report_, header.flow_seq)) {
    report_heard_ = true;
    newest_report_ = header.flow_seq;
    if (std::exchange(reported_, ack.feedback.received) != ack.feedback.received) confirm(now);
    if (ack.feedback.received > 0) rtt_.echoed(clock_us(now), ack.feedback.echo_sent_at_us, ack.feedback.echo_held_us);
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
    question.bytes = static_cast<uint32_t>(datagram_header_bytes + payload.size());
    train_.question(question, arrival.came);
    return DatagramFault::none;
  }
  PathAnswer answer;
  if (!read_answer(payload, answer)) return DatagramFault::size;
  if (!probe_.answered(header.op, answer, rtt_, arrival.now)) return DatagramFault::duplicate;
  rate_.set_datagram_bytes(probe_.datagram_bytes());
  if (probe_.done() && probe_.dispersion_rate() > 0) {
    rate_.probed(probe_.dispersion_rate());
    if (probe_.dispersion_rate() / 2 > all_.rate()) all_.probed(probe_.dispersion_rate());
  }
  all_.set_datagram_bytes(probe_.datagram_bytes());
  return DatagramFault::none;
}

bool UdpFlow::is_goodbye(const DatagramHeader& header, std::span<const std::byte> payload) {
  return header.kind == DatagramKind::control && payload.size() == sizeof(uint32_t) + 1 &&
         static_cast<Word>(payload.back()) == Word::goodbye;
}

DatagramFault UdpFlow::control(std::span<const std::byte> payload, Nanos now) {
  uint32_t id = 0;
  if (payload.size() != sizeof id + 1) return DatagramFault::size;
  std::memcpy(&id, payload.data(), sizeof id);
  const auto word = static_cast<Word>(payload[sizeof id]);
  if (word != Word::ping && word != Word::goodbye) return DatagramFault::place;
  if (control_answers_.size() < control_answers_.capacity()) control_answers_.push_back(id);
  heard_goodbye_ |= word == Word::goodbye;
  if (word == Word::goodbye && end_.ok()) end_ = Status(Code::peer_lost, "ended: it closed the link");
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
  // Datagrams may have waited in the socket while this side did not poll; that time does not count as silence of the peer.
  if (now - last_step_ > 2 * options_.keep_alive) silent_since_ += now - last_step_;
  last_step_ = now;
  if (!ping_.active && now - last_heard_ >= options_.keep_alive) start(ping_, now);
  if (!end_.ok()) return any;
  if (refusals_in_row_ >= refusals_believed && now - first_refusal_ >= refusals_last) {
    end_ = Status(Code::peer_lost,
                  "its process is gone: its host refused " + std::to_string(refusals_in_row_) + " datagrams in a row");
  } else if (now - silent_since_ > options_.silence && ping_.active && ping_.tries >= pings_in_vain) {
    end_ = Status(Code::peer_lost, "no answer for " + std::to_string((now - last_heard_) / millisecond) + " ms, asked " +
                                       std::to_string(ping_.tries) + " times");
  }
  return any;
}

Nanos UdpFlow::next_deadline(Nanos now) const {
  if (message_count_ > 0 || !control_answers_.empty()) return 0;
  Nanos next = std::min({acks_.due(), meter_.due(), train_.due(), losses_.due()});
  if (!probe_.done()) next = std::min(next, probe_.due());
  next = std::min(next, ping_.active ? ping_.next : last_heard_ + options_.keep_alive);
  if (goodbye_.active) next = std::min(next, goodbye_.next);
  for (const auto* group : groups_) {
    if (const auto end = group->streams.next_deadline(); end > now) next = std::min(next, end);
  }
  return next;
}

void UdpFlow::say_goodbye(Nanos now) {
  if (!goodbye_.active && !goodbye_answered_) start(goodbye_, now);
}

void UdpFlow::say_last_goodbye(Nanos now, UdpOutbox& outbox) {
  if (outbox.credit() > 0) put_control(next_control_++, Word::goodbye, now, outbox);
}

void UdpFlow::detach(const UdpGroupPeer& group) {
  std::erase(groups_, &group);
  group_turn_ = 0;
}

std::string UdpFlow::numbers(Nanos now) const {
  return std::to_string(frames_.sent_bytes()) + " bytes sent, " + std::to_string(received_bytes_) + " received, " +
         std::to_string(frames_.count()) + " frames not confirmed, last heard " +
         std::to_string((now - last_heard_) / millisecond) + " ms ago, rtt " + std::to_string(rtt_.smoothed() / microsecond) +
         " us, " + std::to_string(losses_.lost_count()) + " datagrams lost";
}

}  // namespace unisono
