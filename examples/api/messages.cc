// Sends messages around a ring: every rank sends to the rank on its right, and receives from the rank on its left.
#include <unisono/unisono.h>

#include <cstdio>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  const uint32_t rank = group->rank(), world = group->world_size();

  // --8<-- [start:body]
  const uint32_t tag = 7;  // messages are matched by tag; messages with the same tag arrive in order
  const double mine[] = {rank * 1.5};
  double left[] = {0};
  auto sending = group->send_async(std::span<const double>(mine), (rank + 1) % world, tag);
  auto receiving = group->recv_async(std::span<double>(left), (rank + world - 1) % world, tag);
  auto sent = sending.wait();
  auto received = receiving.wait();
  // --8<-- [end:body]
  if (!sent || !received) return std::fprintf(stderr, "%s\n", (sent ? received : sent).status().to_string().c_str()), 1;
  std::printf("got %g from rank %u\n", left[0], (rank + world - 1) % world);
  return 0;
}
