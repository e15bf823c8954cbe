#include "cli/launch/job_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace unisono::cli {
namespace {

const std::string digits(64, 'c');

// Removes from this process what decides about keys, and again at the end.
class JobKey : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override {
    clear();
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  std::string key_file(mode_t mode) {
    char path[] = "/tmp/unisono-job-key-XXXXXX";
    ::close(::mkstemp(path));
    path_ = path;
    std::ofstream(path_) << digits;
    ::chmod(path, mode);
    return path_;
  }

 private:
  static void clear() {
    for (const char* name : {"UNISONO_KEY", "UNISONO_KEY_FILE", "UNISONO_KEY_FD", "UNISONO_SECURITY", "UNISONO_RENDEZVOUS",
                             "CREDENTIALS_DIRECTORY"})
      ::unsetenv(name);
  }
  std::string path_;
};

bool has(const JobOptions& job, const std::string& setting) {
  return std::ranges::find(job.environment, setting) != job.environment.end();
}

TEST_F(JobKey, a_job_without_a_key_gets_a_new_one_each_time) {
  JobOptions one;
  JobOptions other;
  ASSERT_TRUE(set_security({}, one).ok());
  ASSERT_TRUE(set_security({}, other).ok());
  ASSERT_TRUE(one.key && other.key);
  EXPECT_FALSE(*one.key == *other.key);
}

TEST_F(JobKey, a_text_in_the_environment_is_used_and_forgotten) {
  ::setenv("UNISONO_KEY", digits.c_str(), 1);
  JobOptions job;
  ASSERT_TRUE(set_security({}, job).ok());
  EXPECT_EQ(job.key->hex(), digits);
  EXPECT_EQ(std::getenv("UNISONO_KEY"), nullptr);
}

TEST_F(JobKey, variables_of_ranks_give_the_key_and_do_not_reach_them) {
  JobOptions job;
  job.environment = {"A=1", "UNISONO_KEY_FILE=" + key_file(0600), "UNISONO_KEY_FD=7"};
  ASSERT_TRUE(set_security({}, job).ok());
  EXPECT_EQ(job.key->hex(), digits);
  EXPECT_EQ(job.environment, std::vector<std::string>{"A=1"});
}

TEST_F(JobKey, with_security_off_there_is_no_key_and_ranks_know_it) {
  JobOptions job;
  ASSERT_TRUE(set_security({.security = "off"}, job).ok());
  EXPECT_FALSE(job.key);
  EXPECT_TRUE(has(job, "UNISONO_SECURITY=off"));
}

TEST_F(JobKey, the_option_wins_over_the_variable) {
  ::setenv("UNISONO_SECURITY", "off", 1);
  JobOptions job;
  ASSERT_TRUE(set_security({.security = "required"}, job).ok());
  EXPECT_TRUE(job.key);
  ::setenv("UNISONO_SECURITY", "of", 1);
  JobOptions other;
  EXPECT_EQ(set_security({}, other).code(), Code::invalid);
}

TEST_F(JobKey, a_rendezvous_of_others_needs_a_key_of_theirs) {
  JobOptions job;
  ASSERT_TRUE(set_security({.rendezvous = "tcp://a:1"}, job).ok());
  EXPECT_FALSE(job.key);
  EXPECT_EQ(set_security({.rendezvous = "tcp://a:1", .security = "required"}, job).code(), Code::invalid);
  ASSERT_TRUE(set_security({.rendezvous = "tcp://10.77.0.1:1", .private_network = true}, job).ok());
  EXPECT_TRUE(job.key);
}

TEST_F(JobKey, a_file_that_others_can_read_is_refused_by_name) {
  const auto file = key_file(0604);
  JobOptions job;
  const auto status = set_security({.key_file = file}, job);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("--key-file: " + file), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find(digits), std::string::npos);
}

TEST_F(JobKey, a_rank_of_another_launcher_reads_the_file_itself) {
  const auto file = key_file(0640);
  Options group;
  ASSERT_TRUE(set_group_security({.key_file = file, .security = "required"}, group).ok());
  EXPECT_EQ(group.key, digits);
  EXPECT_EQ(group.security, Security::required);
  ::setenv("UNISONO_KEY_FD", "9", 1);  // as a rank of the own launcher has it
  Options launched;
  ASSERT_TRUE(set_group_security({.key_file = "/nonexistent"}, launched).ok());
  EXPECT_EQ(launched.key, "");
}

}  // namespace
}  // namespace unisono::cli
