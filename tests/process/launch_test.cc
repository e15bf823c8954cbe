// `unisono launch` with real processes: what a user sees, and that no process is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <set>
#include <sstream>

#include "base/concat.h"
#include "child_process.h"

namespace unisono::testing {
namespace {

Words launch(const Words& options, const Words& program) {
  Words words{UNISONO_TOOL, "launch"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.push_back(UNISONO_TEST_PROGRAM);
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

std::vector<Watched> watch(const std::vector<pid_t>& pids) {
  std::vector<Watched> watched;
  for (const pid_t pid : pids) watched.emplace_back(pid);
  return watched;
}

void expect_all_end(const std::vector<Watched>& watched) {
  for (const auto& process : watched) {
    EXPECT_TRUE(process.is_open());
    EXPECT_TRUE(process.ends());
  }
}

TEST(Launch, every_rank_knows_its_rank_and_host) {
  const auto done = run(launch(
      {"-n", "3"}, {"environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"}));
  EXPECT_EQ(done.code, 0);
  for (const std::string rank : {"0", "1", "2"}) {
    for (const auto& line :
         {"RANK=" + rank, std::string("WORLD_SIZE=3"), "LOCAL_RANK=" + rank, std::string("LOCAL_WORLD_SIZE=3"),
          std::string("GROUP_RANK=0"), std::string("MASTER_ADDR=127.0.0.1")}) {
      EXPECT_TRUE(lines_of(done.out).contains("[" + rank + "] " + line)) << done.out;
    }
  }
  EXPECT_EQ(done.error, "");
}

TEST(Launch, ranks_share_one_job_and_port_and_jobs_do_not) {
  std::set<std::string> seen;
  for (int job = 0; job < 2; ++job) {
    const auto done = run(launch({"-n", "2", "--no-prefix"}, {"environment", "UNISONO_JOB", "MASTER_PORT"}));
    const auto lines = lines_of(done.out);
    EXPECT_EQ(lines.size(), 2u) << done.out;
    EXPECT_FALSE(lines.contains("UNISONO_JOB=(none)"));
    EXPECT_FALSE(lines.contains("MASTER_PORT=0"));
    seen.insert(*lines.rbegin());
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(Launch, options_reach_the_ranks_as_variables) {
  const auto done = run(launch({"-n", "1", "--no-prefix", "--transport", "tcp", "--interface", "lo", "--job", "mine",
                                "--rendezvous", "tcp://[::1]:4711", "--env", "A=x y", "--env", "PASSED"},
                               {"environment", "UNISONO_TRANSPORT", "UNISONO_INTERFACE", "UNISONO_JOB", "UNISONO_RENDEZVOUS",
                                "MASTER_ADDR", "MASTER_PORT", "A", "PASSED"}),
                        {.environment = {"PASSED=on"}});
  EXPECT_EQ(done.out,
            "UNISONO_TRANSPORT=tcp\nUNISONO_INTERFACE=lo\nUNISONO_JOB=mine\nUNISONO_RENDEZVOUS=tcp://[::1]:4711\n"
            "MASTER_ADDR=::1\nMASTER_PORT=4711\nA=x y\nPASSED=on\n");
}

TEST(Launch, arguments_are_passed_unchanged) {
  const auto done = run(launch({"-n", "1", "--no-prefix"}, {"arguments", "", "a b", "--", "-n", "it's", "$HOME", "*", "\\"}));
  EXPECT_EQ(done.out, "<>\n<a b>\n<-->\n<-n>\n<it's>\n<$HOME>\n<*>\n<\\>\n");
}

TEST(Launch, the_dashes_before_the_program_may_be_left_out) {
  const auto done =
      run({UNISONO_TOOL, "launch", "-n", "1", "--no-prefix", UNISONO_TEST_PROGRAM, "arguments", "-n", "7", "--pin"});
  EXPECT_EQ(done.out, "<-n>\n<7>\n<--pin>\n");
}

TEST(Launch, lines_keep_their_order_and_are_never_torn) {
  const auto done = run(launch({"-n", "4"}, {"lines", "500"}));
  EXPECT_EQ(done.code, 0);
  std::istringstream in(done.out);
  int next[4] = {};
  for (std::string line; std::getline(in, line);) {
    const auto rank = static_cast<size_t>(line.at(1) - '0');
    ASSERT_LT(rank, 4u);
    const auto number = std::to_string(rank);
    EXPECT_EQ(line, concat("[", number, "] rank ", number, " line ", next[rank]++, " end"));
  }
  for (const int count : next) EXPECT_EQ(count, 500);
}

TEST(Launch, a_line_of_200_kb_stays_one_line) {
  const auto done = run(launch({"-n", "3"}, {"long-line", "200000"}));
  const auto lines = lines_of(done.out);
  EXPECT_EQ(lines.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(lines.contains(concat("[", rank, "] ", std::string(200000, static_cast<char>('a' + rank)))));
  }
}

TEST(Launch, binary_output_passes_unchanged) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(run(launch({"-n", "1", "--no-prefix"}, {"binary"})).out, bytes + "\n");
}

TEST(Launch, unfinished_lines_are_shown_at_the_end_on_their_own_stream) {
  const auto done = run(launch({"-n", "1"}, {"partial"}));
  EXPECT_EQ(done.out, "[0] out without end\n");
  EXPECT_EQ(done.error, "[0] error without end\n");
}

TEST(Launch, the_exit_code_is_that_of_the_failed_rank) {
  const auto done = run(launch({"-n", "3"}, {"exit", "1", "42"}));
  EXPECT_EQ(done.code, 42);
  EXPECT_TRUE(contains(done.error, "rank 1 (pid ")) << done.error;
  EXPECT_TRUE(contains(done.error, "exited with code 42 after ")) << done.error;
}

TEST(Launch, a_killed_rank_is_named_with_its_signal_and_the_others_are_ended) {
  const auto done = run(launch({"-n", "4", "--grace", "50ms"}, {"killed", "2", "9"}));
  EXPECT_EQ(done.code, 137);
  EXPECT_TRUE(contains(done.error, "was killed by signal 9 (SIGKILL) after ")) << done.error;
  EXPECT_TRUE(contains(done.error, "unisono: rank 2 (pid ")) << done.error;
  EXPECT_TRUE(contains(done.error, "ranks 0, 1, 3 were ended")) << done.error;
}

TEST(Launch, ranks_that_ignore_sigterm_are_killed_after_the_grace) {
  ChildProcess job(launch({"-n", "2", "--grace", "100ms"}, {"ignore"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  const auto ranks = watch(numbers_after(job.out(), "pid "));
  ASSERT_EQ(ranks.size(), 2u);
  job.signal(SIGTERM);
  const auto done = job.wait();
  EXPECT_EQ(done.code, 137);
  EXPECT_TRUE(contains(done.error, "ended by SIGTERM")) << done.error;
  expect_all_end(ranks);
}

TEST(Launch, with_keep_going_the_other_ranks_finish) {
  ChildProcess job(launch({"-n", "3", "--keep-going", "--grace", "0"}, {"fail", "1", "5"}));
  ASSERT_TRUE(job.wait_for("waiting", 2));
  ASSERT_TRUE(job.wait_for("exited with code 5"));
  ASSERT_TRUE(job.wait_for("the other ranks continue"));
  job.signal(SIGTERM);
  const auto done = job.wait();
  EXPECT_EQ(done.code, 5);
  EXPECT_TRUE(contains(done.error, "exited with code 5")) << done.error;
}

TEST(Launch, sigint_reaches_every_rank_once) {
  ChildProcess job(launch({"-n", "3"}, {"catch"}));
  ASSERT_TRUE(job.wait_for("ready", 3));
  job.signal(SIGINT);
  const auto done = job.wait();
  EXPECT_EQ(count_of(done.out, "got INT"), 3u) << done.out;
  EXPECT_EQ(done.code, 7);
  EXPECT_TRUE(contains(done.error, "ended by SIGINT")) << done.error;
}

TEST(Launch, ctrl_c_at_the_terminal_reaches_every_rank_once) {
  ChildProcess job(launch({"-n", "2"}, {"catch"}), {.terminal = true});
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.type("\x03");
  const auto done = job.wait();
  EXPECT_EQ(count_of(done.out, "got INT"), 2u) << done.out;
  EXPECT_EQ(done.code, 7);
}

TEST(Launch, a_second_sigint_ends_the_job_at_once) {
  ChildProcess job(launch({"-n", "2", "--grace", "1h"}, {"ignore"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGINT);
  job.signal(SIGTERM);
  const auto done = job.wait();
  EXPECT_EQ(done.code, 137);
  EXPECT_TRUE(contains(done.error, "twice")) << done.error;
}

TEST(Launch, user_signals_are_passed_on_and_end_nothing) {
  ChildProcess job(launch({"-n", "2"}, {"catch"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGUSR1);
  ASSERT_TRUE(job.wait_for("got USR1", 2));
  job.signal(SIGUSR2);
  ASSERT_TRUE(job.wait_for("got USR2", 2));
  job.signal(SIGHUP);
  ASSERT_TRUE(job.wait_for("got HUP", 2));
  EXPECT_EQ(job.wait().code, 7);
}

TEST(Launch, a_stopped_launcher_stops_its_ranks_and_continues_them) {
  char directory[] = "/tmp/unisono-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const auto path = std::string(directory) + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int fifo = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ChildProcess job(launch({"-n", "2"}, {"stoppable", path}));
  EXPECT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGTSTP);
  EXPECT_TRUE(job.wait_stopped());
  for (int rank = 0; rank < 2; ++rank) {
    char stopped = 0;
    pollfd readable{fifo, POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 20'000), 1);
    EXPECT_EQ(::read(fifo, &stopped, 1), 1);
  }
  job.signal(SIGCONT);
  EXPECT_TRUE(job.wait_for("child continued", 2));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM);
  ::close(fifo);
  ::unlink(path.c_str());
  ::rmdir(directory);
}

TEST(Launch, ranks_stopped_by_default_action_are_continued_and_ended) {
  ChildProcess job(launch({"-n", "2"}, {"hang"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGTSTP);
  ASSERT_TRUE(job.wait_stopped());
  job.signal(SIGCONT);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM);
}

TEST(Launch, grandchildren_end_with_the_job) {
  ChildProcess job(launch({"-n", "2", "--grace", "100ms"}, {"family", "escape"}));
  ASSERT_TRUE(job.wait_for("pid ", 6));
  const auto processes = watch(numbers_after(job.out(), "pid "));
  job.signal(SIGTERM);
  const auto done = job.wait();
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(processes.size(), 6u);
  for (const auto& process : processes) EXPECT_TRUE(process.has_ended());
}

TEST(Launch, nothing_survives_a_launcher_killed_by_sigkill) {
  ChildProcess job(launch({"-n", "2"}, {"family", "escape"}));
  ASSERT_TRUE(job.wait_for("pid ", 6));
  const auto processes = watch(numbers_after(job.out(), "pid "));
  job.signal(SIGKILL);
  expect_all_end(processes);
}

TEST(Launch, ranks_end_even_if_the_launcher_and_its_agent_are_both_killed) {
  ChildProcess job(launch({"-n", "2"}, {"parent"}));
  ASSERT_TRUE(job.wait_for("parent of ", 2));
  const auto agent = numbers_after(job.out(), "parent of 0 is ").at(0);
  const auto ranks = watch(numbers_after(job.out(), "pid "));
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(agent, SIGSTOP);  // a stopped agent cannot notice the launcher's death
  job.signal(SIGKILL);
  EXPECT_TRUE(Watched(job.pid()).ends());
  ::kill(agent, SIGKILL);
  expect_all_end(ranks);
}

TEST(Launch, a_killed_agent_is_named_and_its_ranks_descendants_end) {
  ChildProcess job(launch({"-n", "2"}, {"family-parent"}));
  ASSERT_TRUE(job.wait_for("pid ", 4));
  ASSERT_TRUE(job.wait_for("parent of ", 2));
  const auto processes = watch(numbers_after(job.out(), "pid "));
  ::kill(numbers_after(job.out(), "parent of 0 is ").at(0), SIGKILL);
  const auto done = job.wait();
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "supervisor (unisono agent) was killed by SIGKILL")) << done.error;
  expect_all_end(processes);
}

TEST(Launch, a_rank_that_ends_but_leaves_a_child_does_not_hold_up_the_job) {
  const auto done = run(launch({"-n", "2"}, {"leave"}));
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, 0);
}

TEST(Launch, children_of_an_ended_rank_end_while_the_others_run) {
  ChildProcess job(launch({"-n", "2"}, {"leave-one"}));
  ASSERT_TRUE(job.wait_for("ready"));
  ASSERT_TRUE(job.wait_for("pid "));
  EXPECT_TRUE(Watched(numbers_after(job.out(), "pid ").at(0)).ends());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM);
}

TEST(Launch, ranks_start_with_ordinary_signal_handling) {
  EXPECT_EQ(run(launch({"-n", "1", "--no-prefix"}, {"signals"})).out, "");
}

TEST(Launch, a_program_that_does_not_exist_is_named_with_its_path_and_error) {
  const auto done = run({UNISONO_TOOL, "launch", "-n", "2", "--", "./no-such-program"});
  EXPECT_EQ(done.code, 127);
  EXPECT_TRUE(contains(done.error, "'./no-such-program': No such file or directory (ENOENT)")) << done.error;
  const auto bare = run({UNISONO_TOOL, "launch", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(bare.code, 127);
  EXPECT_TRUE(contains(bare.error, "PATH is ")) << bare.error;
}

TEST(Launch, a_file_that_is_not_executable_is_refused_with_its_error) {
  const auto done = run({UNISONO_TOOL, "launch", "-n", "1", "--", "/etc/passwd"});
  EXPECT_EQ(done.code, 126);
  EXPECT_TRUE(contains(done.error, "'/etc/passwd': Permission denied (EACCES)")) << done.error;
  char path[] = "/tmp/unisono-test-XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_EQ(::write(file, "#!/nonexistent/python\n", 22), 22);
  ::fchmod(file, 0755);
  ::close(file);
  const auto script = run({UNISONO_TOOL, "launch", "-n", "1", "--", path});
  ::unlink(path);
  EXPECT_EQ(script.code, 127);
  EXPECT_TRUE(contains(script.error, "its interpreter or loader is not")) << script.error;
}

TEST(Launch, wrong_numbers_of_ranks_are_refused) {
  for (const char* count : {"0", "-1", "x", "1.5", "99999", ""}) {
    const auto done = run(launch({"-n", count}, {"exit", "0", "0"}));
    EXPECT_EQ(done.code, 2) << count;
    EXPECT_NE(done.error, "");
    EXPECT_EQ(done.out, "");
  }
  EXPECT_EQ(run(launch({}, {"exit", "0", "0"})).code, 2);
}

TEST(Launch, no_program_is_refused) {
  const auto done = run({UNISONO_TOOL, "launch", "-n", "2"});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "the program is missing")) << done.error;
}

TEST(Launch, a_mistyped_option_is_answered_with_the_right_one) {
  for (const Words& middle : {Words{"--grcae", "5s", "--"}, Words{"--grcae", "5s"}}) {
    Words words{UNISONO_TOOL, "launch", "-n", "2"};
    words.insert(words.end(), middle.begin(), middle.end());
    words.push_back("true");
    const auto done = run(words);
    EXPECT_EQ(done.code, 2);
    EXPECT_TRUE(contains(done.error, "Did you mean '--grace'?")) << done.error;
  }
}

TEST(Launch, wrong_values_are_named_with_their_option) {
  const std::vector<std::pair<Words, std::string>> cases{{{"--grace", "soon"}, "--grace"},
                                                         {{"--transport", "pigeon"}, "--transport"},
                                                         {{"--rendezvous", "tcp://nowhere"}, "--rendezvous"},
                                                         {{"--rendezvous", "file://relative"}, "--rendezvous"},
                                                         {{"--env", "=x"}, "--env"},
                                                         {{"--env", "NOT_SET_HERE"}, "--env"},
                                                         {{"--hosts", "a:0"}, "--hosts"},
                                                         {{"--ssh", "ssh 'open"}, "--ssh"},
                                                         {{"--ssh", ""}, "--ssh"}};
  for (const auto& [options, name] : cases) {
    Words all{"-n", "1"};
    all.insert(all.end(), options.begin(), options.end());
    const auto done = run(launch(all, {"exit", "0", "0"}));
    EXPECT_EQ(done.code, 2) << name;
    EXPECT_TRUE(contains(done.error, name)) << done.error;
  }
}

TEST(Launch, sixty_four_ranks_run) {
  const auto done = run(launch({"-n", "64"}, {"environment", "RANK"}));
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(lines_of(done.out).size(), 64u);
}

TEST(Launch, the_job_ends_when_the_reader_of_its_output_closes) {
  ChildProcess job(launch({"-n", "2"}, {"endless"}), {.close_output = true});
  const auto done = job.wait();
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, 128 + SIGPIPE);
}

TEST(Launch, on_a_terminal_prefixes_are_coloured_and_progress_is_live) {
  ChildProcess job(launch({"-n", "1"}, {"progress"}), {.environment = {"TERM=xterm"}, .terminal = true});
  const auto done = job.wait();
  EXPECT_TRUE(contains(done.out, "\x1b[36m[0]\x1b[0m complete\r\n")) << done.out;
  ChildProcess plain(launch({"-n", "1"}, {"lines", "1"}), {.environment = {"NO_COLOR=1"}, .terminal = true});
  EXPECT_EQ(plain.wait().out, "[0] rank 0 line 0 end\r\n");
}

Words over_ssh(const std::string& hosts, const Words& program, const Words& more = {}) {
  Words options{"--hosts", hosts, "--ssh", std::string(UNISONO_TEST_PROGRAM) + " fake-ssh -o 'Batch Mode=yes'"};
  options.insert(options.end(), more.begin(), more.end());
  return launch(options, program);
}

TEST(LaunchHosts, ranks_run_on_their_hosts) {
  const auto done = run(
      over_ssh("alpha:2,user@beta:1", {"environment", "FAKE_HOST", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR"}));
  EXPECT_EQ(done.code, 0) << done.error;
  const auto lines = lines_of(done.out);
  for (const char* line :
       {"[0] FAKE_HOST=alpha", "[1] FAKE_HOST=alpha", "[2] FAKE_HOST=user@beta", "[1] LOCAL_RANK=1", "[2] LOCAL_RANK=0",
        "[0] GROUP_RANK=0", "[2] GROUP_RANK=1", "[2] WORLD_SIZE=3", "[2] MASTER_ADDR=alpha"}) {
    EXPECT_TRUE(lines.contains(line)) << line << "\n" << done.out;
  }
}

TEST(LaunchHosts, arguments_and_variables_arrive_unchanged) {
  const auto done =
      run(over_ssh("alpha", {"arguments", "a b", "it's", "$HOME", "`x`", "\"q\"", "", "new\nline"}, {"--no-prefix"}));
  EXPECT_EQ(done.out, "<a b>\n<it's>\n<$HOME>\n<`x`>\n<\"q\">\n<>\n<new\nline>\n") << done.error;
  const auto variables = run(over_ssh("alpha", {"environment", "A", "UNISONO_X", "FROM_LAUNCHER"},
                                      {"--no-prefix", "--env", "A=it's $x", "--env", "FROM_LAUNCHER"}),
                             {.environment = {"UNISONO_X=travels", "FROM_LAUNCHER=too"}});
  EXPECT_EQ(variables.out, "A=it's $x\nUNISONO_X=travels\nFROM_LAUNCHER=too\n");
}

TEST(LaunchHosts, a_host_that_cannot_be_reached_is_named) {
  const auto done = run(over_ssh("alpha:1,unreachable:1", {"hang"}));
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "host unreachable could not be reached")) << done.error;
  EXPECT_TRUE(contains(done.error, "No route to host")) << done.error;
  EXPECT_EQ(done.out, "");
}

TEST(LaunchHosts, a_host_that_never_answers_is_named_in_time) {
  const auto done = run(over_ssh("alpha:1,silent:1", {"hang"}, {"--start-timeout", "300ms"}));
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "host silent did not answer within 300 ms")) << done.error;
}

TEST(LaunchHosts, a_host_without_the_tool_is_named) {
  const auto done = run(over_ssh("bare:1", {"hang"}));
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "same path on all hosts")) << done.error;
}

TEST(LaunchHosts, an_ssh_that_does_not_exist_is_named) {
  const auto done = run(launch({"--hosts", "alpha", "--ssh", "no-such-ssh"}, {"hang"}));
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "'no-such-ssh'")) << done.error;
}

TEST(LaunchHosts, a_login_shell_that_prints_text_does_no_harm) {
  const auto done = run(over_ssh("chatty:1", {"environment", "RANK"}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(done.out, "[0] RANK=0\n");
}

TEST(LaunchHosts, a_remote_failure_names_the_host_and_ends_all) {
  const auto done = run(over_ssh("alpha:2,beta:2", {"killed", "2", "9"}, {"--grace", "50ms"}));
  EXPECT_EQ(done.code, 137);
  EXPECT_TRUE(contains(done.error, "rank 2 (host beta, pid ")) << done.error;
  EXPECT_TRUE(contains(done.error, "ranks 0, 1, 3 were ended")) << done.error;
}

TEST(LaunchHosts, signals_reach_remote_ranks_and_nothing_survives_the_launcher) {
  ChildProcess job(over_ssh("alpha:1,beta:1", {"catch"}));
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGUSR1);
  ASSERT_TRUE(job.wait_for("got USR1", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait().code, 7);
  ChildProcess killed(over_ssh("alpha:1,beta:1", {"family", "escape"}));
  ASSERT_TRUE(killed.wait_for("pid ", 6));
  const auto processes = watch(numbers_after(killed.out(), "pid "));
  killed.signal(SIGKILL);
  expect_all_end(processes);
}

TEST(LaunchHosts, a_host_that_is_lost_while_running_is_named_and_the_others_are_ended) {
  ChildProcess job(over_ssh("alpha:1,beta:1", {"environment", "FAKE_HOST"}));
  EXPECT_EQ(job.wait().code, 0);
  // The agent is the parent of its ranks. Killing the agent looks to the launcher like a dead host.
  ChildProcess lost(launch(
      {"--hosts", "alpha:1,beta:1", "--grace", "50ms", "--ssh", std::string(UNISONO_TEST_PROGRAM) + " fake-ssh"}, {"parent"}));
  ASSERT_TRUE(lost.wait_for("parent of 1 is ", 1));
  ASSERT_TRUE(lost.wait_for("parent of 0 is ", 1));
  ::kill(numbers_after(lost.out(), "parent of 1 is ").at(0), SIGKILL);
  const auto done = lost.wait();
  EXPECT_EQ(done.code, 125);
  EXPECT_TRUE(contains(done.error, "rank 1 (host beta, pid ")) << done.error;
  EXPECT_TRUE(contains(done.error, "rank 0 was ended")) << done.error;
}

}  // namespace
}  // namespace unisono::testing
