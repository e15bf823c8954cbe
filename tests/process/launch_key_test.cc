// How the ranks of `unisono launch` get their secret key, and that no other user of the host could see it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/concat.h"
#include "child_process.h"

namespace unisono::testing {
namespace {

// Tests that run at the same time have different keys, because each of them looks at all processes.
const std::string given_key = concat("5ec2e7", std::string(48, '0'), 1'000'000'000 + ::getpid());

class LaunchKey : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string key_file(mode_t mode = 0600, const std::string& key = given_key) const {
    const auto path = std::string(folder_) + "/job.key";
    std::ofstream(path) << key << "\n";
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string folder() const { return folder_; }

 private:
  char folder_[32] = "/tmp/unisono-key-XXXXXX";
};

Words launch(const Words& options, const Words& program) {
  Words words{UNISONO_TOOL, "launch"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the files of /proc that other programs print, such as ps, and that contain this text.
std::vector<std::string> seen_in_proc(const std::string& text) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    for (const char* name : {"/cmdline", "/environ", "/comm"}) {
      const auto path = process.path().string() + name;
      if (contains(contents(path), text)) found.push_back(path);
    }
  }
  return found;
}

struct Shown {
  std::vector<std::string> keys;     // what each rank says of its key
  std::vector<std::string> in_proc;  // where the key of rank 0 is seen while the ranks run
  std::string out;
};

// Runs a job whose ranks print their keys.
Shown show_keys(const Words& options, size_t ranks, const ChildOptions& child = {}) {
  ChildProcess job(launch(options, {UNISONO_TEST_PROGRAM, "show-key"}), child);
  EXPECT_TRUE(job.wait_for("ready", ranks)) << job.out() << job.error();
  Shown shown{.keys = {}, .in_proc = {}, .out = job.out()};
  for (size_t at = shown.out.find("key "); at != std::string::npos; at = shown.out.find("key ", at + 4))
    shown.keys.push_back(shown.out.substr(at + 4, shown.out.find(' ', at + 4) - at - 4));
  if (!shown.keys.empty() && shown.keys[0].size() == 64) shown.in_proc = seen_in_proc(shown.keys[0]);
  job.signal(SIGTERM);
  job.wait();
  return shown;
}

void expect_one_hidden_key(const Shown& shown, size_t ranks) {
  ASSERT_EQ(shown.keys.size(), ranks) << shown.out;
  for (const auto& key : shown.keys) {
    EXPECT_EQ(key.size(), 64u) << key;
    EXPECT_EQ(key, shown.keys[0]);
  }
  EXPECT_EQ(shown.in_proc, std::vector<std::string>());
  EXPECT_EQ(count_of(shown.out, "text (none) file (none)"), ranks) << shown.out;
}

TEST_F(LaunchKey, each_job_gets_a_key_that_no_process_shows) {
  const auto one = show_keys({"-n", "3"}, 3);
  expect_one_hidden_key(one, 3);
  const auto other = show_keys({"-n", "1", "--pin"}, 1);
  expect_one_hidden_key(other, 1);
  EXPECT_NE(one.keys, other.keys);
}

TEST_F(LaunchKey, the_scan_of_proc_finds_a_text_that_is_there) {
  ChildProcess shows({UNISONO_TEST_PROGRAM, "hang", given_key});
  ASSERT_TRUE(shows.wait_for("ready"));
  EXPECT_NE(seen_in_proc(given_key), std::vector<std::string>());
}

TEST_F(LaunchKey, all_hosts_get_the_key_through_the_standard_input_of_ssh) {
  const auto shown = show_keys({"--hosts", "alpha:2,beta:1", "--ssh", std::string(UNISONO_TEST_PROGRAM) + " fake-ssh"}, 3);
  expect_one_hidden_key(shown, 3);
}

TEST_F(LaunchKey, the_text_of_a_given_key_is_removed_from_all_environments) {
  for (const Words& options :
       {Words{"-n", "2"}, Words{"--hosts", "alpha:1,beta:1", "--ssh", std::string(UNISONO_TEST_PROGRAM) + " fake-ssh"}}) {
    const auto shown = show_keys(options, 2, {.environment = {"UNISONO_KEY=" + given_key}});
    expect_one_hidden_key(shown, 2);
    EXPECT_EQ(shown.keys[0], given_key);
  }
}

TEST_F(LaunchKey, a_file_gives_the_key_and_the_option_wins_over_the_variables) {
  const auto file = key_file();
  EXPECT_EQ(show_keys({"-n", "1"}, 1, {.environment = {"UNISONO_KEY_FILE=" + file}}).keys, Words{given_key});
  const auto other = concat(given_key.substr(0, 63), "f");
  const auto shown = show_keys({"-n", "2", "--key-file", file}, 2, {.environment = {"UNISONO_KEY=" + other}});
  expect_one_hidden_key(shown, 2);
  EXPECT_EQ(shown.keys[0], given_key);
  EXPECT_EQ(seen_in_proc(other), std::vector<std::string>());
}

TEST_F(LaunchKey, a_file_that_others_can_read_is_refused_by_name) {
  const auto file = key_file(0644);
  for (const auto& [options, variables] :
       {std::pair<Words, Words>{{"--key-file", file}, {}}, std::pair<Words, Words>{{}, {"UNISONO_KEY_FILE=" + file}}}) {
    auto words = options;
    words.insert(words.end(), {"-n", "1"});
    const auto done = run(launch(words, {"true"}), {.environment = variables});
    EXPECT_EQ(done.code, 2);
    EXPECT_TRUE(contains(done.error, file + " can be read or written by all users")) << done.error;
    EXPECT_FALSE(contains(done.error, given_key)) << done.error;
  }
}

TEST_F(LaunchKey, a_key_that_is_none_is_refused_and_not_shown) {
  const auto file = key_file(0600, "hunter2-hunter2");
  for (const auto& done : {run(launch({"-n", "1", "--key-file", file}, {"true"})),
                           run(launch({"-n", "1"}, {"true"}), {.environment = {"UNISONO_KEY=hunter2-hunter2"}}),
                           run(launch({"-n", "1", "--env", "UNISONO_KEY=hunter2-hunter2"}, {"true"}))}) {
    EXPECT_EQ(done.code, 2);
    EXPECT_TRUE(contains(done.error, "key")) << done.error;
    EXPECT_FALSE(contains(done.error, "hunter2")) << done.error;
  }
}

TEST_F(LaunchKey, with_security_off_ranks_get_no_key) {
  const auto shown = show_keys({"-n", "1", "--security", "off"}, 1, {.environment = {"UNISONO_KEY=" + given_key}});
  EXPECT_EQ(shown.keys, Words{"(none)"});
  EXPECT_TRUE(contains(shown.out, "text (none) file (none) security off")) << shown.out;
  const auto by_variable = show_keys({"-n", "1"}, 1, {.environment = {"UNISONO_SECURITY=off"}});
  EXPECT_EQ(by_variable.keys, Words{"(none)"});
}

TEST_F(LaunchKey, where_others_may_meet_no_key_is_made) {
  const auto address = "file://" + folder() + "/rendezvous";
  EXPECT_EQ(show_keys({"-n", "1", "--rendezvous", address}, 1).keys, Words{"(none)"});
  EXPECT_EQ(show_keys({"-n", "1", "--rendezvous", address, "--key-file", key_file()}, 1).keys, Words{given_key});
  const auto done = run(launch({"-n", "1", "--rendezvous", address, "--security", "required"}, {"true"}));
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "--key-file")) << done.error;
}

Words bench_over_tcp(const Words& options) {
  Words words{UNISONO_TOOL, "bench", "all-reduce", "-n", "2", "--sizes", "64K", "--iters", "2", "--transport", "tcp"};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

TEST_F(LaunchKey, bench_gives_its_ranks_a_key_too) {
  for (const Words& options : {Words{"--security", "required"}, Words{"--key-file", key_file()}, Words{"--security", "off"}}) {
    const auto done = run(bench_over_tcp(options));
    EXPECT_EQ(done.code, 0) << options[1] << ": " << done.error;
  }
  EXPECT_EQ(run(bench_over_tcp({"--key-file", key_file(0644)})).code, 2);
}

TEST_F(LaunchKey, a_rank_without_the_key_is_refused) {
  const auto done = run(launch({"-n", "2", "--transport", "tcp", "--env", "UNISONO_JOIN_TIMEOUT_MS=3000"},
                               {"sh", "-c",
                                "if [ \"$RANK\" = 1 ]; then unset UNISONO_KEY_FD; fi; exec \"$0\" bench all-reduce --sizes 1K "
                                "--iters 1",
                                UNISONO_TOOL}));
  EXPECT_FALSE(done.timed_out);
  EXPECT_NE(done.code, 0) << done.out;
  EXPECT_TRUE(contains(done.error, "cannot join")) << done.error;
}

TEST_F(LaunchKey, the_command_makes_keys_that_only_their_owner_can_read) {
  const auto printed = run({UNISONO_TOOL, "key"});
  EXPECT_EQ(printed.code, 0);
  EXPECT_EQ(printed.out.size(), 65u);
  EXPECT_EQ(printed.out.find_first_not_of("0123456789abcdef"), 64u);
  const auto path = folder() + "/new.key";
  EXPECT_EQ(run({"sh", "-c", "umask 0; exec \"$0\" key --output \"$1\"", UNISONO_TOOL, path}).code, 0);
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const auto first = contents(path);
  EXPECT_EQ(first.size(), 65u);
  EXPECT_NE(first, printed.out);
  const auto again = run({UNISONO_TOOL, "key", "--output", path});
  EXPECT_EQ(again.code, 1);
  EXPECT_TRUE(contains(again.error, path + " exists")) << again.error;
  EXPECT_EQ(contents(path), first);
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(run({UNISONO_TOOL, "key", "--output", path, "--force"}).code, 0);
  EXPECT_NE(contents(path), first);
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(run({UNISONO_TOOL, "key", "--output", folder(), "--force"}).code, 1);
}

TEST_F(LaunchKey, doctor_says_where_the_key_comes_from_and_what_is_wrong_with_it) {
  const auto none = run({UNISONO_TOOL, "doctor"});
  EXPECT_TRUE(contains(none.out, "key             none here")) << none.out;
  const auto file = key_file();
  const auto found = run({UNISONO_TOOL, "doctor", "--json"}, {.environment = {"UNISONO_KEY_FILE=" + file}});
  EXPECT_TRUE(contains(found.out, "UNISONO_KEY_FILE (" + file + ")")) << found.out;
  EXPECT_FALSE(contains(found.out, given_key));
  const auto open = run({UNISONO_TOOL, "doctor"}, {.environment = {"UNISONO_KEY_FILE=" + key_file(0640 | 0004)}});
  EXPECT_EQ(open.code, 1);
  EXPECT_TRUE(contains(open.out, "has no usable key: UNISONO_KEY_FILE: " + file)) << open.out;
}

TEST_F(LaunchKey, a_standalone_rendezvous_reads_its_keys_before_it_serves) {
  const auto done = run({UNISONO_TOOL, "rendezvous", "--listen", "127.0.0.1:0", "--key-file", key_file(0644)});
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "--key-file: " + key_file())) << done.error;
}

}  // namespace
}  // namespace unisono::testing
