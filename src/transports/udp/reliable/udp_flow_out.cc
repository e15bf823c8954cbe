// The functions of a UDP link that send datagrams.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "transports/udp/reliable/udp_flow.h"

namespace unisono {
namespace {

constexpr Nanos control_interval_max = 50 * millisecond;
constexpr int64_t debt_max = 64 << 10;  // limit for stream_debt_bytes_: waiting traffic catches up at most this many bytes
constexpr std::array<std::byte, 65'536> zeros{};

// Returns true if datagrams of this size show whether the path carries datagrams of up to `full` bytes.
bool is_long(size_t bytes, size_t full) { return bytes > base_datagram_bytes && bytes > full - full / 8; }

}  // namespace

void UdpFlow::address_header(DatagramHeader& header, const DatagramGroup& group, Rank to) const {
  header.run_id = group.run_id;
  header.epoch = group.epoch;
  header.sender = static_cast<uint16_t>(group.self);
  header.receiver = static_cast<uint16_t>(to);
}

DatagramHeader UdpFlow::numbered_header(DatagramKind kind, uint64_t number, Nanos now) const {
  DatagramHeader header;
  header.kind = kind;
  address_header(header, options_.group, 1 - options_.group.self);
  header.flow_seq = static_cast<uint32_t>(number);
  header.sent_at_us = clock_us(now);
  return header;
}

DatagramHeader UdpFlow::make_header(DatagramKind kind, Nanos now) { return numbered_header(kind, next_seq_++, now); }

void UdpFlow::count_sent(size_t bytes) {
  rate_.sent(bytes);
  all_.sent(bytes);
}

DatagramHeader UdpFlow::make_answer_header(DatagramKind kind, Nanos now) {
  return numbered_header(kind, next_answer_seq_++, now);
}

void UdpFlow::put(DatagramHeader header, std::span<const std::byte> payload, UdpOutbox& outbox) {
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  add(header, payload, out_seal_, outbox);
}

// Adds a datagram whose header is complete but for the tag. Call it once for each number.
void UdpFlow::add(const DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal,
                  UdpOutbox& outbox) {
  if (!encryption_) return outbox.add(options_.address, header, payload, seal, sending_);
  const auto series = series_of(header.kind);
  const auto next = series == UdpSeries::numbers ? next_seq_ : next_answer_seq_;
  const uint64_t number = next - (static_cast<uint32_t>(next) - header.flow_seq);
  outbox.add_encrypted(options_.address, header, payload, encryption_->out(series), number, sending_);
}

void UdpFlow::start(Control& control, Nanos now) {
  control = {.active = true, .id = next_control_++, .since = now, .next = now, .interval = rtt_.repair_interval(), .tries = 0};
}

void UdpFlow::add_control(uint32_t id, ControlKind kind, Nanos now, UdpOutbox& outbox) {
  auto* message = outbox.scratch();
  std::memcpy(message, &id, sizeof id);
  message[sizeof id] = std::byte{static_cast<uint8_t>(kind)};
  const auto header = make_header(DatagramKind::control, now);
  watch_.sent(header.flow_seq, false, now);
  count_sent(header_bytes() + sizeof id + 1);
  put(header, {message, sizeof id + 1}, outbox);
}

void UdpFlow::send_control(Control& control, ControlKind kind, Nanos now, UdpOutbox& outbox) {
  if (!control.active || now < control.next) return;
  add_control(control.id, kind, now, outbox);
  control.next = now + control.interval;
  control.interval = std::min(control.interval + control.interval / 2, std::max(control_interval_max, rtt_.repair_interval()));
  ++control.tries;
}

bool UdpFlow::send_repair_requests(Nanos now, UdpOutbox& outbox) {
  for (; request_count_ > 0; --request_count_, first_request_ = (first_request_ + 1) % requests_max) {
    if (outbox.credit() == 0 && !outbox.flush()) return false;
    auto& request = repair_requests_[first_request_];
    request.header.flow_seq = static_cast<uint32_t>(next_answer_seq_++);
    request.header.sent_at_us = clock_us(now);
    // Copy the request, because its place in the buffer may be used again before the outbox is flushed.
    std::memcpy(outbox.scratch(), request.payload.data(), request.bytes);
    const std::span<const std::byte> payload(outbox.scratch(), request.bytes);
    add(request.header, payload, request.seal, outbox);
  }
  return true;
}

bool UdpFlow::send_probes(Nanos now, UdpOutbox& outbox) {
  take_refused_size(now);
  if (probe_.can_check() && watch_.due(rtt_) <= now) probe_.check(now);
  const auto before = datagram_bytes();
  const bool all = send_questions(now, outbox);
  follow_size(before, false);
  if (probe_.take_checked()) watch_.checked();
  return all;
}

bool UdpFlow::send_questions(Nanos now, UdpOutbox& outbox) {
  PathQuestion question;
  while (now >= probe_.due()) {
    if (outbox.credit() == 0 && !outbox.flush()) return false;
    if (!probe_.next(rtt_, now, question)) break;
    auto header = make_answer_header(DatagramKind::path_probe, now);
    put_question(question, header, header_bytes());
    // With segmentation offload, a train could travel as one packet. Its datagrams would arrive at the same moment, and no rate
    // could be measured.
    const bool alone = std::exchange(sending_.alone, true);
    put(header, std::span(zeros).first(question.bytes - header_bytes()), outbox);
    sending_.alone = alone;
  }
  return true;
}

// Reacts to the kernel's refusal of a datagram that is too long.
void UdpFlow::take_refused_size(Nanos now) {
  const auto bytes = std::exchange(sending_.too_long_bytes, 0);
  if (bytes == 0) return;
  const bool streams = std::any_of(groups_.begin(), groups_.end(), [](const auto* group) { return group->streams.held() > 0; });
  // Frames and ranges cannot be sent in smaller pieces than these.
  if (bytes <= base_datagram_bytes && (!frames_.empty() || streams) && end_.ok())
    end_ = Status(Code::peer_lost, concat("the path to the peer no longer carries datagrams of ", bytes, " bytes"));
  const auto before = datagram_bytes();
  probe_.too_long(bytes, now);
  follow_size(before, true);
  if (probe_.take_checked()) watch_.checked();
}

// Call this after the size may have changed. `before` is the size before; refused: the kernel has refused a longer datagram.
void UdpFlow::follow_size(uint32_t before, bool refused) {
  const auto bytes = datagram_bytes();
  if (bytes == before) return;
  rate_.set_datagram_bytes(bytes);
  all_.set_datagram_bytes(bytes);
  if (bytes < before) {
    losses_.forget();
    frames_.recut();
    watch_.checked();
  }
  if (!probe_.sizes_known()) return;
  const auto largest = std::max(size_change_.largest, before);
  size_change_ = {.count = size_change_.count + 1,
                  .bytes = bytes,
                  .before = before,
                  .largest = std::max(largest, bytes),
                  .refused = refused || (size_change_.refused && bytes > before)};
  sending_.alone = size_change_.is_reduced();
}

bool UdpFlow::send_unpaced(Nanos now, uint32_t own_drops, UdpOutbox& outbox) {
  const auto credit = [&] { return outbox.credit() > 0 || outbox.flush(); };
  if (acks_.due() <= now) {
    if (!credit()) return false;
    const auto bytes = acks_.write(meter_.report(own_drops, clock_us(now)), {outbox.scratch(), ack_bytes_max}, now);
    put(make_answer_header(DatagramKind::fragment_ack, now), {outbox.scratch(), bytes}, outbox);
  }
  if (meter_.due() <= now) {
    if (!credit()) return false;
    const auto report = meter_.report(own_drops, clock_us(now));
    std::memcpy(outbox.scratch(), &report, sizeof report);
    put(make_answer_header(DatagramKind::feedback, now), {outbox.scratch(), sizeof report}, outbox);
  }
  if (train_.due() <= now) {
    if (!credit()) return false;
    auto header = make_answer_header(DatagramKind::path_probe, now);
    header.phase = static_cast<uint8_t>(PathPhase::answer);
    const auto answer = train_.answer(now, header.op);
    std::memcpy(outbox.scratch(), &answer, sizeof answer);
    put(header, {outbox.scratch(), sizeof answer}, outbox);
  }
  for (; !control_answers_.empty(); control_answers_.pop_back()) {
    if (!credit()) return false;
    const auto id = control_answers_.back();
    std::memcpy(outbox.scratch(), &id, sizeof id);
    put(make_answer_header(DatagramKind::control_ack, now), {outbox.scratch(), sizeof id}, outbox);
  }
  if (!credit()) return false;
  send_control(ping_, ControlKind::ping, now, outbox);
  if (!credit()) return false;
  send_control(goodbye_, ControlKind::goodbye, now, outbox);
  return send_repair_requests(now, outbox) && send_probes(now, outbox);
}

void UdpFlow::queue_repair(const UdpGroupPeer& group, const DatagramHeader& header, uint32_t first,
                           std::span<const std::byte> bitmap) {
  repair_requests_.resize(requests_max);  // with the first request: a link without lossy operations needs no memory for them
  if (request_count_ == requests_max) {
    first_request_ = (first_request_ + 1) % requests_max;
    --request_count_;
  }
  auto& request = repair_requests_[(first_request_ + request_count_++) % requests_max];
  request.header = header;
  address_header(request.header, group.group, group.rank);
  request.seal = group.out_seal;
  UNISONO_CHECK(bitmap.size() <= repair_bitmap_bytes_max);
  std::memcpy(request.payload.data(), &first, sizeof first);
  if (!bitmap.empty()) std::memcpy(request.payload.data() + sizeof first, bitmap.data(), bitmap.size());
  request.bytes = static_cast<uint32_t>(sizeof first + bitmap.size());
  request.header.payload_bytes = static_cast<uint16_t>(request.bytes);
}

std::optional<FragmentPosition> UdpFlow::next_fragment() {
  const auto position = frames_.next(datagram_bytes() - header_bytes());
  if (!position) return position;
  const size_t bytes = header_bytes() + position->bytes();
  if (!losses_.may_send(bytes, rate_.rate(), rtt_)) return std::nullopt;
  if (options_.window_bytes != 0 && losses_.outstanding_bytes() > 0 &&
      losses_.outstanding_bytes() + bytes > options_.window_bytes)
    return std::nullopt;
  return position;
}

bool UdpFlow::stream_is_ready(Nanos now) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const auto* group) { return group->streams.ready() || group->streams.next_deadline() <= now; });
}

uint32_t UdpFlow::next_datagram_bytes(Nanos now) {
  if (stream_debt_bytes_ > 0 && stream_is_ready(now)) return datagram_bytes();
  if (const auto position = next_fragment()) return header_bytes() + position->bytes();
  return stream_is_ready(now) ? datagram_bytes() : 0;
}

uint32_t UdpFlow::send_next(Nanos now, UdpOutbox& outbox) {
  const bool streams_first = stream_debt_bytes_ > 0;
  uint32_t bytes = streams_first ? send_stream(now, outbox) : 0;
  if (bytes == 0) {
    if (streams_first) stream_debt_bytes_ = 0;  // streams have nothing to send and lose their share
    if (const auto position = next_fragment()) {
      bytes = send_fragment(*position, now, outbox);
      stream_debt_bytes_ = std::min(stream_debt_bytes_ + bytes, debt_max);
      return bytes;
    }
    if (!streams_first) bytes = send_stream(now, outbox);
  }
  stream_debt_bytes_ = frames_.empty() ? 0 : std::max(stream_debt_bytes_ - bytes, -debt_max);
  return bytes;
}

uint32_t UdpFlow::send_fragment(const FragmentPosition& position, Nanos now, UdpOutbox& outbox) {
  const auto parts = frames_.parts(position);
  auto payload = parts.payload;
  if (!parts.header.empty()) {
    std::memcpy(outbox.scratch(), parts.header.data(), parts.header.size());
    if (!parts.payload.empty()) std::memcpy(outbox.scratch() + parts.header.size(), parts.payload.data(), parts.payload.size());
    payload = {outbox.scratch(), parts.header.size() + parts.payload.size()};
  }
  auto header = make_header(DatagramKind::fragment, now);
  write_position(position, header);
  put(header, payload, outbox);
  const auto bytes = static_cast<uint32_t>(header_bytes() + payload.size());
  watch_.sent(header.flow_seq, is_long(bytes, datagram_bytes()), now);
  losses_.sent(header.flow_seq, position.name, bytes, rtt_, now);
  frames_.taken(position.name);
  count_sent(bytes);
  return bytes;
}

uint32_t UdpFlow::send_stream(Nanos now, UdpOutbox& outbox) {
  UdpStreams::Datagram datagram;
  for (size_t i = 0; i < groups_.size(); ++i) {
    auto& group = *groups_[(next_group_ + i) % groups_.size()];
    bool others_wait = !frames_.empty();
    for (const auto* other : groups_) others_wait |= other != &group && other->streams.ready();
    const UdpStreams::NextOptions options{.now = now,
                                          .answer_time = rtt_.answer_time(),
                                          .others_wait = others_wait,
                                          .payload_bytes_max = datagram_bytes() - header_bytes()};
    if (!group.streams.next(options, datagram)) continue;
    next_group_ = (next_group_ + i + 1) % groups_.size();
    auto payload = datagram.payload;
    if ((datagram.header.flags & datagram_part) != 0) {
      std::memcpy(outbox.scratch(), &datagram.part, sizeof datagram.part);
      std::memcpy(outbox.scratch() + sizeof datagram.part, payload.data(), payload.size());
      payload = {outbox.scratch(), sizeof datagram.part + payload.size()};
    }
    auto& header = datagram.header;
    address_header(header, group.group, group.rank);
    header.flow_seq = static_cast<uint32_t>(next_seq_++);
    header.sent_at_us = clock_us(now);
    header.payload_bytes = static_cast<uint16_t>(payload.size());
    add(header, payload, group.out_seal, outbox);
    if (header.kind == DatagramKind::end) ++group.ends_sent;
    const auto bytes = static_cast<uint32_t>(header_bytes() + payload.size());
    watch_.sent(header.flow_seq, is_long(bytes, header_bytes() + datagram.range_bytes), now);
    count_sent(bytes);
    return bytes;
  }
  return 0;
}

}  // namespace unisono
