#include "cli/doctor/doctor_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace unisono {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeerId, low, high)
}

namespace unisono::cli {

NLOHMANN_JSON_SERIALIZE_ENUM(Outcome, {{Outcome::failed, "failed"},
                                       {Outcome::reached, "reached"},
                                       {Outcome::no_answer, "no answer"},
                                       {Outcome::refused, "refused"},
                                       {Outcome::no_route, "no route"},
                                       {Outcome::unauthenticated, "unauthenticated"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InterfaceFacts, name, up, carrier, mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, address, interface, kind, offered)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MachineFacts, host, version, processor, kernel, congestion_control, clock_source,
                                   cores_online, cores_allowed, cores_quota, descriptors, locked_bytes, file_bytes, shm_bytes,
                                   shm_free_bytes, arena_error, memory_place, boot, network, interfaces, interface_asked,
                                   interface_error, offers, name_addresses, name_error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AddressTry, address, interface, offered, source, outcome, error, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SecurityFacts, level, key_source, key_error, key_mark)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Shared, from, to, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RendezvousFailure, rank, resolve_error, tries, taken, said, broken_off, seconds)

#define UNISONO_DOCTOR_JSON(Type, ...)                                           \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))     \
  }                                                                              \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))   \
  }
UNISONO_DOCTOR_JSON(RankFacts, rank, world_size, job, transport, pid, port, key, id, memory, security, machine)
UNISONO_DOCTOR_JSON(Reach, from, to, tries)
UNISONO_DOCTOR_JSON(Measured, from, to, address, error, round_trip_us, clock_ahead_us, forth_stuck, back_stuck, segment_bytes,
                    segment_passes, forth_rate, back_rate)
#undef UNISONO_DOCTOR_JSON

void to_json(nlohmann::json& json, const ClusterFacts& facts) {
  json = {{"world_size", facts.world_size},
          {"rendezvous", facts.rendezvous},
          {"waited_seconds", facts.waited_seconds},
          {"ranks", facts.ranks},
          {"turned_away", facts.turned_away},
          {"silent", facts.silent},
          {"reaches", facts.reaches},
          {"measured", facts.measured},
          {"shared", facts.shared},
          {"pairs_skipped", facts.pairs_skipped}};
  if (facts.rendezvous_failure) json["rendezvous_trouble"] = *facts.rendezvous_failure;
}

const RankFacts* ClusterFacts::find(uint32_t rank) const {
  const auto at = std::find_if(ranks.begin(), ranks.end(), [&](const RankFacts& facts) { return facts.rank == rank; });
  return at == ranks.end() ? nullptr : &*at;
}

const Reach* ClusterFacts::reach(uint32_t from, uint32_t to) const {
  const auto at = std::find_if(reaches.begin(), reaches.end(), [&](const Reach& r) { return r.from == from && r.to == to; });
  return at == reaches.end() ? nullptr : &*at;
}

bool same_host(const RankFacts& a, const RankFacts& b) {
  return a.machine.boot == b.machine.boot && a.machine.network == b.machine.network && !a.machine.network.empty();
}

std::string name_of(const RankFacts& rank) { return fmt::format("rank {} (host {})", rank.rank, rank.machine.host); }

const AddressTry* first_reached(const Reach& reach) {
  const auto works = [](const AddressTry& attempt) { return attempt.offered && attempt.outcome == Outcome::reached; };
  const auto at = std::find_if(reach.tries.begin(), reach.tries.end(), works);
  return at == reach.tries.end() ? nullptr : &*at;
}

}  // namespace unisono::cli
