// Defines how lossy delivery cuts a tensor. Each rank owns one shard of the tensor. A shard is cut into ranges, and each range
// is sent in one datagram. Consecutive ranges form a slice.
//
// All ranks compute the geometry from numbers that they know in advance, so a datagram needs neither an offset nor a count. A
// range ends at the end of a codec block, so a lost datagram does not affect other ranges. Source:
// docs/design/methods/packet_loss.md, "Geometry".
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "unisono/status.h"
#include "wire/datagram.h"
#include "wire/peer_id.h"

namespace unisono {

struct ElementSpan {
  uint64_t begin = 0, end = 0;  // indexes of the tensor's elements
  uint64_t count() const { return end - begin; }
  friend bool operator==(const ElementSpan&, const ElementSpan&) = default;
};

struct RangeCut {
  uint64_t elements = 0;  // number of elements of the tensor
  uint32_t world = 1;
  uint32_t datagram_bytes = 0;  // size of a full datagram's UDP payload, header included: 576 … 65,507
  WireCodec codec{};            // codec that encodes the data; the geometry uses it without message headers
  // The number of elements of a shard is a multiple of shard_unit, and of the codec's block. If contributions and results use
  // the same shard_unit, they have the same shards, even if their codecs differ.
  uint32_t shard_unit = 0;
};

class RangeGeometry {
 public:
  // Fails with Code::invalid if
  // - a datagram is too small for one codec block,
  // - shard_unit is not a multiple of the codec's block (for plain elements, a block has 64 bytes), or
  // - a number is out of range.
  static Result<RangeGeometry> make(const RangeCut& cut);

  const RangeCut& cut() const { return cut_; }
  static uint32_t block_elements(const WireCodec& codec);

  // called s in packet_loss.md; the last shards may be shorter or empty
  uint64_t shard_elements() const { return shard_elements_; }
  // called E in packet_loss.md; the last range of a shard may be shorter
  uint32_t range_elements() const { return range_elements_; }
  size_t range_bytes() const { return range_bytes_; }  // size of a full range after encoding
  ElementSpan shard(Rank owner) const;
  uint32_t ranges(Rank owner) const;
  uint32_t slices(Rank owner) const;
  // Returns the size of the whole shard after encoding.
  size_t shard_bytes(Rank owner) const;
  // Returns which elements of the tensor are in a range. Requires range < ranges(owner).
  ElementSpan range(Rank owner, uint32_t range) const;
  size_t bytes(Rank owner, uint32_t range) const;
  // Returns where a range begins in the encoded shard, in bytes.
  size_t offset(uint32_t range) const { return range * range_bytes_; }
  // Finds the range that a datagram with this slice and index carries. Returns false if there is no such range.
  bool find(Rank owner, uint32_t slice, uint32_t index, uint32_t& range) const;

 private:
  RangeGeometry() = default;
  RangeCut cut_;
  uint64_t shard_elements_ = 0;
  uint32_t range_elements_ = 0;
  size_t range_bytes_ = 0;
};

}  // namespace unisono
