// Fragments of frames: their borders, and the queue of fragments to send on one link. udp_reassembler.h puts them together.
//
// Fragment i of a frame carries bytes [i*F, (i+1)*F) of the 64-byte header followed by the payload. F belongs to the frame and
// travels in every fragment (DatagramHeader::slice), so the size of datagrams may change from frame to frame. Frames of a link
// are numbered in order. At most fragment_frames_max of them, counted from the oldest unconfirmed one, may be in flight, so
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
// Write and read a fragment's fields of the datagram header. get_place returns false if there is no such fragment, or if its
// payload has the wrong size.
void put_place(const FragmentPlace& place, DatagramHeader& header);
bool get_place(const DatagramHeader& header, FragmentPlace& place);

// The bytes of a fragment in two parts, of the header and of the payload; either may be empty. The header is sealed already.
struct FragmentParts {
  std::span<const std::byte> header, payload;
};
FragmentParts fragment_parts(const FragmentPlace& place, const FrameHeader& header, std::span<const std::byte> payload);

// The fragments to send on one link: lost ones first, then new ones, in order. Lost ones of all frames take turns: a receiver
// without memory for the oldest frame may have it for others, and these must not wait. New frames must not wait for ever behind
// lost fragments, either.
class FragmentQueue {
 public:
  FragmentQueue();

  // True if no further frame may be begun.
  bool full() const { return next_frame_ - oldest_ >= fragment_frames_max || open_bytes_ >= open_bytes_max; }
  // Adds a frame and returns its number. Requires !full(). frame_bytes includes the header.
  uint32_t push(uint32_t frame_bytes, uint32_t fragment_bytes);
  // The fragment to send next, if any; it stays in the queue until taken().
  std::optional<FragmentPlace> next();
  void taken(FragmentName name);
  // Whether some fragment was never sent. If not, push another frame even if lost fragments wait: they must not delay new
  // frames.
  bool has_unsent() { return next_unsent().has_value(); }
  // Marks a fragment as arrived. Returns true once, when the whole frame has arrived. Finished frames and fragments that have
  // arrived before change nothing.
  bool arrived(FragmentName name);
  void lost(FragmentName name);

  bool empty() const { return next_frame_ == oldest_; }  // all frames have arrived
  uint32_t oldest() const { return oldest_; }  // the oldest frame that has not arrived; equals the next number if empty

 private:
  struct Frame {
    uint32_t number = 0, frame_bytes = 0, fragment_bytes = 0;
    uint32_t fragments = 0, unsent = 0;  // unsent: the first fragment that was never sent
    uint32_t arrived_count = 0, lost_count = 0;
    std::vector<uint64_t> arrived, lost;  // bit per fragment
    bool open = false;
  };
  // Bytes of frames in flight before the last one; with the last frame at most 40 MiB. The receiver has memory for them, unless
  // its sink keeps much (PayloadPoolLimits).
  static constexpr size_t open_bytes_max = 24u << 20;
  static constexpr uint32_t lost_in_a_row_max = 8;  // then a new one
  Frame* find(uint32_t number);
  FragmentPlace next_lost();
  std::optional<FragmentPlace> next_unsent();

  std::vector<Frame> frames_;  // by number modulo fragment_frames_max
  uint32_t oldest_ = 0, next_frame_ = 0;
  uint32_t unsent_frame_ = 0;  // the first frame with a fragment that was never sent
  size_t open_bytes_ = 0;
  uint32_t lost_total_ = 0, lost_in_a_row_ = 0;
  FragmentName turn_;  // where the search for lost ones goes on
};

}  // namespace unisono
