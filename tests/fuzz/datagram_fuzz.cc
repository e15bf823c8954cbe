// Fuzzes the checks of UDP datagrams that were received. No check may read beyond the input. If an input passes all checks, it
// must be exactly what a member of the group would seal. Random input would fail the first check. Therefore some fields are
// repaired before; the first byte of the input selects which ones.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "wire/test_support.h"

namespace unisono::datagram_test {
namespace {

void repair_checks(std::vector<std::byte>& bytes, uint8_t mode, const DatagramGroup& group) {
  if (bytes.size() < datagram_header_bytes) return;
  DatagramHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if ((mode & 1) != 0) header.magic = datagram_magic, header.version = datagram_version;
  if ((mode & 2) != 0) header.run_id = group.run_id, header.epoch = group.epoch;
  if ((mode & 4) != 0) header.receiver = static_cast<uint16_t>(group.self), header.sender %= 5;
  if ((mode & 8) != 0) header.payload_bytes = static_cast<uint16_t>(bytes.size() - datagram_header_bytes);
  if ((mode & 16) != 0 && header.payload_bytes == bytes.size() - datagram_header_bytes) {
    seal_datagram(header, std::span(bytes).subspan(datagram_header_bytes), seal_to_self(group, header.sender));
  }
  std::memcpy(bytes.data(), &header, sizeof header);
}

void check_verdict(const std::vector<std::byte>& bytes, const DatagramGroup& group, uint32_t limit) {
  DatagramHeader header;
  const auto shape = check_shape(bytes, limit, header);
  UNISONO_CHECK(shape == DatagramFault::none || shape == DatagramFault::too_short || shape == DatagramFault::magic ||
                shape == DatagramFault::version || shape == DatagramFault::kind);
  if (shape != DatagramFault::none) return;
  UNISONO_CHECK(std::memcmp(&header, bytes.data(), sizeof header) == 0);
  UNISONO_CHECK(static_cast<uint8_t>(header.kind) < datagram_kind_count && header.flags < 8);
  UNISONO_CHECK((header.flags & datagram_part) == 0 || header.kind == DatagramKind::data);
  UNISONO_CHECK(bytes.size() <= limit || header.kind == DatagramKind::path_probe);
  const auto belongs = check_group(header, group);
  UNISONO_CHECK(belongs == DatagramFault::none || (belongs >= DatagramFault::run && belongs <= DatagramFault::sender));
  if (belongs != DatagramFault::none) return;
  UNISONO_CHECK(header.sender < group.world && header.sender != group.self);
  const auto authentic = check_tag(header, bytes, seal_to_self(group, header.sender));
  UNISONO_CHECK(authentic == DatagramFault::none || authentic == DatagramFault::length || authentic == DatagramFault::tag);
  if (authentic != DatagramFault::none) return;
  const auto again = sealed(header, std::span(bytes).subspan(datagram_header_bytes), group);
  UNISONO_CHECK(again == bytes);
}

}  // namespace
}  // namespace unisono::datagram_test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  using namespace unisono::datagram_test;
  if (size == 0) return 0;
  const uint8_t mode = data[0];
  const auto trusted = group((mode & 32) != 0 ? DatagramAuth::checksum : DatagramAuth::mac);
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  // The buffer has exactly the size of the input, so that the sanitizer notices any read beyond it.
  std::vector<std::byte> bytes(begin + 1, begin + size);
  repair_checks(bytes, mode, trusted);
  check_verdict(bytes, trusted, (mode & 64) != 0 ? 200 : bytes_max);
  return 0;
}
