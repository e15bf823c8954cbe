// What an operation leaves to be written when it is over for its sender reaches the receiver, although nobody calls anything there.
#include <gtest/gtest.h>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

const std::string call = "broadcast:count=1000,root=0";  // short enough to be copied, and so done, while its socket takes nothing

// How many rank 0 gets rid of while rank 1 does not read.
int64_t broadcasts_without_a_reader(const std::string& transport) {
  Cluster group(2, {.transport = transport});
  for (int64_t count = 0; count < 100'000; ++count) {
    if (group[0].ask(call + ",timeout=300").code() != "ok") return count;
  }
  return 100'000;
}

TEST(Leftover, short_messages_behind_a_full_socket_arrive_while_their_sender_is_idle) {
  const auto capacity = broadcasts_without_a_reader("tcp");
  ASSERT_GT(capacity, 100);
  ASSERT_LT(capacity, 100'000);
  const auto count = capacity - 20;  // the last ones wait in the process, not in the kernel
  Cluster group(2, {.transport = "tcp"});
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(group[0].ask(call).code(), "ok");
  for (int64_t i = 0; i < count; ++i) {
    const auto line = group[1].ask(call + ",timeout=5000");
    ASSERT_EQ(line.code(), "ok") << i << " of " << count << ": " << line.text;
  }
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
