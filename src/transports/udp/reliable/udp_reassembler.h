// Puts fragments together into the frames of one link, several at once, in bounded memory. The receiving half of
// udp_fragments.h.
//
// A payload lands in the sink's receive buffer as soon as fragment 0 has shown the frame's header. Fragments that came before
// wait in a block of the pool and are copied then. If the sink gives no buffer, it gets the block as a zero-copy view. A
// fragment for which there is no memory is refused. It must not be acknowledged, so it comes again. No contents of a datagram
// can make a write outside the frame's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transports/payload_pool.h"
#include "transports/transport.h"
#include "transports/udp/reliable/udp_fragments.h"

namespace unisono {

enum class FragmentResult : uint8_t {
  stored,        // acknowledge it
  whole,         // acknowledge it; the sink has got the frame
  duplicate,     // acknowledge it; the frame is finished, or the fragment was seen before
  no_memory,     // do not acknowledge it, nor the following ones
  ahead,         // its frame is further ahead than any sender may be
  inconsistent,  // its frame size or F differs from other fragments of the frame
  corrupt,       // the frame fails check_frame or its checksum; the link must end
};
inline constexpr int fragment_result_count = 7;
const char* name(FragmentResult result);
constexpr bool to_be_acknowledged(FragmentResult result) { return result <= FragmentResult::duplicate; }

class Reassembler {
 public:
  Reassembler(PeerIndex from, PayloadPool& pool);
  ~Reassembler() { reset(); }
  Reassembler(const Reassembler&) = delete;
  Reassembler& operator=(const Reassembler&) = delete;

  // Adds a fragment. place: accepted by get_place; payload: place.bytes() bytes. May call sink.place and sink.received. fault()
  // explains the result `corrupt`.
  FragmentResult add(const FragmentPlace& place, std::span<const std::byte> payload, Sink& sink);
  FrameFault fault() const { return fault_; }
  // The receive buffers for frames of this operation may not be touched any more; later fragments of these frames are dropped.
  void cancel(uint32_t group, uint64_t operation);
  // Forgets all frames, as for a new link; blocks go back to the pool.
  void reset();

  size_t partial_frames() const { return partial_; }
  uint32_t oldest() const { return oldest_; }  // the oldest frame that is not finished

 private:
  enum class State : uint8_t { empty, partial, over };
  struct Frame {
    State state = State::empty;
    bool header_known = false, discard = false;
    uint32_t frame_bytes = 0, fragment_bytes = 0, fragments = 0, stored_count = 0;
    FrameHeader header;
    std::byte* target = nullptr;
    PayloadPool::Block block{};    // if target is the pool's memory
    std::vector<uint64_t> stored;  // bit per fragment
  };
  Frame& frame(uint32_t number) { return frames_[number % fragment_frames_max]; }
  void begin(Frame& frame, const FragmentPlace& place);
  bool take_header(Frame& frame, std::span<const std::byte> payload, Sink& sink);
  bool find_memory(Frame& frame);
  FragmentResult finish(Frame& frame, Sink& sink);
  void end(Frame& frame);

  PeerIndex from_;
  PayloadPool& pool_;
  std::vector<Frame> frames_;  // by number modulo fragment_frames_max
  uint32_t oldest_ = 0;
  size_t partial_ = 0;
  FrameFault fault_ = FrameFault::none;
};

}  // namespace unisono
