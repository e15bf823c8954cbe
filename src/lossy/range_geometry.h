// How a tensor is cut for lossy delivery: one shard per rank, which owns it; a shard into ranges, one per datagram; ranges into
// slices.
//
// Everything follows from numbers that all ranks agree on before, so no datagram carries an offset or a count: the receiver
// computes where a range belongs. Ranges end on codec blocks, so a lost datagram never spoils its neighbours. Source:
// docs/design/methods/packet_loss.md, "Geometry".
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "unisono/status.h"
#include "wire/datagram.h"
#include "wire/peer_id.h"

namespace unisono {

struct ElementSpan {
  uint64_t begin = 0, end = 0;  // of the tensor's elements
  uint64_t count() const { return end - begin; }
  friend bool operator==(const ElementSpan&, const ElementSpan&) = default;
};

struct RangeCut {
  uint64_t elements = 0;  // of the tensor
  uint32_t world = 1;
  uint32_t datagram_bytes = 0;  // UDP payload of a full datagram, header included: 576 … 65,507
  WireCodec codec{};            // of what travels
  uint32_t shard_unit = 0;  // shards have multiples of so many elements, as of the codec's blocks: contributions and results
                            // may have different codecs
};

class RangeGeometry {
 public:
  // invalid: not even one block of the codec fits into a datagram, shard_unit is no multiple of it, or the numbers are out of
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
  // range: below ranges(owner). In elements of the tensor.
  ElementSpan range(Rank owner, uint32_t range) const;
  size_t bytes(Rank owner, uint32_t range) const;
  // Where a range begins in the shard's encoded bytes.
  size_t offset(uint32_t range) const { return range * range_bytes_; }
  // False where the geometry has no such range.
  bool find(Rank owner, uint32_t slice, uint32_t index, uint32_t& range) const;

 private:
  RangeGeometry() = default;
  RangeCut cut_;
  uint64_t shard_elements_ = 0;
  uint32_t range_elements_ = 0;
  size_t range_bytes_ = 0;
};

}  // namespace unisono
