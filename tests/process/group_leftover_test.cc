// A sender may end an operation before the socket takes all its bytes. They must still reach the receiver if the sender makes
// no further call.
#include <gtest/gtest.h>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

// A short message is copied, so the sender is done even if the socket is full.
const std::string send = "send:count=1000,peer=1", receive = "recv:count=1000,peer=0";

TEST(Leftover, short_messages_behind_a_full_socket_arrive_while_their_sender_is_idle) {
  Cluster group(2, {.transport = "tcp"});
  // The receiver is stopped. An idle receiver would go on reading, because it confirms what arrives.
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  int64_t count = 0;
  while (count < 100'000 && group[0].ask(send + ",timeout=300").code() == "ok") ++count;
  group[1].signal(SIGCONT);
  // The last call failed because the sender's buffers were full. They hold the messages of the earlier calls, behind the full
  // socket.
  ASSERT_GT(count, 100);
  ASSERT_LT(count, 100'000);
  for (int64_t i = 0; i < count; ++i) {
    const auto line = group[1].ask(receive + ",timeout=5000");
    ASSERT_EQ(line.code(), "ok") << i << " of " << count << ": " << line.text;
  }
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
