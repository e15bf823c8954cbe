#include "wire/datagram.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/prefetch.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

static_assert(std::endian::native == std::endian::little, "the struct is the layout: little-endian hosts only");

uint64_t tag_of(const DatagramTagged& datagram) {
  const auto& [key, head, payload] = datagram.message;
  if (datagram.auth == DatagramAuth::mac) return siphash_2_4(key, head, payload);
  return crc32c(payload.data(), payload.size(), crc32c(head.data(), head.size()));
}

}  // namespace

const char* name(DatagramFault fault) {
  switch (fault) {
    case DatagramFault::none: return "none";
    case DatagramFault::too_short: return "too_short";
    case DatagramFault::magic: return "magic";
    case DatagramFault::version: return "version";
    case DatagramFault::kind: return "kind";
    case DatagramFault::run: return "run";
    case DatagramFault::epoch: return "epoch";
    case DatagramFault::receiver: return "receiver";
    case DatagramFault::sender: return "sender";
    case DatagramFault::address: return "address";
    case DatagramFault::length: return "length";
    case DatagramFault::tag: return "tag";
    case DatagramFault::op_old: return "op_old";
    case DatagramFault::op_ahead: return "op_ahead";
    case DatagramFault::place: return "place";
    case DatagramFault::size: return "size";
    case DatagramFault::duplicate: return "duplicate";
    case DatagramFault::late: return "late";
  }
  return "unknown";
}

void make_tags(std::span<const DatagramTagged> datagrams, std::span<uint64_t> tags) {
  UNISONO_CHECK(datagrams.size() == tags.size() && datagrams.size() <= datagrams_per_batch);
  std::array<const SipMessage*, datagrams_per_batch> messages;
  std::array<size_t, datagrams_per_batch> indices;
  std::array<uint64_t, datagrams_per_batch> made;
  size_t count = 0;
  for (size_t i = 0; i < datagrams.size(); ++i) {
    if (datagrams[i].auth == DatagramAuth::mac) {
      messages[count] = &datagrams[i].message;
      indices[count++] = i;
    } else {
      if (i + 1 < datagrams.size()) prefetch_to_read(datagrams[i + 1].message.rest);
      tags[i] = tag_of(datagrams[i]);
    }
  }
  siphash_2_4(std::span(messages).first(count), std::span(made).first(count));
  for (size_t i = 0; i < count; ++i) tags[indices[i]] = made[i];
}

void seal_datagram(DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal) {
  UNISONO_CHECK(header.payload_bytes == payload.size());
  header.tag = tag_of(tagged(std::as_bytes(std::span(&header, 1)), payload, seal));
}

DatagramFault check_shape(std::span<const std::byte> datagram, uint32_t bytes_max, DatagramHeader& header) {
  if (datagram.size() < datagram_header_bytes) return DatagramFault::too_short;
  DatagramHeader seen;
  std::memcpy(&seen, datagram.data(), sizeof seen);
  // A path probe may be longer than bytes_max, because path probes are sent to find out which lengths arrive.
  if (datagram.size() > bytes_max && seen.kind != DatagramKind::path_probe) return DatagramFault::too_short;
  if (seen.magic != datagram_magic) return DatagramFault::magic;
  if (seen.version != datagram_version) return DatagramFault::version;
  const unsigned known_flags = datagram_tail | datagram_repaired | (seen.kind == DatagramKind::data ? datagram_part : 0u);
  if (static_cast<uint8_t>(seen.kind) >= datagram_kind_count || (seen.flags & ~known_flags) != 0) return DatagramFault::kind;
  header = seen;
  return DatagramFault::none;
}

DatagramFault check_group(const DatagramHeader& header, const DatagramGroup& group) {
  if (header.run_id != group.run_id) return DatagramFault::run;
  if (header.epoch != group.epoch) return DatagramFault::epoch;
  if (header.receiver != group.self) return DatagramFault::receiver;
  if (header.sender >= group.world || header.sender == group.self) return DatagramFault::sender;
  return DatagramFault::none;
}

DatagramFault check_length(const DatagramHeader& header, std::span<const std::byte> datagram, uint32_t header_bytes) {
  return datagram.size() < header_bytes || header.payload_bytes != datagram.size() - header_bytes ? DatagramFault::length
                                                                                                  : DatagramFault::none;
}

DatagramFault check_tag(const DatagramHeader& header, std::span<const std::byte> datagram, const DatagramSeal& seal) {
  if (const auto fault = check_length(header, datagram); fault != DatagramFault::none) return fault;
  const uint64_t expected = tag_of(tagged(datagram, datagram.subspan(datagram_header_bytes), seal));
  return same_tag(expected, header.tag) ? DatagramFault::none : DatagramFault::tag;
}

StreamRequest stream_request(const DatagramHeader& header, uint32_t index, std::span<const std::byte> bitmap) {
  StreamRequest request{.stream = {header.op, header.phase}};
  if (bitmap.empty()) {
    request.kind = StreamRequest::Kind::complete;
  } else if (std::ranges::all_of(bitmap, [](std::byte bits) { return bits == std::byte{0}; })) {
    request.kind = StreamRequest::Kind::pending;
    request.waits_for = index;
  }
  return request;
}

}  // namespace unisono
