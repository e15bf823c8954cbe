// The seeds are looked up again. The run uses newly found seeds while it joins, and later for healing.
#include "elastic/seeds/seed_finder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "elastic/seeds/seed_test_support.h"
#include "testing/temporary_folder.h"

namespace unisono {

namespace {

using test::comes_true;
using test::make_driver;
using test::options_of;

using Addresses = std::vector<std::string>;

// A seed file whose reader blocks until the test releases it. It stands for a name server that does not answer.
class BlockingSeedFile {
 public:
  BlockingSeedFile() { EXPECT_EQ(::mkfifo(path().c_str(), 0600), 0); }
  ~BlockingSeedFile() {
    EXPECT_TRUE(comes_true([&] {
      // Opening for writing fails until the look-up has opened the file for reading.
      const int fd = ::open(path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      return fd >= 0 && ::close(fd) == 0;
    }));
  }
  std::string path() const { return folder_.path() + "/seeds"; }

 private:
  const test::TemporaryFolder folder_;
};

}  // namespace

TEST(SeedFinder, addresses_are_known_at_once_and_stay) {
  SeedFinder finder({.seeds = {"10.0.0.1:4040", "[::1]:4041"}});
  ASSERT_TRUE(finder.start(0).ok());
  EXPECT_EQ(finder.found().addresses, (Addresses{"tcp://10.0.0.1:4040", "tcp://[::1]:4041"}));
  finder.look_again();
  EXPECT_FALSE(finder.busy());
}

TEST(SeedFinder, a_file_is_read_again) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  SeedFinder finder({.seeds = {"file:" + path}});
  ASSERT_TRUE(finder.start(10 * second).ok());
  EXPECT_TRUE(finder.found().addresses.empty());
  ASSERT_EQ(finder.found().failures.size(), 1u);
  EXPECT_NE(finder.found().failures[0].find(path), std::string::npos);
  std::ofstream(path) << "127.0.0.1:4040\n";
  const auto version = finder.version();
  EXPECT_TRUE(comes_true([&] { return finder.look_again(), finder.version() > version && !finder.found().addresses.empty(); }));
  EXPECT_EQ(finder.found().addresses, Addresses{"tcp://127.0.0.1:4040"});
  EXPECT_TRUE(finder.found().failures.empty());
}

TEST(SeedFinder, a_file_that_is_wrong_at_first_is_an_error_and_later_keeps_what_was_read) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  std::ofstream(path) << "nonsense\n";
  EXPECT_EQ(SeedFinder({.seeds = {"file:" + path}}).start(10 * second).code(), Code::invalid);
  std::ofstream(path) << "127.0.0.1:4040\n";
  SeedFinder finder({.seeds = {"file:" + path}});
  ASSERT_TRUE(finder.start(10 * second).ok());
  std::ofstream(path) << "nonsense\n";
  EXPECT_TRUE(comes_true([&] { return finder.look_again(), !finder.found().failures.empty(); }));
  EXPECT_EQ(finder.found().addresses, Addresses{"tcp://127.0.0.1:4040"});
}

TEST(SeedFinder, the_destructor_abandons_a_look_up_that_hangs) {
  const BlockingSeedFile blocking;
  const auto begin = std::chrono::steady_clock::now();
  {
    SeedFinder finder({.seeds = {"file:" + blocking.path()}});
    EXPECT_TRUE(finder.start(10 * millisecond).ok());
    EXPECT_TRUE(finder.busy());
    finder.look_again();  // has no effect while the first look-up hangs
    EXPECT_TRUE(finder.found().addresses.empty());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500)) << "so joining ends in time";
}

TEST(SeedFinder, the_time_of_a_look_up_that_hangs_counts_towards_join_timeout) {
  const BlockingSeedFile blocking;
  auto options = options_of("file:" + blocking.path(), false);
  options.join_timeout = Milliseconds(100);
  const auto joiner = make_driver(options);
  ASSERT_NE(joiner, nullptr);
  (void)joiner->poll(2 * millisecond);
  EXPECT_EQ(joiner->next_attempt(), never);
  EXPECT_NE(joiner->failure().message().find("still being looked up"), std::string::npos) << joiner->failure().to_string();
}

TEST(SeedFinder, a_founded_run_finds_new_peers_through_a_file_written_later) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  const auto other = make_driver(options_of("127.0.0.1:1", true)), driver = make_driver(options_of("file:" + path, true));
  ASSERT_TRUE(other != nullptr && driver != nullptr);
  std::ofstream(path) << other->status(0).endpoints.front() << '\n';
  // The test's clock runs faster than real time. Healing is due every ten seconds of the test's clock.
  Nanos now = 0;
  const auto united = [&] {
    return driver->peer().keeper().roster().present().size() == 2 && other->peer().keeper().roster().present().size() == 2;
  };
  EXPECT_TRUE(comes_true([&] {
    now += 10 * millisecond;
    (void)driver->poll(now);
    (void)other->poll(now);
    return united();
  }));
}

TEST(SeedFinder, joining_fails_if_the_process_wakes_after_join_timeout) {
  const auto joiner = make_driver(options_of("file:/nonexistent/seeds", false));
  ASSERT_NE(joiner, nullptr);
  EXPECT_LT(joiner->next_attempt(), 60 * second);
  (void)joiner->poll(61 * second);
  EXPECT_EQ(joiner->next_attempt(), never);
  EXPECT_TRUE(joiner->failure().message().starts_with("NO_SEED")) << joiner->failure().to_string();
}

TEST(SeedFinder, a_joiner_asks_a_new_seed_while_another_does_not_answer) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  std::ofstream(path) << "127.0.0.1:1\n";
  const auto founder = make_driver(options_of("127.0.0.1:1", true)), joiner = make_driver(options_of("file:" + path, false));
  ASSERT_TRUE(founder != nullptr && joiner != nullptr);
  std::ofstream(path) << "127.0.0.1:1\n" << founder->status(0).endpoints.front() << '\n';
  Nanos now = 0;
  EXPECT_TRUE(comes_true([&] {
    now += millisecond;
    (void)joiner->poll(now);
    (void)founder->poll(now);
    return joiner->peer().joined() || (!joiner->failure().ok() && joiner->next_attempt() == never);
  }));
  EXPECT_TRUE(joiner->peer().joined()) << joiner->failure().to_string();
}

}  // namespace unisono
