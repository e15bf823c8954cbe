// Who is in a group: one record per process, in rank order, under one epoch.
//
// A roster is a value: the rendezvous makes the first one (epoch 1), re-forming makes each next one, and every member
// holds the same bytes. digest() covers all of it, so two halves of a split group that both reach the same epoch number
// still never take each other's frames: see wire_epoch(). Decoders trust nothing and allocate no more than they read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// Random, made by the rendezvous, known to members only. The same type as the transports' job key.
using RosterKey = std::array<std::byte, 16>;

// Limits of what is accepted from the network. A roster of the largest size is below roster_bytes_max.
inline constexpr uint32_t world_size_max = 4096;
inline constexpr size_t host_bytes_max = 255;
inline constexpr size_t endpoint_bytes_max = 255;
inline constexpr size_t endpoints_max = 16;
inline constexpr size_t member_bytes_max = 16 + 4 + 4 + 8 + (4 + host_bytes_max) + 4 + endpoints_max * (4 + endpoint_bytes_max);
inline constexpr size_t roster_bytes_max = 4 + sizeof(RosterKey) + 4 + world_size_max * member_bytes_max;

struct MemberRecord {
  PeerId id;
  uint32_t rank = 0;
  std::string host;
  int32_t pid = 0;
  uint64_t machine = 0;  // equal where processes share cores, whatever their hosts are called (containers); 0: unknown
  std::vector<std::string> endpoints;
  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

// "rank 3 (host b, pid 42)"
std::string label(const MemberRecord& member);
// "host b, pid 42": for processes that have no rank yet.
std::string place_of(const MemberRecord& member);

struct Roster {
  uint32_t epoch = 0;
  RosterKey key{};
  std::vector<MemberRecord> members;  // members[r].rank == r
  friend bool operator==(const Roster&, const Roster&) = default;

  // The rank of this process here, or nothing.
  std::optional<Rank> rank_of(const PeerId& id) const;
};

// Processes of the roster that share cores with this one, which counts too.
uint32_t ranks_beside(const Roster& roster, Rank self);
// Hosts on the machine that has most of them.
uint32_t hosts_per_machine(const Roster& roster);
// Names of hosts in the order of their lowest ranks: a host's place there is its number, and that of its host group.
std::vector<std::string> hosts_of(const Roster& roster);

// A hash of everything in the roster (not a cryptographic one: it keeps honest groups apart).
uint64_t digest(const Roster& roster);
// What frames carry as their epoch: a mix of epoch and digest, never 0.
uint32_t wire_epoch(const Roster& roster);

// Says what is wrong with a record that is about to be sent: too long, too many endpoints.
Status check_member(const MemberRecord& member);

void write_member(ByteWriter& writer, const MemberRecord& member);
// False if the record is cut or a limit is exceeded; the reader is then not ok.
bool read_member(ByteReader& reader, MemberRecord& member);

Bytes encode(const Roster& roster);
void write_roster(ByteWriter& writer, const Roster& roster);
// Corrupt if cut, over a limit, not in rank order, or with one process twice. Reads to the end of the roster only.
Status read_roster(ByteReader& reader, Roster& roster);
// As read_roster; the bytes must hold nothing else.
Result<Roster> decode_roster(ByteView bytes);

}  // namespace unisono
