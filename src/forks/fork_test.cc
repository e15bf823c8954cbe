#include "forks/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "base/concat.h"

namespace unisono {
namespace {

// Runs `body` in a forked child. Returns true if it returned true there.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, a_child_and_a_grandchild_are_refused_by_name_and_the_owner_is_not) {
  const OwnerProcess owner;
  EXPECT_TRUE(owner.check().ok());
  const auto refused = concat("this process was forked from a member (pid ", ::getpid(), "), and is none itself");
  const auto is_refused = [&] {
    const auto status = owner.check();
    return status.code() == Code::invalid && status.message().starts_with(refused);
  };
  EXPECT_TRUE(in_child(is_refused));
  EXPECT_TRUE(in_child([&] { return in_child(is_refused); }));
  EXPECT_TRUE(in_child([] { return OwnerProcess().check().ok(); })) << "what the child makes is its own";
  EXPECT_TRUE(owner.check().ok());
}

TEST(Fork, a_child_that_lives_does_not_keep_an_owned_socket_open) {
  std::array<int, 2> link{}, lifeline{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link.data()), 0);
  ASSERT_EQ(::pipe(lifeline.data()), 0);
  own_descriptor(link[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(lifeline[1]);
    [[maybe_unused]] const auto ended = ::read(lifeline[0], &byte, 1);
    ::_exit(::fcntl(link[0], F_GETFD) == FD_CLOEXEC ? 0 : 1);  // its number is still taken
  }
  disown_descriptor(link[0]);
  ::close(link[0]);
  char byte = 0;
  EXPECT_EQ(::recv(link[1], &byte, 1, 0), 0) << "the end of the stream";
  ::close(lifeline[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(lifeline[0]);
  ::close(link[1]);
}

TEST(Fork, a_child_keeps_a_descriptor_that_was_disowned) {
  std::array<int, 2> link{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link.data()), 0);
  own_descriptor(link[0]);
  disown_descriptor(link[0]);
  EXPECT_TRUE(in_child([&] { return ::send(link[0], "x", 1, MSG_NOSIGNAL) == 1; }));
  char byte = 0;
  EXPECT_EQ(::recv(link[1], &byte, 1, 0), 1);
  for (const int descriptor : link) ::close(descriptor);
}

}  // namespace
}  // namespace unisono
