// Combines Options and the environment into one value that has been checked, ResolvedOptions. Its member `source` says where
// the rank and the address come from.
//
// Options that are set explicitly are used first, and the UNISONO_* variables second. The variables of the launcher that gave
// the rank come last: torchrun, Open MPI, MPICH or Slurm. resolve_options() uses only its arguments, so tests can try the
// variables of every launcher.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "events/event_log.h"
#include "schedules/tuning.h"
#include "tls/key_source.h"
#include "unisono/options.h"
#include "unisono/status.h"
#include "wire/datagram.h"

namespace unisono {

using Environment = std::map<std::string, std::string, std::less<>>;

// Returns the environment variables of this process.
Environment process_environment();

// The address where processes meet.
struct RendezvousAddress {
  enum class Kind : uint8_t { none, tcp, file };
  Kind kind = Kind::none;  // none: the group has only one process, and no other process can join it
  // Used by kind tcp: one or more host names or addresses, without brackets, separated by commas. An empty host stands for all
  // interfaces. It can be used only for listening.
  std::string host;
  uint16_t port = 0;  // used by kind tcp
  std::string path;   // used by kind file: an absolute path
  friend bool operator==(const RendezvousAddress&, const RendezvousAddress&) = default;
  // Returns a text like "tcp://[::1]:29500", "file:///tmp/job" or "none".
  std::string to_string() const;
};

// Returns whether only processes of this host can use the address: it is a file, or all its hosts are loopback addresses or
// "localhost", or there is none. A name that this host looks up as a loopback address does not count, because other hosts may
// look it up as another one.
bool is_on_this_host(const RendezvousAddress& address);

// Accepts "tcp://host:port", "tcp://[::1]:port", "tcp://[10.0.0.1,::1]:port" and "file:///path". If `wildcard` is true, the
// address is used for listening; its host may be empty, and its port may be 0.
Result<RendezvousAddress> parse_rendezvous(std::string_view text, bool wildcard = false);

struct ResolvedOptions {
  uint32_t rank = 0;        // has no meaning if join_running is set
  uint32_t world_size = 1;  // has no meaning if join_running is set
  RendezvousAddress rendezvous;
  std::string job;
  KeySource key{};
  Security security = Security::automatic;
  std::string interface;
  std::string transport = "auto";  // one of the names in transport_table
  uint32_t lose_per_mille = 0;     // This process drops so many of 1000 arriving datagrams on purpose. Used only by udp.
  uint32_t rate_limit_mbps = 0;    // 0: no limit. Used only by udp.
  DatagramAuth datagram_auth = DatagramAuth::mac;  // the weakest authentication that this process accepts; used only by udp
  bool join_running = false;
  Milliseconds join_timeout{60'000};
  Milliseconds timeout{300'000};
  Milliseconds reform_timeout{200};
  uint32_t min_world = 1;
  bool require_majority = true;
  uint32_t streams_per_link = 0;
  Milliseconds link_timeout{10'000};
  uint64_t resend_memory_per_link = 16u << 20, resend_memory = 256u << 20;
  std::string tuning_file;
  Tuning tuning{};  // what tuning_file says about this transport; it is read when the process joins
  Codec codec{};
  uint32_t compute_threads = 0;
  bool payload_checksum = false;
  // The record of a group keeps the last `record_operations` operations. 0: there is no record. If `record_folder` is empty,
  // the record is only in memory.
  uint32_t record_operations = 256;
  std::string record_folder;
  EventHandler on_event{};
  LogTarget log{};
  // A listening socket that the launcher of rank 0 has opened. Rank 0 serves the rendezvous there. -1: rank 0 opens a socket
  // itself.
  int32_t listen_fd = -1;
  // Says where the rank and the rendezvous come from. It is used in messages: "rank from RANK, rendezvous from MASTER_ADDR and
  // MASTER_PORT".
  std::string source;
};

Result<ResolvedOptions> resolve_options(const Options& options, const Environment& environment);

// Returns the first host of a list in Slurm's compressed form: "node[07-09,12],gpu1" gives "node07". Returns an empty text if
// the list is malformed.
std::string first_slurm_host(std::string_view list);

}  // namespace unisono
