// The roster lists the members of a group, with one record for each process, in rank order. It belongs to one epoch (the time
// from one forming of the group to the next).
//
// The rendezvous makes the first roster, with epoch 1, and each re-forming makes the next one. All members have exactly the
// same bytes. If a group was split, both halves may have the same epoch number. They still do not accept each other's frames,
// because wire_epoch() depends on the digest() (a hash) of the whole roster. Decoders check all input, and do not allocate more
// than they read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

// A random key that the rendezvous makes and that only members know. The transports use it as their job key.
using RosterKey = std::array<std::byte, 16>;

// Limits for rosters that come from the network. Even the largest roster within these limits is smaller than roster_bytes_max.
inline constexpr uint32_t world_size_max = 4096;
static_assert(world_size_max <= frame_ranks_max);
inline constexpr size_t host_bytes_max = 255;
inline constexpr size_t endpoint_bytes_max = 255;
inline constexpr size_t endpoints_max = 16;
inline constexpr size_t member_bytes_max =
    16 + 4 + 4 + 8 + 8 + (4 + host_bytes_max) + 4 + endpoints_max * (4 + endpoint_bytes_max);
inline constexpr size_t roster_bytes_max = 4 + sizeof(RosterKey) + 4 + world_size_max * member_bytes_max;

struct MemberRecord {
  PeerId id;
  uint32_t rank = 0;
  std::string host;
  int32_t pid = 0;
  // It is equal for all processes of a machine, even if they are in containers with different host names. 0: unknown.
  uint64_t machine = 0;
  // It is equal for all processes of a machine that are also in the same network name space. It decides which ranks are on one
  // host; `host` is only for messages. 0: unknown; then `host` decides.
  uint64_t network = 0;
  std::vector<std::string> endpoints;
  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

// Returns a text like "rank 3 (host b, pid 42)".
std::string label(const MemberRecord& member);
// Returns a text like "host b, pid 42". It is for processes that have no rank.
std::string host_label(const MemberRecord& member);

struct Roster {
  uint32_t epoch = 0;
  RosterKey key{};
  std::vector<MemberRecord> members;  // members[r].rank is r
  friend bool operator==(const Roster&, const Roster&) = default;

  // Returns the rank of a process. Returns nothing if the roster does not contain the process.
  std::optional<Rank> rank_of(const PeerId& id) const;
};

// Returns whether two processes are on the same host. They can then reach each other through shared memory.
bool same_host(const MemberRecord& a, const MemberRecord& b);
// Returns how many processes of the roster are on the same machine as `self`. `self` is counted, too.
uint32_t ranks_beside(const Roster& roster, Rank self);
// A machine may have several hosts, because its containers may have networks of their own. Returns the largest number of hosts
// that any machine has.
uint32_t hosts_per_machine(const Roster& roster);
// Returns the lowest rank of each host. A host whose lowest rank is smaller comes first. The index of a host in this list is
// its host number, and also the number of its host group.
std::vector<Rank> hosts_of(const Roster& roster);
// Returns the host number of each rank.
std::vector<uint32_t> host_numbers(const Roster& roster);

// Returns a hash of the whole roster. It is not cryptographic. It keeps groups apart only as long as nobody attacks them.
uint64_t digest(const Roster& roster);
// Returns the epoch number for frames. It combines the epoch and the digest, and is never 0.
uint32_t wire_epoch(const Roster& roster);

// Checks a record before it is sent. Fails if a text is too long or if there are too many endpoints.
Status check_member(const MemberRecord& member);

void write_member(ByteWriter& writer, const MemberRecord& member);
// Reads a record. Returns false if the record is cut off or exceeds a limit. In that case, the reader is not ok any more.
bool read_member(ByteReader& reader, MemberRecord& member);

Bytes encode(const Roster& roster);
void write_roster(ByteWriter& writer, const Roster& roster);
// Reads a roster. Bytes that follow it are left unread. Returns `corrupt` if the roster is cut off, exceeds a limit, is not in
// rank order, or contains a process twice.
Status read_roster(ByteReader& reader, Roster& roster);
// Decodes bytes that contain a roster and nothing else.
Result<Roster> decode_roster(ByteView bytes);

}  // namespace unisono
