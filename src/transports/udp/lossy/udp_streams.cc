#include "transports/udp/lossy/udp_streams.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace unisono {

// An `end` that waits for repeated ranges is sent before them after this time. Receivers count a process that sends nothing for
// 20 ms as gone.
static constexpr Nanos end_overdue = 4 * millisecond;

UdpStreams::Stream* UdpStreams::find(StreamName name) const {
  for (const auto& stream : live_) {
    if (stream->out.name == name) return stream.get();
  }
  return nullptr;
}

void UdpStreams::push(const OutStream& out, Nanos now) {
  UNISONO_CHECK(out.range_bytes > 0 && find(out.name) == nullptr);
  if (spare_.empty()) spare_.push_back(std::make_unique<Stream>());
  auto stream = std::move(spare_.back());
  spare_.pop_back();
  stream->out = out;
  stream->ranges = static_cast<uint32_t>((out.bytes.size() + out.range_bytes - 1) / out.range_bytes);
  UNISONO_CHECK(out.contributors.empty() || out.contributors.size() >= stream->ranges);
  stream->next = stream->requested_count = stream->cursor = 0;
  stream->ends_sent = 0;
  stream->end_at = now;
  stream->probe_interval = probe_first;
  stream->confirmed = stream->ranges == 0;  // The receiver knows without a datagram that a stream without ranges is complete.
  stream->reported = false;
  stream->requested.assign((stream->ranges + 63) / 64, 0);
  stream->sent_at.assign(stream->ranges, 0);
  live_.push_back(std::move(stream));
}

void UdpStreams::drop(StreamName name) {
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i]->out.name != name) continue;
    if (is_begun(*live_[i])) begun_ = {};
    live_[i]->out = {};
    spare_.push_back(std::move(live_[i]));
    live_.erase(live_.begin() + static_cast<ptrdiff_t>(i));
    return;
  }
}

bool UdpStreams::is_unconfirmed(StreamName name) const {
  const auto* stream = find(name);
  return stream != nullptr && !stream->confirmed;
}

DatagramFault UdpStreams::on_repair_request(const DatagramHeader& header, std::span<const std::byte> payload) {
  if (payload.size() < sizeof(uint32_t) || payload.size() > sizeof(uint32_t) + repair_bitmap_bytes_max)
    return DatagramFault::size;
  const auto bitmap = payload.subspan(sizeof(uint32_t));
  // An answer of the other rank is about its own stream, not about one that this process holds.
  if (stream_request(header, 0, bitmap).kind == StreamRequest::Kind::pending) return DatagramFault::none;
  auto* stream = find({header.op, header.phase});
  if (stream == nullptr) {
    // This process does not hold the stream. There are two cases. The stream was dropped, and the receiver is behind (op_old).
    // Or the stream has not begun, and the receiver is ahead (op_ahead); such a receiver repeats its request.
    for (const auto& other : live_) {
      if (op_distance(header.op, other->out.name.op) <= 0) return DatagramFault::op_old;
    }
    return live_.empty() ? DatagramFault::op_old : DatagramFault::op_ahead;
  }
  if (bitmap.empty()) {
    if (is_begun(*stream)) begun_ = {};
    stream->confirmed = true;
    stream->requested_count = 0;
    std::fill(stream->requested.begin(), stream->requested.end(), 0);
    return DatagramFault::none;
  }
  uint32_t first = 0;
  std::memcpy(&first, payload.data(), sizeof first);
  if (first >= ranges_per_slice || uint64_t{header.slice} * ranges_per_slice >= stream->ranges) return DatagramFault::place;
  if (stream->confirmed) return DatagramFault::none;
  stream->probe_interval = probe_first;
  const uint32_t begin = uint32_t{header.slice} * ranges_per_slice;
  // The ranges from stream->next on were not sent yet, so they need not be repeated.
  const uint32_t end = std::min(begin + ranges_per_slice, stream->next);
  for (size_t byte = 0; byte < bitmap.size(); ++byte) {
    auto bits = std::to_integer<unsigned>(bitmap[byte]);
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t range = begin + first + static_cast<uint32_t>(byte * 8) + static_cast<uint32_t>(std::countr_zero(bits));
      if (range >= end) return DatagramFault::none;
      auto& word = stream->requested[range / 64];
      const uint64_t bit = uint64_t{1} << (range % 64);
      if ((word & bit) != 0) continue;
      word |= bit;
      ++stream->requested_count;
      stream->cursor = std::min(stream->cursor, range / 64);
    }
  }
  return DatagramFault::none;
}

// Makes the datagram of a range or, if the range is longer than the path allows, the first of its parts.
void UdpStreams::fill(Stream& stream, uint32_t range, bool repaired, const NextOptions& options, Datagram& datagram) {
  datagram = {};
  auto& header = datagram.header;
  header.kind = DatagramKind::data;
  header.op = stream.out.name.op;
  header.phase = stream.out.name.phase;
  header.deadline_us = stream.out.deadline_us;
  header.slice = static_cast<uint16_t>(range / ranges_per_slice);
  header.packet_index = range % ranges_per_slice;
  header.contributors = stream.out.contributors.empty() ? stream.out.call : stream.out.contributors[range];
  if (range + tail_of(stream.ranges) >= stream.ranges) header.flags |= datagram_tail;
  if (repaired) header.flags |= datagram_repaired;
  const size_t begin = size_t{range} * stream.out.range_bytes;
  datagram.payload = stream.out.bytes.subspan(begin, std::min(stream.out.range_bytes, stream.out.bytes.size() - begin));
  datagram.range_bytes = stream.out.range_bytes;
  if (datagram.payload.size() <= options.payload_bytes_max) return;
  if (begun_.stream == nullptr) begun_ = {.stream = &stream, .range = range, .repaired = repaired};
  fill_part(datagram);
}

// Reduces the datagram of a whole range to the next part of the range.
void UdpStreams::fill_part(Datagram& datagram) {
  const auto whole = datagram.payload;
  const size_t at = size_t{begun_.next_part} * part_bytes_;
  datagram.header.flags |= datagram_part;
  datagram.part = {.index = static_cast<uint16_t>(begun_.next_part), .range_bytes = static_cast<uint16_t>(whole.size())};
  datagram.payload = whole.subspan(at, std::min<size_t>(part_bytes_, whole.size() - at));
  if (begun_.next_part++ > 0) ++counts_.more_parts;
  if (at + datagram.payload.size() == whole.size()) begun_ = {};
}

void UdpStreams::make_end(Stream& stream, Nanos now, Datagram& datagram) {
  datagram = {};
  datagram.header.kind = DatagramKind::end;
  datagram.header.op = stream.out.name.op;
  datagram.header.phase = stream.out.name.phase;
  datagram.header.deadline_us = stream.out.deadline_us;
  ++stream.ends_sent;
  if (stream.ends_sent < ends) {
    stream.end_at = now + end_interval;
    return;
  }
  stream.end_at = now + stream.probe_interval;
  stream.probe_interval = std::min(stream.probe_interval * 2, probe_max);
}

bool UdpStreams::next_repair(Stream& stream, const NextOptions& options, Datagram& datagram) {
  for (uint32_t word = stream.cursor; word < stream.requested.size(); ++word) {
    for (auto bits = stream.requested[word]; bits != 0; bits &= bits - 1) {
      const uint32_t range = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      stream.requested[word] &= ~(uint64_t{1} << (range % 64));
      --stream.requested_count;
      // The last copy of the range may still be on its way, so ignore this request. The receiver repeats requests.
      if (options.now - stream.sent_at[range] < options.answer_time) continue;
      stream.sent_at[range] = options.now;
      stream.cursor = word;
      fill(stream, range, true, options, datagram);
      ++counts_.repaired;
      return true;
    }
  }
  stream.cursor = static_cast<uint32_t>(stream.requested.size());
  return false;
}

bool UdpStreams::next(const NextOptions& options, Datagram& datagram) {
  if (begun_.stream != nullptr) {
    // The other parts are sent even if the path carries the whole range again, because its first parts may have arrived.
    auto& stream = *begun_.stream;
    stream.sent_at[begun_.range] = options.now;
    if (!begun_.repaired) stream.end_at = options.now;
    fill(stream, begun_.range, begun_.repaired, {.payload_bytes_max = 0}, datagram);
    return true;
  }
  for (const auto& stream : live_) {
    // If a receiver asks for much, or if the path loses what it asks for, it must still hear that this process is there.
    const bool is_overdue = stream->next == stream->ranges && options.now - stream->end_at >= end_overdue;
    if (stream->requested_count > 0 && is_overdue) {
      make_end(*stream, options.now, datagram);
      return true;
    }
    if (stream->requested_count > 0 && next_repair(*stream, options, datagram)) return true;
  }
  bool others_wait = options.others_wait;
  for (const auto& stream : live_) others_wait |= !stream->confirmed && stream->next < stream->ranges;
  for (const auto& stream : live_) {
    if (stream->confirmed) continue;
    if (stream->next < stream->ranges) {
      fill(*stream, stream->next, false, options, datagram);
      stream->sent_at[stream->next++] = options.now;
      stream->end_at = options.now;
      ++counts_.sent;
      return true;
    }
    if (options.now < stream->end_at) continue;
    if (stream->ends_sent >= ends && others_wait) {
      stream->end_at = options.now + stream->probe_interval;
      continue;
    }
    make_end(*stream, options.now, datagram);
    return true;
  }
  return false;
}

bool UdpStreams::ready() const {
  return begun_.stream != nullptr || std::any_of(live_.begin(), live_.end(), [](const auto& stream) {
           return stream->requested_count > 0 ||
                  (!stream->confirmed && (stream->next < stream->ranges || stream->ends_sent == 0));
         });
}

Nanos UdpStreams::next_deadline() const {
  Nanos next = never;
  for (const auto& stream : live_) {
    if (!stream->confirmed && stream->next == stream->ranges) next = std::min(next, stream->end_at);
  }
  return next;
}

bool UdpStreams::take_sent(StreamName& name) {
  for (const auto& stream : live_) {
    if (stream->reported || is_begun(*stream)) continue;
    if (!stream->confirmed && (stream->next < stream->ranges || stream->ends_sent == 0)) continue;
    stream->reported = true;
    name = stream->out.name;
    return true;
  }
  return false;
}

}  // namespace unisono
