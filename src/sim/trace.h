// A trace of all frames on the virtual links. It is kept as a hash, and optionally also as text. Runs with the same seed and
// the same program have equal traces.
//
// Each line of the text has these fields: time in ns, event, from, to, frame kind, operation, chunk, slice, payload bytes,
// checksum of the header, and checksum of the payload. Some events have no frame, such as a cut link; their lines end after
// `to`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono::sim {

class Trace {
 public:
  // `text` is not owned. If it is null, only the hash is computed.
  explicit Trace(std::string* text = nullptr) : text_(text) {}

  void frame(Nanos at, const char* what, PeerIndex from, PeerIndex to, const FrameHeader& header, uint32_t payload_checksum) {
    mix(at, what, from, to);
    hash_ = mix64(hash_ ^ (uint64_t{header.header_checksum} << 32 | payload_checksum));
    if (text_ != nullptr) write_frame(at, what, from, to, header, payload_checksum);
  }
  void event(Nanos at, const char* what, PeerIndex from, PeerIndex to) {
    mix(at, what, from, to);
    if (text_ != nullptr) write_event(at, what, from, to);
  }
  uint64_t hash() const { return hash_; }

 private:
  void mix(Nanos at, const char* what, PeerIndex from, PeerIndex to) {
    const uint64_t letters = static_cast<uint8_t>(what[0]) << 8 | static_cast<uint8_t>(what[1]);
    hash_ = mix64(hash_ ^ static_cast<uint64_t>(at) ^ (uint64_t{from} << 48 | uint64_t{to} << 24 | letters));
  }
  void write_frame(Nanos at, const char* what, PeerIndex from, PeerIndex to, const FrameHeader& header,
                   uint32_t payload_checksum);
  void write_event(Nanos at, const char* what, PeerIndex from, PeerIndex to);

  std::string* text_;
  uint64_t hash_ = 0;
};

}  // namespace unisono::sim
