#include "transports/udp/lossy/udp_streams.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace unisono {

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
  stream->next = stream->asked_count = stream->cursor = 0;
  stream->ends_sent = 0;
  stream->end_at = now;
  stream->probe_interval = probe_first;
  stream->confirmed = stream->ranges == 0;  // its receiver knows that an empty stream is complete
  stream->reported = false;
  stream->asked.assign((stream->ranges + 63) / 64, 0);
  stream->sent_at.assign(stream->ranges, 0);
  live_.push_back(std::move(stream));
}

void UdpStreams::drop(StreamName name) {
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i]->out.name != name) continue;
    live_[i]->out = {};
    spare_.push_back(std::move(live_[i]));
    live_.erase(live_.begin() + static_cast<ptrdiff_t>(i));
    return;
  }
}

bool UdpStreams::wanted(StreamName name) const {
  const auto* stream = find(name);
  return stream != nullptr && !stream->confirmed;
}

DatagramFault UdpStreams::asked(const DatagramHeader& header, std::span<const std::byte> payload) {
  if (payload.size() < sizeof(uint32_t) || payload.size() > sizeof(uint32_t) + repair_bitmap_bytes_max)
    return DatagramFault::size;
  auto* stream = find({header.op, header.phase});
  if (stream == nullptr) {
    // Either the stream was dropped, and its receiver is behind; or it has not begun, and its receiver is ahead and will ask
    // again.
    for (const auto& other : live_) {
      if (op_distance(header.op, other->out.name.op) <= 0) return DatagramFault::op_old;
    }
    return live_.empty() ? DatagramFault::op_old : DatagramFault::op_ahead;
  }
  const auto bitmap = payload.subspan(sizeof(uint32_t));
  if (bitmap.empty()) {
    stream->confirmed = true;
    stream->asked_count = 0;
    std::fill(stream->asked.begin(), stream->asked.end(), 0);
    return DatagramFault::none;
  }
  uint32_t first = 0;
  std::memcpy(&first, payload.data(), sizeof first);
  if (first >= ranges_per_slice || uint64_t{header.slice} * ranges_per_slice >= stream->ranges) return DatagramFault::place;
  if (stream->confirmed) return DatagramFault::none;
  stream->probe_interval = probe_first;
  const uint32_t begin = uint32_t{header.slice} * ranges_per_slice;
  const uint32_t end = std::min(begin + ranges_per_slice, stream->next);  // later ranges were not sent yet and will come anyway
  for (size_t byte = 0; byte < bitmap.size(); ++byte) {
    auto bits = std::to_integer<unsigned>(bitmap[byte]);
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t range = begin + first + static_cast<uint32_t>(byte * 8) + static_cast<uint32_t>(std::countr_zero(bits));
      if (range >= end) return DatagramFault::none;
      auto& word = stream->asked[range / 64];
      const uint64_t bit = uint64_t{1} << (range % 64);
      if ((word & bit) != 0) continue;
      word |= bit;
      ++stream->asked_count;
      stream->cursor = std::min(stream->cursor, range / 64);
    }
  }
  return DatagramFault::none;
}

void UdpStreams::fill(const Stream& stream, uint32_t range, Datagram& datagram) const {
  datagram = {};
  auto& header = datagram.header;
  header.kind = DatagramKind::data;
  header.op = stream.out.name.op;
  header.phase = stream.out.name.phase;
  header.deadline_us = stream.out.deadline_us;
  header.slice = static_cast<uint16_t>(range / ranges_per_slice);
  header.packet_index = range % ranges_per_slice;
  header.contributors = stream.out.contributors.empty() ? uint16_t{0} : stream.out.contributors[range];
  if (range + tail_of(stream.ranges) >= stream.ranges) header.flags |= datagram_tail;
  const size_t begin = size_t{range} * stream.out.range_bytes;
  datagram.payload = stream.out.bytes.subspan(begin, std::min(stream.out.range_bytes, stream.out.bytes.size() - begin));
}

void UdpStreams::say_end(Stream& stream, Nanos now, Datagram& datagram) {
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

bool UdpStreams::next_repair(Stream& stream, const Turn& turn, Datagram& datagram) {
  for (uint32_t word = stream.cursor; word < stream.asked.size(); ++word) {
    for (auto bits = stream.asked[word]; bits != 0; bits &= bits - 1) {
      const uint32_t range = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      stream.asked[word] &= ~(uint64_t{1} << (range % 64));
      --stream.asked_count;
      // The range may still be on its way, so this request is ignored; the receiver repeats requests.
      if (turn.now - stream.sent_at[range] < turn.answer_time) continue;
      stream.sent_at[range] = turn.now;
      stream.cursor = word;
      fill(stream, range, datagram);
      datagram.header.flags |= datagram_repaired;
      ++counts_.repaired;
      return true;
    }
  }
  stream.cursor = static_cast<uint32_t>(stream.asked.size());
  return false;
}

bool UdpStreams::next(const Turn& turn, Datagram& datagram) {
  for (const auto& stream : live_) {
    if (stream->asked_count > 0 && next_repair(*stream, turn, datagram)) return true;
  }
  bool others_wait = turn.others_wait;
  for (const auto& stream : live_) others_wait |= !stream->confirmed && stream->next < stream->ranges;
  for (const auto& stream : live_) {
    if (stream->confirmed) continue;
    if (stream->next < stream->ranges) {
      fill(*stream, stream->next, datagram);
      stream->sent_at[stream->next++] = turn.now;
      stream->end_at = turn.now;
      ++counts_.sent;
      return true;
    }
    if (turn.now < stream->end_at) continue;
    if (stream->ends_sent >= ends && others_wait) {
      stream->end_at = turn.now + stream->probe_interval;
      continue;
    }
    say_end(*stream, turn.now, datagram);
    return true;
  }
  return false;
}

bool UdpStreams::waits() const {
  return std::any_of(live_.begin(), live_.end(), [](const auto& stream) {
    return stream->asked_count > 0 || (!stream->confirmed && (stream->next < stream->ranges || stream->ends_sent == 0));
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
    if (stream->reported || (!stream->confirmed && (stream->next < stream->ranges || stream->ends_sent == 0))) continue;
    stream->reported = true;
    name = stream->out.name;
    return true;
  }
  return false;
}

}  // namespace unisono
