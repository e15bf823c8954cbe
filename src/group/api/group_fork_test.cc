// A child made by fork() is no member of its parent's groups: its calls are refused at once, it does no harm to the parents,
// and it does not hide its parent's death. Each child ends with _exit(), so it runs no destructors of the test.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/concat.h"
#include "testing/group_of_threads.h"
#include "unisono/group.h"
#include "unisono/unisono_c.h"

namespace unisono {
namespace {

using test::in_group;

constexpr std::chrono::seconds soon{5};

// Runs `body` in a forked child. Returns the text that it returned.
std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> answer{};
  EXPECT_EQ(::pipe2(answer.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // ends a child that hangs
    const auto text = body();
    [[maybe_unused]] const auto written = ::write(answer[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(answer[1]);
  std::string text(8192, 0);
  const auto got = ::read(answer[0], text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  ::close(answer[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

std::string refusal(pid_t member) {
  return concat(
      "this process was forked from a member (pid ", member,
      "), and is none itself: make the call in that process, or let this process join a group of its own; in Python, the "
      "start method spawn starts processes without fork");
}

// Returns an empty text if every call is refused with this text.
std::string try_all_calls(Group& group, Work& begun, const std::string& refused) {
  std::vector<float> values(1000, 5.0F);
  const std::span<float> tensor(values);
  std::string wrong;
  const auto expect = [&](const char* what, const Status& status) {
    if (status.code() != Code::invalid || !status.message().ends_with(refused))
      wrong += concat(what, ": ", status.to_string(), "\n");
  };
  expect("all_reduce", group.all_reduce(tensor).status());
  expect("all_reduce_async", group.all_reduce_async(tensor).wait().status());
  expect("broadcast", group.broadcast(tensor, 0).status());
  expect("barrier", group.barrier().status());
  expect("send", group.send(ConstTensor(Tensor(tensor)), 1 - group.rank(), 1).status());
  expect("split", group.split(std::vector<uint32_t>{group.rank()}).status());
  expect("reform", group.reform().status());
  expect("dump_record", group.dump_record("/nowhere"));
  expect("wait", begun.wait().status());
  expect("wait_for", begun.wait_for(Milliseconds(1)).status());
  if (!begun.done()) wrong += "the work of the parent is not done\n";
  bool called = false;
  begun.notify([&] { called = true; });
  if (!called) wrong += "the callback was not called\n";
  if (!group.members().empty()) wrong += "it has members\n";
  group.abort("of a child");  // this must not reach the parents
  if (group.all_reduce(tensor).status().message() != "all_reduce: " + refused) wrong += "without the name of the call\n";
  return wrong;
}

TEST(GroupFork, every_call_of_a_child_is_refused_and_the_parents_are_unharmed) {
  for (const auto* transport : {"shm", "tcp", "udp"}) {
    in_group(2,
             [](Group& group) {
               std::vector<float> values(1000, 1.0F);
               const std::span<float> tensor(values);
               ASSERT_TRUE(group.all_reduce(tensor).ok());
               if (group.rank() == 0) {
                 std::vector<float> others(1000, 1.0F);
                 auto begun = group.all_reduce_async(std::span<float>(others));
                 const auto refused = refusal(::getpid());
                 EXPECT_EQ(in_child([&] {
                             auto wrong = try_all_calls(group, begun, refused);
                             const auto copy = std::make_unique<Group>(std::move(group));  // its destructor must do nothing
                             return wrong + "end";
                           }),
                           "end");
                 ASSERT_TRUE(begun.wait().ok());
               } else {
                 ASSERT_TRUE(group.all_reduce(tensor).ok());
               }
               for (int turn = 0; turn < 3; ++turn) {
                 values.assign(1000, 1.0F);
                 const auto sum = group.all_reduce(tensor);
                 ASSERT_TRUE(sum.ok()) << sum.status().to_string();
                 EXPECT_EQ(values, std::vector<float>(1000, 2.0F)) << "rank " << group.rank();
               }
             },
             {.transport = transport});
  }
}

TEST(GroupFork, the_c_interface_refuses_the_calls_of_a_child) {
  unisono_options options{};
  options.world_size = 1;
  unisono_group* group = nullptr;
  ASSERT_EQ(unisono_join(&options, &group), UNISONO_OK) << unisono_last_error();
  const auto member = ::getpid();
  EXPECT_EQ(in_child([&] {
              float value = 1;
              unisono_work* work = nullptr;
              int code = unisono_all_reduce(group, &value, &value, 1, UNISONO_F32, UNISONO_SUM, nullptr, &work);
              if (code == UNISONO_OK) code = unisono_wait(work, nullptr);
              return concat(code, " ", unisono_last_error());
            }),
            concat(static_cast<int>(Code::invalid), " all_reduce: ", refusal(member)));
  unisono_leave(group);
}

TEST(GroupFork, a_child_joins_a_group_of_its_own) {
  const auto joined = Group::join({.rank = 0, .world_size = 1});
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  EXPECT_EQ(in_child([] {
              auto own = Group::join({.rank = 0, .world_size = 1});
              return own.ok() ? own->barrier().status().to_string() : own.status().to_string();
            }),
            Status().to_string());
}

// The parent of the survivor is rank 0. It dies without a word, while its child lives on.
[[noreturn]] void die_and_leave_a_child(const std::string& meeting, const char* transport, int lifeline) {
  auto group = Group::join({.rank = 0, .world_size = 2, .rendezvous = meeting, .transport = transport});
  if (!group.ok() || !group->barrier().ok()) ::_exit(1);
  if (::fork() == 0) {
    char byte = 0;
    [[maybe_unused]] const auto ended = ::read(lifeline, &byte, 1);
    ::_exit(0);
  }
  ::_exit(0);
}

TEST(GroupFork, a_child_that_survives_its_parent_does_not_hide_the_parents_death) {
  for (const auto* transport : {"shm", "tcp"}) {
    const test::TemporaryFolder folder;
    const auto meeting = "file://" + folder.path() + "/meet";
    std::array<int, 2> lifeline{};
    ASSERT_EQ(::pipe(lifeline.data()), 0);
    const pid_t member = ::fork();
    if (member == 0) {
      ::close(lifeline[1]);
      die_and_leave_a_child(meeting, transport, lifeline[0]);
    }
    ::close(lifeline[0]);
    auto group = Group::join({.rank = 1, .world_size = 2, .rendezvous = meeting, .transport = transport});
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    ASSERT_TRUE(group->barrier().ok());
    const auto start = std::chrono::steady_clock::now();
    const auto lost = group->barrier({.timeout = Milliseconds(60'000)});
    EXPECT_EQ(lost.status().code(), Code::peer_lost) << transport << ": " << lost.status().to_string();
    EXPECT_NE(lost.status().message().find("rank 0 was lost"), std::string::npos) << lost.status().to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - start, soon) << transport;
    ::close(lifeline[1]);
    int status = 0;
    ::waitpid(member, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace unisono
