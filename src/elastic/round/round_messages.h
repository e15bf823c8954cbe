// Messages between the members of a group in a round. Each message is one buffer, and its elements are used without a copy.
//
// Each message begins with [channel u8][kind u8][codec u8][flags u8][chunk u32][GroupId 16 bytes]. In the kinds contribution
// and result, this is the beginning of a head of 64 or 128 bytes, and encoded elements follow the head. The rest of the head
// is:
//   contribution  [weight f64][sharers u16][author u16][zero]                             64 in all
//   result        [total f64][variance f64][digest64][contributors 4·u64][author u16][zero 6 bytes]
//                 [refused 4·u64][zero]                                                   128 in all
//
// codec is a StepCodec::Kind. Flag 1 means `full`; in a keep-alive it means `ended`. In a message about the verdict, the body
// (elastic/round/verdict_messages) follows these first 24 bytes.
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

// The data that all members of a group know, so that messages need not repeat it.
struct RoundFormat {
  GroupId group;
  uint32_t members = 0;
  ChunkTable table;
  WireCodec contribute, result;
};

// A member's values of one chunk. The member sends them to the owner of the chunk. If the weight is 0, there are no elements.
struct Contribution {
  uint32_t chunk = 0;
  uint32_t author = 0;
  double weight = 0;  // 0 … contribution_weight_max
  bool full = false;
  uint32_t sharers = 1;  // 1 … round_members_max
};
// No weight is larger. With this limit, sums of weights, and sums of weight·value, stay finite.
inline constexpr double contribution_weight_max = 1e100;

// The mean of one chunk. The owner of the chunk sends it to all members. A member that answers a Fetch sends on the owner's
// bytes unchanged. If is_void() is true, there are no elements.
struct ChunkResult {
  uint32_t chunk = 0;
  uint32_t author = 0;   // rank of the chunk's owner
  RankSet contributors;  // A, the set of members whose contributions went into the result
  RankSet refused{};     // the members whose values of this chunk are not finite; none of them is in `contributors`
  double total = 0;      // W, the sum of the contributors' weights
  double variance = 0;   // the variance before averaging, within the group, summed over all elements
  bool full = false;
  uint64_t digest = 0;  // digest64 of the encoded elements
  // Returns true if no member changes the chunk, because A has fewer than two members, or no contributor has a value.
  bool is_void() const { return contributors.count() < 2 || total == 0; }
};
struct KeepAlive {
  // True: the sender's round has ended, and this answers another message. The receiver must not answer it.
  bool ended = false;
};
struct Abandon {};  // the sender leaves the group, so no member need wait for it any more
struct Fetch {
  uint32_t chunk = 0;
};
struct FetchMiss {  // answers a Fetch: the sender does not have the result
  uint32_t chunk = 0;
};

using RoundMessage = std::variant<Contribution, ChunkResult, KeepAlive, Abandon, Fetch, FetchMiss, VerdictMessage>;

inline constexpr size_t contribution_head_bytes = 64, result_head_bytes = 128;
// Return the encoded elements of a message that read_round_message() has accepted.
inline ByteView contribution_elements(const SharedBuffer& message) { return message.view().subspan(contribution_head_bytes); }
inline ByteView result_elements(const SharedBuffer& message) { return message.view().subspan(result_head_bytes); }

// Returns the group that a message of ElasticChannel::round belongs to. Returns nothing if the message is too short.
std::optional<GroupId> round_group(ByteView message);

// Returns a message that begins with this head. The caller must write the elements into it.
SharedBuffer contribution_message(const RoundFormat& format, const Contribution& head);
// Returns the head only. The caller sends the elements after it.
SharedBuffer contribution_head(const RoundFormat& format, const Contribution& head);
SharedBuffer result_message(const RoundFormat& format, const ChunkResult& head);
// Writes the head into a message from result_message() once more, because `variance` and `digest` are known only after the
// elements.
void write_result_head(const RoundFormat& format, const ChunkResult& head, SharedBuffer& message);
// Encodes a message of a kind that has no elements.
SharedBuffer round_message(const GroupId& group, const RoundMessage& message);

// Reads a message of this group. Checks the lengths, ranks, chunks, weights and codecs, and that quantised elements can be
// decoded. Does not check the digest. If a check fails, returns the error corrupt with the name of the faulty field.
Status read_round_message(const RoundFormat& format, ByteView bytes, RoundMessage& message);

}  // namespace unisono
