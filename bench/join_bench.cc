// Measures how long ranks take to join a group, over each of the transports in turn. `bench/join` starts it.
//
//   join_bench [--ranks N] [--rounds N] [--transports tcp,udp] [--namespaces a,b,…]
// The ranks are processes that live through all rounds. In each round they form one group per transport. A join lasts from the
// moment when the ranks have met at a barrier until the last rank has joined. With --namespaces, the ranks are spread over
// these network namespaces, which then count as hosts; this needs root. The program prints one line of JSON. It has the seconds
// of all joins of each transport, in the order of the rounds, and the processor time that all ranks used for each join.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "testing/temporary_folder.h"
#include "unisono/unisono.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t ranks_max = 1024;

struct Settings {
  uint32_t ranks = 2, rounds = 7;
  std::vector<std::string> transports{"tcp", "udp"}, namespaces{};
};

// The ranks share this memory.
struct Shared {
  pthread_barrier_t barrier;
  Clock::time_point began[ranks_max], ended[ranks_max];  // when each rank began to join, and when it had joined
  double processor_seconds[ranks_max];                   // processor time of each rank until all ranks had joined
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "join_bench: %s\n", why.c_str());
  std::exit(1);
}

Shared& make_shared(uint32_t ranks) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no shared memory");
  auto& shared = *new (memory) Shared;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared.barrier, &attributes, ranks);
  return shared;
}

// Moves this rank to its host. Neighbouring ranks are on the same host.
void enter_host(const Settings& settings, uint32_t rank) {
  if (settings.namespaces.empty()) return;
  const auto& name = settings.namespaces[rank * settings.namespaces.size() / settings.ranks];
  const int space = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || ::setns(space, CLONE_NEWNET) != 0)
    fail(fmt::format("rank {} cannot enter the network namespace {}", rank, name));
  ::close(space);
}

struct Join {
  double seconds = 0, processor_seconds = 0;
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Join join(const Settings& settings, uint32_t rank, Shared& shared, const std::string& transport, const std::string& meeting) {
  unisono::Options options;
  options.rank = static_cast<int32_t>(rank);
  options.world_size = static_cast<int32_t>(settings.ranks);
  options.rendezvous = "file://" + meeting;
  options.transport = transport;
  if (!settings.namespaces.empty()) options.interface = "eth0";
  pthread_barrier_wait(&shared.barrier);
  const auto used_before = processor_seconds();
  shared.began[rank] = Clock::now();
  auto group = unisono::Group::join(options);
  shared.ended[rank] = Clock::now();
  if (!group) fail(fmt::format("rank {}, {}: {}", rank, transport, group.status().to_string()));
  pthread_barrier_wait(&shared.barrier);
  shared.processor_seconds[rank] = processor_seconds() - used_before;
  pthread_barrier_wait(&shared.barrier);
  const auto began = *std::min_element(shared.began, shared.began + settings.ranks);
  const auto ended = *std::max_element(shared.ended, shared.ended + settings.ranks);
  return {.seconds = std::chrono::duration<double>(ended - began).count(),
          .processor_seconds = std::accumulate(shared.processor_seconds, shared.processor_seconds + settings.ranks, 0.0)};
}

std::string text_of(const Settings& settings, const std::vector<std::vector<double>>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i)
    text += fmt::format("{}\"{}\":[{:.4f}]", i > 0 ? "," : "", settings.transports[i], fmt::join(values[i], ","));
  return text;
}

void run_rank(const Settings& settings, uint32_t rank, Shared& shared, const std::string& folder) {
  enter_host(settings, rank);
  std::vector<std::vector<double>> seconds(settings.transports.size()), processor_seconds(settings.transports.size());
  // The first round is not counted, because it loads code and memory.
  for (uint32_t round = 0; round <= settings.rounds; ++round) {
    for (size_t i = 0; i < settings.transports.size(); ++i) {
      const auto took = join(settings, rank, shared, settings.transports[i], fmt::format("{}/{}-{}", folder, round, i));
      if (round == 0) continue;
      seconds[i].push_back(took.seconds);
      processor_seconds[i].push_back(took.processor_seconds);
    }
  }
  if (rank != 0) return;
  fmt::print("{{\"ranks\":{},\"seconds\":{{{}}},\"processor_seconds\":{{{}}}}}\n", settings.ranks, text_of(settings, seconds),
             text_of(settings, processor_seconds));
}

// Starts the ranks, and waits for them. Returns the status with which this process ends.
int run(const Settings& settings) {
  auto& shared = make_shared(settings.ranks);
  const unisono::test::TemporaryFolder folder;
  for (uint32_t rank = 0; rank < settings.ranks; ++rank) {
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_rank(settings, rank, shared, folder.path());
    std::fflush(stdout);
    std::_Exit(0);
  }
  for (size_t ended = 0; ended < settings.ranks; ++ended) {
    int status = 0;
    ::wait(&status);
    if (status != 0) return 1;  // The other ranks would wait for this one at the barrier. They end with this process.
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures how long ranks take to join a group.");
  app.add_option("--ranks", settings.ranks, "number of ranks")->check(CLI::Range(2u, ranks_max));
  app.add_option("--rounds", settings.rounds, "number of joins over each transport")->check(CLI::Range(1u, 10000u));
  app.add_option("--transports", settings.transports, "transports, in the order of a round")->delimiter(',');
  app.add_option("--namespaces", settings.namespaces, "network namespaces for the ranks")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  return run(settings);
}
