// How a rank uses its connection to the link emulator.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error_text.h"
#include "cli/common/monotonic.h"
#include "cli/launch/link_emulator_message.h"
#include "cli/launch/private_network.h"

namespace unisono::cli {
namespace {

constexpr Nanos emulator_timeout = 60 * second;  // the slowest rank must start or join within this time

Status failed(const std::string& what, int error) {
  return Status(Code::unavailable, fmt::format("{}: {}{}", what, strerrordesc_np(error), descriptor_limit_text(error)));
}

// Sends the message. If `descriptor` is not -1, sends this descriptor with it.
Status send(int socket, const EmulatorMessage& message, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec bytes{const_cast<EmulatorMessage*>(&message), sizeof(message)};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    auto* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) == sizeof(message) ? Status() : failed("the link emulator has ended", errno);
}

}  // namespace

Result<EmulatedRank> EmulatedRank::connect(const std::string& job, uint32_t rank, bool private_network) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return failed("no socket", errno);
  const EmulatorAddress emulator(job);
  if (::connect(socket.get(), emulator.get(), emulator.bytes) != 0) {
    return Status(Code::invalid,
                  "emulated links and injected faults need ranks that this command starts itself, on this host: give -n COUNT, "
                  "without another launcher");
  }
  EmulatedRank emulated_rank(std::move(socket));
  Descriptor packets;
  if (private_network) {
    auto entered = enter_private_network(rank);
    if (!entered.ok()) return entered.status();
    packets = *std::move(entered);
  }
  if (auto sent = send(emulated_rank.socket_.get(), {.type = EmulatorMessageType::connected, .rank = rank}, packets.get());
      !sent.ok())
    return sent;
  if (auto begun = emulated_rank.wait_for(EmulatorMessageType::begin); !begun.ok()) return begun.status();
  return emulated_rank;
}

Result<EmulatorMessage> EmulatedRank::wait_for(EmulatorMessageType type) {
  const auto deadline = monotonic_now() + emulator_timeout;
  while (monotonic_now() < deadline) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, poll_milliseconds(deadline, monotonic_now())) <= 0) continue;
    EmulatorMessage message;
    const auto got = ::recv(socket_.get(), &message, sizeof(message), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got != sizeof(message))
      return Status(Code::unavailable, "another rank ended before all ranks had connected to the link emulator");
    if (message.type == type) return message;
    if (message.type == EmulatorMessageType::fault) injected_.push_back({message.fault, message.at});
  }
  return Status(Code::late, "not all ranks connected to the link emulator within 60 s");
}

Result<Nanos> EmulatedRank::announce_formed() {
  if (auto sent = send(socket_.get(), {.type = EmulatorMessageType::formed}, -1); !sent.ok()) return sent;
  auto clock = wait_for(EmulatorMessageType::clock);
  if (!clock.ok()) return clock.status();
  return clock->at;
}

std::vector<InjectedFault> EmulatedRank::injected_faults() {
  EmulatorMessage message;
  while (::recv(socket_.get(), &message, sizeof(message), MSG_DONTWAIT) == sizeof(message)) {
    if (message.type == EmulatorMessageType::fault) injected_.push_back({message.fault, message.at});
  }
  return std::exchange(injected_, {});
}

Result<LinkTally> EmulatedRank::tally() {
  if (auto sent = send(socket_.get(), {.type = EmulatorMessageType::tally}, -1); !sent.ok()) return sent;
  auto answer = wait_for(EmulatorMessageType::tally);
  if (!answer.ok()) return answer.status();
  return answer->tally;
}

}  // namespace unisono::cli
