// Fragments of frames. This file defines how a frame is cut into fragments, and the queue of the fragments to send on one link.
// The receiving half is in udp_reassembler.h.
//
// A frame is its 64-byte header followed by its payload. Fragment i carries the bytes [i*F, (i+1)*F) of the frame. Every
// fragment says what F is (DatagramHeader::slice), so F may change from frame to frame. The frames of a link are numbered in
// order. At most fragment_frames_max frames may be in flight, counted from the oldest unconfirmed frame. Therefore the sender
// and the receiver need memory for only this many frames.
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
// If the path no longer carries the fragments of a frame, the frame is cut again, into fragments of this size. This happens at
// most once per frame, and never to a frame that was cut into fragments of this size or shorter ones.
constexpr uint32_t recut_fragment_bytes_with(uint32_t header_bytes) { return base_datagram_bytes - header_bytes; }
inline constexpr uint32_t recut_fragment_bytes = recut_fragment_bytes_with(datagram_header_bytes);
inline constexpr uint32_t fragment_frames_max = 256;  // A power of two. The sender and the receiver must use the same number.

struct FragmentPosition {
  FragmentName name;
  uint32_t frame_bytes = 0;     // size of the whole frame, including its header
  uint32_t fragment_bytes = 0;  // F: the size of each fragment except the last
  uint32_t fragments() const { return (frame_bytes + fragment_bytes - 1) / fragment_bytes; }
  uint32_t offset() const { return name.index * fragment_bytes; }
  uint32_t bytes() const { return name.index + 1 < fragments() ? fragment_bytes : frame_bytes - offset(); }
};
// write_position() writes the fields of a fragment into the datagram header, and read_position() reads them. read_position()
// returns false if no such fragment can exist, or if the payload does not have the right size.
void write_position(const FragmentPosition& position, DatagramHeader& header);
bool read_position(const DatagramHeader& header, FragmentPosition& position);

// The sender and the receiver keep one bit per fragment. Returns these bits for a frame that was cut into fragments of `from`
// bytes, and is now cut into fragments of `to` bytes. A new fragment has its bit only if all its bytes were in fragments that
// had theirs.
std::vector<uint64_t> recut_bits(const std::vector<uint64_t>& bits, uint32_t frame_bytes, uint32_t from, uint32_t to);
uint32_t count_bits(const std::vector<uint64_t>& bits);

// The bytes of a fragment: a part of the frame's header (which is already sealed) and a part of its payload. Each of the two
// parts may be empty.
struct FragmentParts {
  std::span<const std::byte> header, payload;
};
FragmentParts fragment_parts(const FragmentPosition& position, const FrameHeader& header, std::span<const std::byte> payload);

// The fragments to send on one link. Lost fragments are sent first, and then new ones, in order. But after some lost fragments
// in a row a new fragment is sent, so that new frames do not wait for ever. Frames with lost fragments take turns: the receiver
// may lack memory for the oldest frame, and still have memory for later frames.
class FragmentQueue {
 public:
  explicit FragmentQueue(uint32_t recut_bytes = recut_fragment_bytes);

  // Returns true if no further frame may be pushed now.
  bool full() const { return next_frame_ - oldest_ >= fragment_frames_max || open_bytes_ >= open_bytes_max; }
  // Adds a frame, and returns its number. Call this only if full() is false. frame_bytes includes the header.
  uint32_t push(uint32_t frame_bytes, uint32_t fragment_bytes);
  // Returns the fragment to send next, if any. The fragment stays in the queue until taken().
  std::optional<FragmentPosition> next();
  void taken(FragmentName name);
  // Returns true if some fragment was never sent. If the result is false, push another frame even if lost fragments wait: they
  // must not delay new frames.
  bool has_unsent() { return next_unsent().has_value(); }
  // Marks a fragment as arrived. Returns true if the whole frame has arrived with it; this happens once per frame. If the
  // fragment had arrived before, nothing changes.
  bool arrived(FragmentName name);
  void lost(FragmentName name);
  // The path carries only short datagrams from now on. Cuts frames with longer fragments again, and marks all fragments as lost
  // that were sent and have not arrived.
  void recut();

  bool empty() const { return next_frame_ == oldest_; }  // true if all frames have arrived
  // Returns the number of the oldest frame that has not arrived. If empty(), this is the number of the next frame.
  uint32_t oldest() const { return oldest_; }

 private:
  struct Frame {
    uint32_t number = 0, frame_bytes = 0, fragment_bytes = 0;
    uint32_t fragments = 0, unsent = 0;  // unsent: index of the first fragment that was never sent
    uint32_t arrived_count = 0, lost_count = 0;
    std::vector<uint64_t> arrived, lost;  // one bit per fragment
    bool open = false;
  };
  // push() is allowed only while fewer bytes than this are in flight. The last frame may exceed this limit, so at most 40 MiB
  // are in flight. The receiver has memory for 40 MiB, unless its sink keeps many views (see PayloadPoolLimits).
  static constexpr size_t open_bytes_max = 24u << 20;
  static constexpr uint32_t lost_in_a_row_max = 8;  // after this many lost fragments a new fragment is sent
  Frame* find(uint32_t number);
  void recut(Frame& frame) const;
  FragmentPosition next_lost();
  std::optional<FragmentPosition> next_unsent();

  uint32_t recut_bytes_;       // recut_fragment_bytes of this link
  std::vector<Frame> frames_;  // frame number n is at n % fragment_frames_max
  uint32_t oldest_ = 0, next_frame_ = 0;
  uint32_t unsent_frame_ = 0;  // In all frames before this one, every fragment was sent at least once.
  size_t open_bytes_ = 0;
  uint32_t lost_total_ = 0, lost_in_a_row_ = 0;
  FragmentName search_position_;  // next_lost() continues its search at this fragment.
};

}  // namespace unisono
