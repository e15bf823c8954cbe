// What the members of a group say to each other in a round: one message is one buffer, whose elements are used where they lie.
//
// All begin with [channel u8][kind u8][codec u8][flags u8][chunk u32][GroupId 16 bytes]. Two carry elements, encoded, behind a
// head padded to a multiple of 64 bytes:
//   contribution  [weight f64][sharers u16][author u16][zero u32]                                                    64 in all
//   result        [total f64][variance f64][digest64][contributors 4·u64][author u16][zero]                          128 in all
// The codec is the number of a StepCodec::Kind; flag 1 is `full`, or `ended` of a keep-alive. A verdict's message follows the
// first 24 bytes.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <variant>

#include "base/bytes.h"
#include "base/shared_buffer.h"
#include "codecs/codec.h"
#include "elastic/round/chunk_table.h"
#include "elastic/round/verdict_messages.h"
#include "elastic/wire/elastic_message.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr uint32_t round_members_max = 256;
using RankSet = std::bitset<round_members_max>;

// What the members of one group know, and messages do not repeat.
struct RoundFormat {
  GroupId group;
  uint32_t members = 0;
  ChunkTable table;
  WireCodec contribute, result;
};

// To a chunk's owner. Without elements if the weight is 0.
struct Contribution {
  uint32_t chunk = 0;
  uint32_t author = 0;
  double weight = 0;  // 0 … contribution_weight_max
  bool full = false;
  uint32_t sharers = 1;  // 1 … round_members_max
};
inline constexpr double contribution_weight_max = 1e100;  // so that sums of weights, and of weights times values, stay finite

// From a chunk's owner to all, or from anybody who was asked for it: then the owner's own bytes. Without elements if it is
// void.
struct ChunkResult {
  uint32_t chunk = 0;
  uint32_t author = 0;   // the owner
  RankSet contributors;  // A
  double total = 0;      // W
  double variance = 0;   // within the group, summed over the elements
  bool full = false;
  uint64_t digest = 0;  // digest64 of the encoded elements
  // Nobody's step: fewer than two contributed, or none of them has a value.
  bool is_void() const { return contributors.count() < 2 || total == 0; }
};
struct KeepAlive {
  bool ended = false;  // an answer of somebody for whom the round is over; is not answered itself
};
struct Abandon {};  // leaves the group: excused at once
struct Fetch {
  uint32_t chunk = 0;
};
struct FetchMiss {  // to who asked: it is not here
  uint32_t chunk = 0;
};

using RoundMessage = std::variant<Contribution, ChunkResult, KeepAlive, Abandon, Fetch, FetchMiss, VerdictMessage>;

inline constexpr size_t contribution_head_bytes = 64, result_head_bytes = 128;
// The encoded elements of a message that read_round_message took.
inline ByteView contribution_elements(const SharedBuffer& message) { return message.view().subspan(contribution_head_bytes); }
inline ByteView result_elements(const SharedBuffer& message) { return message.view().subspan(result_head_bytes); }

// Which group a message of ElasticChannel::round is for; nothing if it is too short for one.
std::optional<GroupId> round_group(ByteView message);

// The head, and room for the elements behind it, which the caller fills.
SharedBuffer contribution_message(const RoundFormat& format, const Contribution& head);
// Without them: what they are sent behind.
SharedBuffer contribution_head(const RoundFormat& format, const Contribution& head);
SharedBuffer result_message(const RoundFormat& format, const ChunkResult& head);
// Again over a message that result_message made: its variance and digest are known once the elements are there.
void write_result_head(const RoundFormat& format, const ChunkResult& head, SharedBuffer& message);
// Of the kinds without elements.
SharedBuffer round_message(const GroupId& group, const RoundMessage& message);

// corrupt, naming the field, if it is not a whole message of this group: lengths, ranks, chunks, weights and codecs are
// checked, of quantised elements that they can be decoded; not the digest.
Status read_round_message(const RoundFormat& format, ByteView bytes, RoundMessage& message);

}  // namespace unisono
