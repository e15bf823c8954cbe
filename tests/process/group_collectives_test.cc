// Results of collectives between real processes: every type, operation and odd size, over shared memory and over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/concat.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

struct Setting {
  const char* transport;
  size_t world;
};

std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.transport << s.world; }

class Collectives : public ::testing::TestWithParam<Setting> {};

TEST_P(Collectives, every_type_and_operation_is_correct_at_every_size) {
  Cluster group(GetParam().world, {.transport = GetParam().transport});
  const auto lines = group.ask_all("matrix:counts=0/1/2/7/33/1000,seed=4711");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.number("cases"), lines[0].number("cases"));
  std::printf("    seed 4711, %lld calls per rank\n", static_cast<long long>(lines[0].number("cases")));
  group.finish();
}

TEST_P(Collectives, messages_between_neighbours_match_by_tag_and_order) {
  Cluster group(GetParam().world, {.transport = GetParam().transport});
  expect_all_ok(group.ask_all("messages:count=1"));
  expect_all_ok(group.ask_all("messages:count=100003"));
  group.finish();
}

TEST_P(Collectives, several_calls_are_in_flight_at_once) {
  Cluster group(GetParam().world, {.transport = GetParam().transport});
  expect_all_ok(group.ask_all("flights:n=12"));
  expect_all_ok(group.ask_all("flights:n=12,ids=1"));
  expect_all_ok(group.ask_all("flights:n=6,step=20011"));
  group.finish();
}

TEST_P(Collectives, two_threads_work_at_once_in_two_sub_groups_or_with_ids) {
  Cluster group(GetParam().world, {.transport = GetParam().transport});
  expect_all_ok(group.ask_all("threads:iters=60"));
  expect_all_ok(group.ask_all("threads:iters=60,ids=1"));
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Values(Setting{"shm", 2}, Setting{"shm", 5}, Setting{"tcp", 3}, Setting{"tcp", 4},
                                           Setting{"udp", 3}),
                         ::testing::PrintToStringParamName());

class Transport : public ::testing::TestWithParam<std::string> {};

TEST_P(Transport, large_tensors_are_correct_with_every_schedule) {
  Cluster group(4, {.transport = GetParam()});
  for (int schedule = 0; schedule <= 5; ++schedule) {
    const auto lines =
        group.ask_all(concat("all_reduce:count=500001,dtype=f32,op=avg,hash=1,iters=2,order=2,schedule=", schedule));
    expect_all_ok(lines);
    for (const auto& line : lines) EXPECT_EQ(line.value("hash"), lines[0].value("hash"));
  }
  for (const auto* call : {"reduce_scatter:count=200001,dtype=bf16,uneven=1", "all_gather:count=300001,dtype=i16,offset=1",
                           "broadcast:count=1000001,dtype=u8,root=2", "all_to_all:count=100001,dtype=f64,uneven=1",
                           "reduce:count=500003,dtype=f16,root=3,offset=1", "gather:count=200001,uneven=1,root=1",
                           "scatter:count=200001,root=2", "all_reduce:count=200003,dtype=i64,op=prod,in_place=1,offset=3"}) {
    expect_all_ok(group.ask_all(call));
  }
  group.finish();
}

// With a codec, all ranks have the same bits, over every transport and with any number of threads. Inputs are whole numbers
// below 8.
TEST(Codecs, give_the_same_bits_on_every_rank_over_every_transport_and_with_any_number_of_threads) {
  std::vector<std::string> hashes[3];
  for (size_t i = 0; i < 3; ++i) {
    const bool threads = i == 2;
    Cluster group(4, {.transport = i == 1 ? "tcp" : "shm",
                      .environment = {threads ? "UNISONO_COMPUTE_THREADS=3" : "UNISONO_COMPUTE_THREADS=1"}});
    auto& seen = hashes[i];
    const auto ask = [&](const std::string& call) {
      const auto lines = group.ask_all(call + ",hash=1,seed=5");
      expect_all_ok(lines);
      seen.push_back(lines[0].value("hash"));
      return lines;
    };
    for (const auto* schedule : {"5", "2", "4"}) {  // one_shot, two_step, hierarchical
      for (const auto* codec : {"int8", "int5", "int8/int4", "bf16", "plain/int6/int8"}) {
        for (const auto* size : {"count=1001,tolerance=60", "count=300007,in_place=1,tolerance=60",
                                 "count=200000,slice=4096,offset=3,tolerance=60"}) {
          for (const auto& line : ask(std::string("all_reduce:") + size + ",order=2,schedule=" + schedule + ",codec=" + codec))
            EXPECT_EQ(line.value("hash"), seen.back()) << codec;
        }
      }
    }
    for (const auto& line : ask("all_gather:count=70001,schedule=6,codec=int6,tolerance=10"))
      EXPECT_EQ(line.value("hash"), seen.back());
    ask("reduce_scatter:count=70001,uneven=1,schedule=6,codec=int6,tolerance=60");
    ask("all_to_all:count=50001,uneven=1,codec=int4,tolerance=30");
    group.finish();
  }
  ASSERT_EQ(hashes[0].size(), hashes[1].size());
  for (size_t i = 0; i < hashes[0].size(); ++i)
    EXPECT_TRUE(hashes[0][i] == hashes[1][i] && hashes[0][i] == hashes[2][i]) << "call " << i;
}

TEST_P(Transport, sub_groups_work_beside_each_other_and_beside_the_whole_group) {
  Cluster group(4, {.transport = GetParam()});
  for (const size_t rank : {0u, 1u, 2u, 3u})
    expect_all_ok({group[rank].ask(rank % 2 == 0 ? "split:name=half,ranks=2/0" : "split:name=half,ranks=1/3")});
  EXPECT_EQ(group[2].ask("members:group=half").number("rank"), 0);
  for (int i = 0; i < 3; ++i) {
    expect_all_ok(group.ask_all("all_reduce:group=half,count=70001"));
    expect_all_ok(group.ask_all("all_reduce:count=333"));
  }
  EXPECT_EQ(group[0].ask("split:name=no,ranks=1/2").code(), "invalid");
  EXPECT_EQ(group[0].ask("split:name=no,ranks=0/9").code(), "invalid");
  group.finish();
}

TEST_P(Transport, a_deadline_is_kept_and_names_the_rank_that_is_missing) {
  Cluster group(3, {.transport = GetParam()});
  const auto lines = group.ask({0, 2}, "all_reduce:count=1000,timeout=300");
  int64_t longest = 0;
  for (const auto& line : lines) {
    EXPECT_EQ(line.code(), "late") << line.text;
    EXPECT_TRUE(line.says("rank 1")) << line.text;
    longest = std::max(longest, line.number("us"));
    expect_within("late after", line.number("us") * 1000, 300 + 200);
  }
  // A rank that began later ends when the deadline of the other one has passed.
  EXPECT_GE(longest, 300'000);
  group.finish();
}

TEST_P(Transport, work_can_be_polled_and_waited_for_in_parts_and_has_a_report) {
  Cluster group(2, {.transport = GetParam()});
  expect_all_ok({group[0].ask("start:collective=all_reduce,count=5000,name=a")});
  const auto still = group[0].ask("wait:name=a,ms=50");
  EXPECT_EQ(still.code(), "late");
  EXPECT_TRUE(still.says("still running")) << still.text;
  EXPECT_EQ(still.number("done"), 0);
  EXPECT_GE(still.number("us"), 50'000);
  expect_all_ok({group[1].ask("all_reduce:count=5000")});
  const auto done = group[0].ask("wait:name=a");
  EXPECT_TRUE(done.ok()) << done.text;
  EXPECT_EQ(done.number("done"), 1);
  const auto report = group[0].ask("report:name=a");
  EXPECT_EQ(report.number("contributors"), 2);
  EXPECT_EQ(report.number("last"), 1);
  EXPECT_GE(report.number("sent"), 5000 * 4 / 2);
  EXPECT_GE(report.number("total_us"), 50'000);
  group.finish();
}

TEST_P(Transport, work_continues_while_its_owner_does_something_else) {
  Cluster group(3, {.transport = GetParam()});
  expect_all_ok(group.ask_all("start:collective=all_reduce,count=2000003,name=a"));
  // No thread is inside a call of the library, so only its background thread can complete the operation.
  std::set<size_t> open{0, 1, 2};
  const auto give_up = now_ns() + 20'000'000'000;
  while (!open.empty() && now_ns() < give_up) {
    for (const auto rank : std::set<size_t>(open)) {
      if (group[rank].ask("report:name=a").number("contributors") == 3) open.erase(rank);
    }
  }
  EXPECT_TRUE(open.empty());
  expect_all_ok(group.ask_all("wait:name=a,ms=0"));
  group.finish();
}

TEST_P(Transport, a_rank_that_leaves_when_its_part_is_done_disturbs_no_other_rank) {
  for (int i = 0; i < 10; ++i) {
    Cluster group(4, {.transport = GetParam()});
    // Rank 0 sends its messages and exits before the other ranks receive them.
    std::vector<size_t> sent;
    for (const char* peer : {"1", "2", "3"}) sent.push_back(group[0].send_command(concat("send:count=5000,peer=", peer)));
    group[0].send_command("exit");
    for (const auto number : sent) EXPECT_TRUE(group[0].answer(number).ok());
    EXPECT_EQ(group[0].wait().code, 0);
    expect_all_ok(group.ask({1, 2, 3}, "recv:count=5000,peer=0"));
    group.finish({1, 2, 3});
  }
}

// Ranks do not wait for each other between the calls. So some re-form while others are about to finish a collective. That must
// not abort the collective.
TEST_P(Transport, groups_are_re_formed_between_collectives_without_losing_a_result) {
  Cluster group(4, {.transport = GetParam()});
  for (int i = 0; i < 20; ++i) {
    const auto sums = group.send_command(group.all_but({}), "all_reduce:count=30001");
    const auto forms = group.send_command(group.all_but({}), "reform");
    expect_all_ok(group.answers(group.all_but({}), sums));
    expect_all_ok(group.answers(group.all_but({}), forms));
  }
  EXPECT_EQ(group[3].ask("members").number("epoch"), 21);
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(All, Transport, ::testing::Values("shm", "tcp", "udp"), name_of);

// Options that only change how data is sent must not change results.
class Setup : public ::testing::TestWithParam<ClusterOptions> {};

TEST_P(Setup, changes_no_result) {
  Cluster group(3, GetParam());
  expect_all_ok(group.ask_all("matrix:counts=0/1/7/1000,seed=99"));
  expect_all_ok(group.ask_all("all_reduce:count=1000003,iters=5,check=1"));
  expect_all_ok(group.ask_all("flights:n=12,step=4001"));
  for (int i = 0; i < 10; ++i) {
    const auto sums = group.send_command(group.all_but({}), "all_reduce:count=300001");
    const auto forms = group.send_command(group.all_but({}), "reform");
    expect_all_ok(group.answers(group.all_but({}), sums));
    expect_all_ok(group.answers(group.all_but({}), forms));
  }
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(
    All, Setup,
    ::testing::Values(ClusterOptions{.transport = "tcp", .environment = {"UNISONO_STREAMS_PER_LINK=4"}},
                      ClusterOptions{.transport = "tcp", .environment = {"UNISONO_PAYLOAD_CHECKSUM=1"}},
                      ClusterOptions{.transport = "shm", .environment = {"UNISONO_PAYLOAD_CHECKSUM=1"}},
                      ClusterOptions{.transport = "tcp",
                                     .environment = {"UNISONO_INTERFACE=lo", "UNISONO_STREAMS_PER_LINK=2"}}),
    [](const ::testing::TestParamInfo<ClusterOptions>& setup) { return concat(setup.param.transport, setup.index); });

TEST(LongCollectives, tensors_of_more_than_four_gibibytes_are_correct) {
  Cluster group(2, {.environment = {"UNISONO_TIMEOUT_MS=200000"}});
  const auto lines = group.ask_all("big:count=4402341479");
  expect_all_ok(lines);
  for (const auto& line : lines) std::printf("    4.1 GiB: %s\n", line.text.c_str());
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
