// A group that cannot form: all ranks learn it together, with the reason, long before their time limits.
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "group_cluster.h"
#include "hosts.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {
namespace {

struct FormingOptions {
  std::string transport = "auto";
  std::string rendezvous = {};         // empty: a socket in a folder
  std::string join = "join";           // the command that each rank gets
  std::vector<Wrapper> wrappers = {};  // for each rank; it also counts the ranks
};

// Starts ranks, and returns their answers to the command that joins.
std::vector<Line> join_all(const FormingOptions& options) {
  const test::TemporaryFolder folder;
  const auto rendezvous = options.rendezvous.empty() ? "file://" + folder.path() + "/meeting" : options.rendezvous;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (size_t rank = 0; rank < options.wrappers.size(); ++rank) {
    const std::vector<std::string> settings{"UNISONO_TRANSPORT=" + options.transport, "UNISONO_RENDEZVOUS=" + rendezvous,
                                            concat("RANK=", rank), concat("WORLD_SIZE=", options.wrappers.size())};
    ranks.push_back(std::make_unique<RankProcess>(folder.path(), std::to_string(rank), settings, Words{options.join},
                                                  options.wrappers[rank]));
  }
  std::vector<Line> answers;
  for (const auto& rank : ranks) answers.push_back(rank->answer(0));
  for (const auto& rank : ranks) EXPECT_EQ(rank->finish(), 0);
  return answers;
}

size_t count_ok(const std::vector<Line>& answers) {
  size_t count = 0;
  for (const auto& line : answers) count += line.ok() ? 1 : 0;
  return count;
}

// The limit is reached when rank 0 accepts the others at the rendezvous, when links are made, or not at all.
TEST(Forming, ranks_that_run_out_of_descriptors_all_name_the_limit) {
  constexpr size_t world = 16;
  for (const auto* transport : {"auto", "shm", "tcp"}) {
    for (const int limit : {32, 40, 48, 56, 64, 72, 200}) {
      SCOPED_TRACE(concat(transport, ", ulimit -n ", limit));
      const Words wrapper{"sh", "-c", concat("ulimit -n ", limit, " && exec \"$0\" \"$@\"")};
      const auto answers = join_all({.transport = transport, .wrappers = std::vector<Wrapper>(world, wrapper)});
      const auto joined = count_ok(answers);
      EXPECT_TRUE(joined == 0 || joined == world) << joined << " of " << world << " have joined";
      if (limit == 200) {
        EXPECT_EQ(joined, world);
      }
      for (const auto& line : answers) {
        if (line.ok()) continue;
        EXPECT_TRUE(line.says("too many open files")) << line.text;
        EXPECT_TRUE(line.says("ulimit -n")) << line.text;
      }
    }
  }
}

// Rank 1 alone has too few descriptors to meet the others. It frees its listening sockets, and so can say why it does not come.
TEST(Forming, a_rank_that_has_no_descriptor_for_the_rendezvous_tells_the_others) {
  for (const auto* transport : {"shm", "tcp"}) {
    for (const int limit : {8, 9, 10, 11}) {
      SCOPED_TRACE(concat(transport, ", ulimit -n ", limit));
      std::vector<Wrapper> wrappers(3);
      wrappers[1] = {"sh", "-c", concat("ulimit -n ", limit, " && exec \"$0\" \"$@\"")};
      const auto answers = join_all({.transport = transport, .join = "join:timeout=20000", .wrappers = wrappers});
      for (const auto& line : answers) {
        EXPECT_EQ(line.code(), "unavailable") << line.text;
        EXPECT_TRUE(line.says(concat("too many open files (this process may have ", limit, ";"))) << line.text;
        expect_within("all learn it within", std::abs(line.at() - answers[1].at()), 5000);
      }
    }
  }
}

using FormingNetwork = NameSpaces;

// Short messages pass, so the ranks meet and link up. What rank 0 sends after its measurements waits behind them.
TEST_F(FormingNetwork, a_path_that_drops_large_packets_fails_both_ends_together_and_names_the_size) {
  for (const char* dropping : {"a", "b"}) {
    SCOPED_TRACE(std::string("large packets to host ") + dropping);
    Hosts hosts("ab");
    for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
    hosts.drop_at(dropping, "ip length > 1100");
    ASSERT_EQ(hosts.error(), "");
    const auto answers = join_all({.transport = "tcp",
                                   .rendezvous = "tcp://" + Hosts::address('a') + ":29500",
                                   .join = "join:timeout=8000",
                                   .wrappers = {hosts.wrapper('a'), hosts.wrapper('b')}});
    const auto joined = count_ok(answers);
    EXPECT_TRUE(joined == 0 || joined == 2) << answers[0].text << answers[1].text;
    if (*dropping == 'b') {
      EXPECT_EQ(joined, 0u) << "rank 0 cannot send its measurements";
    }
    if (joined > 0) continue;
    expect_within("both fail within", std::abs(answers[0].at() - answers[1].at()), 1000);
    for (const auto& line : answers) {
      EXPECT_TRUE(line.says("rank 1 (host host-b, pid ")) << line.text;
      EXPECT_TRUE(line.says("large segments to it get no acknowledgement: TCP has sent ")) << line.text;
      EXPECT_TRUE(line.says("no packets of 1500 bytes")) << line.text;
    }
  }
}

}  // namespace
}  // namespace unisono::testing
