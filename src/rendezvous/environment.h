// Resolves Options and the environment into one validated value, and records where each part of it came from.
//
// resolve_options is a pure function of its arguments, so tests cover every launcher's variables without touching the process.
// Explicit options win, then UNISONO_*, then the launcher that gave the rank: torchrun, Open MPI, MPICH, Slurm.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "schedules/tuning.h"
#include "unisono/options.h"
#include "unisono/status.h"
#include "wire/datagram.h"

namespace unisono {

using Environment = std::map<std::string, std::string, std::less<>>;

// The variables of this process.
Environment process_environment();

// The address at which processes meet.
struct RendezvousAddress {
  enum class Kind : uint8_t { none, tcp, file };
  Kind kind = Kind::none;  // none: a group of one that nobody can join
  // tcp: name or address, or several with commas between; no brackets; empty: every interface (listening only)
  std::string host;
  uint16_t port = 0;  // tcp
  std::string path;   // file: absolute
  friend bool operator==(const RendezvousAddress&, const RendezvousAddress&) = default;
  // "tcp://[::1]:29500", "file:///tmp/job", "none"
  std::string to_string() const;
};

// "tcp://host:port", "tcp://[::1]:port", "tcp://[10.0.0.1,::1]:port", "file:///path". With `wildcard`, port 0 and an empty host
// are also allowed, for listening.
Result<RendezvousAddress> parse_rendezvous(std::string_view text, bool wildcard = false);

struct ResolvedOptions {
  uint32_t rank = 0;        // undefined if join_running
  uint32_t world_size = 1;  // undefined if join_running
  RendezvousAddress rendezvous;
  std::string job;
  std::string interface;
  std::string transport = "auto";                  // a name of transport_table
  uint32_t lose_per_mille = 0;                     // share of arriving datagrams to lose on purpose; udp only
  uint32_t rate_limit_mbps = 0;                    // udp only
  DatagramAuth datagram_auth = DatagramAuth::mac;  // what this process accepts; udp only
  bool join_running = false;
  Milliseconds join_timeout{60'000};
  Milliseconds timeout{300'000};
  Milliseconds reform_timeout{200};
  uint32_t min_world = 1;
  bool require_majority = false;
  uint32_t streams_per_link = 0;
  std::string tuning_file;
  Tuning tuning{};  // from tuning_file, for this transport; read when the process joins
  Codec codec{};
  uint32_t compute_threads = 0;
  bool payload_checksum = false;
  // How many operations the record of a group keeps (0: no record), and the folder for it; empty: memory only.
  uint32_t record_operations = 256;
  std::string record_folder;
  // A listening socket inherited from the launcher, on which rank 0 serves the rendezvous; -1: rank 0 opens one.
  int32_t listen_fd = -1;
  // Where rank and rendezvous come from, for messages: "rank from RANK, rendezvous from MASTER_ADDR and MASTER_PORT".
  std::string source;
};

Result<ResolvedOptions> resolve_options(const Options& options, const Environment& environment);

// The first host of Slurm's compressed list: "node[07-09,12],gpu1" -> "node07". Empty if the list is malformed.
std::string first_slurm_host(std::string_view list);

}  // namespace unisono
