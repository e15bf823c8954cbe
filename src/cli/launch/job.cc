#include "cli/launch/job.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "base/error_text.h"
#include "cli/common/child_processes.h"
#include "cli/common/job_outcome.h"
#include "cli/common/mixer.h"
#include "cli/common/monotonic.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"
#include "cli/common/version.h"
#include "cli/common/writer.h"
#include "cli/launch/agent_link.h"

namespace unisono::cli {
namespace {

// While this many bytes wait for a slow reader of the launcher's output, the launcher does not read from the agents. In the
// end, this makes the ranks block in write(2).
constexpr size_t backlog_bytes_max = 4u << 20;
constexpr Nanos notice_time = 300 * millisecond;
constexpr Nanos linger_time = 2 * second;   // an agent's process must end within this time after its stream has ended
constexpr Nanos abandon_time = 5 * second;  // a host that does not answer for this long after SIGKILL is given up

constexpr std::array ending_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array passed_signals{SIGUSR1, SIGUSR2, SIGCONT};

// The phases of a job, in their order. The phases `running` and `abandoned` have no deadline.
enum class Phase : uint8_t { connecting, running, grace, terminated, killed, abandoned };

class Job {
 public:
  explicit Job(const JobOptions& options);
  int run();

 private:
  void start_links();
  void step();
  void handle_signals();
  void handle_records(AgentLink& link, std::vector<Record>& records);
  void handle_rank_record(const AgentLink& link, const Record& record);
  void start_ranks();
  std::vector<std::string> common_environment() const;
  std::string master_address() const;
  void reap_links();
  void conclude(AgentLink& link);
  void note_failure(uint32_t rank, bool at_once);
  void report_waiting_ranks(Nanos now);
  void begin_ending(Phase phase);
  void advance(Nanos now);
  void signal_all(int signal);
  void suspend();
  void fail_link(AgentLink& link, const std::string& why);
  void end_lingering(Nanos now);
  bool all_links_over() const;
  void flush_output();
  int report();
  void say(const std::string& line) { mixer_.notice("unisono: " + line); }

  const JobOptions& options_;
  AgentCommand command_;
  std::vector<AgentLink> links_;
  OutputWriter out_{STDOUT_FILENO};
  OutputWriter error_{STDERR_FILENO};
  Mixer mixer_;
  JobOutcome outcome_;
  Descriptor signals_;
  Phase phase_ = Phase::connecting;
  Nanos deadline_ = never;
  Nanos notice_at_ = never;  // if other ranks still run at this time, the failure of a rank is reported
  int interrupted_by_ = 0;   // the first signal that asked for the end of the job; 0: none
  bool sent_start_ = false;
  bool lost_agent_ = false;
  bool interrupted_twice_ = false;  // true: a second signal has asked for the end of the job
};

uint32_t world_size(const JobOptions& options) {
  return options.placements.back().first_rank + options.placements.back().rank_count;
}

std::vector<std::string> host_names(const JobOptions& options) {
  std::vector<std::string> names;
  for (const auto& placement : options.placements) names.insert(names.end(), placement.rank_count, placement.host);
  return names;
}

Job::Job(const JobOptions& options)
    : options_(options),
      command_{own_executable(), options.ssh},
      mixer_({.world_size = world_size(options),
              .prefix = options.prefix,
              .colour = std::getenv("NO_COLOR") == nullptr,
              .out_is_terminal = out_.is_terminal(),
              .error_is_terminal = error_.is_terminal()}),
      outcome_(host_names(options)) {
  for (const auto rank : options.may_fail) outcome_.allow_failure(rank);
}

int Job::run() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : ending_signals) sigaddset(&watched, signal);
  for (const int signal : passed_signals) sigaddset(&watched, signal);
  sigaddset(&watched, SIGTSTP);
  sigaddset(&watched, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  signals_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  adopt_orphans();
  deadline_ = monotonic_now() + options_.start_timeout;
  start_links();
  while (!all_links_over()) step();
  // If an agent was killed, this process has become the parent of the descendants that its ranks left, and kills them here.
  // Otherwise there are none.
  if (lost_agent_) kill_child_processes(second);
  const int code = report();
  flush_output();
  return code;
}

void Job::start_links() {
  for (size_t i = 0; i < options_.placements.size(); ++i) links_.emplace_back(options_.placements[i], i == 0);
  if (!signals_) return fail_link(links_.front(), "no descriptor for signals: " + error_text(errno));
  for (auto& link : links_) {
    const auto started = link.start(command_);
    if (!started.ok()) return fail_link(link, started.message());
  }
}

bool Job::all_links_over() const {
  return std::all_of(links_.begin(), links_.end(), [](const AgentLink& link) { return link.is_over(); });
}

// Waits once, and handles all events that have occurred.
void Job::step() {
  const bool accepts =
      phase_ >= Phase::killed || mixer_.pending(Stream::out).size() + mixer_.pending(Stream::error).size() < backlog_bytes_max;
  std::vector<pollfd> waits{{signals_.get(), POLLIN, 0},
                            {mixer_.pending(Stream::out).empty() ? -1 : out_.fd(), POLLOUT, 0},
                            {mixer_.pending(Stream::error).empty() ? -1 : error_.fd(), POLLOUT, 0}};
  for (const auto& link : links_) {
    waits.push_back({accepts ? link.input() : -1, POLLIN, 0});
    waits.push_back({link.wants_write() ? link.output() : -1, POLLOUT, 0});
    waits.push_back({link.errors(), POLLIN, 0});
  }
  Nanos next = std::min(deadline_, notice_at_);
  for (const auto& link : links_) next = std::min(next, link.expires);
  if (::poll(waits.data(), waits.size(), poll_milliseconds(next, monotonic_now())) < 0) return;
  for (size_t i = 0; i < links_.size(); ++i) {
    auto& link = links_[i];
    std::vector<Record> records;
    std::vector<std::string> lines;
    if (waits[3 + 3 * i].revents != 0) {
      const auto got = link.read(records);
      if (!got.ok())
        fail_link(link, fmt::format("{} does not speak the agent's protocol: {}", link.name(), got.status().message()));
    }
    if (waits[4 + 3 * i].revents != 0) link.flush();
    if (waits[5 + 3 * i].revents != 0) link.read_errors(lines);
    for (const auto& line : lines) say(fmt::format("{}: {}", link.name(), line));
    handle_records(link, records);
  }
  if (waits[1].revents != 0) out_.write_some(mixer_.pending(Stream::out));
  if (waits[2].revents != 0) error_.write_some(mixer_.pending(Stream::error));
  if (out_.is_broken() && phase_ <= Phase::running) {
    interrupted_by_ = SIGPIPE;
    begin_ending(Phase::terminated);
  }
  if (waits[0].revents != 0) handle_signals();
  advance(monotonic_now());
}

void Job::handle_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap_links();
    } else if (signal == SIGTSTP) {
      suspend();
    } else if (std::find(passed_signals.begin(), passed_signals.end(), signal) != passed_signals.end()) {
      signal_all(signal);
    } else if (interrupted_by_ != 0) {
      interrupted_twice_ = true;
      begin_ending(Phase::killed);
    } else if (phase_ > Phase::running) {
      // The job is already ending for another reason. The signal only makes it end sooner.
      begin_ending(phase_ == Phase::grace ? Phase::terminated : Phase::killed);
    } else {
      interrupted_by_ = signal;
      signal_all(signal);
      begin_ending(signal == SIGTERM ? Phase::terminated : Phase::grace);
    }
  }
}

// Handles Ctrl-Z. Stops the ranks, as a terminal would, and then the launcher itself. Later, SIGCONT is forwarded to the ranks.
void Job::suspend() {
  signal_all(SIGTSTP);
  if (out_.is_terminal() || error_.is_terminal()) flush_output();
  ::kill(::getpid(), SIGSTOP);
}

void Job::signal_all(int signal) {
  for (auto& link : links_) {
    if (link.greeted) link.send_signal(signal);
  }
}

void Job::handle_records(AgentLink& link, std::vector<Record>& records) {
  for (const auto& record : records) {
    const auto& placement = link.placement();
    if (record.kind == RecordKind::hello && !link.greeted) {
      if (!decode(record.payload, link.hello)) {
        fail_link(link, link.name() + ": its agent's greeting is malformed");
      } else if (link.hello.version != version_text) {
        fail_link(link, fmt::format("{} runs unisono {}, this host {}: install one version on all hosts", link.name(),
                                    link.hello.version, version_text));
      } else {
        link.greeted = true;
      }
      const bool complete = std::all_of(links_.begin(), links_.end(), [](const AgentLink& other) { return other.greeted; });
      if (complete && phase_ == Phase::connecting) start_ranks();
    } else if (record.kind == RecordKind::done) {
      link.done = true;
    } else if (record.rank >= placement.first_rank && record.rank - placement.first_rank < placement.rank_count) {
      handle_rank_record(link, record);
    }
  }
}

void Job::handle_rank_record(const AgentLink& link, const Record& record) {
  ByteReader reader(record.payload);
  if (record.kind == RecordKind::output && !record.payload.empty()) {
    const auto stream = reader.read<uint8_t>() == static_cast<uint8_t>(Stream::error) ? Stream::error : Stream::out;
    const auto* bytes = reinterpret_cast<const char*>(record.payload.data());
    mixer_.push(record.rank, stream, {bytes + 1, record.payload.size() - 1});
  } else if (record.kind == RecordKind::started) {
    outcome_.started(record.rank, reader.read<uint32_t>());
  } else if (record.kind == RecordKind::refused) {
    Refused refused;
    if (!decode(record.payload, refused)) refused = {EPROTO, "malformed record from " + link.name()};
    outcome_.refused(record.rank, refused);
    note_failure(record.rank, true);
  } else if (record.kind == RecordKind::ended) {
    Ended ended;
    if (!decode(record.payload, ended)) ended = {.code = exit_code_launcher};
    mixer_.finish(record.rank);
    const bool asked = phase_ >= Phase::terminated || interrupted_by_ != 0;
    outcome_.ended(record.rank, ended, asked);
    if (ended.by_signal || ended.code != 0) note_failure(record.rank, false);
  }
}

// After the first failure, all other ranks are made to end. Later failures are only counted.
void Job::note_failure(uint32_t rank, bool at_once) {
  if (phase_ > Phase::running) return;
  if (options_.keep_going && !at_once) {
    if (outcome_.running_count() > 0) say(outcome_.describe(rank) + "; the other ranks continue");
    return;
  }
  begin_ending(at_once ? Phase::terminated : Phase::grace);
  // When one rank has failed, most other ranks usually fail soon. So the notice is delayed a little. If all ranks end in that
  // time, the final report is enough.
  notice_at_ = monotonic_now() + notice_time;
}

void Job::report_waiting_ranks(Nanos now) {
  if (notice_at_ > now) return;
  notice_at_ = never;
  const auto others = outcome_.running_count();
  if (others == 0 || phase_ != Phase::grace) return;
  say(fmt::format("{}; the other {} {} to end", outcome_.first_failure(),
                  others == 1 ? "rank has" : fmt::format("{} ranks have", others), format_duration(options_.grace)));
}

void Job::begin_ending(Phase phase) {
  phase_ = phase;
  deadline_ = monotonic_now() + (phase == Phase::killed ? abandon_time : options_.grace);
  if (phase == Phase::terminated) signal_all(SIGTERM);
  if (phase == Phase::killed) signal_all(SIGKILL);
  if (sent_start_) return;
  for (auto& link : links_) link.close_stream();  // when its stream is closed, an agent ends
}

void Job::advance(Nanos now) {
  end_lingering(now);
  report_waiting_ranks(now);
  while (deadline_ <= now && phase_ != Phase::abandoned) {
    if (phase_ == Phase::connecting) {
      const auto time = format_duration(options_.start_timeout);
      for (auto& link : links_) {
        if (!link.greeted) fail_link(link, fmt::format("{} did not answer within {}", link.name(), time));
      }
    } else if (phase_ == Phase::grace) {
      begin_ending(options_.grace == 0 ? Phase::killed : Phase::terminated);
    } else if (phase_ == Phase::terminated) {
      begin_ending(Phase::killed);
    } else {
      phase_ = Phase::abandoned;
      deadline_ = never;
      for (auto& link : links_) {
        if (!link.done)
          fail_link(link, fmt::format("{} did not answer within {} of SIGKILL", link.name(), format_duration(abandon_time)));
      }
    }
  }
}

void Job::end_lingering(Nanos now) {
  for (auto& link : links_) {
    if (!link.lingers()) continue;
    if (link.expires == never) link.expires = now + linger_time;
    else if (link.expires <= now) link.kill_process();
  }
}

// Gives up a host. If the ranks have not been started yet, the launch ends. Otherwise, all ranks on this host count as failed.
void Job::fail_link(AgentLink& link, const std::string& why) {
  if (link.failed) return;
  link.failed = true;
  link.close_stream();
  link.kill_process();
  lost_agent_ = true;
  for (uint32_t i = 0; i < link.placement().rank_count; ++i) outcome_.lost(link.placement().first_rank + i, why);
  if (sent_start_) return note_failure(link.placement().first_rank, false);
  say(why);
  begin_ending(Phase::killed);
}

void Job::reap_links() {
  while (true) {
    int wait_status = 0;
    const pid_t pid = ::waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return;
    const auto link =
        std::find_if(links_.begin(), links_.end(), [&](const AgentLink& candidate) { return candidate.pid() == pid; });
    if (link == links_.end()) continue;  // it was an orphan, whose parent this process had become
    link->reaped(wait_status);
    conclude(*link);
  }
}

// Reads what is left in the pipes of the link's process, and closes them. Call this when the process has ended.
void Job::conclude(AgentLink& link) {
  std::vector<std::string> lines;
  if (link.errors() >= 0) link.read_errors(lines);
  for (const auto& line : lines) say(fmt::format("{}: {}", link.name(), line));
  for (size_t got = 1; link.input() >= 0 && got > 0;) {
    std::vector<Record> records;
    const auto read = link.read(records);
    got = read.ok() ? *read : 0;
    handle_records(link, records);
  }
  link.close_stream();
  link.expires = never;
  const bool expected = link.done || (!sent_start_ && phase_ > Phase::running);
  if (!expected) fail_link(link, link.why_it_ended());
}

std::string Job::master_address() const {
  if (!options_.master_address.empty()) return options_.master_address;
  const auto& first = options_.placements.front();
  if (options_.placements.size() == 1) return "127.0.0.1";
  if (first.host.empty()) return links_.front().hello.host;
  return first.host.substr(first.host.rfind('@') + 1);
}

std::vector<std::string> Job::common_environment() const {
  const auto port = options_.master_port != 0 ? options_.master_port : links_.front().hello.port;
  std::vector<std::string> environment{fmt::format("WORLD_SIZE={}", world_size(options_)), "MASTER_ADDR=" + master_address(),
                                       fmt::format("MASTER_PORT={}", port), "UNISONO_JOB=" + options_.job};
  environment.insert(environment.end(), options_.environment.begin(), options_.environment.end());
  return environment;
}

void Job::start_ranks() {
  const std::unique_ptr<char, decltype(&std::free)> directory(::getcwd(nullptr, 0), std::free);
  phase_ = Phase::running;
  deadline_ = never;
  sent_start_ = true;
  for (size_t i = 0; i < links_.size(); ++i) {
    StartOrder order;
    order.program = options_.program;
    order.environment = common_environment();
    order.environment.push_back(fmt::format("GROUP_RANK={}", i));
    order.directory = directory ? directory.get() : "";
    order.first_rank = links_[i].placement().first_rank;
    order.rank_count = links_[i].placement().rank_count;
    order.keep_port = links_[i].is_first() && options_.master_port == 0;
    order.pin = options_.pin;
    if (options_.key) order.key = options_.key->hex();
    links_[i].send(RecordKind::start, encode(order));
  }
}

// Waits until slow readers have taken all of our output. A signal that asks for the end of the job stops the wait.
void Job::flush_output() {
  while (!mixer_.pending(Stream::out).empty() || !mixer_.pending(Stream::error).empty()) {
    pollfd waits[] = {{mixer_.pending(Stream::out).empty() ? -1 : out_.fd(), POLLOUT, 0},
                      {mixer_.pending(Stream::error).empty() ? -1 : error_.fd(), POLLOUT, 0},
                      {signals_.get(), POLLIN, 0}};
    if (::poll(waits, 3, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) out_.write_some(mixer_.pending(Stream::out));
    if (waits[1].revents != 0) error_.write_some(mixer_.pending(Stream::error));
    signalfd_siginfo info;
    while (waits[2].revents != 0 && ::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (std::find(ending_signals.begin(), ending_signals.end(), signal) != ending_signals.end()) return;
    }
  }
}

int Job::report() {
  for (uint32_t rank = 0; rank < world_size(options_); ++rank) mixer_.finish(rank);
  // If the reader of our output has gone, no message is printed; other programs do the same.
  if (interrupted_by_ == SIGPIPE) return 128 + SIGPIPE;
  if (!sent_start_) return interrupted_by_ != 0 ? 128 + interrupted_by_ : exit_code_launcher;
  if (!outcome_.has_failure()) return 0;
  const auto others = world_size(options_) > 1 ? "; " + outcome_.others() : std::string{};
  const auto cause = interrupted_by_ == 0
                         ? std::string{}
                         : fmt::format("ended by {}{}: ", signal_name(interrupted_by_), interrupted_twice_ ? ", twice" : "");
  say(cause + outcome_.first_failure() + others);
  return outcome_.exit_code();
}

}  // namespace

int run_job(const JobOptions& options) { return Job(options).run(); }

}  // namespace unisono::cli
