// The owner's part of a round: takes contributions to the chunks that one member owns, and adds each chunk up once, as soon as
// everybody has contributed to it or is excused.
//
// Chunks are closed in ascending order, as members send them. At most a window's chunks of each member are held; who sends
// more, or twice, or too late is refused. Nothing is held any more when the last chunk is closed.
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
  // Both stay alive, and what the request's spans show stays as it is, while this is used.
  RoundOwner(const RoundRequest& request, const RoundFormat& format);

  // False: refused; nothing is kept. A message that read_round_message took, of this author.
  bool take(const Contribution& contribution, const SharedBuffer& message);
  // The next chunk's result, if all have contributed to it that are not excused; otherwise nothing.
  SharedBuffer close_next(const RankSet& excused, ChunkResult& result);

  bool done() const { return closed_ == count_; }
  // Members without whom the next chunk cannot be closed, unless they are excused; empty when done.
  RankSet owing() const;
  uint32_t next_chunk() const { return first_ + closed_; }
  size_t held_bytes() const { return held_bytes_ + (mean_.size() + tiles_.size()) * sizeof(float); }

 private:
  struct Held {
    Contribution head;
    SharedBuffer message;  // null: this member's own values, where they lie
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
  RankSet expected_;  // members that have values, this one not included
  uint32_t first_ = 0, count_ = 0;
  uint32_t closed_ = 0;  // of them; the deque begins with the next one
  std::deque<OpenChunk> open_;
  size_t held_bytes_ = 0;     // of contributions
  std::vector<float> mean_;   // of one chunk, before it is encoded
  std::vector<float> tiles_;  // a piece of each encoded contribution, decoded
};

}  // namespace unisono
