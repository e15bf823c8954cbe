// `unisono bench` with injected faults and emulated links. Also its result files, and runs under other launchers.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "child_process.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {
namespace {

Finished bench(const Words& more, const ChildOptions& options = {}) {
  Words words{UNISONO_TOOL, "bench", "--progress", "off"};
  words.insert(words.end(), more.begin(), more.end());
  return run(words, options);
}

void expect_says(const Finished& done, const Words& parts) {
  for (const auto& part : parts) EXPECT_TRUE(contains(done.out, part)) << "no \"" << part << "\" in\n" << whole(done);
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content = "") { std::ofstream(path_) << content; }
  const char* path() const { return path_.c_str(); }
  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

TEST(BenchFaults, a_killed_rank_is_reported_and_the_others_continue) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto done = bench(
        {"all-reduce", "-n", "3", "--sizes", "64K", "--kill-rank", "1@150ms", "--row-time", "100ms", "--transport", transport});
    EXPECT_EQ(done.code, 0) << whole(done);
    expect_says(done, {"rank 1 was killed\n", "ended with peer_lost: ", "ms after rank 1 was killed", "re-formed in ",
                       "(epoch 2): ranks 0, 2 go on", " 0 OK", "the survivors went on: 2 of 3 ranks"});
    EXPECT_TRUE(contains(done.error, "was killed by signal 9 (SIGKILL)")) << done.error;
  }
}

TEST(BenchFaults, the_next_rank_continues_table_and_file_when_rank_0_dies) {
  const TemporaryFile json;
  const auto done = bench(
      {"all-gather", "-n", "3", "--sizes", "12K", "--kill-rank", "0@150ms", "--row-time", "100ms", "--output", json.path()});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"# unisono", "rank 0 was killed\n", "ranks 1, 2 go on", "the survivors went on: 2 of 3 ranks"});
  for (const char* kind : {"environment", "fault", "failure", "outcome"}) {
    EXPECT_EQ(count_of(json.text(), std::string("{\"kind\":\"") + kind), 1u) << kind << "\n" << json.text();
  }
  EXPECT_GE(count_of(json.text(), "{\"kind\":\"stretch"), 2u) << json.text();
}

TEST(BenchFaults, a_stopped_rank_is_late_and_is_left_out) {
  const auto done =
      bench({"all-reduce", "-n", "3", "--sizes", "64K", "--stop-rank", "2@150ms", "-T", "300ms", "--row-time", "100ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"rank 2 was stopped\n", "ended with late: ", "ranks 0, 1 go on", "the survivors went on: 2 of 3 ranks"});
  EXPECT_TRUE(contains(done.error, "rank 2 was stopped, and the others continued without it")) << done.error;
}

// The time of the run is over a millisecond after the stop. The failure comes 300 ms later, and then the run still goes on.
TEST(BenchFaults, a_run_goes_on_until_its_faults_have_shown_and_ten_operations_have_followed) {
  const auto done =
      bench({"all-reduce", "-n", "3", "--sizes", "64K", "--stop-rank", "2@150ms", "-T", "300ms", "--row-time", "1ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"rank 2 was stopped\n", "ended with late: ", "ranks 0, 1 go on", "the survivors went on: 2 of 3 ranks"});
  std::smatch found;
  ASSERT_TRUE(std::regex_search(done.out, found, std::regex(" ([0-9]+) of them after the last failure"))) << done.out;
  EXPECT_GE(std::stoul(found[1]), 10u) << done.out;
}

TEST(BenchFaults, a_rank_that_is_resumed_in_time_is_waited_for) {
  const auto done = bench({"all-reduce", "-n", "3", "--sizes", "64K", "--stop-rank", "2@100ms", "--resume-rank", "2@250ms",
                           "-T", "20s", "--row-time", "100ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"rank 2 was stopped\n", "rank 2 was resumed\n", "all 3 ranks went on"});
}

// Rank 0 reports that rank 2 was stopped, and then dies. Rank 1 reports from then on, and must not repeat that row.
TEST(BenchFaults, rows_that_rank_0_has_reported_are_not_reported_again_when_it_dies) {
  const auto done = bench({"all-reduce", "-n", "3", "--sizes", "4K", "--stop-rank", "2@100ms", "--resume-rank", "2@150ms",
                           "--kill-rank", "0@350ms", "-T", "20s", "--row-time", "50ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  for (const char* news : {"rank 2 was stopped\n", "rank 2 was resumed\n", "s after rank 0 was killed\n", "ranks 1, 2 go on"})
    EXPECT_EQ(count_of(done.out, news), 1u) << news << done.out;
}

TEST(BenchFaults, several_faults_in_turn_leave_one_rank) {
  const auto done = bench(
      {"all-to-all", "-n", "3", "--sizes", "12K", "--kill-rank", "2@100ms", "--kill-rank", "0@300ms", "--row-time", "50ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"rank 2 was killed\n", "rank 0 was killed\n", "rank 1 goes on", "the survivors went on: 1 of 3 ranks"});
}

TEST(BenchFaults, without_reforming_the_first_failure_ends_the_run) {
  const auto done = bench({"all-reduce", "-n", "3", "--sizes", "64K", "--kill-rank", "2@150ms", "--no-reform"});
  EXPECT_EQ(done.code, 1) << whole(done);
  expect_says(done, {"ended with peer_lost: ", "ended at the first failure, as asked"});
  EXPECT_FALSE(contains(done.out, "re-formed in")) << done.out;
}

TEST(BenchFaults, impossible_faults_are_refused_before_anything_starts) {
  const std::vector<std::pair<Words, std::string>> cases{{{"-n", "2", "--kill-rank", "2@1s"}, "ranks 0 to 1"},
                                                         {{"-n", "1", "--stop-rank", "0@1s"}, "no rank would be left"},
                                                         {{"-n", "2", "--kill-rank", "1@1s", "--hosts", "a,b"}, "--hosts"},
                                                         {{"-n", "2", "--rate", "slow"}, "--rate"},
                                                         {{"-n", "2", "--fail-above", "1.1"}, "--compare"},
                                                         {{"-n", "2", "--compare", "a", "b"}, "--compare measures nothing"}};
  for (const auto& [words, part] : cases) {
    const auto done = bench(words);
    EXPECT_EQ(done.code, 2) << part << whole(done);
    EXPECT_TRUE(contains(done.error, part)) << done.error;
    EXPECT_EQ(done.out, "");
  }
}

TEST(BenchFaults, ranks_of_another_launcher_get_no_links_and_no_faults) {
  const ChildOptions rank{.environment = {"RANK=0", "WORLD_SIZE=1", "UNISONO_JOB=nobody-set-this-stage"}};
  for (const Words& words : {Words{"--rate", "100M"}, Words{"--kill-rank", "0@1s"}}) {
    const auto done = bench(words, rank);
    EXPECT_EQ(done.code, 2);
    EXPECT_TRUE(contains(done.error, "ranks that this command starts itself")) << done.error;
  }
}

TEST(BenchFaults, no_process_remains_when_the_launcher_is_killed) {
  ChildProcess launcher({UNISONO_TOOL, "bench", "all-reduce", "-n", "2", "--sizes", "64K", "--stop-rank", "1@50ms",
                         "--resume-rank", "1@60s", "--progress", "off"});
  ASSERT_TRUE(launcher.wait_for("(s)")) << launcher.out();
  // The launcher's child processes hold its standard error open. So wait() returns only when none of them runs any more.
  launcher.signal(SIGKILL);
  const auto done = launcher.wait();
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, SIGKILL);
}

class BenchLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool possible = run({"unshare", "--net", "true"}).code == 0 && ::access("/dev/net/tun", R_OK | W_OK) == 0;
    if (!possible) GTEST_SKIP() << "SKIPPED: this process may not make network name spaces and TUN interfaces";
  }
};

// Returns the first column "p50" of the first row, in microseconds.
double first_median(const Finished& done) {
  std::istringstream in(done.out);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream columns(line);
    std::string skipped;
    double p50 = 0;
    for (int i = 0; i < 6; ++i) columns >> skipped;
    columns >> p50;
    return p50;
  }
  return -1;
}

TEST_F(BenchLinks, a_delay_applies_to_every_operation) {
  const auto done = bench({"all-reduce", "-n", "2", "--delay", "20ms", "--sizes", "1K", "--iters", "5"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"on request: 20 ms one way", "ranks: rank-0 x1, rank-1 x1", "between hosts tcp x1", "link0 1500",
                     "# links: ", " 0 OK"});
  EXPECT_GE(first_median(done), 20'000) << done.out;
  EXPECT_LT(first_median(done), 80'000) << done.out;
}

// Each of two ranks sends 1 MiB. A frame has 1538 bytes, of which 1448 are payload: 2^20 / 1448 · 1538 bytes = 8.9 Mbit in all.
// At 50 Mbit/s that takes 178 ms.
TEST_F(BenchLinks, a_rate_is_not_exceeded) {
  const auto done = bench({"all-reduce", "-n", "2", "--rate", "50M", "--sizes", "1M", "--iters", "3"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"on request: 50 Mbit/s per rank and direction", "0 lost on request"});
  EXPECT_GE(first_median(done), 170'000) << done.out;
}

TEST_F(BenchLinks, results_are_correct_when_packets_are_lost) {
  const auto done = bench({"all-reduce", "-n", "3", "--loss", "2%", "--sizes", "256K", "--iters", "10"});
  EXPECT_EQ(done.code, 0) << whole(done);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(done.out, found, std::regex("# links: ([0-9]+) packets, ([0-9]+) lost on request")))
      << done.out;
  EXPECT_GT(std::stoul(found[2]), std::stoul(found[1]) / 200) << done.out;
  expect_says(done, {" 0 OK"});
}

TEST_F(BenchLinks, a_death_is_reported_over_slow_links) {
  const auto done = bench({"all-reduce", "-n", "3", "--rate", "200M", "--delay", "2ms", "--sizes", "64K", "--kill-rank",
                           "1@400ms", "--row-time", "200ms"});
  EXPECT_EQ(done.code, 0) << whole(done);
  expect_says(done, {"rank 1 was killed\n", "ranks 0, 2 go on", "the survivors went on: 2 of 3 ranks"});
}

// Runs as an unprivileged user. As on most systems, all users may open /dev/net/tun; the test mounts it so.
TEST_F(BenchLinks, a_user_name_space_suffices_instead_of_root) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "SKIPPED: the thread sanitizer has a thread of its own in every process, and only a process of one thread "
                  "may make a user name space";
#endif
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can become somebody else";
  const test::TemporaryFolder folder;
  const Words nobody{"unshare", "--mount", "sh", "-c",
                     "{ test -e \"$1/tun\" || mknod \"$1/tun\" c 10 200; } && chmod 666 \"$1/tun\" && mount --bind \"$1/tun\" "
                     "/dev/net/tun && tool=\"$0\" && shift && "
                     "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$tool\" \"$@\""};
  const auto as_nobody = [&](const Words& words) {
    Words all = nobody;
    all.insert(all.end(), {words.front(), folder.path()});
    all.insert(all.end(), words.begin() + 1, words.end());
    return run(all);
  };
  if (as_nobody({"unshare", "--user", "--net", UNISONO_TOOL, "--version"}).code != 0)
    GTEST_SKIP() << "SKIPPED: not every user may make name spaces here, or run the tool";
  const auto done =
      as_nobody({UNISONO_TOOL, "bench", "-n", "2", "--delay", "5ms", "--sizes", "1K", "--iters", "3", "--progress", "off"});
  EXPECT_EQ(done.code, 0) << whole(done);
  EXPECT_GE(first_median(done), 5'000) << done.out;
}

// Lowers the limit of network name spaces inside a new user name space, so that no other process is affected.
TEST_F(BenchLinks, where_they_are_not_allowed_the_error_says_what_they_need) {
  const auto done = run({"unshare", "--user", "--map-root-user", "sh", "-c",
                         "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" bench -n 2 --rate 100M", UNISONO_TOOL});
  EXPECT_EQ(done.code, 1) << whole(done);
  EXPECT_TRUE(
      contains(done.error, "--rate, --loss and --delay are not possible here: this process may not make network name spaces"))
      << done.error;
  EXPECT_EQ(done.out, "");
}

std::string one_row(double p50) {
  std::ostringstream out;
  out << R"({"kind":"environment","cores":2})"
      << "\n"
      << R"({"kind":"row","collective":"all_reduce","world_size":2,"bytes":1024,"dtype":"f32","op":"sum",)"
      << R"("root":-1,"order":"auto","asked_schedule":"auto","in_place":true,"mean_us":100,"p25_us":)" << p50 - 1
      << R"(,"p50_us":)" << p50 << R"(,"p75_us":)" << p50 + 1 << R"(,"p99_us":300,"busbw_gbs":1.5,"wrong":0})"
      << "\n";
  return out.str();
}

TEST(BenchCompare, the_exit_code_says_whether_a_row_is_slower_than_allowed) {
  const TemporaryFile before(one_row(100));
  const TemporaryFile now(one_row(110));
  const auto compared = bench({"--compare", before.path(), now.path()});
  EXPECT_EQ(compared.code, 0) << whole(compared);
  expect_says(compared, {" 1.100 ", "slower", "1 rows: 0 same, 0 faster, 1 slower"});
  EXPECT_EQ(bench({"--compare", before.path(), now.path(), "--fail-above", "1.05"}).code, 1);
  EXPECT_EQ(bench({"--compare", before.path(), now.path(), "--fail-above", "1.2"}).code, 0);
  EXPECT_EQ(bench({"--compare", now.path(), before.path(), "--fail-above", "1.05"}).code, 0) << "faster";
  const TemporaryFile nothing("");
  EXPECT_EQ(bench({"--compare", before.path(), nothing.path()}).code, 1);
  EXPECT_EQ(bench({"--compare", before.path(), "/nonexistent"}).code, 1);
}

TEST(BenchCompare, measured_files_equal_themselves_and_can_be_plotted) {
  const TemporaryFile json;
  const TemporaryFile plot;
  const auto measured = bench({"all-reduce", "broadcast", "-n", "2", "--sizes", "1K,64K", "--iters", "5", "--output",
                               json.path(), "--plot", plot.path()});
  ASSERT_EQ(measured.code, 0) << whole(measured);
  EXPECT_TRUE(contains(json.text().substr(0, 40), "{\"kind\":\"environment\"")) << json.text();
  EXPECT_EQ(count_of(json.text(), "\"kind\":\"environment\""), 1u);
  EXPECT_TRUE(contains(plot.text(), "broadcast")) << plot.text();
  const auto same = bench({"--compare", json.path(), json.path(), "--fail-above", "1", "--plot", plot.path()});
  EXPECT_EQ(same.code, 0) << whole(same);
  expect_says(same, {"6 rows: 6 same"});
  EXPECT_FALSE(contains(same.out, "environments differ")) << same.out;
  EXPECT_TRUE(contains(plot.text(), ">broadcast, old<")) << plot.text();
}

TEST(BenchOutput, a_full_disk_is_an_error) {
  const auto json = bench({"-n", "2", "--sizes", "1K", "--iters", "2", "--output", "/dev/full"});
  EXPECT_EQ(json.code, 1) << whole(json);
  EXPECT_TRUE(contains(json.error, "--output: cannot write /dev/full: No space left")) << json.error;
  const auto plot = bench({"-n", "2", "--sizes", "1K", "--iters", "2", "--plot", "/dev/full"});
  EXPECT_EQ(plot.code, 1) << whole(plot);
  EXPECT_TRUE(contains(plot.error, "--plot: cannot write /dev/full")) << plot.error;
}

// The variables in which Open MPI, MPICH and Slurm give a process its rank and the number of ranks.
TEST(BenchLaunchers, a_rank_reads_its_rank_from_the_variables_of_each_launcher) {
  const std::vector<std::pair<std::string, std::string>> all{
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const auto& [rank, size] : all) {
    const test::TemporaryFolder folder;
    const Words words{UNISONO_TOOL, "bench",      "--sizes", "1K",           "--iters",
                      "2",          "--progress", "off",     "--rendezvous", "file://" + folder.path() + "/meeting"};
    ChildProcess first(words, {.environment = {rank + "=0", size + "=2"}});
    ChildProcess second(words, {.environment = {rank + "=1", size + "=2"}});
    const auto done = first.wait();
    EXPECT_EQ(done.code, 0) << rank << whole(done);
    EXPECT_EQ(second.wait().code, 0);
    expect_says(done, {"world size 2", " 0 OK"});
  }
}

TEST(BenchLaunchers, mpirun_starts_it) {
  const Words launchers{"mpirun.openmpi", "mpirun.mpich"};
  for (const auto& launcher : launchers) {
    if (run({"sh", "-c", "command -v " + launcher}).code != 0) {
      std::printf("    SKIPPED: there is no %s; tools/install_dependencies bench installs it\n", launcher.c_str());
      continue;
    }
    const test::TemporaryFolder folder;
    Words words{launcher, "-np", "2"};
    if (launcher == "mpirun.openmpi") words.insert(words.end(), {"--oversubscribe", "--allow-run-as-root"});
    words.insert(words.end(), {UNISONO_TOOL, "bench", "all-reduce", "--sizes", "1K", "--iters", "2", "--progress", "off"});
    if (launcher == "mpirun.mpich") words.insert(words.end(), {"--rendezvous", "file://" + folder.path() + "/meeting"});
    const auto done = run(words);
    EXPECT_EQ(done.code, 0) << launcher << whole(done);
    expect_says(done, {"world size 2", " 0 OK"});
  }
}

}  // namespace
}  // namespace unisono::testing
