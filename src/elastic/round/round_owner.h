// The owner's part of a round: takes contributions to the chunks of one owner, and adds each chunk up once, as soon as all
// members have contributed or are excused.
//
// Chunks are closed in ascending order, the order in which members send them. At most one window of chunks per member is held;
// contributions beyond it, repeated ones and late ones are refused. Nothing is held after the last chunk is closed.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/shared_buffer.h"
#include "elastic/round/line_average.h"
#include "elastic/round/round_messages.h"
#include "elastic/round/round_request.h"

namespace unisono {

class RoundOwner {
 public:
  // Both arguments, and the memory of the request's spans, must stay alive and unchanged while this is used.
  RoundOwner(const RoundRequest& request, const RoundFormat& format);

  // Takes a message of this author that read_round_message accepted. False: refused, and nothing is kept.
  bool take(const Contribution& contribution, const SharedBuffer& message);
  // The next chunk's result, if all members that are not excused have contributed; otherwise empty.
  SharedBuffer close_next(const RankSet& excused, ChunkResult& result);

  bool done() const { return closed_ == count_; }
  // Members whose contribution the next chunk still needs, unless they are excused; empty when done.
  RankSet owing() const;
  uint32_t next_chunk() const { return first_ + closed_; }
  size_t held_bytes() const { return held_bytes_ + (mean_.size() + tiles_.size()) * sizeof(float); }

 private:
  struct Held {
    Contribution head;
    SharedBuffer message;  // null: this member's own values, in place
  };
  struct OpenChunk {
    RankSet authors;
    std::vector<Held> contributions;
  };

  void add_own(uint32_t chunk, OpenChunk& open);
  bool is_full(const OpenChunk& open, const LineWeights& weights) const;
  SharedBuffer reduce(uint32_t chunk, const OpenChunk& open, ChunkResult& result);
  double mean_of_plain(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open, uint32_t chunk,
                       float* mean) const;
  double mean_of_encoded(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open, uint32_t chunk,
                         float* mean);

  const RoundRequest& request_;
  const RoundFormat& format_;
  RankSet expected_;  // members that have values, without this one
  uint32_t first_ = 0, count_ = 0;
  uint32_t closed_ = 0;  // how many are closed; the deque begins with the next one
  std::deque<OpenChunk> open_;
  size_t held_bytes_ = 0;     // of contributions
  std::vector<float> mean_;   // of one chunk, before encoding
  std::vector<float> tiles_;  // decoded pieces of encoded contributions
};

}  // namespace unisono
