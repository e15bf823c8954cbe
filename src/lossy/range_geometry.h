// How lossy delivery cuts a tensor: one shard per rank, its owner; a shard into ranges, one per datagram; ranges into slices.
//
// The geometry follows from numbers that all ranks agree on in advance. So no datagram carries an offset or a count: the
// receiver computes a range's position. Ranges end at codec block boundaries, so a lost datagram never affects its neighbours.
// Source: docs/design/methods/packet_loss.md, "Geometry".
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "unisono/status.h"
#include "wire/datagram.h"
#include "wire/peer_id.h"

namespace unisono {

struct ElementSpan {
  uint64_t begin = 0, end = 0;  // elements of the tensor
  uint64_t count() const { return end - begin; }
  friend bool operator==(const ElementSpan&, const ElementSpan&) = default;
};

struct RangeCut {
  uint64_t elements = 0;  // elements of the tensor
  uint32_t world = 1;
  uint32_t datagram_bytes = 0;  // UDP payload of a full datagram, header included: 576 … 65,507
  WireCodec codec{};            // of the data sent
  uint32_t shard_unit =
      0;  // shard sizes are multiples of it and of the codec's block, as contributions and results may differ in codec
};

class RangeGeometry {
 public:
  // invalid: a datagram is too small for one codec block, shard_unit is not a multiple of the block, or a number is out of
  // range. A block of plain elements has 64 bytes.
  static Result<RangeGeometry> make(const RangeCut& cut);

  const RangeCut& cut() const { return cut_; }
  static uint32_t block_elements(const WireCodec& codec);

  uint64_t shard_elements() const { return shard_elements_; }  // s; the last shards may be shorter, or empty
  uint32_t range_elements() const { return range_elements_; }  // E; the last range of a shard may be shorter
  size_t range_bytes() const { return range_bytes_; }          // encoded, of a full range
  ElementSpan shard(Rank owner) const;
  uint32_t ranges(Rank owner) const;
  uint32_t slices(Rank owner) const;
  // Encoded bytes of the whole shard, range after range.
  size_t shard_bytes(Rank owner) const;
  // Elements of the tensor; range < ranges(owner).
  ElementSpan range(Rank owner, uint32_t range) const;
  size_t bytes(Rank owner, uint32_t range) const;
  // Offset of a range in the shard's encoded bytes.
  size_t offset(uint32_t range) const { return range * range_bytes_; }
  // False: the geometry has no such range.
  bool find(Rank owner, uint32_t slice, uint32_t index, uint32_t& range) const;

 private:
  RangeGeometry() = default;
  RangeCut cut_;
  uint64_t shard_elements_ = 0;
  uint32_t range_elements_ = 0;
  size_t range_bytes_ = 0;
};

}  // namespace unisono
