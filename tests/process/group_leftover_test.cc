// An operation may end at its sender while bytes are still to be written. They reach the receiver even if the sender makes no
// further call.
#include <gtest/gtest.h>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

const std::string call =
    "broadcast:count=1000,root=0";  // short enough to be copied, and so done, while its socket takes nothing

TEST(Leftover, short_messages_behind_a_full_socket_arrive_while_their_sender_is_idle) {
  Cluster group(2, {.transport = "tcp"});
  int64_t count = 0;
  while (count < 100'000 && group[0].ask(call + ",timeout=300").code() == "ok") ++count;
  // The one that failed found no room in the process; those before it wait there, behind what the kernel took.
  ASSERT_GT(count, 100);
  ASSERT_LT(count, 100'000);
  for (int64_t i = 0; i < count; ++i) {
    const auto line = group[1].ask(call + ",timeout=5000");
    ASSERT_EQ(line.code(), "ok") << i << " of " << count << ": " << line.text;
  }
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
