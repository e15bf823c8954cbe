#include "sim/trace.h"

#include "base/concat.h"

namespace unisono::sim {
namespace {

const char* name(FrameKind kind) {
  switch (kind) {
    case FrameKind::data: return "data";
    case FrameKind::credit: return "credit";
    case FrameKind::failed: return "failed";
    case FrameKind::control: return "control";
    case FrameKind::goodbye: return "goodbye";
    case FrameKind::lossy: return "lossy";
    case FrameKind::elastic: return "elastic";
  }
  return "unknown";
}

std::string rank_text(PeerIndex rank) { return rank == UINT32_MAX ? "-" : std::to_string(rank); }

}  // namespace

void Trace::write_frame(Nanos at, const char* what, PeerIndex from, PeerIndex to, const FrameHeader& header,
                        uint32_t payload_checksum) {
  char line[200];
  const int length = std::snprintf(line, sizeof line, "%lld %s %u %u %s %llx %u %u %u %08x%08x\n", static_cast<long long>(at),
                                   what, from, to, name(header.kind), static_cast<unsigned long long>(header.operation),
                                   header.chunk, header.slice, header.payload_bytes, header.header_checksum, payload_checksum);
  text_->append(line, static_cast<size_t>(length));
}

void Trace::write_event(Nanos at, const char* what, PeerIndex from, PeerIndex to) {
  *text_ += concat(at, " ", what, " ", rank_text(from), " ", rank_text(to), "\n");
}

}  // namespace unisono::sim
