// How the ranks of the doctor meet at the rendezvous address: rank 0 listens, the others dial and say which rank they are.
//
// Not the rendezvous of Group::join, on purpose: that one gives either a whole roster or an error, and the doctor has to go
// on with the ranks that have come. It is the same address, the same way of listening and the same resolver, so that whatever
// prevents a group is met here, too. Lines of JSON; `doctor_protocol` in the first one.
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

// Rank 0: waits until all others have come, or the deadline. A process that does not belong is refused, and counted in
// cluster.turned_away. Fills in cluster.ranks (`own` first). unavailable: cannot listen; the message says why.
Result<std::map<uint32_t, Inbound>> gather(const ResolvedOptions& options, const RankFacts& own, Nanos deadline,
                                           ClusterFacts& cluster);

// The others: dials again and again until rank 0 answers. False at the deadline; then `trouble` says what was tried.
bool dial_rank_0(const ResolvedOptions& options, const RankFacts& own, Nanos deadline, ByteStream& stream,
                 RendezvousTrouble& trouble);

// Nothing if the text is not JSON.
nlohmann::json parse_line(const std::string& line);

}  // namespace unisono::cli
