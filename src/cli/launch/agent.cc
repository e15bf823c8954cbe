#include "cli/launch/agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error_text.h"
#include "cli/common/child_processes.h"
#include "cli/common/descriptor.h"
#include "cli/common/held_port.h"
#include "cli/common/monotonic.h"
#include "cli/common/records.h"
#include "cli/common/spawn.h"
#include "cli/common/version.h"
#include "cli/launch/job_key.h"
#include "tls/key_source.h"

namespace unisono::cli {
namespace {

constexpr int launcher_input = 0;
constexpr int launcher_output = 1;
constexpr size_t pipe_read_bytes = 64u << 10;
// While this many bytes wait to be sent to the launcher, the agent does not read from the ranks. Then the pipes of the ranks
// fill up, and the ranks block in write(2).
constexpr size_t backlog_bytes_max = 1u << 20;
// After a rank has died, the agent reads at most this many bytes from each of the rank's pipes, because another process may
// keep the pipe open and write to it for ever.
constexpr size_t drain_bytes_max = 1u << 20;
constexpr Nanos descendants_time = 2 * second;

struct LocalRank {
  pid_t pid = -1;  // -1: the rank has ended
  Nanos started = 0;
  Descriptor streams[2];
};

struct Death {
  size_t index = 0;
  Ended ended;
};

class Agent {
 public:
  int run();

 private:
  void greet();
  bool step();
  bool read_orders();
  void handle_record(const Record& record);
  void start(const StartOrder& order);
  bool take_key();
  bool start_rank(uint32_t local_rank);
  std::vector<int> cores_of(uint32_t local_rank) const;
  void signal_ranks(int signal);
  void reap();
  bool note_death(const siginfo_t& info, std::vector<Death>& deaths);
  void pass_on(size_t index, int stream, size_t limit);
  void drain(size_t index);
  bool flush();
  bool all_ended() const;

  RecordReader reader_{false};
  std::string out_;
  StartOrder order_;
  bool started_ = false;
  bool abandoned_ = false;  // the launcher has died
  std::vector<LocalRank> ranks_;
  HeldPort port_;
  Descriptor key_;  // the ranks inherit it; -1: the job has no key
  Descriptor signals_;
  rlim_t open_files_ = 0;
  std::vector<int> cores_;
};

int Agent::run() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  signals_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  adopt_orphans();
  set_nonblocking(launcher_output);
  greet();
  while (step()) {}
  if (abandoned_) signal_ranks(SIGKILL);
  const bool all_gone = kill_child_processes(descendants_time);
  for (size_t index = 0; index < ranks_.size(); ++index) drain(index);
  append_record(out_, RecordKind::done, 0, {});
  while (!abandoned_ && !out_.empty()) {
    pollfd writable{launcher_output, POLLOUT, 0};
    if (::poll(&writable, 1, -1) < 0 && errno != EINTR) break;
    if (!flush()) break;
  }
  return all_gone && !abandoned_ ? 0 : 1;
}

void Agent::greet() {
  port_ = HeldPort::take();
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  out_ += agent_greeting;
  append_record(out_, RecordKind::hello, 0,
                encode(Hello{version_text, host, static_cast<uint32_t>(::getpid()), port_.number()}));
}

// Waits once, and handles all events that have occurred. Returns false when there is nothing left to do.
bool Agent::step() {
  std::vector<pollfd> waits{{launcher_input, POLLIN, 0}, {signals_.get(), POLLIN, 0}, {launcher_output, 0, 0}};
  if (!out_.empty()) waits[2].events = POLLOUT;
  std::vector<std::pair<size_t, int>> sources;
  for (size_t index = 0; index < ranks_.size() && out_.size() < backlog_bytes_max; ++index) {
    for (int stream = 0; stream < 2; ++stream) {
      if (!ranks_[index].streams[stream]) continue;
      waits.push_back({ranks_[index].streams[stream].get(), POLLIN, 0});
      sources.emplace_back(index, stream);
    }
  }
  if (::poll(waits.data(), waits.size(), -1) < 0) return errno == EINTR;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (waits[i + 3].revents != 0) pass_on(sources[i].first, sources[i].second, pipe_read_bytes);
  }
  if (waits[1].revents != 0) reap();
  if (waits[0].revents != 0 && !read_orders()) abandoned_ = true;
  if (waits[2].revents != 0 && !flush()) abandoned_ = true;
  return !abandoned_ && !(started_ && all_ended());
}

bool Agent::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const LocalRank& rank) { return rank.pid < 0; });
}

bool Agent::read_orders() {
  std::string bytes(pipe_read_bytes, '\0');
  const auto got = ::read(launcher_input, bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (got <= 0) return false;
  reader_.push(std::string_view(bytes).substr(0, static_cast<size_t>(got)));
  while (true) {
    const auto next = reader_.next();
    if (!next.ok()) return false;
    if (!next->has_value()) return true;
    handle_record(**next);
  }
}

void Agent::handle_record(const Record& record) {
  if (record.kind == RecordKind::start && !started_) {
    StartOrder order;
    if (decode(record.payload, order)) start(order);
    else
      append_record(out_, RecordKind::refused, record.rank, encode(Refused{EPROTO, "the agent cannot read the start order"}));
    started_ = true;
  } else if (record.kind == RecordKind::signal) {
    ByteReader reader(record.payload);
    const auto number = reader.read<uint32_t>();
    if (reader.done() && number > 0 && number <= static_cast<uint32_t>(SIGRTMAX)) signal_ranks(static_cast<int>(number));
  }
}

void Agent::start(const StartOrder& order) {
  order_ = order;
  if (!order.keep_port) port_ = HeldPort();
  if (!order.directory.empty() && ::chdir(order.directory.c_str()) != 0) {
    const Refused refused{errno, fmt::format("cannot enter directory '{}': {}", order.directory, std::strerror(errno))};
    append_record(out_, RecordKind::refused, order.first_rank, encode(refused));
    return;
  }
  // The agent needs three descriptors for each rank, so it raises its own limit. The ranks get the original limit, open_files_.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    open_files_ = limit.rlim_cur;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1u << 16);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<size_t>(core), &allowed)) cores_.push_back(core);
    }
  }
  if (!take_key()) return;
  ranks_.resize(order.rank_count);
  for (uint32_t local_rank = 0; local_rank < order.rank_count; ++local_rank) {
    // If one rank cannot be started, the remaining ranks would fail, too. The launcher decides what happens to the ranks that
    // are already running.
    if (!start_rank(local_rank)) return;
  }
}

// Moves the key from the order into a descriptor. If this fails, reports it, and returns false.
bool Agent::take_key() {
  if (order_.key.empty()) return true;
  const auto key = SecretKey::from_hex(order_.key);
  ::explicit_bzero(order_.key.data(), order_.key.size());
  order_.key.clear();
  if (key.ok()) key_.reset(make_key_descriptor(*key));
  if (key_) return true;
  const auto why = key.ok() ? "no descriptor for the key of the job: " + error_text(errno) : key.status().message();
  append_record(out_, RecordKind::refused, order_.first_rank, encode(Refused{key.ok() ? errno : EPROTO, why}));
  return false;
}

// Returns the cores for a rank, which are adjacent. If there are fewer cores than ranks, returns one core, which several ranks
// may share.
std::vector<int> Agent::cores_of(uint32_t local_rank) const {
  if (!order_.pin || cores_.empty()) return {};
  const size_t count = cores_.size();
  if (count < order_.rank_count) return {cores_[local_rank % count]};
  const auto first = static_cast<std::ptrdiff_t>(count * local_rank / order_.rank_count);
  const auto last = static_cast<std::ptrdiff_t>(count * (local_rank + 1) / order_.rank_count);
  return {cores_.begin() + first, cores_.begin() + last};
}

bool Agent::start_rank(uint32_t local_rank) {
  const uint32_t rank = order_.first_rank + local_rank;
  Pipe output;
  Pipe error;
  if (!make_pipe(output) || !make_pipe(error)) {
    append_record(out_, RecordKind::refused, rank, encode(Refused{errno, "no pipes for its output: " + error_text(errno)}));
    return false;
  }
  auto changes = order_.environment;
  changes.push_back(fmt::format("RANK={}", rank));
  changes.push_back(fmt::format("LOCAL_RANK={}", local_rank));
  changes.push_back(fmt::format("LOCAL_WORLD_SIZE={}", order_.rank_count));
  auto environment = environment_with(changes);
  std::erase_if(environment, is_key_variable);
  if (key_) environment.push_back(fmt::format("UNISONO_KEY_FD={}", key_.get()));
  const auto spawned = spawn({.arguments = order_.program,
                              .environment = std::move(environment),
                              .directory = order_.directory,
                              .output = output.write.get(),
                              .error = error.write.get(),
                              .death_signal = SIGKILL,
                              .new_group = true,
                              .open_files = open_files_,
                              .cores = cores_of(local_rank)});
  if (spawned.pid < 0) {
    append_record(out_, RecordKind::refused, rank, encode(Refused{spawned.error, spawned.message}));
    return false;
  }
  auto& local = ranks_[local_rank];
  local.pid = spawned.pid;
  local.started = monotonic_now();
  local.streams[0] = std::move(output.read);
  local.streams[1] = std::move(error.read);
  for (const auto& stream : local.streams) set_nonblocking(stream.get());
  ByteWriter pid;
  pid.write(static_cast<uint32_t>(spawned.pid));
  append_record(out_, RecordKind::started, rank, pid.view());
  return true;
}

void Agent::signal_ranks(int signal) {
  for (const auto& rank : ranks_) {
    if (rank.pid < 0) continue;
    ::kill(-rank.pid, signal);
    // A stopped process does not receive SIGTERM until it is continued.
    if (signal == SIGTERM || signal == SIGHUP) ::kill(-rank.pid, SIGCONT);
  }
}

// Reaps and reports all processes that have ended since the last call. The ranks that a signal killed are reported first,
// because their deaths have probably caused the other ranks to end.
void Agent::reap() {
  signalfd_siginfo seen;
  while (::read(signals_.get(), &seen, sizeof(seen)) == sizeof(seen)) {}
  std::vector<Death> deaths;
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    // The rank has not been reaped yet, so no other process group can have its pid. This is why it is safe to kill what remains
    // of its group.
    if (note_death(info, deaths)) ::kill(-info.si_pid, SIGKILL);
    ::waitpid(info.si_pid, nullptr, 0);
  }
  std::stable_sort(deaths.begin(), deaths.end(),
                   [](const Death& a, const Death& b) { return a.ended.by_signal > b.ended.by_signal; });
  for (const auto& death : deaths) {
    drain(death.index);
    append_record(out_, RecordKind::ended, order_.first_rank + static_cast<uint32_t>(death.index), encode(death.ended));
  }
}

// Returns true if the process was a rank. Any other process is an orphan, whose parent this agent has become.
bool Agent::note_death(const siginfo_t& info, std::vector<Death>& deaths) {
  const auto rank =
      std::find_if(ranks_.begin(), ranks_.end(), [&](const LocalRank& local) { return local.pid == info.si_pid; });
  if (rank == ranks_.end()) return false;
  const bool by_signal = info.si_code != CLD_EXITED;
  const Ended ended{by_signal, info.si_code == CLD_DUMPED, info.si_status, monotonic_now() - rank->started};
  deaths.push_back({static_cast<size_t>(rank - ranks_.begin()), ended});
  rank->pid = -1;
  return true;
}

void Agent::pass_on(size_t index, int stream, size_t limit) {
  auto& source = ranks_[index].streams[stream];
  std::string bytes(std::min(limit, pipe_read_bytes), '\0');
  const auto got = ::read(source.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return source.reset();
  append_output(out_, order_.first_rank + static_cast<uint32_t>(index), static_cast<uint8_t>(stream + 1),
                std::string_view(bytes).substr(0, static_cast<size_t>(got)));
}

void Agent::drain(size_t index) {
  for (int stream = 0; stream < 2; ++stream) {
    const auto limit = out_.size() + drain_bytes_max;
    for (auto before = size_t{0}; ranks_[index].streams[stream] && out_.size() < limit && before != out_.size();) {
      before = out_.size();
      pass_on(index, stream, pipe_read_bytes);
    }
  }
}

bool Agent::flush() {
  while (!out_.empty()) {
    const auto put = ::write(launcher_output, out_.data(), out_.size());
    if (put < 0) return errno == EAGAIN || errno == EINTR;
    out_.erase(0, static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

int run_agent() { return Agent().run(); }

}  // namespace unisono::cli
