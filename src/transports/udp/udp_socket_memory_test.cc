// Sending and receiving must allocate nothing once a socket is made. To count allocations, this file replaces the global
// operator new of the whole test program.
#include <array>
#include <vector>

#include <poll.h>

#include <gtest/gtest.h>

#include "testing/replaced_new.h"
#include "transports/udp/udp_socket.h"

namespace {

thread_local bool counting = false;
thread_local uint64_t allocations = 0;

}  // namespace

void* unisono::replaced_new::allocate(size_t bytes, size_t alignment) {
  if (counting) ++allocations;
  return from_heap(bytes, alignment);
}

// Not inlined, because the compiler would warn that memory from new is passed to free.
[[gnu::noinline]] void unisono::replaced_new::release(void* memory) { std::free(memory); }

namespace unisono {
namespace {

struct Count final : DatagramInbox {
  void arrived(std::span<const InDatagram> batch) override { datagrams += batch.size(); }
  void refused(const TcpAddress&) override { ++refusals; }
  size_t datagrams = 0, refusals = 0;
};

TEST(UdpSocketMemory, a_socket_allocates_only_when_it_is_made) {
  const auto here = parse_tcp_address("127.0.0.1");
  const auto sender = UdpSocket::make({.address = here.value()}), receiver = UdpSocket::make({.address = here.value()});
  ASSERT_TRUE(sender.ok() && receiver.ok());
  auto& out = **sender;
  auto& in = **receiver;
  const auto closed = UdpSocket::make({.address = here.value()}).value()->address();
  const std::array<std::byte, 100> payload{};
  const OutDatagram one{.to = &in.address(), .header = {.payload_bytes = 100}, .payload = payload},
      astray{.to = &closed, .header = {.payload_bytes = 100}, .payload = payload};
  std::vector<OutDatagram> batch(300, one);
  batch[100] = batch[200] = astray;
  Count seen;
  counting = true;
  const auto outcome = out.send(batch);
  pollfd wait{in.wait_handle(), POLLIN, 0};
  while (seen.datagrams < 298 && ::poll(&wait, 1, 5'000) > 0) in.receive(seen, 1000);
  out.receive(seen, 1000);
  counting = false;
  EXPECT_EQ(outcome.taken, 300u);
  EXPECT_EQ(seen.datagrams, 298u);
  EXPECT_GT(seen.refusals, 0u);
  EXPECT_EQ(allocations, 0u);

  counting = true;
  (void)std::vector<int>(3);
  counting = false;
  EXPECT_GT(allocations, 0u) << "the count works";
}

}  // namespace
}  // namespace unisono
