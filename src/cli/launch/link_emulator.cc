#include "cli/launch/link_emulator.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "cli/common/monotonic.h"
#include "cli/launch/link_emulator_message.h"
#include "cli/launch/private_network.h"

namespace unisono::cli {
namespace {

constexpr int reads_per_turn = 64;  // of one interface, before another one's and before what is due
constexpr Nanos late_from = millisecond;

struct RankEnd {
  Descriptor socket;
  Descriptor process;  // a pidfd: it never means another process
  Descriptor packets;
  bool placed = false;
  bool formed = false;
  bool stopped = false;
};

// The process itself: one thread, one loop.
class EmulatorLoop {
 public:
  EmulatorLoop(const LinkEmulatorOptions& options, Descriptor listener, Descriptor lifeline)
      : options_(options),
        listener_(std::move(listener)),
        lifeline_(std::move(lifeline)),
        links_(options.limits, options.ranks, static_cast<uint64_t>(monotonic_now())),
        rank_ends_(options.ranks) {}
  void run() {
    while (turn()) {}
  }
  void tell_lateness() const;

 private:
  bool turn();
  void deliver();
  void make_faults();
  void accept_one();
  bool hear_newcomer(Descriptor& socket);
  bool hear(RankEnd& rank_end);
  void carry(uint32_t from);
  void tell(RankEnd& rank_end, const EmulatorMessage& message);
  void tell_all(const EmulatorMessage& message);
  void resume_the_last();

  const LinkEmulatorOptions& options_;
  Descriptor listener_;
  Descriptor lifeline_;
  ThinLinks links_;
  std::vector<RankEnd> rank_ends_;
  std::vector<Descriptor> newcomers_;  // connected, and not seated yet
  Nanos zero_ = never;                 // when the group had formed
  size_t faults_made_ = 0;
  bool broken_ = false;
  LinkTally tally_;
  std::array<char, 1u << 16> buffer_;
};

timespec time_until(Nanos at, Nanos now) {
  const auto left = std::clamp<Nanos>(at - now, 0, 3600 * second);
  return {static_cast<time_t>(left / second), static_cast<long>(left % second)};
}

// One wait and what it brought. False when the launcher is gone.
bool EmulatorLoop::turn() {
  deliver();
  make_faults();
  std::vector<pollfd> waits{{lifeline_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const auto& rank_end : rank_ends_) {
    waits.push_back({rank_end.socket.get(), POLLIN, 0});
    waits.push_back({rank_end.packets.get(), POLLIN, 0});
  }
  for (const auto& newcomer : newcomers_) waits.push_back({newcomer.get(), POLLIN, 0});
  Nanos next = links_.next();
  if (zero_ != never && faults_made_ < options_.faults.size()) next = std::min(next, zero_ + options_.faults[faults_made_].at);
  const auto time = time_until(next, monotonic_now());
  if (::ppoll(waits.data(), waits.size(), next == never ? nullptr : &time, nullptr) < 0) return errno == EINTR;
  if (waits[0].revents != 0) return false;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if (waits[3 + 2 * rank].revents != 0) carry(rank);
    if (waits[2 + 2 * rank].revents != 0 && !hear(rank_ends_[rank])) {
      rank_ends_[rank].socket.reset();
      // Before the beginning nobody goes on without it.
      if (std::any_of(rank_ends_.begin(), rank_ends_.end(), [](const RankEnd& rank_end) { return !rank_end.formed; }))
        return false;
      resume_the_last();
    }
  }
  const size_t first = 2 + 2 * options_.ranks;
  for (size_t i = newcomers_.size(); i-- > 0;) {
    if (waits[first + i].revents != 0 && hear_newcomer(newcomers_[i]))
      newcomers_.erase(newcomers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (waits[1].revents != 0) accept_one();
  return !broken_;
}

void EmulatorLoop::accept_one() {
  Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  const bool ours =
      socket && ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::geteuid();
  if (ours && newcomers_.size() < options_.ranks) newcomers_.push_back(std::move(socket));
}

// True if it is no newcomer any more: seated, or gone.
bool EmulatorLoop::hear_newcomer(Descriptor& socket) {
  EmulatorMessage message;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec bytes{&message, sizeof(message)};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const auto got = ::recvmsg(socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  Descriptor packets;
  const auto* part = CMSG_FIRSTHDR(&header);
  if (part != nullptr && part->cmsg_type == SCM_RIGHTS && part->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(part), sizeof(int));
    packets.reset(descriptor);
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool good = got == sizeof(message) && message.word == EmulatorWord::placed && message.rank < options_.ranks &&
                    !rank_ends_[message.rank].placed && static_cast<bool>(packets) == options_.limits.any() &&
                    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!good) {
    broken_ = true;  // a rank that could not take its seat: the others need not wait for it
    return true;
  }
  auto& rank_end = rank_ends_[message.rank];
  rank_end.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  rank_end.socket = std::move(socket);
  rank_end.packets = std::move(packets);
  rank_end.placed = true;
  if (std::all_of(rank_ends_.begin(), rank_ends_.end(), [](const RankEnd& each) { return each.placed; }))
    tell_all({.word = EmulatorWord::begin});
  return true;
}

// False if the rank has ended.
bool EmulatorLoop::hear(RankEnd& rank_end) {
  EmulatorMessage message;
  const auto got = ::recv(rank_end.socket.get(), &message, sizeof(message), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got != sizeof(message)) return false;
  if (message.word == EmulatorWord::tally) {
    tally_.counts = links_.counts();
    tell(rank_end, {.word = EmulatorWord::tally, .tally = tally_});
  } else if (message.word == EmulatorWord::formed && !rank_end.formed) {
    rank_end.formed = true;
    const bool all = std::all_of(rank_ends_.begin(), rank_ends_.end(), [](const RankEnd& each) { return each.formed; });
    if (!all) return true;
    zero_ = monotonic_now();
    tell_all({.word = EmulatorWord::clock, .at = zero_});
  }
  return true;
}

// A rank that does not read has a full socket some day; then it misses news, and nobody waits for it.
void EmulatorLoop::tell(RankEnd& rank_end, const EmulatorMessage& message) {
  if (rank_end.socket) (void)::send(rank_end.socket.get(), &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void EmulatorLoop::tell_all(const EmulatorMessage& message) {
  for (auto& rank_end : rank_ends_) tell(rank_end, message);
}

void EmulatorLoop::carry(uint32_t from) {
  for (int i = 0; i < reads_per_turn; ++i) {
    const auto got = ::read(rank_ends_[from].packets.get(), buffer_.data(), buffer_.size());
    if (got <= 0) return;
    std::string packet(buffer_.data(), static_cast<size_t>(got));
    const auto to = receiver_of(packet);
    if (to && *to < options_.ranks) links_.send(from, *to, std::move(packet), monotonic_now());
  }
}

void EmulatorLoop::deliver() {
  const auto now = monotonic_now();
  while (const auto arrival = links_.take(now)) {
    const auto late = now - arrival->due;
    tally_.latest = std::max(tally_.latest, late);
    tally_.late_packets += late > late_from;
    // The receiver's kernel takes it or, if it has no memory, drops it as a real one would.
    if (const int packets = rank_ends_[arrival->to].packets.get(); packets >= 0)
      (void)!::write(packets, arrival->packet.data(), arrival->packet.size());
  }
}

// The ranks hear of it first, so that the time from then on is never too short.
void EmulatorLoop::make_faults() {
  for (; zero_ != never && faults_made_ < options_.faults.size(); ++faults_made_) {
    const auto& fault = options_.faults[faults_made_];
    const auto now = monotonic_now();
    if (now < zero_ + fault.at) return;
    tell_all({.word = EmulatorWord::fault, .at = now, .fault = fault});
    auto& rank_end = rank_ends_[fault.rank];
    rank_end.stopped = fault.kind == FaultKind::stop;
    (void)::syscall(SYS_pidfd_send_signal, rank_end.process.get(), signal_of(fault.kind), nullptr, 0);
  }
}

void EmulatorLoop::tell_lateness() const {
  const auto packets = links_.counts().packets;
  if (tally_.late_packets * 100 < packets || packets == 0) return;
  fmt::print(stderr,
             "unisono: links: {:.1f} % of {} packets were more than 1 ms late: this machine is too busy for such links, and "
             "times are too long\n",
             100.0 * static_cast<double>(tally_.late_packets) / static_cast<double>(packets), packets);
}

void EmulatorLoop::resume_the_last() {
  if (std::any_of(rank_ends_.begin(), rank_ends_.end(),
                  [](const RankEnd& rank_end) { return rank_end.socket && !rank_end.stopped; }))
    return;
  for (auto& rank_end : rank_ends_) {
    if (rank_end.socket && rank_end.stopped)
      (void)::syscall(SYS_pidfd_send_signal, rank_end.process.get(), SIGCONT, nullptr, 0);
    rank_end.stopped = false;
  }
}

[[noreturn]] void play(const LinkEmulatorOptions& options, Descriptor listener, Descriptor lifeline, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(0);
  // A terminal sends these to everybody; this process ends with the launcher.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_TIMERSLACK, 1);
  (void)::setpriority(PRIO_PROCESS, 0, -10);  // packets should not wait for ranks that compute; refused to who may not
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(nowhere, STDOUT_FILENO);
  EmulatorLoop emulator_loop(options, std::move(listener), std::move(lifeline));
  emulator_loop.run();
  if (options.tells) emulator_loop.tell_lateness();
  ::_exit(0);
}

}  // namespace

Result<LinkEmulator> LinkEmulator::set(const LinkEmulatorOptions& options) {
  const auto failed = [](const char* what) {
    return Status(Code::unavailable, fmt::format("{}: {}", what, strerrordesc_np(errno)));
  };
  Descriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const EmulatorAddress address(options.job);
  if (!listener || ::bind(listener.get(), address.get(), address.bytes) != 0 ||
      ::listen(listener.get(), static_cast<int>(options.ranks)) != 0) {
    return failed("cannot listen for the ranks of this job");
  }
  Pipe lifeline;
  if (!make_pipe(lifeline)) return failed("no pipe");
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return failed("cannot start a process");
  if (pid == 0) {
    lifeline.write.reset();
    play(options, std::move(listener), std::move(lifeline.read), launcher);
  }
  return LinkEmulator(pid, std::move(lifeline.write));
}

LinkEmulator::LinkEmulator(LinkEmulator&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), lifeline_(std::move(other.lifeline_)) {}

LinkEmulator::~LinkEmulator() {
  if (pid_ < 0) return;
  lifeline_.reset();
  ::waitpid(pid_, nullptr, 0);  // or the launcher has done so already
}

}  // namespace unisono::cli
