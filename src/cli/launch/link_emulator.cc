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

#include "base/error_text.h"
#include "cli/common/monotonic.h"
#include "cli/launch/link_emulator_message.h"
#include "cli/launch/private_network.h"

namespace unisono::cli {
namespace {

// After this many packets from one interface, the other interfaces and the packets that are due get a turn.
constexpr int reads_per_turn = 64;
constexpr Nanos late_from = millisecond;

struct RankConnection {
  Descriptor socket;
  Descriptor process;  // this is a pidfd, because a pid could be reused
  Descriptor packets;
  bool connected = false;
  bool formed = false;
  bool stopped = false;
};

// The main loop of the emulator process. The process has only one thread.
class EmulatorLoop {
 public:
  EmulatorLoop(const LinkEmulatorOptions& options, Descriptor listener, Descriptor lifeline)
      : options_(options),
        listener_(std::move(listener)),
        lifeline_(std::move(lifeline)),
        links_(options.limits, options.ranks, static_cast<uint64_t>(monotonic_now())),
        connections_(options.ranks) {}
  void run() {
    while (turn()) {}
  }
  void report_lateness() const;

 private:
  bool turn();
  void deliver();
  void inject_faults();
  void accept_one();
  bool on_first_message(Descriptor& socket);
  bool on_message(RankConnection& connection);
  void carry(uint32_t from);
  void send(RankConnection& connection, const EmulatorMessage& message);
  void send_to_all(const EmulatorMessage& message);
  void resume_stopped_ranks();

  const LinkEmulatorOptions& options_;
  Descriptor listener_;
  Descriptor lifeline_;
  ThinLinks links_;
  std::vector<RankConnection> connections_;
  std::vector<Descriptor> unidentified_;  // sockets that are connected, but whose ranks are not known yet
  Nanos zero_ = never;                    // when all ranks had formed their groups
  size_t faults_injected_ = 0;
  bool broken_ = false;
  LinkTally tally_;
  std::array<char, 1u << 16> buffer_;
};

timespec time_until(Nanos at, Nanos now) {
  const auto left = std::clamp<Nanos>(at - now, 0, 3600 * second);
  return {static_cast<time_t>(left / second), static_cast<long>(left % second)};
}

// Waits once, and handles all events that have occurred. Returns false when the emulator must end.
bool EmulatorLoop::turn() {
  deliver();
  inject_faults();
  std::vector<pollfd> waits{{lifeline_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const auto& connection : connections_) {
    waits.push_back({connection.socket.get(), POLLIN, 0});
    waits.push_back({connection.packets.get(), POLLIN, 0});
  }
  for (const auto& socket : unidentified_) waits.push_back({socket.get(), POLLIN, 0});
  Nanos next = links_.next();
  if (zero_ != never && faults_injected_ < options_.faults.size())
    next = std::min(next, zero_ + options_.faults[faults_injected_].at);
  const auto time = time_until(next, monotonic_now());
  if (::ppoll(waits.data(), waits.size(), next == never ? nullptr : &time, nullptr) < 0) return errno == EINTR;
  if (waits[0].revents != 0) return false;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if (waits[3 + 2 * rank].revents != 0) carry(rank);
    if (waits[2 + 2 * rank].revents != 0 && !on_message(connections_[rank])) {
      connections_[rank].socket.reset();
      // A rank has ended before all groups were formed. So the other ranks cannot continue.
      if (std::any_of(connections_.begin(), connections_.end(),
                      [](const RankConnection& connection) { return !connection.formed; }))
        return false;
      resume_stopped_ranks();
    }
  }
  const size_t first = 2 + 2 * options_.ranks;
  for (size_t i = unidentified_.size(); i-- > 0;) {
    if (waits[first + i].revents != 0 && on_first_message(unidentified_[i]))
      unidentified_.erase(unidentified_.begin() + static_cast<std::ptrdiff_t>(i));
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
  if (ours && unidentified_.size() < options_.ranks) unidentified_.push_back(std::move(socket));
}

// Reads the first message that a socket has received. Returns false if no message has arrived yet. Otherwise returns true, and
// the socket is no longer unidentified.
bool EmulatorLoop::on_first_message(Descriptor& socket) {
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
  const bool good = got == sizeof(message) && message.type == EmulatorMessageType::connected && message.rank < options_.ranks &&
                    !connections_[message.rank].connected && static_cast<bool>(packets) == options_.limits.any() &&
                    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!good) {
    broken_ = true;  // this ends the emulator, so that the other ranks do not wait for this rank
    return true;
  }
  auto& connection = connections_[message.rank];
  connection.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  connection.socket = std::move(socket);
  connection.packets = std::move(packets);
  connection.connected = true;
  if (std::all_of(connections_.begin(), connections_.end(), [](const RankConnection& each) { return each.connected; }))
    send_to_all({.type = EmulatorMessageType::begin});
  return true;
}

// Handles one message from a rank. Returns false if the rank has ended.
bool EmulatorLoop::on_message(RankConnection& connection) {
  EmulatorMessage message;
  const auto got = ::recv(connection.socket.get(), &message, sizeof(message), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got != sizeof(message)) return false;
  if (message.type == EmulatorMessageType::tally) {
    tally_.counts = links_.counts();
    send(connection, {.type = EmulatorMessageType::tally, .tally = tally_});
  } else if (message.type == EmulatorMessageType::formed && !connection.formed) {
    connection.formed = true;
    const bool all =
        std::all_of(connections_.begin(), connections_.end(), [](const RankConnection& each) { return each.formed; });
    if (!all) return true;
    zero_ = monotonic_now();
    send_to_all({.type = EmulatorMessageType::clock, .at = zero_});
  }
  return true;
}

// Sends a message without waiting. If the rank does not read, its socket becomes full, and the message is dropped.
void EmulatorLoop::send(RankConnection& connection, const EmulatorMessage& message) {
  if (connection.socket) (void)::send(connection.socket.get(), &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void EmulatorLoop::send_to_all(const EmulatorMessage& message) {
  for (auto& connection : connections_) send(connection, message);
}

void EmulatorLoop::carry(uint32_t from) {
  for (int i = 0; i < reads_per_turn; ++i) {
    const auto got = ::read(connections_[from].packets.get(), buffer_.data(), buffer_.size());
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
    // If the receiver's kernel has no memory, it drops the packet, as it would drop one from a network card.
    if (const int packets = connections_[arrival->to].packets.get(); packets >= 0)
      (void)!::write(packets, arrival->packet.data(), arrival->packet.size());
  }
}

// Injects the faults that are due. The ranks are notified before the fault is injected. So a time that is measured from the
// notification to a later event is never too short.
void EmulatorLoop::inject_faults() {
  for (; zero_ != never && faults_injected_ < options_.faults.size(); ++faults_injected_) {
    const auto& fault = options_.faults[faults_injected_];
    const auto now = monotonic_now();
    if (now < zero_ + fault.at) return;
    send_to_all({.type = EmulatorMessageType::fault, .at = now, .fault = fault});
    auto& connection = connections_[fault.rank];
    connection.stopped = fault.kind == FaultKind::stop;
    (void)::syscall(SYS_pidfd_send_signal, connection.process.get(), signal_of(fault.kind), nullptr, 0);
  }
}

void EmulatorLoop::report_lateness() const {
  const auto packets = links_.counts().packets;
  if (tally_.late_packets * 100 < packets || packets == 0) return;
  fmt::print(stderr,
             "unisono: links: {:.1f} % of {} packets were more than 1 ms late: this machine is too busy for such links, and "
             "times are too long\n",
             100.0 * static_cast<double>(tally_.late_packets) / static_cast<double>(packets), packets);
}

void EmulatorLoop::resume_stopped_ranks() {
  if (std::any_of(connections_.begin(), connections_.end(),
                  [](const RankConnection& connection) { return connection.socket && !connection.stopped; }))
    return;
  for (auto& connection : connections_) {
    if (connection.socket && connection.stopped)
      (void)::syscall(SYS_pidfd_send_signal, connection.process.get(), SIGCONT, nullptr, 0);
    connection.stopped = false;
  }
}

[[noreturn]] void run_emulator(const LinkEmulatorOptions& options, Descriptor listener, Descriptor lifeline, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(0);
  // A terminal sends these signals to all processes of the job. The emulator ignores them, because it ends when the launcher
  // ends.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_TIMERSLACK, 1);
  // The emulator then gets a core before busy ranks do. The call fails if this process lacks the privilege.
  (void)::setpriority(PRIO_PROCESS, 0, -10);
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(nowhere, STDOUT_FILENO);
  EmulatorLoop loop(options, std::move(listener), std::move(lifeline));
  loop.run();
  if (options.reports_lateness) loop.report_lateness();
  ::_exit(0);
}

}  // namespace

Result<LinkEmulator> LinkEmulator::start(const LinkEmulatorOptions& options) {
  const auto failed = [](const char* what) {
    return Status(Code::unavailable, fmt::format("{}: {}{}", what, strerrordesc_np(errno), descriptor_limit_text(errno)));
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
    run_emulator(options, std::move(listener), std::move(lifeline.read), launcher);
  }
  return LinkEmulator(pid, std::move(lifeline.write));
}

LinkEmulator::LinkEmulator(LinkEmulator&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), lifeline_(std::move(other.lifeline_)) {}

LinkEmulator::~LinkEmulator() {
  if (pid_ < 0) return;
  lifeline_.reset();
  ::waitpid(pid_, nullptr, 0);  // this fails if the launcher has already reaped the process
}

}  // namespace unisono::cli
