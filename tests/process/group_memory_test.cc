// Shared memory works with a tiny /dev/shm, and leaves nothing behind when ranks are killed.
#include <filesystem>
#include <fstream>
#include <set>

#include "base/concat.h"
#include "group_cluster.h"

namespace unisono::testing {
namespace {

std::set<std::string> files_of(const std::string& folder) {
  std::set<std::string> names;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(folder, gone)) names.insert(entry.path().string());
  return names;
}

// Returns the lines of /proc/PID/maps that describe shared mappings.
std::vector<std::string> shared_memory_of(pid_t pid) {
  std::vector<std::string> lines;
  std::ifstream in(concat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(in, line);) {
    const auto rights = line.find(' ');
    if (rights != std::string::npos && line[rights + 4] == 's') lines.push_back(line);
  }
  return lines;
}

TEST(SharedMemory, has_no_name_so_that_nothing_is_left_after_sigkill) {
  Cluster group(3, {.transport = "shm"});
  const auto numbers = group.send_command(group.all_but({}), "all_reduce:count=1000000,iters=1000000");
  for (size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(group[rank].has_begun(numbers[rank]));
  size_t mapped = 0;
  for (size_t rank = 0; rank < 3; ++rank) {
    for (const auto& line : shared_memory_of(group[rank].pid())) {
      ++mapped;
      EXPECT_NE(line.find("(deleted)"), std::string::npos) << "memory with a name outlives its process: " << line;
      EXPECT_EQ(line.find("/dev/shm/"), std::string::npos) << line;
    }
  }
  EXPECT_GT(mapped, 0u);
  for (const auto& name : files_of("/dev/shm")) EXPECT_EQ(name.find("unisono"), std::string::npos) << name;
  for (size_t rank = 0; rank < 3; ++rank) group[rank].signal(SIGKILL);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(group[rank].wait().by_signal);
}

TEST(SharedMemory, of_a_dead_rank_is_released_when_the_others_re_form) {
  Cluster group(3, {.transport = "shm"});
  expect_all_ok(group.ask_all("all_reduce:count=1000000,iters=3"));
  const auto before = shared_memory_of(group[0].pid()).size();
  group[2].signal(SIGKILL);
  EXPECT_TRUE(group[2].wait().by_signal);
  expect_all_ok(group.ask({0, 1}, "reform"));
  expect_all_ok(group.ask({0, 1}, "all_reduce:count=1000000"));
  EXPECT_LT(shared_memory_of(group[0].pid()).size(), before);
  group.finish({0, 1});
}

TEST(SharedMemory, works_where_dev_shm_has_one_megabyte) {
  // Mounting needs root, and even root in a container may lack the right.
  if (run({"unshare", "--mount", "true"}).code != 0) GTEST_SKIP() << "SKIPPED: this process may not mount a small /dev/shm";
  const std::vector<std::string> small{"unshare", "--mount", "sh", "-c",
                                       "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$0\" \"$@\""};
  Cluster group(3, {.transport = "shm", .wrappers = {small, small, small}});
  expect_all_ok(group.ask_all("all_reduce:count=4000001,iters=3"));
  expect_all_ok(group.ask_all("flights:n=6,step=20011"));
  for (const auto& name : files_of(concat("/proc/", group[0].pid(),
                                          "/"
                                          "root/dev/shm")))
    ADD_FAILURE() << name << " is in /dev/shm";
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
