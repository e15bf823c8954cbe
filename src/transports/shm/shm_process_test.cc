// Tests with real processes that are killed, stopped and woken. Peers must notice soon, and no memory or descriptor may remain.
#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/concat.h"
#include "transports/shm/shm_handshake.h"
#include "transports/shm/shm_test_support.h"

namespace unisono::shm {
namespace {

constexpr PeerIndex parent_index = 0;

using Body = std::function<int(TestNode&)>;
using Prepare = std::function<void(TestNode&)>;

// A child process that makes its node, connects to its parent and then runs `body`. Its exit code is the result of `body`.
// Frames of the parent may arrive before `body` begins.
class Child {
 public:
  Child(
      TestNode& parent, PeerIndex index, const Body& body, const Prepare& prepare = [](TestNode&) {}) {
    id_ = fresh_id();
    const LinkRequest to_parent = request_for(parent_index, parent, true);
    const PeerId id = id_;
    const pid_t parent_pid = ::getpid();
    process_ = ::fork();
    if (process_ == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent_pid) ::_exit(99);
      ::_exit(run(id, to_parent, body, prepare));
    }
    const std::string endpoint = parent.transport->endpoints()[0];
    const LinkRequest request{.peer = index,
                              .id = id_,
                              .label = concat("child ", process_),
                              .endpoints = {endpoint.substr(0, endpoint.rfind('/') + 1) + socket_name(id_, 0)},
                              .dial = false,
                              .deadline = test_now() + 10 * second};
    EXPECT_TRUE(parent.transport->add_peer(request).ok());
    EXPECT_TRUE(run_until({&parent}, [&] { return parent.transport->state(index) == LinkState::up; }));
  }
  ~Child() {
    signal(SIGKILL);
    (void)wait();
  }
  void signal(int number) const {
    if (process_ > 0) ::kill(process_, number);
  }
  // Waits for the end of the process. Returns its exit code, or -1 if it was killed.
  int wait() {
    if (process_ <= 0) return code_;
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = 0;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void wait_until_stopped() const {
    int status = 0;
    ::waitpid(process_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }

 private:
  static int run(const PeerId& id, const LinkRequest& to_parent, const Body& body, const Prepare& prepare) {
    ShmOptions options;
    options.self = id;
    TestNode node(options);
    prepare(node);
    if (!node.transport || !node.transport->add_peer(to_parent).ok()) return 98;
    if (!run_until({&node}, [&] { return node.transport->state(parent_index) == LinkState::up; })) return 97;
    return body(node);
  }
  PeerId id_;
  pid_t process_ = 0;
  int code_ = 0;
};

int count_lines(const char* path, const char* what) {
  std::ifstream file(path);
  std::string line;
  int count = 0;
  while (std::getline(file, line)) count += line.find(what) != std::string::npos;
  return count;
}

int count_descriptors() {
  int count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

int send_for_ever(TestNode& node) {
  const Bytes payload = pattern(100'000, 1);
  for (uint64_t id = 0;; ++id) {
    if (node.transport->credit(parent_index) > 0) node.transport->send(parent_index, data_header(id), payload, id);
    node.poll();
  }
}

TEST(ShmProcess, a_killed_peer_is_lost_within_a_fifth_of_a_second_and_leaves_nothing) {
  TestNode parent;
  parent.keep_payloads = false;
  const int mappings = count_lines("/proc/self/maps", "memfd:unisono");
  const int descriptors = count_descriptors();
  Nanos best = never;
  // Takes the fastest of three attempts, because the machine may be busy.
  for (PeerIndex attempt = 1; attempt <= 3; ++attempt) {
    Child child(parent, attempt, send_for_ever);
    const uint64_t before = parent.received_count;
    ASSERT_TRUE(run_until({&parent}, [&] { return parent.received_count > before + 100; }));
    child.signal(SIGKILL);
    const Nanos killed = test_now();
    ASSERT_TRUE(run_until({&parent}, [&] { return parent.losses.count(attempt) == 1; }));
    best = std::min(best, test_now() - killed);
    EXPECT_EQ(parent.losses[attempt].code(), Code::peer_lost);
    EXPECT_NE(parent.losses[attempt].message().find("child "), std::string::npos) << parent.losses[attempt].message();
    EXPECT_EQ(parent.fates[attempt], PeerFate::ended);
  }
  EXPECT_LT(best, 200 * millisecond);
  ASSERT_TRUE(run_until({&parent}, [&] { return parent.transport->regions_in_use() == 0; }));
  EXPECT_EQ(count_lines("/proc/self/maps", "memfd:unisono"), mappings);
  EXPECT_EQ(count_descriptors(), descriptors);
}

TEST(ShmProcess, the_death_of_a_peer_wakes_a_sleeper) {
  TestNode parent;
  Nanos best = never;
  for (PeerIndex attempt = 1; attempt <= 3; ++attempt) {
    Child child(parent, attempt, [](TestNode&) { return ::pause(); });
    while (!parent.transport->arm()) parent.poll();
    child.signal(SIGKILL);
    const Nanos killed = test_now();
    pollfd entry{.fd = parent.transport->wait_handle(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    parent.transport->disarm();
    ASSERT_TRUE(run_until({&parent}, [&] { return parent.losses.count(attempt) == 1; }));
    best = std::min(best, test_now() - killed);
  }
  EXPECT_LT(best, 200 * millisecond);
}

TEST(ShmProcess, a_death_is_detected_although_a_grandchild_holds_the_socket) {
  TestNode parent;
  Child child(parent, 1, [](TestNode& node) {
    const pid_t grandchild = ::_Fork();  // without the handler by which a child gives up its sockets (forks/fork.h)
    if (grandchild == 0) {
      ::alarm(20);  // ends the grandchild if the test fails before it kills the grandchild
      for (;;) ::pause();
    }
    node.transport->send(parent_index, data_header(static_cast<uint64_t>(grandchild)), {}, 1);
    return ::pause();
  });
  ASSERT_TRUE(run_until({&parent}, [&] { return parent.arrived.size() == 1; }));
  child.signal(SIGKILL);
  EXPECT_TRUE(run_until(
      {&parent}, [&] { return parent.losses.count(1) == 1; }, 5 * second));
  EXPECT_NE(parent.losses[1].message().find("died"), std::string::npos) << parent.losses[1].message();
  ::kill(static_cast<pid_t>(parent.arrived[0].header.operation), SIGKILL);
}

// Returns how many process handles this process has.
int count_handles() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    count += target.find("pidfd") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(ShmProcess, links_to_one_process_share_a_handle_that_lives_as_long_as_the_last_of_them) {
  const int before = count_handles();
  TestNode a, b, c, d;  // a transport may have several links to one process
  connect_all({&a, &b, &c});
  connect(d, 9, a, 0);  // `a` knows it as peer 9
  EXPECT_EQ(count_handles(), before + 1);
  for (const PeerIndex peer : {1u, 2u, 9u}) a.transport->close(peer);
  ASSERT_TRUE(run_until({&a, &b, &c, &d}, [&] { return a.transport->regions_in_use() == 0; }));
  EXPECT_EQ(count_handles(), before + 1) << "b and c are linked still";
  b.transport->close(2);
  ASSERT_TRUE(run_until({&a, &b, &c, &d}, [&] {
    return b.transport->regions_in_use() + c.transport->regions_in_use() + d.transport->regions_in_use() == 0;
  }));
  EXPECT_EQ(count_handles(), before);
}

// The first child has the lower number of a handle that is free again when the second child comes.
TEST(ShmProcess, the_deaths_of_processes_that_follow_each_other_are_told_apart) {
  TestNode parent;
  Child first(parent, 1, [](TestNode&) { return ::pause(); });
  first.signal(SIGKILL);
  ASSERT_TRUE(run_until({&parent}, [&] { return parent.losses.count(1) == 1 && parent.transport->regions_in_use() == 0; }));
  Child second(parent, 2, [](TestNode&) { return ::pause(); });
  Child third(parent, 3, [](TestNode&) { return ::pause(); });
  second.signal(SIGKILL);
  ASSERT_TRUE(run_until({&parent}, [&] { return parent.losses.count(2) == 1; }));
  EXPECT_EQ(parent.transport->state(3), LinkState::up);
}

TEST(ShmProcess, a_stopped_peer_delays_no_other_link_and_continues) {
  TestNode parent;
  const auto echo = [](TestNode& node) {
    node.keep_payloads = false;
    node.on_received = [&node](PeerIndex, const FrameHeader& header, const View&) {
      node.transport->send(parent_index, data_header(header.operation), {}, 0);
    };
  };
  const auto live = [](TestNode& node) {
    return run_until(
               {&node}, [&] { return node.losses.count(parent_index) == 1; }, 60 * second)
               ? 0
               : 1;
  };
  Child stopped(parent, 1, live, echo);
  Child other(parent, 2, live, echo);
  stopped.signal(SIGSTOP);
  stopped.wait_until_stopped();
  const Bytes payload = pattern(50'000, 1);
  uint64_t to_stopped = 0;
  for (; parent.transport->credit(1) > 0; ++to_stopped) parent.transport->send(1, data_header(to_stopped), payload, 0);
  EXPECT_EQ(to_stopped, 16u);
  uint64_t sent = 0;
  ASSERT_TRUE(run_until({&parent},
                        [&] {
                          for (; sent < 1000 && parent.transport->credit(2) > 0; ++sent)
                            parent.transport->send(2, data_header(sent), payload, 0);
                          return parent.arrived.size() == 1000;
                        }))
      << parent.arrived.size() << " of " << sent << " echoed, room " << parent.transport->credit(2);
  stopped.signal(SIGCONT);
  ASSERT_TRUE(run_until({&parent}, [&] { return parent.arrived.size() == 1000 + to_stopped; })) << parent.arrived.size();
  EXPECT_TRUE(parent.losses.empty());
  parent.transport.reset();
  EXPECT_EQ(stopped.wait(), 0);
  EXPECT_EQ(other.wait(), 0);
}

TEST(ShmProcess, a_process_stopped_during_its_removal_receives_only_its_own_frames) {
  TestNode parent;
  const Bytes meant = pattern(80'000, 7);
  Child child(parent, 1, [&](TestNode& node) {
    const bool told = run_until(
        {&node}, [&] { return node.losses.count(parent_index) == 1; }, 60 * second);
    const bool right = std::ranges::all_of(node.arrived, [&](const Arrived& frame) { return frame.payload == meant; });
    return told && right && node.arrived.size() == 5 ? 0 : 1;
  });
  child.signal(SIGSTOP);
  child.wait_until_stopped();
  for (int i = 0; i < 5; ++i) parent.transport->send(1, data_header(1), meant, 0);
  parent.transport->close(1);
  TestNode other;
  connect(parent, 0, other, 2);
  for (uint64_t i = 0; i < 200; ++i) {
    parent.transport->send(2, data_header(i), pattern(80'000, 100 + i), 0);
    parent.poll(), other.poll();
  }
  EXPECT_EQ(parent.transport->regions_in_use(), 2u) << "the stopped process may still look";
  child.signal(SIGCONT);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(run_until({&parent}, [&] { return parent.transport->regions_in_use() == 1; }));
}

TEST(ShmProcess, the_transport_uses_no_space_in_dev_shm) {
  struct statvfs before {};
  struct statvfs after {};
  const bool exists = ::statvfs("/dev/shm", &before) == 0;
  TestNode a;
  TestNode b;
  connect(a, 0, b, 1);
  b.keep_payloads = false;
  b.keep_views = true;
  const PeerIndex to[] = {1};
  uint64_t bytes = 0;
  for (const bool result : {false, true}) {
    while (const Slot slot = a.transport->acquire(to, 1 << 20, result)) {
      std::memset(slot.data, 1, slot.capacity);
      bytes += slot.capacity;
      a.transport->commit(slot, data_header(1, 1 << 20));
    }
  }
  ASSERT_GE(bytes, 32u << 20);
  if (exists) {
    ASSERT_EQ(::statvfs("/dev/shm", &after), 0);
    EXPECT_LT(
        (static_cast<int64_t>(before.f_bfree) - static_cast<int64_t>(after.f_bfree)) * static_cast<int64_t>(after.f_bsize),
        8 << 20);
  }
  EXPECT_GT(count_lines("/proc/self/maps", "/memfd:unisono (deleted)"), 0);
}

}  // namespace
}  // namespace unisono::shm
