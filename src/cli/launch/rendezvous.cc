#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <csignal>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/security_options.h"
#include "tls/key_source.h"

namespace unisono::cli {
namespace {

const CommandLineText rendezvous_text{
    .name = "unisono rendezvous",
    .usage = "unisono rendezvous --listen HOST:PORT [OPTIONS]",
    .description = "Serves the rendezvous of any number of jobs, distinguished by their names, until it is stopped.",
    .footer = R"(Examples:
  unisono rendezvous --listen :29500                every interface
  unisono rendezvous --listen 10.0.0.1:29500        one address
  unisono rendezvous --listen 127.0.0.1:0           any free port; the first line of standard output says which

  UNISONO_RENDEZVOUS=tcp://10.0.0.1:29500 UNISONO_JOB=a RANK=0 WORLD_SIZE=2 ./train       on each host
  unisono launch -n 4 --rendezvous tcp://10.0.0.1:29500 -- ./train

  unisono rendezvous --listen :29500 --key-file a.key --key-file b.key      for jobs with these keys, and no others

Without --key-file, the key comes from UNISONO_KEY_FILE, UNISONO_KEY, UNISONO_KEY_FD or the credentials of systemd. If
they give none, either, processes need no key.

Standard output: one line with the address, once it is served. Standard error: the processes that connected, and the
outcome of each job. SIGINT and SIGTERM end it. Exit code: 0 after such an end, 1 if the address cannot be served, 2
for a wrong command line.)"};

struct RendezvousOptions {
  std::string listen;
  std::vector<std::string> key_files;
  bool quiet = false;
};

void add_rendezvous_options(CLI::App& app, RendezvousOptions& options) {
  app.add_option("--listen", options.listen, "address to serve: host:port, :port, [address]:port, tcp://... or file:///path")
      ->type_name("ADDRESS")
      ->required();
  app.add_option("--key-file", options.key_files, "secret key of a job, as 'unisono key' writes it; give one for each key")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_flag("--quiet", options.quiet, "report failures only");
}

// A global variable, because a signal handler has no other way to reach the loop. There is only one server in each process.
std::atomic<bool> stop_requested{false};

void request_stop(int) { stop_requested = true; }

void catch_end() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

Result<std::vector<SecretKey>> load_keys(const std::vector<std::string>& files) {
  std::vector<KeySource> sources;
  for (const auto& file : files) sources.push_back({.file = file, .name = "--key-file"});
  if (files.empty()) {
    ResolvedOptions resolved;
    if (auto status = resolve_security({}, process_environment(), resolved); !status.ok()) return status;
    sources.push_back(std::move(resolved.key));
  }
  std::vector<SecretKey> keys;
  for (const auto& source : sources) {
    auto key = load_key(source);
    if (!key.ok()) return key.status();
    if (*key) keys.push_back(std::move(**key));
  }
  return keys;
}

}  // namespace

CommandSyntax rendezvous_syntax() { return syntax_of(rendezvous_text, add_rendezvous_options); }

int run_rendezvous(const Arguments& arguments) {
  RendezvousOptions options;
  const auto app = make_app(rendezvous_text);
  add_rendezvous_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto& listen = options.listen;
  const bool has_scheme = listen.starts_with("tcp://") || listen.starts_with("file://");
  const auto address = parse_rendezvous(has_scheme ? listen : "tcp://" + listen, true);
  if (!address.ok()) return usage_error(rendezvous_text.name, "--listen: " + address.status().message());

  auto keys = load_keys(options.key_files);
  if (!keys.ok()) return usage_error(rendezvous_text.name, keys.status().message());

  spdlog::logger log("rendezvous", std::make_shared<spdlog::sinks::stderr_sink_st>());
  log.set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
  catch_end();
  const auto served =
      serve_rendezvous({.listen = *address, .keys = *std::move(keys)}, stop_requested, [&](const RendezvousEvent& event) {
        if (event.kind == RendezvousEvent::Kind::listening) {
          fmt::print("{}\n", event.address.to_string());
          std::fflush(stdout);
        }
        const bool bad = event.kind == RendezvousEvent::Kind::failed || event.kind == RendezvousEvent::Kind::refused;
        if (bad) log.warn("{}", event.text);
        else if (!options.quiet) log.info("{}", event.text);
      });
  if (served.ok()) return 0;
  fmt::print(stderr, "unisono rendezvous: {}\n", served.to_string());
  return 1;
}

}  // namespace unisono::cli
