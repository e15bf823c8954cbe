// The work of the owner of chunks in a round. It takes the contributions to the chunks that this member owns. It adds up a
// chunk once, as soon as every member has contributed to the chunk or is excused (no longer waited for).
//
// Members send their chunks in ascending order, and the owner closes them in this order. It holds at most a window of chunks
// per member. It refuses contributions that are beyond the window, repeated or late. After the last chunk it holds nothing.
//
// A contribution with a value that is not finite (NaN or infinite) is refused when its chunk is closed. Its author then counts
// as absent for this chunk, and the result names it. Otherwise one such value would become the value of every member. Finite
// values are never refused: sums are in double and weights are bounded, so neither sum nor mean overflows.
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
  // `request` and `format`, and the memory that the request's spans refer to, must outlive the RoundOwner and stay unchanged.
  RoundOwner(const RoundRequest& request, const RoundFormat& format);

  // Takes a contribution from a message that read_round_message() has accepted. If it is refused, returns false and keeps
  // nothing.
  bool take(const Contribution& contribution, const SharedBuffer& message);
  // Closes the next chunk and returns its result. But if the chunk must wait for a member that is not excused, returns an empty
  // buffer.
  SharedBuffer close_next(const RankSet& excused, ChunkResult& result);

  bool done() const { return closed_ == count_; }
  // Returns the members that have not contributed to the next chunk yet. The set is empty once all chunks are closed.
  RankSet pending() const;
  uint32_t next_chunk() const { return first_ + closed_; }
  size_t held_bytes() const { return held_bytes_ + (mean_.size() + tiles_.size()) * sizeof(float); }

 private:
  struct Held {
    Contribution head;
    SharedBuffer message;  // null: the values are this member's own, in request_.values
  };
  struct OpenChunk {
    RankSet authors;
    RankSet refused{};  // former authors whose contributions were dropped, because they are not finite
    std::vector<Held> contributions;
  };

  void add_own(uint32_t chunk, OpenChunk& open);
  bool is_full(const OpenChunk& open, const LineWeights& weights) const;
  SharedBuffer reduce(uint32_t chunk, OpenChunk& open, ChunkResult& result);
  SharedBuffer average(uint32_t chunk, const OpenChunk& open, ChunkResult& result);
  bool is_finite(uint32_t chunk, const Held& held);
  double mean_of_plain(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open, uint32_t chunk,
                       float* mean) const;
  double mean_of_encoded(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open, uint32_t chunk,
                         float* mean);

  const RoundRequest& request_;
  const RoundFormat& format_;
  RankSet expected_;  // all members that have values, except this member
  uint32_t first_ = 0, count_ = 0;
  uint32_t closed_ = 0;  // so many chunks are closed; open_ begins with the next chunk
  std::deque<OpenChunk> open_;
  size_t held_bytes_ = 0;     // size of all contributions in open_
  std::vector<float> mean_;   // mean of one chunk, before it is encoded
  std::vector<float> tiles_;  // decoded pieces of encoded contributions
};

}  // namespace unisono
