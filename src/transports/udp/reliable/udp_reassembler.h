// Assembles the frames of one link from fragments. It works on several frames at once, in a limited amount of memory. It is the
// receiving half of udp_fragments.h.
//
// Fragment 0 contains the frame's header. Once it has arrived, payloads are written into the sink's receive buffer. Fragments
// that came earlier wait in a block of the pool, and are then copied into the buffer. If the sink gives no buffer, it gets the
// block as a zero-copy view. If there is no memory for a fragment, the fragment is refused and not acknowledged, so the sender
// repeats it. If the sender cuts a frame again (FragmentQueue::recut), the bytes that have arrived stay. No datagram can cause
// a write outside the memory of its frame.
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
  stored,        // acknowledge the fragment
  whole,         // acknowledge the fragment; it was the last one, and the sink has got the frame
  duplicate,     // acknowledge the fragment; the fragment, or its whole frame, had arrived before
  no_memory,     // do not acknowledge the fragment
  outdated,      // do not acknowledge the fragment; the sender has cut the frame again since it sent it
  ahead,         // the frame's number is further ahead than a sender is allowed to go
  inconsistent,  // the frame size or F (the fragment size) is not the same as in other fragments of the frame
  corrupt,       // the frame does not pass check_frame, or its checksum is wrong; the link must end
};
inline constexpr int fragment_result_count = 8;
const char* name(FragmentResult result);
constexpr bool to_be_acknowledged(FragmentResult result) { return result <= FragmentResult::duplicate; }

class Reassembler {
 public:
  Reassembler(PeerIndex from, PayloadPool& pool, uint32_t recut_bytes = recut_fragment_bytes);
  ~Reassembler() { reset(); }
  Reassembler(const Reassembler&) = delete;
  Reassembler& operator=(const Reassembler&) = delete;

  // Adds a fragment. `payload` must have position.bytes() bytes, and read_position must have accepted `position`. May call
  // sink.receive_buffer and sink.received. If the result is `corrupt`, fault() says why.
  FragmentResult add(const FragmentPosition& position, std::span<const std::byte> payload, Sink& sink);
  FrameFault fault() const { return fault_; }
  // After this call, nothing more is written into the sink's receive buffers for frames of this operation. Later fragments of
  // these frames are discarded.
  void cancel(uint32_t group, uint64_t operation);
  // Forgets all frames, as at the beginning of a link, and gives their blocks back to the pool.
  void reset();

  size_t partial_frames() const { return partial_; }
  uint32_t oldest() const { return oldest_; }  // returns the number of the oldest frame that is not complete

 private:
  enum class State : uint8_t { empty, partial, over };
  struct Frame {
    State state = State::empty;
    bool header_known = false, discard = false;
    uint32_t frame_bytes = 0, fragment_bytes = 0, fragments = 0, stored_count = 0;
    FrameHeader header;
    std::byte* target = nullptr;
    PayloadPool::Block block{};    // the pool block that contains the target; empty if the target is the sink's buffer
    std::vector<uint64_t> stored;  // one bit per fragment; 1: its payload is stored
  };
  Frame& frame(uint32_t number) { return frames_[number % fragment_frames_max]; }
  void begin(Frame& frame, const FragmentPosition& position);
  void recut(Frame& frame) const;
  bool take_header(Frame& frame, std::span<const std::byte> payload, Sink& sink);
  bool find_memory(Frame& frame);
  FragmentResult finish(Frame& frame, Sink& sink);
  void end(Frame& frame);

  PeerIndex from_;
  PayloadPool& pool_;
  uint32_t recut_bytes_;       // recut_fragment_bytes of this link
  std::vector<Frame> frames_;  // frame number n is at n % fragment_frames_max
  uint32_t oldest_ = 0;
  size_t partial_ = 0;
  FrameFault fault_ = FrameFault::none;
};

}  // namespace unisono
