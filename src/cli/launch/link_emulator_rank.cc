// The ranks' end of the stage.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/common/monotonic.h"
#include "cli/launch/link_emulator_message.h"
#include "cli/launch/private_network.h"

namespace unisono::cli {
namespace {

constexpr Nanos patience = 60 * second;  // for the slowest rank to be started, or to join

Status failed(const std::string& what, int error) {
  return Status(Code::unavailable, fmt::format("{}: {}", what, strerrordesc_np(error)));
}

// With a descriptor, if it is one.
Status say(int socket, const EmulatorMessage& message, int descriptor) {
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
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) == sizeof(message)
             ? Status()
             : failed("the process that plays the links is gone", errno);
}

}  // namespace

Result<EmulatedRank> EmulatedRank::take(const std::string& job, uint32_t rank, bool private_network) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return failed("no socket", errno);
  const EmulatorAddress stage(job);
  if (::connect(socket.get(), stage.get(), stage.bytes) != 0) {
    return Status(Code::invalid,
                  "links and faults on request need ranks that this command starts itself, on this host: give -n COUNT, "
                  "without another launcher");
  }
  EmulatedRank rank_end(std::move(socket));
  Descriptor packets;
  if (private_network) {
    auto entered = enter_private_network(rank);
    if (!entered.ok()) return entered.status();
    packets = *std::move(entered);
  }
  if (auto said = say(rank_end.socket_.get(), {.word = EmulatorWord::placed, .rank = rank}, packets.get()); !said.ok())
    return said;
  if (auto begun = rank_end.wait_for(EmulatorWord::begin); !begun.ok()) return begun.status();
  return rank_end;
}

Result<EmulatorMessage> EmulatedRank::wait_for(EmulatorWord word) {
  const auto deadline = monotonic_now() + patience;
  while (monotonic_now() < deadline) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, poll_milliseconds(deadline, monotonic_now())) <= 0) continue;
    EmulatorMessage message;
    const auto got = ::recv(socket_.get(), &message, sizeof(message), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got != sizeof(message)) return Status(Code::unavailable, "another rank ended before all had come together");
    if (message.word == word) return message;
    if (message.word == EmulatorWord::fault) kept_.push_back({message.fault, message.at});
  }
  return Status(Code::late, "not all ranks came together within 60 s");
}

Result<Nanos> EmulatedRank::start() {
  if (auto said = say(socket_.get(), {.word = EmulatorWord::formed}, -1); !said.ok()) return said;
  auto clock = wait_for(EmulatorWord::clock);
  if (!clock.ok()) return clock.status();
  return clock->at;
}

std::vector<FaultNews> EmulatedRank::news() {
  EmulatorMessage message;
  while (::recv(socket_.get(), &message, sizeof(message), MSG_DONTWAIT) == sizeof(message)) {
    if (message.word == EmulatorWord::fault) kept_.push_back({message.fault, message.at});
  }
  return std::exchange(kept_, {});
}

Result<LinkTally> EmulatedRank::tally() {
  if (auto said = say(socket_.get(), {.word = EmulatorWord::tally}, -1); !said.ok()) return said;
  auto answer = wait_for(EmulatorWord::tally);
  if (!answer.ok()) return answer.status();
  return answer->tally;
}

}  // namespace unisono::cli
