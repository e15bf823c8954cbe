// Messages between the members of a group in a round. One message is one buffer, whose elements are used in place.
//
// Each begins with [channel u8][kind u8][codec u8][flags u8][chunk u32][GroupId 16 bytes]. Two kinds carry encoded elements
// behind a head padded to a multiple of 64 bytes:
//   contribution  [weight f64][sharers u16][author u16][zero u32]                         64 in all
//   result        [total f64][variance f64][digest64][contributors 4·u64][author u16][zero]  128 in all
//
// codec is a StepCodec::Kind. Flag 1 means `full`, or `ended` in a keep-alive. A verdict message follows the first 24 bytes.
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

// The facts that all members of a group know, so that messages do not repeat them.
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
inline constexpr double contribution_weight_max = 1e100;  // keeps sums of weights, and of weights times values, finite

// From a chunk's owner to all members, or from a member that was asked for it; then it has the owner's own bytes. Without
// elements if it is void.
struct ChunkResult {
  uint32_t chunk = 0;
  uint32_t author = 0;   // the owner
  RankSet contributors;  // the set A
  double total = 0;      // the sum W
  double variance = 0;   // within the group, summed over the elements
  bool full = false;
  uint64_t digest = 0;  // digest64 of the encoded elements
  // No member takes a step: fewer than two contributed, or none of them has a value.
  bool is_void() const { return contributors.count() < 2 || total == 0; }
};
struct KeepAlive {
  bool ended = false;  // an answer from a member whose round has ended; it is not answered
};
struct Abandon {};  // the sender leaves the group and is excused at once
struct Fetch {
  uint32_t chunk = 0;
};
struct FetchMiss {  // answers a Fetch: the sender does not have the result
  uint32_t chunk = 0;
};

using RoundMessage = std::variant<Contribution, ChunkResult, KeepAlive, Abandon, Fetch, FetchMiss, VerdictMessage>;

inline constexpr size_t contribution_head_bytes = 64, result_head_bytes = 128;
// The encoded elements of a message that read_round_message accepted.
inline ByteView contribution_elements(const SharedBuffer& message) { return message.view().subspan(contribution_head_bytes); }
inline ByteView result_elements(const SharedBuffer& message) { return message.view().subspan(result_head_bytes); }

// The group that a message of ElasticChannel::round belongs to; empty if the message is too short.
std::optional<GroupId> round_group(ByteView message);

// The head, with room behind it for the elements, which the caller fills in.
SharedBuffer contribution_message(const RoundFormat& format, const Contribution& head);
// The head alone, to be sent before the elements.
SharedBuffer contribution_head(const RoundFormat& format, const Contribution& head);
SharedBuffer result_message(const RoundFormat& format, const ChunkResult& head);
// Rewrites the head of a message made by result_message: variance and digest are known only once the elements are there.
void write_result_head(const RoundFormat& format, const ChunkResult& head, SharedBuffer& message);
// The message of a kind without elements.
SharedBuffer round_message(const GroupId& group, const RoundMessage& message);

// Error: corrupt, naming the field, if it is not a whole message of this group. It checks lengths, ranks, chunks, weights and
// codecs, and that quantised elements can be decoded. It does not check the digest.
Status read_round_message(const RoundFormat& format, ByteView bytes, RoundMessage& message);

}  // namespace unisono
