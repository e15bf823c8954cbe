#include "transports/udp/reliable/udp_outbox.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"

namespace unisono {
namespace {

void note_too_long(UdpSendCounters& counters, size_t bytes) {
  ++counters.too_long;
  if (counters.too_long_bytes == 0 || bytes < counters.too_long_bytes) counters.too_long_bytes = static_cast<uint32_t>(bytes);
}

}  // namespace

UdpOutbox::UdpOutbox(DatagramSocket& socket, size_t scratch_bytes)
    : socket_(socket),
      scratch_bytes_(scratch_bytes),
      stride_(scratch_bytes + cache_line_bytes),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(batch * stride_)) {}

void UdpOutbox::add(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                    const DatagramSeal& seal, UdpSendCounters& counters) {
  UNISONO_CHECK(count_ < batch && !blocked_ && payload.size() <= scratch_bytes_ && header.payload_bytes == payload.size());
  datagrams_[count_] = {.to = &to,
                        .header = header,
                        .payload = payload,
                        .confirms = std::exchange(counters.confirm, false),
                        .alone = counters.alone};
  counters_[count_] = &counters;
  tagged_[count_] = tagged(std::as_bytes(std::span(&datagrams_[count_].header, 1)), payload, seal);
  ++count_;
}

void UdpOutbox::add_encrypted(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                              DatagramSealer& sealer, uint64_t number, UdpSendCounters& counters) {
  UNISONO_CHECK(count_ < batch && !blocked_ && payload.size() <= scratch_bytes_ && header.payload_bytes == payload.size());
  UNISONO_CHECK(static_cast<uint32_t>(number) == header.flow_seq);
  seal();
  auto& datagram = datagrams_[count_];
  auto* const out = scratch();
  datagram.to = &to;
  datagram.header = header;
  SealTag tag;
  sealer.seal(number, std::as_bytes(std::span(&datagram.header, 1)).first(datagram_tagged_bytes), payload, out, tag);
  std::memcpy(&datagram.header.tag, tag.data(), sizeof datagram.header.tag);
  std::memcpy(out - encryption_bytes, tag.data() + sizeof datagram.header.tag, encryption_bytes);
  datagram.payload = {out - encryption_bytes, encryption_bytes + payload.size()};
  datagram.confirms = std::exchange(counters.confirm, false);
  datagram.alone = counters.alone;
  counters_[count_] = &counters;
  encrypted_bytes_ += payload.size();
  sealed_ = ++count_;
}

void UdpOutbox::add_sealed(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                           UdpSendCounters& counters) {
  seal();
  add(to, header, payload, {}, counters);
  sealed_ = count_;
}

void UdpOutbox::seal() {
  const size_t count = count_ - sealed_;
  if (count == 0) return;
  std::array<uint64_t, batch> tags;
  make_tags(std::span(tagged_).subspan(sealed_, count), std::span(tags).first(count));
  for (size_t i = 0; i < count; ++i) datagrams_[sealed_ + i].header.tag = tags[i];
  sealed_ = count_;
}

bool UdpOutbox::flush() {
  size_t at = 0;
  seal();
  blocked_ = wants_time_ = false;
  encrypted_bytes_ = 0;
  while (at < count_) {
    const auto outcome = socket_.send(std::span(datagrams_).subspan(at, count_ - at));
    for (size_t i = at; i < at + outcome.taken; ++i) {
      ++counters_[i]->datagrams;
      counters_[i]->bytes += datagram_header_bytes + datagrams_[i].payload.size();
    }
    at += outcome.taken;
    if (at == count_) break;
    if (outcome.stop == SendStop::would_block || outcome.stop == SendStop::no_buffers || outcome.stop == SendStop::none) {
      blocked_ = true;
      wants_time_ = outcome.stop != SendStop::would_block;
      keep_rest(at);
      return false;
    }
    auto& counters = *counters_[at];
    if (outcome.stop == SendStop::firewalled) ++counters.firewalled;
    else if (outcome.stop == SendStop::too_long) note_too_long(counters, datagram_header_bytes + datagrams_[at].payload.size());
    else ++counters.failed;
    ++at;
  }
  count_ = sealed_ = 0;
  return true;
}

void UdpOutbox::keep_rest(size_t from) {
  for (size_t i = from; i < count_; ++i) {
    const size_t to = i - from;
    auto datagram = datagrams_[i];
    auto* destination = scratch_.get() + to * stride_;
    // Payloads in scratch memory only move to lower addresses, and the lowest moves first. Therefore no payload is overwritten
    // before it has moved.
    if (!datagram.payload.empty()) std::memmove(destination, datagram.payload.data(), datagram.payload.size());
    datagram.payload = {destination, datagram.payload.size()};
    datagrams_[to] = datagram;
    counters_[to] = counters_[i];
  }
  count_ -= from;
  sealed_ = count_;
}

void UdpOutbox::forget(const UdpSendCounters& counters) {
  if (!blocked_ && flush()) return;
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (counters_[i] == &counters) continue;
    datagrams_[kept] = datagrams_[i];
    counters_[kept++] = counters_[i];
  }
  count_ = sealed_ = kept;
  if (count_ == 0) blocked_ = false;
}

}  // namespace unisono
