// Peer ids, member records and rosters for tests.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/concat.h"
#include "base/random.h"
#include "rendezvous/roster.h"

namespace unisono::test {

inline constexpr Nanos reform_timeout = 200 * millisecond;

inline PeerId peer_id(uint64_t number, uint64_t life = 1) { return {mix64(number), life}; }

inline MemberRecord member(uint32_t rank, uint64_t life = 1) {
  MemberRecord record;
  record.id = {rank + 1, life};
  record.rank = rank;
  record.host = concat("h", rank);
  record.pid = static_cast<int32_t>(100 + rank);
  record.endpoints = {concat("tcp://10.0.0.", rank, ":1")};
  return record;
}

inline Roster make_roster(uint32_t world, uint32_t epoch = 1) {
  Roster roster;
  roster.epoch = epoch;
  roster.key.fill(std::byte{7});
  for (uint32_t rank = 0; rank < world; ++rank) roster.members.push_back(member(rank));
  return roster;
}

}  // namespace unisono::test
