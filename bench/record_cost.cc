// Measures the cost of the record (the log of operations that a group keeps). The same processes make the same short all-reduce
// with a record and without one, in turn.
//
//   record_cost [--ranks N] [--bytes N] [--blocks N] [--calls N]
// Each rank joins three groups over shared memory: one with a record, and two without. The difference between the last two
// groups is only the noise of the measurement. In a block, each group makes --calls calls, one group after the other. Rank 0
// prints the median time of a call for each group. It also prints ratios of these times: the ratio is taken in each block, and
// the median over the blocks is printed. This ratio is more reliable if the machine changes its speed.

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/concat.h"
#include "testing/temporary_folder.h"
#include "unisono/unisono.h"

namespace {

struct Settings {
  uint32_t ranks = 2;
  size_t bytes = 1024, blocks = 2000, calls = 1000;
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "record_cost: %s\n", why.c_str());
  std::exit(1);
}

unisono::Group join(const Settings& settings, uint32_t rank, const std::string& folder, int which, const char* operations) {
  ::setenv("UNISONO_RECORD", operations, 1);
  unisono::Options options;
  options.rank = static_cast<int32_t>(rank);
  options.world_size = static_cast<int32_t>(settings.ranks);
  options.rendezvous = unisono::concat("file://", folder, "/", which);
  options.transport = "shm";
  auto group = unisono::Group::join(options);
  if (!group) fail(group.status().to_string());
  return std::move(*group);
}

double block_ns(unisono::Group& group, std::vector<float>& values, size_t calls) {
  if (auto status = group.barrier(); !status) fail(status.status().to_string());
  const auto began = std::chrono::steady_clock::now();
  for (size_t i = 0; i < calls; ++i) {
    if (auto report = group.all_reduce(std::span<float>(values)); !report) fail(report.status().to_string());
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
  std::fill(values.begin(), values.end(), 0.0f);
  return took.count() / static_cast<double>(calls);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run_rank(const Settings& settings, uint32_t rank, const std::string& folder) {
  std::vector<unisono::Group> groups;
  const char* kept[] = {"256", "0", "0"};
  for (int which = 0; which < 3; ++which) groups.push_back(join(settings, rank, folder, which, kept[which]));
  std::vector<float> values(settings.bytes / sizeof(float));
  std::vector<double> times[3], cost, difference;
  for (size_t block = 0; block < settings.blocks; ++block) {
    for (size_t i = 0; i < 3; ++i) times[(block + i) % 3].push_back(block_ns(groups[(block + i) % 3], values, settings.calls));
    cost.push_back(2 * times[0].back() / (times[1].back() + times[2].back()));
    difference.push_back(times[2].back() / times[1].back());
  }
  if (rank != 0) return;
  const double with = median(times[0]), without = median(times[1]), again = median(times[2]);
  std::printf(
      "%u ranks, %zu bytes, medians of %zu blocks of %zu calls: with record %.1f ns, without %.1f ns, without again %.1f ns\n",
      settings.ranks, settings.bytes, settings.blocks, settings.calls, with, without, again);
  std::printf("record: %+.2f %%; two groups without differ by %+.2f %%\n", 100 * (median(cost) - 1),
              100 * (median(difference) - 1));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--ranks") == 0) settings.ranks = static_cast<uint32_t>(value);
    else if (std::strcmp(argv[i], "--bytes") == 0) settings.bytes = value;
    else if (std::strcmp(argv[i], "--blocks") == 0) settings.blocks = value;
    else if (std::strcmp(argv[i], "--calls") == 0) settings.calls = value;
    else fail(std::string("there is no option ") + argv[i]);
  }
  const unisono::test::TemporaryFolder folder;
  std::vector<pid_t> ranks;
  for (uint32_t rank = 1; rank < settings.ranks; ++rank) {
    const auto pid = ::fork();
    if (pid == 0) run_rank(settings, rank, folder.path()), std::_Exit(0);
    ranks.push_back(pid);
  }
  run_rank(settings, 0, folder.path());
  int worst = 0;
  for (const auto pid : ranks) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, status);
  }
  return worst == 0 ? 0 : 1;
}
