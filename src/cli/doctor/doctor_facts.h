// The measurements of `unisono doctor`, as plain values. The ranks send these values to each other as JSON, and the findings
// are derived from them.
//
// How the doctor works: every rank opens a probe port (doctor_probe.h) and reads the facts of its machine (doctor_machine.h).
// Then it dials the rendezvous address, where rank 0 listens (doctor_exchange.h). It does not join a group. Rank 0 waits for
// the other ranks, and continues with those that have come in time. All later orders and answers use these connections to rank
// 0. So results arrive even if links between other ranks fail. Three rounds follow (doctor_rounds.h):
//   1. Rank 0 sends the list of ranks. Each rank dials every address of every other rank and reports the outcomes (Reach).
//   2. The pairs of ranks are measured one after another, so that they do not disturb each other: round trip, large frames,
//      bandwidth, clock (Measured).
//   3. Pairs of ranks on one host try to share memory, as the transport does (Shared).
// A rank that does not reach rank 0 reports only its own facts and a RendezvousFailure. The findings (doctor_findings.h) and
// the tables (doctor_table.h) are pure functions of ClusterFacts.
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

inline constexpr uint64_t unlimited = UINT64_MAX;  // the value of a limit that the system does not set

struct InterfaceFacts {
  std::string name;
  bool up = false;
  bool carrier = false;  // true: there is a device at the other end of the cable
  uint32_t mtu = 0;
};

// An address of this host. Other ranks try the offers of a host in the order of the list.
struct Offer {
  std::string address;  // "10.0.0.1", "fe80::1%eth0"
  std::string interface;
  std::string kind;  // one of "global", "link-local", "virtual", "loopback"; it decides the position in the list
  // False: --interface excludes this address, or the host has more addresses than a process offers. It is still dialled, to
  // learn whether it would work.
  bool offered = true;
};

struct MachineFacts {
  std::string host;
  std::string version;  // version of Unisono
  std::string processor;
  std::string kernel;
  std::string congestion_control;
  std::string clock_source;
  uint32_t cores_online = 0;
  std::vector<uint32_t> cores_allowed;  // the cores that this process may use
  double cores_quota = 0;               // how many cores the control group grants; 0: no limit
  uint64_t descriptors = 0;             // how many descriptors this process may have open
  uint64_t locked_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t shm_bytes = 0;  // size of /dev/shm; 0: there is none
  uint64_t shm_free_bytes = 0;
  std::string arena_error;   // why shared memory cannot be created; empty if it can be
  std::string memory_place;  // two ranks can share memory if this value is equal
  std::string boot;          // the boot id of the kernel; it is equal in all containers of one machine
  std::string network;       // the network name space of this process
  std::vector<InterfaceFacts> interfaces;
  std::string interface_asked;
  std::string interface_error;  // why the requested interface cannot be used
  std::vector<Offer> offers;
  std::vector<std::string> name_addresses;  // the addresses to which the name of this host resolves
  std::string name_error;
};

// Which secret key a rank would use, and whether it could. The key itself is not here.
struct SecurityFacts {
  std::string level{};       // auto, required, off
  std::string key_source{};  // "UNISONO_KEY_FILE (/etc/unisono.key)"; empty: there is no key
  std::string key_error{};   // why the key cannot be used; empty if it can be
  std::string key_mark{};    // two ranks have the same key if this value is equal; empty: none, or it cannot be used
};

struct RankFacts {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string job;
  std::string transport;
  int32_t pid = 0;
  uint16_t port = 0;   // port at which the rank answers probes
  std::string key;     // a prober must send this key
  PeerId id;           // the rank's id in the shared-memory transport
  std::string memory;  // endpoint of the shared-memory transport; empty: there is none
  SecurityFacts security;
  MachineFacts machine;
};

enum class Outcome : uint8_t { reached, no_answer, refused, no_route, unauthenticated, failed };

struct AddressTry {
  std::string address;    // "10.0.0.2:4711"
  std::string interface;  // the interface on the dialled host that has the address
  bool offered = true;
  std::string source;  // The local address of the connection. The kernel chose it, or --interface did. It may be empty.
  Outcome outcome = Outcome::failed;
  std::string error;   // the kernel's error message
  double seconds = 0;  // how long it took until the outcome was known
};

struct Reach {
  uint32_t from = 0;
  uint32_t to = 0;
  std::vector<AddressTry> tries;
};

// The measurements between two ranks, over connections that the rank `from` dialled. "forth" means from `from` to `to`, and
// "back" means from `to` to `from`.
struct Measured {
  uint32_t from = 0;
  uint32_t to = 0;
  std::string address{};
  std::string error{};        // why the measurement ended early; empty if it is complete
  double round_trip_us = 0;   // the median round trip of short frames
  double clock_ahead_us = 0;  // how far the clock of `to` is ahead of the clock of `from`
  bool forth_stuck = false;   // true: short frames arrive, but long frames do not
  bool back_stuck = false;
  uint32_t segment_bytes = 0;  // the segment size of the TCP connection
  // If full segments did not arrive, smaller sizes were tried. This is the largest of them that arrived, or 0 if none did.
  uint32_t segment_passes = 0;
  double forth_rate = 0;  // bytes per second
  double back_rate = 0;
};

struct Shared {
  uint32_t from = 0;
  uint32_t to = 0;
  std::string error;  // why the two ranks cannot share memory; empty if they can
};

struct RendezvousFailure {
  uint32_t rank = 0;
  std::string resolve_error;      // why the rendezvous name cannot be resolved
  std::vector<AddressTry> tries;  // for each address, the last attempt to dial it
  std::string taken;              // only for rank 0: why it cannot listen
  std::string said;               // why rank 0 refused this rank
  bool broken_off = false;        // true: rank 0 answered at first, and then stopped answering
  double seconds = 0;
};

struct ClusterFacts {
  uint32_t world_size = 1;
  std::string rendezvous;      // "tcp://10.0.0.1:29500", or "none" if only this machine is examined
  double waited_seconds = 0;   // how long rank 0 waited for the other ranks
  uint32_t pairs_skipped = 0;  // number of pairs that were not measured because time was short
  std::vector<RankFacts> ranks;
  std::vector<std::string> turned_away;  // the processes that rank 0 refused, such as "a second rank 1 (host b, pid 7)"
  std::vector<uint32_t> silent;          // the ranks that came and later stopped answering
  std::vector<Reach> reaches;
  std::vector<Measured> measured;
  std::vector<Shared> shared;
  std::optional<RendezvousFailure> rendezvous_failure;

  const RankFacts* find(uint32_t rank) const;
  const Reach* reach(uint32_t from, uint32_t to) const;
};

// Returns true if both ranks run on the same kernel and in the same network name space. Such ranks have the same loopback
// addresses.
bool same_host(const RankFacts& a, const RankFacts& b);
// Returns text such as "rank 1 (host b)".
std::string name_of(const RankFacts& rank);
// Returns the first address that worked, or null if there is none. Addresses that the transport would not try are skipped.
const AddressTry* first_reached(const Reach& reach);

void to_json(nlohmann::json& json, const RankFacts& facts);
void from_json(const nlohmann::json& json, RankFacts& facts);
void to_json(nlohmann::json& json, const Reach& facts);
void from_json(const nlohmann::json& json, Reach& facts);
void to_json(nlohmann::json& json, const Measured& facts);
void from_json(const nlohmann::json& json, Measured& facts);
void to_json(nlohmann::json& json, const ClusterFacts& facts);

}  // namespace unisono::cli
