// How the ranks of the doctor meet at the rendezvous address: rank 0 listens, and the other ranks dial this address and
// identify themselves.
//
// The doctor does not use the rendezvous of Group::join. That rendezvous gives either a complete roster or an error, but the
// doctor must continue with the ranks that have come. The doctor uses the same address, the same resolver, and listens in the
// same way. So it meets every obstacle that would prevent a group. Messages are lines of JSON. The first message contains
// `doctor_protocol`.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_stream.h"
#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono::cli {

inline constexpr int doctor_protocol = 1;

struct Inbound {
  ByteStream stream;
  RankFacts facts;
};

// For rank 0. Waits until all other ranks have come, or until the deadline. Refuses processes that do not belong to the group,
// and lists them in cluster.turned_away. Fills in cluster.ranks; `own` comes first. Returns Code::unavailable if this rank
// cannot listen; the message says why.
Result<std::map<uint32_t, Inbound>> gather(const ResolvedOptions& options, const RankFacts& own, Nanos deadline,
                                           ClusterFacts& cluster);

// For the other ranks. Dials again and again until rank 0 answers. Returns false if it has not answered by the deadline. Then
// `failure` says what was tried.
bool dial_rank_0(const ResolvedOptions& options, const RankFacts& own, Nanos deadline, ByteStream& stream,
                 RendezvousFailure& failure);

// Returns a discarded value if the text is not JSON.
nlohmann::json parse_line(const std::string& line);

}  // namespace unisono::cli
