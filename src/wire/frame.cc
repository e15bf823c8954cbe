#include "wire/frame.h"

#include "wire/checksum.h"

namespace unisono {

const char* name(FrameFault fault) {
  switch (fault) {
    case FrameFault::none: return "none";
    case FrameFault::magic: return "magic";
    case FrameFault::version: return "version";
    case FrameFault::kind: return "kind";
    case FrameFault::payload_bytes: return "payload_bytes";
    case FrameFault::header_checksum: return "header_checksum";
    case FrameFault::payload_checksum: return "payload_checksum";
  }
  return "unknown";
}

void seal_frame(FrameHeader& header) { header.header_checksum = crc32c(&header, offsetof(FrameHeader, header_checksum)); }

FrameFault check_frame(const FrameHeader& header, FrameKind last) {
  if (header.magic != frame_magic) return FrameFault::magic;
  if (header.version != frame_version) return FrameFault::version;
  const auto kind = static_cast<uint8_t>(header.kind);
  // Kind 4 is reserved.
  if (kind == 0 || kind == 4 || kind > static_cast<uint8_t>(last)) return FrameFault::kind;
  if (header.payload_bytes > payload_bytes_max) return FrameFault::payload_bytes;
  if (header.header_checksum != crc32c(&header, offsetof(FrameHeader, header_checksum))) return FrameFault::header_checksum;
  return FrameFault::none;
}

}  // namespace unisono
