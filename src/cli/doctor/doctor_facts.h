// The measurements of `unisono doctor`: plain values, which travel between the ranks as JSON and from which the findings are
// made.
//
// The doctor in one picture. Every rank opens a probe port (doctor_probe.h), reads its machine (doctor_machine.h) and goes
// to the rendezvous address, where rank 0 listens (doctor_exchange.h). It does not join a group: rank 0 waits for the
// others, and goes on with those that have come when the time is up. All later messages use these connections, so that
// results arrive although links between ranks fail. Then (doctor_rounds.h):
//   1. rank 0 sends the list of ranks; each dials every address of every other one and reports the outcome  -> Reach
//   2. pair after pair, so that no probe disturbs another: round trip, large frames, bandwidth, clock         -> Measured
//   3. pairs of one host try to share memory as the transport does                                           -> Shared
// A rank that does not get to rank 0 has RendezvousTrouble instead and reports by itself. From ClusterFacts alone come the
// findings (doctor_findings.h) and the tables (doctor_table.h): both are pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::cli {

inline constexpr uint64_t unlimited = UINT64_MAX;  // the system sets no limit

struct InterfaceFacts {
  std::string name;
  bool up = false;
  bool carrier = false;  // a cable, and a device at its other end
  uint32_t mtu = 0;
};

// One address of this host, in the order in which peers try them.
struct Offer {
  std::string address;  // "10.0.0.1", "fe80::1%eth0"
  std::string interface;
  std::string kind;     // why it has this position: "global", "link-local", "virtual", "loopback"
  bool offered = true;  // false: --interface rules it out; it is tried only to know whether it would have worked
};

struct MachineFacts {
  std::string host;
  std::string version;  // of Unisono
  std::string processor;
  std::string kernel;
  std::string congestion_control;
  std::string clock_source;
  uint32_t cores_online = 0;
  std::vector<uint32_t> cores_allowed;  // those that this process may use
  double cores_quota = 0;               // of its control group; 0 = none
  uint64_t descriptors = 0;             // limits of this process
  uint64_t locked_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t shm_bytes = 0;  // of /dev/shm; 0 = there is none
  uint64_t shm_free_bytes = 0;
  std::string arena_error;   // why no shared memory can be made; empty: it can
  std::string memory_place;  // ranks with the same one can share memory
  std::string boot;          // of the running kernel: the same machine, in whatever container
  std::string network;       // its network name space
  std::vector<InterfaceFacts> interfaces;
  std::string interface_asked;
  std::string interface_error;  // why it cannot be used
  std::vector<Offer> offers;
  std::vector<std::string> name_addresses;  // what this host's own name leads to
  std::string name_error;
};

struct RankFacts {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string job;
  std::string transport;
  int32_t pid = 0;
  uint16_t port = 0;   // of its probes
  std::string key;     // what a prober must show
  PeerId id;           // of its shared-memory transport
  std::string memory;  // endpoint of that
  MachineFacts machine;
};

enum class Outcome : uint8_t { reached, no_answer, refused, no_route, unauthenticated, failed };

struct AddressTry {
  std::string address;    // "10.0.0.2:4711"
  std::string interface;  // of the target
  bool offered = true;
  std::string source;  // own address that the kernel (or --interface) chose; may be empty
  Outcome outcome = Outcome::failed;
  std::string error;   // what the kernel said
  double seconds = 0;  // until it was known
};

struct Reach {
  uint32_t from = 0;
  uint32_t to = 0;
  std::vector<AddressTry> tries;
};

// Between two ranks, dialled by `from`. "forth" is from -> to.
struct Measured {
  uint32_t from = 0;
  uint32_t to = 0;
  std::string address{};
  std::string error{};        // what ended the measurement early; empty: it is complete
  double round_trip_us = 0;   // median of short frames
  double clock_ahead_us = 0;  // how far `to`'s clock is ahead of `from`'s
  bool forth_stuck = false;   // short frames pass, long ones do not
  bool back_stuck = false;
  uint32_t segment_bytes = 0;   // segment size of the connection
  uint32_t segment_passes = 0;  // the largest segment that was found to pass, if the connection's do not; 0: none found
  double forth_rate = 0;        // bytes per second
  double back_rate = 0;
};

struct Shared {
  uint32_t from = 0;
  uint32_t to = 0;
  std::string error;  // empty: they share memory
};

struct RendezvousTrouble {
  uint32_t rank = 0;
  std::string resolve_error;      // the name leads nowhere
  std::vector<AddressTry> tries;  // the last of each address
  std::string taken;              // rank 0: why it cannot listen
  std::string said;               // rank 0 answered, and turned this rank away
  bool broken_off = false;        // rank 0 was there and then went silent
  double seconds = 0;
};

struct ClusterFacts {
  uint32_t world_size = 1;
  std::string rendezvous;      // "tcp://10.0.0.1:29500"; "none" for a machine alone
  double waited_seconds = 0;   // for the ranks to come
  uint32_t pairs_skipped = 0;  // not measured, for want of time
  std::vector<RankFacts> ranks;
  std::vector<std::string> turned_away;  // processes that came and did not belong: "a second rank 1 (host b, pid 7)"
  std::vector<uint32_t> silent;          // ranks that came and then stopped answering
  std::vector<Reach> reaches;
  std::vector<Measured> measured;
  std::vector<Shared> shared;
  std::optional<RendezvousTrouble> trouble;

  const RankFacts* find(uint32_t rank) const;
  const Reach* reach(uint32_t from, uint32_t to) const;
};

// True if both ranks run on one kernel and in one network name space, so that they share loopback addresses.
bool same_host(const RankFacts& a, const RankFacts& b);
// "rank 1 (host b)".
std::string name_of(const RankFacts& rank);
// The first address that worked among those that the transport would try, or nothing.
const AddressTry* first_reached(const Reach& reach);

void to_json(nlohmann::json& json, const RankFacts& facts);
void from_json(const nlohmann::json& json, RankFacts& facts);
void to_json(nlohmann::json& json, const Reach& facts);
void from_json(const nlohmann::json& json, Reach& facts);
void to_json(nlohmann::json& json, const Measured& facts);
void from_json(const nlohmann::json& json, Measured& facts);
void to_json(nlohmann::json& json, const ClusterFacts& facts);

}  // namespace unisono::cli
