// Fragments put together: the frames of one link, several at once, in bounded memory. The receiving half of udp_fragments.h.
//
// A payload lands where the sink says as soon as fragment 0 has shown the frame's header; what came before it waits in a block
// of the pool and is copied over. Without a place from the sink the block is lent. What there is no memory for is refused; it
// must not be acknowledged then, so it comes again. Nothing that a datagram contains makes a write outside of the frame's own
// memory.
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
  stored,        // to be acknowledged
  whole,         // likewise; the sink has been given the frame
  duplicate,     // likewise; of a frame that is over, or seen before
  no_memory,     // not to be acknowledged, nor the rest
  ahead,         // of a frame further ahead than any sender may be
  inconsistent,  // another frame size, or another F, than other fragments of the frame have had
  corrupt,       // the frame is not what check_frame or its checksum wants: the link cannot go on
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

  // place: as get_place let it through; payload: place.bytes() bytes. May call sink.place and sink.received. fault: of a
  // `corrupt` one.
  FragmentResult add(const FragmentPlace& place, std::span<const std::byte> payload, Sink& sink);
  FrameFault fault() const { return fault_; }
  // The sink's memory for frames of this operation may not be touched any more; what follows of them is dropped.
  void cancel(uint32_t group, uint64_t operation);
  // Forgets all frames, as for a new link; blocks go back to the pool.
  void reset();

  size_t partial_frames() const { return partial_; }
  uint32_t oldest() const { return oldest_; }  // that is not over

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
