// The members of a group: one record per process, in rank order, under one epoch.
//
// A roster is a value. The rendezvous makes the first one (epoch 1), each re-forming makes the next, and every member holds the
// same bytes. digest() covers all of it. So if a split group has two halves with the same epoch number, they still never accept
// each other's frames: see wire_epoch(). Decoders trust nothing and allocate no more than they read.
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

// Random, made by the rendezvous, known to members only. It is the transports' job key, with the same type.
using RosterKey = std::array<std::byte, 16>;

// Limits for rosters from the network. A roster of the largest size is below roster_bytes_max.
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
  uint64_t machine = 0;  // equal for processes that share cores, whatever their host names are (containers); 0: unknown
  std::vector<std::string> endpoints;
  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

// "rank 3 (host b, pid 42)"
std::string label(const MemberRecord& member);
// "host b, pid 42": for processes without a rank.
std::string place_of(const MemberRecord& member);

struct Roster {
  uint32_t epoch = 0;
  RosterKey key{};
  std::vector<MemberRecord> members;  // members[r].rank == r
  friend bool operator==(const Roster&, const Roster&) = default;

  // The rank of this process in the roster, if it is there.
  std::optional<Rank> rank_of(const PeerId& id) const;
};

// How many processes of the roster share cores with this one, itself included.
uint32_t ranks_beside(const Roster& roster, Rank self);
// The largest number of hosts on one machine.
uint32_t hosts_per_machine(const Roster& roster);
// Host names in the order of their lowest ranks. The index of a host is its number, and the number of its host group.
std::vector<std::string> hosts_of(const Roster& roster);

// A hash of the whole roster; it is not cryptographic, and only keeps honest groups apart.
uint64_t digest(const Roster& roster);
// The epoch in frames: a mix of epoch and digest, never 0.
uint32_t wire_epoch(const Roster& roster);

// Checks a record before it is sent. Error: a text is too long, or there are too many endpoints.
Status check_member(const MemberRecord& member);

void write_member(ByteWriter& writer, const MemberRecord& member);
// False if the record is cut or exceeds a limit; the reader is then not ok.
bool read_member(ByteReader& reader, MemberRecord& member);

Bytes encode(const Roster& roster);
void write_roster(ByteWriter& writer, const Roster& roster);
// Returns corrupt if the roster is cut, over a limit, not in rank order, or holds one process twice. Reads to the end of the
// roster only.
Status read_roster(ByteReader& reader, Roster& roster);
// As read_roster; the bytes must hold nothing else.
Result<Roster> decode_roster(ByteView bytes);

}  // namespace unisono
