#include "rendezvous/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/concat.h"
#include "base/random.h"
#include "rendezvous/security_options.h"
#include "unisono/transports.h"

namespace unisono {

namespace {

constexpr uint32_t world_size_limit = 4096;  // The rendezvous accepts no larger world.
constexpr size_t job_bytes_limit = 255;      // The rendezvous accepts no longer job name.
constexpr uint32_t streams_limit = 64;
constexpr uint32_t compute_threads_limit = 64;
constexpr uint32_t loss_limit = 999;  // per mille; it is less than 1000, because a link that loses all datagrams cannot come up
constexpr uint32_t rate_limit_mbps_limit = 1'000'000;
constexpr uint64_t resend_memory_limit = uint64_t{1} << 40;
constexpr uint32_t record_limit = 1u << 20;  // A record can keep at most this many operations.

std::optional<std::string_view> lookup(const Environment& environment, std::string_view name) {
  const auto it = environment.find(name);
  if (it == environment.end() || it->second.empty()) return std::nullopt;  // An empty value counts as not set.
  return it->second;
}

std::string text_of(const Environment& environment, std::string_view name) {
  return std::string(lookup(environment, name).value_or(""));
}

Status invalid(std::string message) { return {Code::invalid, std::move(message)}; }

template <typename Number>
Result<Number> parse_number(std::string_view name, std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return invalid(concat(name, " is '", text, "'; needed: a number from ", least, " to ", most));
  }
  return value;
}

// The environment variables that a launcher sets.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* description;  // description for messages
};
// The launchers in the order in which they are tried. A launcher may start another one, as in `srun torchrun`, or as `mpirun`
// in a batch job. The variables of both launchers are set then, and those of the inner launcher must be used. So inner
// launchers come first.
constexpr Launcher launchers[] = {
    {"UNISONO_RANK", "UNISONO_WORLD_SIZE", "UNISONO_RANK and UNISONO_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE", "RANK and WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI's OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPICH's PMI_RANK and PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "Slurm's SLURM_PROCID and SLURM_NTASKS"},
};
enum LauncherIndex : size_t { own = 0, torch = 1, open_mpi = 2, mpich = 3, slurm = 4, launcher_count = 5 };

size_t find_launcher(const Environment& environment) {
  for (size_t i = 0; i < launcher_count; ++i) {
    if (lookup(environment, launchers[i].rank) || lookup(environment, launchers[i].world_size)) return i;
  }
  return launcher_count;
}

Status resolve_rank(const Options& options, const Environment& environment, size_t launcher, ResolvedOptions& resolved) {
  const auto from = [&](const char* name, int32_t given, const char* field, uint32_t least, uint32_t most) -> Result<uint32_t> {
    if (given >= 0) return parse_number<uint32_t>(std::string("Options::") + field, std::to_string(given), least, most);
    const auto text = name == nullptr ? std::nullopt : lookup(environment, name);
    if (text) return parse_number<uint32_t>(name, *text, least, most);
    std::string hint = std::string(field) + " is not known: Options::" + field + " is not set";
    if (name != nullptr)
      return invalid(hint + ", and neither is " + name + ", although " + launchers[launcher].description +
                     " must be set together");
    return invalid(hint +
                   ", and no launcher set it (RANK and WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_*, SLURM_*): start with `unisono "
                   "launch`, torchrun, mpirun or srun");
  };
  const Launcher* found = launcher < launcher_count ? &launchers[launcher] : nullptr;
  if (options.world_size == 1 && options.rank < 0) {  // A world of one process has only rank 0.
    resolved.rank = 0;
    resolved.world_size = 1;
    resolved.source = "world size 1 from Options";
    return {};
  }
  auto world = from(found ? found->world_size : nullptr, options.world_size, "world_size", 1, world_size_limit);
  if (!world.ok()) return world.status();
  auto rank = from(found ? found->rank : nullptr, options.rank, "rank", 0, world_size_limit - 1);
  if (!rank.ok()) return rank.status();
  resolved.rank = *rank;
  resolved.world_size = *world;
  const bool explicit_rank = options.rank >= 0 && options.world_size >= 0;
  resolved.source =
      explicit_rank ? "rank and world size from Options" : std::string("rank and world size from ") + found->description;
  if (*rank >= *world)
    return invalid(concat("rank ", *rank, " of a world of ", *world, " (", resolved.source, "): ranks start at 0"));
  return {};
}

Result<RendezvousAddress> address_of_master(const Environment& environment) {
  const auto port_text = lookup(environment, "MASTER_PORT");
  if (!port_text) return invalid("MASTER_ADDR is set, but MASTER_PORT is not");
  auto port = parse_number<uint32_t>("MASTER_PORT", *port_text, 1, 65535);
  if (!port.ok()) return port.status();
  // As long as its workers live, torchrun's agent has a store of its own at MASTER_PORT. Therefore Unisono uses the next port.
  const bool agent_store = text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (agent_store && *port == 65535)
    return invalid(
        "MASTER_PORT is 65535 and taken by torchrun's store, so there is no next port for Unisono: set UNISONO_RENDEZVOUS");
  RendezvousAddress address{
      .kind = RendezvousAddress::Kind::tcp, .host = text_of(environment, "MASTER_ADDR"), .port = 0, .path = {}};
  address.port = static_cast<uint16_t>(*port + (agent_store ? 1 : 0));
  return address;
}

// Returns the first host of the job step, with a port that is computed from the job id. Therefore all tasks get the same port.
// It is below the ports that the kernel gives to outgoing connections, so none of these can occupy it by chance.
Result<RendezvousAddress> address_of_slurm(const Environment& environment) {
  auto list = lookup(environment, "SLURM_STEP_NODELIST");
  if (!list) list = lookup(environment, "SLURM_JOB_NODELIST");
  const std::string host = list ? first_slurm_host(*list) : "";
  if (host.empty()) {
    return invalid("no rendezvous address: SLURM_STEP_NODELIST is '" + std::string(list.value_or("")) +
                   "'; set UNISONO_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT");
  }
  uint64_t hash = 0;
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    for (const char c : text_of(environment, name) + "/") hash = mix64(hash ^ static_cast<unsigned char>(c));
  }
  return RendezvousAddress{
      .kind = RendezvousAddress::Kind::tcp, .host = host, .port = static_cast<uint16_t>(20000 + hash % 12000), .path = {}};
}

// If all ranks run on one host, mpirun needs no address: the ranks meet in a directory that is named after the job.
Result<RendezvousAddress> address_of_open_mpi(const Environment& environment) {
  const auto local = lookup(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  const auto job = lookup(environment, "PMIX_NAMESPACE");
  if (!local || !job || *local != lookup(environment, "OMPI_COMM_WORLD_SIZE")) {
    return invalid(
        "no rendezvous address: mpirun on several hosts gives none; set UNISONO_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT "
        "(mpirun -x)");
  }
  std::string name = "unisono-" + std::string(*job);
  for (char& c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < ' ') c = '_';
  }
  const auto folder = text_of(environment, "TMPDIR");
  return RendezvousAddress{.kind = RendezvousAddress::Kind::file,
                           .host = {},
                           .port = 0,
                           .path = (folder.starts_with('/') ? folder : "/tmp") + "/" + name};
}

Result<RendezvousAddress> resolve_rendezvous(const Options& options, const Environment& environment, size_t launcher,
                                             ResolvedOptions& resolved) {
  const auto parsed = [](std::string_view source, std::string_view text) -> Result<RendezvousAddress> {
    auto address = parse_rendezvous(text);
    if (!address.ok()) return invalid(std::string(source) + ": " + address.status().message());
    return address;
  };
  if (options.store != nullptr) {
    resolved.source += ", rendezvous from Options::store";
    return RendezvousAddress{};
  }
  if (!options.rendezvous.empty()) {
    resolved.source += ", rendezvous from Options";
    return parsed("Options::rendezvous", options.rendezvous);
  }
  if (const auto own_address = lookup(environment, "UNISONO_RENDEZVOUS")) {
    resolved.source += ", rendezvous from UNISONO_RENDEZVOUS";
    return parsed("UNISONO_RENDEZVOUS", *own_address);
  }
  if (!resolved.join_running && resolved.world_size == 1 && options.world_size == 1) return RendezvousAddress{};
  if (lookup(environment, "MASTER_ADDR")) {
    resolved.source += ", rendezvous from MASTER_ADDR and MASTER_PORT";
    return address_of_master(environment);
  }
  if (lookup(environment, "MASTER_PORT")) return invalid("MASTER_PORT is set, but MASTER_ADDR is not");
  if (launcher == slurm) {
    resolved.source += ", rendezvous from SLURM_STEP_NODELIST and the job's number";
    return address_of_slurm(environment);
  }
  if (launcher == open_mpi) {
    resolved.source += ", rendezvous from PMIX_NAMESPACE";
    return address_of_open_mpi(environment);
  }
  if (!resolved.join_running && resolved.world_size == 1) return RendezvousAddress{};
  return invalid(
      "no rendezvous address: set Options::rendezvous, UNISONO_RENDEZVOUS (tcp://host:port or file:///path), or MASTER_ADDR "
      "and MASTER_PORT");
}

std::string resolve_job(const Options& options, const Environment& environment, size_t launcher) {
  if (!options.job.empty()) return options.job;
  if (auto job = text_of(environment, "UNISONO_JOB"); !job.empty()) return job;
  std::string job;
  switch (launcher) {
    case torch: job = text_of(environment, "TORCHELASTIC_RUN_ID"); break;
    case open_mpi: job = text_of(environment, "PMIX_NAMESPACE"); break;
    case mpich: job = text_of(environment, "PMI_JOBID"); break;
    case slurm: {
      job = text_of(environment, "SLURM_JOB_ID");
      if (const auto step = text_of(environment, "SLURM_STEP_ID"); !job.empty() && !step.empty()) job += "." + step;
      break;
    }
    default: break;
  }
  return job.empty() ? "default" : job;
}

// Chooses a timeout. The environment variable is used only if the option has its default value. Times below 1 ms are errors.
Status resolve_time(const Environment& environment, const char* name, const char* field, Milliseconds given,
                    Milliseconds fallback, Milliseconds& out) {
  constexpr int64_t most = timeout_max / millisecond;
  out = given;
  if (const auto text = lookup(environment, name); text && given == fallback) {
    auto value = parse_number<int64_t>(name, *text, 1, most);
    if (!value.ok()) return value.status();
    out = Milliseconds(*value);
  }
  if (out.count() < 1 || out.count() > most)
    return invalid(concat("Options::", field, " is ", out.count(), " ms; needed: 1 to ", most));
  return {};
}

Result<bool> parse_switch(std::string_view name, std::string_view text) {
  if (text == "1" || text == "true" || text == "yes") return true;
  if (text == "0" || text == "false" || text == "no") return false;
  return invalid(std::string(name) + " is '" + std::string(text) + "'; needed: 1 or 0");
}

Status resolve_switch(const Environment& environment, const char* name, bool given, bool& out) {
  out = given;
  const auto text = lookup(environment, name);
  if (given || !text) return {};
  auto value = parse_switch(name, *text);
  if (!value.ok()) return value.status();
  out = *value;
  return {};
}

// Chooses a number. If the option is 0, the environment variable is used. If that is not set, the number stays 0 (automatic).
Status resolve_number(const Environment& environment, const char* name, const char* field, uint32_t given, uint32_t most,
                      uint32_t& out) {
  out = given;
  if (const auto text = lookup(environment, name); text && given == 0) {
    auto value = parse_number<uint32_t>(name, *text, 0, most);
    if (!value.ok()) return value.status();
    out = *value;
  }
  if (out > most) return invalid(concat("Options::", field, " is ", out, "; at most ", most));
  return {};
}

Status resolve_bytes(const Environment& environment, const char* name, const char* field, uint64_t given, uint64_t fallback,
                     uint64_t& out) {
  out = given;
  if (const auto text = lookup(environment, name); text && given == fallback) {
    auto value = parse_number<uint64_t>(name, *text, 0, resend_memory_limit);
    if (!value.ok()) return value.status();
    out = *value;
  }
  if (out > resend_memory_limit) return invalid(concat("Options::", field, " is ", out, "; at most ", resend_memory_limit));
  return {};
}

// How links between hosts outlive their connections.
Status resolve_reconnecting(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  const Options defaults;
  if (auto s = resolve_time(environment, "UNISONO_LINK_TIMEOUT_MS", "link_timeout", options.link_timeout, defaults.link_timeout,
                            resolved.link_timeout);
      !s.ok())
    return s;
  if (auto s = resolve_bytes(environment, "UNISONO_RESEND_MEMORY_PER_LINK", "resend_memory_per_link",
                             options.resend_memory_per_link, defaults.resend_memory_per_link, resolved.resend_memory_per_link);
      !s.ok())
    return s;
  return resolve_bytes(environment, "UNISONO_RESEND_MEMORY", "resend_memory", options.resend_memory, defaults.resend_memory,
                       resolved.resend_memory);
}

// Fails if `min_world` is larger than the world size, because the group could then never form.
Status resolve_min_world(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  resolved.min_world = options.min_world;
  if (const auto text = lookup(environment, "UNISONO_MIN_WORLD"); text && options.min_world == Options{}.min_world) {
    auto value = parse_number<uint32_t>("UNISONO_MIN_WORLD", *text, 1, world_size_limit);
    if (!value.ok()) return value.status();
    resolved.min_world = *value;
  }
  if (resolved.min_world < 1 || (!resolved.join_running && resolved.min_world > resolved.world_size)) {
    return invalid(concat("UNISONO_MIN_WORLD or Options::min_world is ", resolved.min_world, "; needed: 1 to the world size",
                          resolved.join_running ? std::string() : concat(", ", resolved.world_size)));
  }
  return {};
}

Status resolve_transport(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  resolved.interface = options.interface.empty() ? text_of(environment, "UNISONO_INTERFACE") : options.interface;
  resolved.transport = options.transport.empty() ? text_of(environment, "UNISONO_TRANSPORT") : options.transport;
  if (resolved.transport.empty()) resolved.transport = "auto";
  if (find_transport(resolved.transport) == nullptr)
    return invalid("transport '" + resolved.transport + "' is not known; needed: " + transport_list());
  if (auto s = resolve_number(environment, "UNISONO_RATE_LIMIT_MBPS", "rate_limit_mbps", options.rate_limit_mbps,
                              rate_limit_mbps_limit, resolved.rate_limit_mbps);
      !s.ok())
    return s;
  bool checksum = false;
  if (auto s = resolve_switch(environment, "UNISONO_DATAGRAM_CHECKSUM", options.datagram_checksum, checksum); !s.ok()) return s;
  if (checksum) resolved.datagram_auth = DatagramAuth::checksum;
  const auto text = lookup(environment, "UNISONO_LOSE_PER_MILLE");
  if (!text) return {};
  auto value = parse_number<uint32_t>("UNISONO_LOSE_PER_MILLE", *text, 0, loss_limit);
  if (!value.ok()) return value.status();
  if (*value > 0 && resolved.transport != "udp") {
    return invalid(concat("UNISONO_LOSE_PER_MILLE is ", *value,
                          ", but only the transport udp can drop datagrams; this process uses '", resolved.transport, "'"));
  }
  resolved.lose_per_mille = *value;
  return {};
}

// The option is on by default, so only `false` is explicit.
Status resolve_majority(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  resolved.require_majority = options.require_majority;
  const auto text = lookup(environment, "UNISONO_REQUIRE_MAJORITY");
  if (!options.require_majority || !text) return {};
  auto value = parse_switch("UNISONO_REQUIRE_MAJORITY", *text);
  if (!value.ok()) return value.status();
  resolved.require_majority = *value;
  return {};
}

Status resolve_details(const Options& options, const Environment& environment, ResolvedOptions& resolved) {
  const Options defaults;
  if (auto s = resolve_security(options, environment, resolved); !s.ok()) return s;
  if (auto s = resolve_transport(options, environment, resolved); !s.ok()) return s;
  if (auto s = resolve_reconnecting(options, environment, resolved); !s.ok()) return s;
  if (auto s = resolve_time(environment, "UNISONO_JOIN_TIMEOUT_MS", "join_timeout", options.join_timeout, defaults.join_timeout,
                            resolved.join_timeout);
      !s.ok())
    return s;
  if (auto s = resolve_time(environment, "UNISONO_TIMEOUT_MS", "timeout", options.timeout, defaults.timeout, resolved.timeout);
      !s.ok())
    return s;
  if (auto s = resolve_time(environment, "UNISONO_REFORM_TIMEOUT_MS", "reform_timeout", options.reform_timeout,
                            defaults.reform_timeout, resolved.reform_timeout);
      !s.ok())
    return s;
  if (auto s = resolve_switch(environment, "UNISONO_PAYLOAD_CHECKSUM", options.payload_checksum, resolved.payload_checksum);
      !s.ok())
    return s;
  if (auto s = resolve_majority(options, environment, resolved); !s.ok()) return s;
  if (auto s = resolve_min_world(options, environment, resolved); !s.ok()) return s;
  if (const auto text = options.codec.empty() ? text_of(environment, "UNISONO_CODEC") : options.codec; !text.empty()) {
    auto codec = Codec::parse(text);
    if (!codec.ok())
      return invalid((options.codec.empty() ? "UNISONO_CODEC" : "Options::codec") + (" is '" + text + "': ") +
                     codec.status().message());
    resolved.codec = *codec;
  }
  if (auto s = resolve_number(environment, "UNISONO_STREAMS_PER_LINK", "streams_per_link", options.streams_per_link,
                              streams_limit, resolved.streams_per_link);
      !s.ok())
    return s;
  resolved.tuning_file = options.tuning.empty() ? text_of(environment, "UNISONO_TUNING") : options.tuning;
  if (auto s = resolve_number(environment, "UNISONO_COMPUTE_THREADS", "compute_threads", options.compute_threads,
                              compute_threads_limit, resolved.compute_threads);
      !s.ok())
    return s;
  if (const auto text = lookup(environment, "UNISONO_RECORD")) {
    auto value = parse_number<uint32_t>("UNISONO_RECORD", *text, 0, record_limit);
    if (!value.ok()) return value.status();
    resolved.record_operations = *value;
  }
  resolved.record_folder = text_of(environment, "UNISONO_RECORD_DIR");
  resolved.on_event = options.on_event;
  auto log = parse_log_target(text_of(environment, "UNISONO_LOG"));
  if (!log.ok()) return log.status();
  resolved.log = *std::move(log);
  if (const auto text = lookup(environment, "UNISONO_LISTEN_FD")) {
    auto value = parse_number<int32_t>("UNISONO_LISTEN_FD", *text, 0, 1 << 20);
    if (!value.ok()) return value.status();
    resolved.listen_fd = *value;
  }
  return {};
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

Result<RendezvousAddress> parse_rendezvous(std::string_view text, bool wildcard) {
  const auto bad = [&](const std::string& why) { return invalid("rendezvous address '" + std::string(text) + "': " + why); };
  if (text.find('\0') != std::string_view::npos) return bad("contains a zero byte");
  RendezvousAddress address;
  if (text.starts_with("file://")) {
    address.kind = RendezvousAddress::Kind::file;
    address.path = text.substr(7);
    while (address.path.size() > 1 && address.path.ends_with('/')) address.path.pop_back();
    if (address.path.size() < 2 || !address.path.starts_with('/'))
      return bad("needed: file:///path (absolute, so three slashes)");
    return address;
  }
  if (!text.starts_with("tcp://")) return bad("needed: tcp://host:port, tcp://[address]:port or file:///path");
  const std::string_view rest = text.substr(6);
  address.kind = RendezvousAddress::Kind::tcp;
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto end = rest.find(']');
    if (end == std::string_view::npos || end + 1 >= rest.size() || rest[end + 1] != ':')
      return bad("needed: tcp://[address]:port");
    address.host = rest.substr(1, end - 1);
    port = rest.substr(end + 2);
  } else {
    const auto colon = rest.rfind(':');
    if (colon == std::string_view::npos) return bad("the port is missing");
    address.host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
    if (address.host.find(':') != std::string::npos) return bad("an IPv6 address needs brackets: tcp://[address]:port");
  }
  if (address.host.empty() && !wildcard) return bad("the host is missing");
  auto number = parse_number<uint32_t>("port", port, wildcard ? 0 : 1, 65535);
  if (!number.ok()) return bad(number.status().message());
  address.port = static_cast<uint16_t>(*number);
  return address;
}

std::string first_slurm_host(std::string_view list) {
  std::string host;
  size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const auto close = list.find(']', at);
    if (close == std::string_view::npos) return {};
    const auto inside = list.substr(at + 1, close - at - 1);
    const auto first = inside.substr(0, inside.find_first_of(",-"));
    if (first.empty()) return {};
    host += first;
    at = close + 1;
  }
  return host.find(']') == std::string::npos ? host : std::string();
}

Result<ResolvedOptions> resolve_options(const Options& options, const Environment& environment) {
  ResolvedOptions resolved;
  if (auto s = resolve_switch(environment, "UNISONO_JOIN_RUNNING", options.join_running, resolved.join_running); !s.ok())
    return s;
  const size_t launcher = find_launcher(environment);
  if (resolved.join_running) {
    resolved.source = "joining a running group";  // The group decides which rank this process gets, and how large the world is.
  } else if (auto s = resolve_rank(options, environment, launcher, resolved); !s.ok()) {
    return s;
  }
  auto address = resolve_rendezvous(options, environment, launcher, resolved);
  if (!address.ok()) return address.status();
  resolved.rendezvous = std::move(*address);
  resolved.job = resolve_job(options, environment, launcher);
  if (resolved.job.size() > job_bytes_limit)
    return invalid(concat("the job's name has ", resolved.job.size(), " bytes; at most ", job_bytes_limit));
  if (auto s = resolve_details(options, environment, resolved); !s.ok()) return s;
  return resolved;
}

}  // namespace unisono
