#include "cli/launch/launch.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/text.h"
#include "cli/launch/job_key.h"
#include "cli/launch/launch_links.h"
#include "unisono/transports.h"

extern char** environ;

namespace unisono::cli {
namespace {

const CommandLineText launch_text{
    .name = "unisono launch",
    .usage = "unisono launch -n COUNT [OPTIONS] [--] PROGRAM [ARGUMENTS]",
    .description = "Runs PROGRAM as COUNT ranks and shows what they print, each line after the number of its rank.",
    .footer = R"(Examples:
  unisono launch -n 4 -- ./train --epochs 3
  unisono launch -n 8 --pin --env OMP_NUM_THREADS=1 -- python3 train.py
  unisono launch --hosts a:2,b:2 --interface eth1 -- ./train
  unisono launch -n 2 --hosts a,b --ssh 'ssh -p 2222 -i key' -- ./train
  unisono launch -n 4 --key-file job.key --rendezvous tcp://a:29500 -- ./train   with the key of that rendezvous
  unisono launch -n 4 --keep-going -- ./elastic         the survivors re-form the group
  unisono launch -n 4 --rate 100M --delay 1ms -- ./train   as if each rank were a host with such a link

Each rank finds in its environment:
  RANK, WORLD_SIZE              its rank and the number of ranks
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same among the ranks of its host; GROUP_RANK: the number of its host
  MASTER_ADDR, MASTER_PORT      where rank 0 listens for the other ranks: a free port, reserved for this job
  UNISONO_JOB                   the job's name, random unless --job gives it
  UNISONO_RENDEZVOUS, UNISONO_INTERFACE, UNISONO_TRANSPORT, UNISONO_SECURITY   if the options ask for them
  UNISONO_KEY_FD                the inherited descriptor that holds the secret key of the job
and its standard input is empty. Programs that see no terminal may hold their output back: python3 -u or 'stdbuf -oL'
shows it line by line.

Several hosts: the launcher starts 'unisono agent' on each through --ssh, and this tool, PROGRAM and the working
directory must be at the same path everywhere. UNISONO_* variables and --env travel along; other variables do not.

Each job gets a new secret key, with which its ranks encrypt and authenticate their links. It travels through ssh, and is
in no command line and no environment. --key-file, UNISONO_KEY_FILE or UNISONO_KEY give another one. With --rendezvous,
no key is made: other processes that meet there could not know it.

--rate, --loss and --delay give each rank a network and a host name of its own, with a cable to a switch that this
command emulates, as 'unisono bench' does. This needs /dev/net/tun, and root or user name spaces. Emulation takes time
of the same cores: if packets come late, the command says so at the end.

When a rank fails, the others have --grace to end by themselves, then get SIGTERM, and after --grace again SIGKILL.
SIGINT, SIGTERM, SIGHUP and SIGQUIT go to all ranks and start the same sequence; a second one ends the job at once.
SIGUSR1, SIGUSR2, SIGTSTP (Ctrl-Z) and SIGCONT are passed on. No process of the job survives the launcher, not even
its death by SIGKILL.

Exit code: that of the first rank that failed; 128 + the signal that killed it; 127 if PROGRAM was not found; 126 if
it cannot be executed; 125 if a host cannot be reached or was lost; 2 for a wrong command line; 0 if no rank failed.)",
    .runs_program = true};

std::vector<std::string> transport_words() { return {transport_names.begin(), transport_names.end()}; }

Status set_rendezvous(const std::string& text, JobOptions& job) {
  if (text.empty()) return {};
  const bool is_file = text.starts_with("file://");
  const auto address = text.starts_with("tcp://") ? text.substr(6) : text;
  job.environment.push_back("UNISONO_RENDEZVOUS=" + (is_file ? text : "tcp://" + address));
  if (is_file)
    return text.size() > 8 && text[7] == '/' ? Status() : Status(Code::invalid, "--rendezvous file:// needs an absolute path");
  const auto colon = address.rfind(':');
  const auto port =
      colon == std::string::npos ? Result<uint64_t>(Status(Code::invalid, "")) : parse_count(address.substr(colon + 1), 65535);
  auto host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos) host.clear();
  if (!port.ok() || *port == 0 || host.empty()) {
    return Status(Code::invalid,
                  fmt::format("--rendezvous '{}': expected tcp://host:port, tcp://[address]:port or file:///path", text));
  }
  job.master_address = host;
  job.master_port = static_cast<uint32_t>(*port);
  return {};
}

Status add_environment(const std::vector<std::string>& settings, bool remote, JobOptions& job) {
  // ssh does not pass on the environment. So the launcher passes all variables whose names begin with UNISONO_ to the remote
  // ranks.
  for (char** entry = environ; remote && *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with("UNISONO_")) job.environment.insert(job.environment.begin(), *entry);
  }
  for (const auto& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == 0 || setting.empty())
      return Status(Code::invalid, fmt::format("--env '{}': expected NAME=value or NAME", setting));
    if (setting.starts_with("UNISONO_KEY=") && equals + 1 < setting.size()) {
      return Status(Code::invalid,
                    "--env UNISONO_KEY: all users of this host can read a command line; give the key with --key-file");
    }
    if (equals != std::string::npos) {
      job.environment.push_back(setting);
      continue;
    }
    const char* value = std::getenv(setting.c_str());
    if (value == nullptr) return Status(Code::invalid, fmt::format("--env {}: this variable is not set here", setting));
    job.environment.push_back(setting + "=" + value);
  }
  return {};
}

std::string this_host() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

Result<std::string> random_job_name() {
  uint64_t bits[2];
  if (::getrandom(bits, sizeof(bits), 0) != sizeof(bits))
    return Status(Code::unavailable, "cannot read random numbers from the system");
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

Status set_placements(const LaunchOptions& options, JobOptions& job) {
  uint32_t count = 0;
  if (!options.count.empty()) {
    const auto parsed = parse_count(options.count, world_size_max);
    if (!parsed.ok() || *parsed == 0) {
      return Status(Code::invalid,
                    fmt::format("-n '{}': expected the number of ranks, 1 to {}", options.count, world_size_max));
    }
    count = static_cast<uint32_t>(*parsed);
  }
  std::vector<HostSlots> hosts;
  if (!options.hosts.empty()) {
    auto parsed = parse_hosts(options.hosts);
    if (!parsed.ok()) return Status(Code::invalid, "--hosts: " + parsed.status().message());
    hosts = *std::move(parsed);
  }
  auto placed = place_ranks(count, hosts, this_host());
  if (!placed.ok()) return placed.status();
  job.placements = *std::move(placed);
  return {};
}

Status set_times(const LaunchOptions& options, JobOptions& job) {
  const auto grace = parse_duration(options.grace);
  if (!grace.ok()) return Status(Code::invalid, "--grace: " + grace.status().message());
  const auto start = parse_duration(options.start_timeout);
  if (!start.ok()) return Status(Code::invalid, "--start-timeout: " + start.status().message());
  job.grace = *grace;
  job.start_timeout = *start;
  return {};
}

// Splits the words at the first "--". Without "--", all words go to `before`.
void split_at_dashes(const Arguments& arguments, Arguments& before, Arguments& behind) {
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  before.assign(arguments.begin(), dashes);
  if (dashes != arguments.end()) behind.assign(dashes + 1, arguments.end());
}

}  // namespace

void add_launch_options(CLI::App& app, LaunchOptions& options) {
  app.add_option("-n,--ranks", options.count, "number of ranks")->type_name("COUNT");
  app.add_option("--hosts", options.hosts, "where: host:slots,host:slots,... (default: all here)")->type_name("LIST");
  app.add_option("--rendezvous", options.rendezvous, "tcp://host:port or file:///path instead of a free port of rank 0's host")
      ->type_name("ADDRESS");
  app.add_option("--interface", options.interface, "network interface (name or address) that the ranks use")->type_name("NAME");
  add_choice(app, options.transport,
             {.names = "--transport", .value = "NAME", .meaning = "how ranks reach each other", .words = transport_words()});
  app.add_option("--job", options.job, "name of the job (default: random)")->type_name("NAME");
  app.add_option("--env", options.environment, "variable for the ranks: NAME=value, or NAME to pass on")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("--key-file", options.key_file, "secret key of the job, as 'unisono key' writes it (default: a new one)")
      ->type_name("FILE");
  add_choice(app, options.security,
             {.names = "--security",
              .value = "WORD",
              .meaning = "whether links must be encrypted",
              .words = {"auto", "required", "off"}});
  app.add_option("--grace", options.grace, "time to end by itself, and again after SIGTERM [5s]")->type_name("TIME");
  app.add_option("--ssh", options.ssh, "command that reaches other hosts")->type_name("COMMAND");
  app.add_option("--start-timeout", options.start_timeout, "time for all hosts to answer [30s]")->type_name("TIME");
  app.add_flag("--pin", options.pin, "give each rank its own share of the cores");
}

Result<JobOptions> make_job(const LaunchOptions& options, std::vector<std::string> program) {
  JobOptions job;
  if (program.empty())
    return Status(Code::invalid, "the program is missing: put it behind --, as in unisono launch -n 4 -- ./program");
  job.program = std::move(program);
  job.prefix = !options.no_prefix;
  job.keep_going = options.keep_going;
  job.pin = options.pin;
  job.job = options.job;
  if (auto status = set_placements(options, job); !status.ok()) return status;
  if (auto status = set_times(options, job); !status.ok()) return status;
  if (auto status = set_rendezvous(options.rendezvous, job); !status.ok()) return status;
  const auto transports = transport_words();
  const bool known =
      options.transport.empty() || std::find(transports.begin(), transports.end(), options.transport) != transports.end();
  if (!known)
    return Status(Code::invalid,
                  fmt::format("--transport '{}': expected one of {}", options.transport, fmt::join(transports, ", ")));
  if (!options.transport.empty()) job.environment.push_back("UNISONO_TRANSPORT=" + options.transport);
  if (!options.interface.empty()) job.environment.push_back("UNISONO_INTERFACE=" + options.interface);
  const bool remote =
      std::any_of(job.placements.begin(), job.placements.end(), [](const Placement& p) { return !p.host.empty(); });
  if (auto status = add_environment(options.environment, remote, job); !status.ok()) return status;
  if (auto status = set_security(options, job); !status.ok()) return status;
  auto words = split_words(options.ssh);
  if (!words.ok() || words->empty())
    return Status(Code::invalid, words.ok() ? "--ssh: the command is missing" : "--ssh: " + words.status().message());
  job.ssh = *std::move(words);
  if (job.job.empty()) {
    auto name = random_job_name();
    if (!name.ok()) return name.status();
    job.job = *std::move(name);
  }
  return job;
}

namespace {

void add_all_launch_options(CLI::App& app, LaunchOptions& options) {
  add_launch_options(app, options);
  app.add_flag("--keep-going", options.keep_going, "a failed rank does not end the others");
  add_link_options(app, options.links);
  app.add_flag("--no-prefix", options.no_prefix, "show lines without the number of their rank");
}

}  // namespace

CommandSyntax launch_syntax() { return syntax_of(launch_text, add_all_launch_options); }

int run_launch(const Arguments& arguments) {
  Arguments own;
  Arguments program;
  split_at_dashes(arguments, own, program);
  const bool has_dashes = own.size() < arguments.size();
  LaunchOptions options;
  const auto app = make_app(launch_text);
  add_all_launch_options(*app, options);
  app->prefix_command(!has_dashes);  // If there is no "--", the program begins at the first word that is not an option.
  if (const auto code = parse_arguments(*app, own)) return *code;
  if (!has_dashes) {
    program = app->remaining();
    if (!program.empty() && program[0].starts_with('-')) {
      // All options of `launch` have been parsed. So this word is a mistyped option, and not a program.
      app->prefix_command(false);
      const auto code = parse_arguments(*app, own);
      return code ? *code : usage_error(launch_text.name, fmt::format("there is no option '{}'.", program[0]));
    }
  }
  const auto limits = make_limits(options);
  if (!limits.ok()) return usage_error(launch_text.name, limits.status().message());
  if (limits->any()) return run_over_links(options, *limits, std::move(program));
  auto job = make_job(options, std::move(program));
  if (!job.ok()) return usage_error(launch_text.name, job.status().message());
  return run_job(*job);
}

}  // namespace unisono::cli
