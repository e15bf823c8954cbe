// How many descriptors the groups of a process take. A limit of 1024 per process is usual, so groups must take few.
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "group_cluster.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {
namespace {

constexpr size_t world = 4;
constexpr size_t group_max = 10;
// A process has one handle for each other process, for all groups together. It shows when that process dies.
constexpr size_t process_handles = world - 1;

size_t descriptors_of(const RankProcess& rank) {
  const std::filesystem::directory_iterator all(concat("/proc/", rank.pid(), "/fd"));
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

std::string list_of(const RankProcess& rank) {
  std::string list;
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", rank.pid(), "/fd"))) {
    std::error_code gone;
    list += std::filesystem::read_symlink(entry.path(), gone).string() + " ";
  }
  return list;
}

// Four processes of one host, which make groups with each other.
class Ranks {
 public:
  explicit Ranks(const std::string& transport, const Wrapper& wrapper = {}) {
    for (size_t rank = 0; rank < world; ++rank) {
      const std::vector<std::string> settings{"UNISONO_TRANSPORT=" + transport, concat("RANK=", rank),
                                              concat("WORLD_SIZE=", world)};
      ranks_.push_back(
          std::make_unique<RankProcess>(folder_.path(), std::to_string(rank), settings, std::vector<std::string>{}, wrapper));
      EXPECT_TRUE(ranks_[rank]->ask("usage").ok());
      before_.push_back(descriptors_of(*ranks_[rank]));
    }
  }
  ~Ranks() {
    for (const auto& rank : ranks_) EXPECT_EQ(rank->finish(), 0);
  }
  Ranks(const Ranks&) = delete;

  bool ask_all(const std::string& command) {
    std::vector<size_t> numbers;
    for (const auto& rank : ranks_) numbers.push_back(rank->send_command(command));
    bool all = true;
    for (size_t rank = 0; rank < world; ++rank) {
      const auto line = ranks_[rank]->answer(numbers[rank]);
      EXPECT_TRUE(line.ok()) << "rank " << rank << ": " << line.text;
      all = all && line.ok();
    }
    return all;
  }
  // Makes a group of all ranks, which meet at `where`, and uses it.
  bool join(const std::string& name, const std::string& where) {
    return ask_all(concat("join:name=", name, ",rendezvous=", where)) && ask_all("all_reduce:count=1000,group=" + name);
  }
  bool join(const std::string& name) { return join(name, "file://" + folder_.path() + "/" + name); }
  // Waits until no rank has more than `most` descriptors more than at first: connections to the rendezvous close after the
  // ranks have joined.
  void expect_at_most(size_t most) const {
    const auto end = now_ns() + 10'000'000'000;
    for (size_t rank = 0; rank < world; ++rank) {
      while (descriptors_of(*ranks_[rank]) > before_[rank] + most && now_ns() < end) {}
      EXPECT_LE(descriptors_of(*ranks_[rank]), before_[rank] + most) << "rank " << rank << ": " << list_of(*ranks_[rank]);
    }
  }

 private:
  test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<size_t> before_;
};

// (The transport udp has one socket for each address of the host. All others are counted here.)
class GroupDescriptors : public ::testing::TestWithParam<std::string> {};

TEST_P(GroupDescriptors, a_group_of_four_on_one_host_takes_at_most_10_at_every_rank_and_a_sub_group_one) {
  Ranks ranks(GetParam());
  constexpr size_t groups = 3, sub_groups = 5;
  for (size_t i = 1; i <= groups; ++i) {
    ASSERT_TRUE(ranks.join(concat("group", i)));
    ranks.expect_at_most(process_handles + i * group_max);
  }
  for (size_t i = 0; i < sub_groups; ++i) {
    ASSERT_TRUE(ranks.ask_all(concat("split:ranks=0/1/2/3,group=group1,name=part", i)));
    ASSERT_TRUE(ranks.ask_all(concat("all_reduce:count=1000,group=part", i)));
  }
  ranks.expect_at_most(process_handles + groups * group_max + sub_groups);
  ASSERT_TRUE(ranks.ask_all("leave"));
  ranks.expect_at_most(0);
}

INSTANTIATE_TEST_SUITE_P(Transports, GroupDescriptors, ::testing::Values("auto", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

// While a group forms, it takes more: listening sockets, and the connections to the rendezvous.
TEST(ManyGroups, forty_groups_of_four_fit_into_a_limit_of_10_each) {
  constexpr size_t groups = 40, while_forming = 20, of_program = 10;
  const auto limit = of_program + process_handles + groups * group_max + while_forming;
  Ranks ranks("auto", {"sh", "-c", concat("ulimit -n ", limit, " && exec \"$0\" \"$@\"")});
  for (size_t i = 1; i <= groups; ++i) ASSERT_TRUE(ranks.join(concat("group", i))) << "group " << i;
  for (size_t i = 1; i <= groups; ++i) ASSERT_TRUE(ranks.ask_all(concat("all_reduce:count=1000,group=group", i)));
}

}  // namespace
}  // namespace unisono::testing
