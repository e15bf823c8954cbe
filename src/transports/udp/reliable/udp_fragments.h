// A frame in fragments: where they begin and end, what of the frames of one link has to be sent, and the frames put together
// again (udp_reassembler.h).
//
// Fragment i of a frame carries bytes [i*F, (i+1)*F) of the 64-byte header and the payload behind it. F is the frame's own and
// travels in every fragment (DatagramHeader::slice), so that the size of datagrams may change from frame to frame. Frames of a
// link are numbered in order; at most `frames_max` of them, counted from the oldest that is not confirmed, may be under way, so
// both ends need memory for that many and no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transports/udp/reliable/udp_loss_detector.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace unisono {

inline constexpr uint32_t fragment_bytes_min = 512, fragment_bytes_max = 65'507 - datagram_header_bytes;
inline constexpr uint32_t frame_bytes_max = sizeof(FrameHeader) + payload_bytes_max;
inline constexpr uint32_t fragment_frames_max = 256;  // a power of two, equal at both ends

struct FragmentPlace {
  FragmentName name;
  uint32_t frame_bytes = 0;     // header included
  uint32_t fragment_bytes = 0;  // F
  uint32_t fragments() const { return (frame_bytes + fragment_bytes - 1) / fragment_bytes; }
  uint32_t offset() const { return name.index * fragment_bytes; }
  uint32_t bytes() const { return name.index + 1 < fragments() ? fragment_bytes : frame_bytes - offset(); }
};
// Into and out of the fields of a fragment's datagram. Out: false if there is no such fragment, or its payload has another
// size.
void put_place(const FragmentPlace& place, DatagramHeader& header);
bool get_place(const DatagramHeader& header, FragmentPlace& place);

// Its bytes, in two parts: of the header, then of the payload. Either may be empty. The header is sealed already.
struct FragmentParts {
  std::span<const std::byte> header, payload;
};
FragmentParts fragment_parts(const FragmentPlace& place, const FrameHeader& header, std::span<const std::byte> payload);

// What has to be sent, on one link: lost ones first, then what was never sent, in order. The lost ones take turns through all
// frames: a receiver without memory for the oldest frame may have it for others, and these must not wait. Nor must new frames
// wait for ever behind lost ones.
class FragmentQueue {
 public:
  FragmentQueue();

  // Whether another frame may be begun.
  bool full() const { return next_frame_ - oldest_ >= fragment_frames_max || open_bytes_ >= open_bytes_max; }
  // Not when full. Returns its number. frame_bytes includes the header.
  uint32_t push(uint32_t frame_bytes, uint32_t fragment_bytes);
  // What to send next, if there is anything; it stays there until taken().
  std::optional<FragmentPlace> next();
  void taken(FragmentName name);
  // Whether some fragment was never sent. If not, another frame should be pushed, though lost ones may wait: they must not hold
  // up new frames.
  bool has_unsent() { return next_unsent().has_value(); }
  // True if with it the whole frame has arrived; said once. Names of frames that are over, and fragments known to have arrived,
  // change nothing.
  bool arrived(FragmentName name);
  void lost(FragmentName name);

  bool empty() const { return next_frame_ == oldest_; }  // all frames have arrived
  uint32_t oldest() const { return oldest_; }            // that has not arrived; equals the next number if empty

 private:
  struct Frame {
    uint32_t number = 0, frame_bytes = 0, fragment_bytes = 0;
    uint32_t fragments = 0, unsent = 0;  // unsent: the first that was never sent
    uint32_t arrived_count = 0, lost_count = 0;
    std::vector<uint64_t> arrived, lost;  // bit per fragment
    bool open = false;
  };
  // Of frames under way. With the last of them it is at most 40 MiB: the receiver has memory for them, unless its sink keeps
  // much (PayloadPoolLimits).
  static constexpr size_t open_bytes_max = 24u << 20;
  static constexpr uint32_t lost_in_a_row_max = 8;  // then one that was never sent
  Frame* find(uint32_t number);
  FragmentPlace next_lost();
  std::optional<FragmentPlace> next_unsent();

  std::vector<Frame> frames_;  // by number modulo fragment_frames_max
  uint32_t oldest_ = 0, next_frame_ = 0;
  uint32_t unsent_frame_ = 0;  // the first with something never sent
  size_t open_bytes_ = 0;
  uint32_t lost_total_ = 0, lost_in_a_row_ = 0;
  FragmentName turn_;  // where the search for lost ones goes on
};

}  // namespace unisono
