#include "wire/datagram.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

static_assert(std::endian::native == std::endian::little, "the struct is the layout: little-endian hosts only");

uint64_t tag_of(std::span<const std::byte> tagged, std::span<const std::byte> payload, const SipKey& key, DatagramAuth auth) {
  if (auth == DatagramAuth::mac) return siphash_2_4(key, tagged, payload);
  return crc32c(payload.data(), payload.size(), crc32c(tagged.data(), tagged.size()));
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

void seal_datagram(DatagramHeader& header, std::span<const std::byte> payload, const SipKey& key, DatagramAuth auth) {
  UNISONO_CHECK(header.payload_bytes == payload.size());
  header.tag = tag_of(std::as_bytes(std::span(&header, 1)).first(datagram_tagged_bytes), payload, key, auth);
}

DatagramFault check_shape(std::span<const std::byte> datagram, uint32_t bytes_max, DatagramHeader& header) {
  if (datagram.size() < datagram_header_bytes) return DatagramFault::too_short;
  DatagramHeader seen;
  std::memcpy(&seen, datagram.data(), sizeof seen);
  // Probes find out which length arrives, so they may be longer than what is known to.
  if (datagram.size() > bytes_max && seen.kind != DatagramKind::path_probe) return DatagramFault::too_short;
  if (seen.magic != datagram_magic) return DatagramFault::magic;
  if (seen.version != datagram_version) return DatagramFault::version;
  constexpr unsigned known_flags = datagram_tail | datagram_repaired;
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

DatagramFault check_tag(const DatagramHeader& header, std::span<const std::byte> datagram, const SipKey& key, DatagramAuth auth) {
  if (datagram.size() < datagram_header_bytes || header.payload_bytes != datagram.size() - datagram_header_bytes) return DatagramFault::length;
  const uint64_t expected = tag_of(datagram.first(datagram_tagged_bytes), datagram.subspan(datagram_header_bytes), key, auth);
  // One comparison of one word takes the same time wherever the two differ.
  return (expected ^ header.tag) == 0 ? DatagramFault::none : DatagramFault::tag;
}

}  // namespace unisono
