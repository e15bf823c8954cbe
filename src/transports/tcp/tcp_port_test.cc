// Tests of the listening port that the transports of one process share.
#include "transports/tcp/tcp_port.h"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {
namespace {

constexpr PeerId id_c{3, 300};

// `b` and `c` are transports of one process, `a` stands for another one.
class TcpSharedPort : public TcpPair {
 protected:
  void SetUp() override {
    TcpPair::SetUp();
    b = share(id_b);
    c = share(id_c);
    ASSERT_TRUE(b && c);
    sink_b = std::make_unique<Recorder>(b.get());
    sink_c = std::make_unique<Recorder>(c.get());
  }
  static std::unique_ptr<TcpTransport> share(PeerId self, TcpOptions options = {}) {
    options.self = self;
    options.interface = "127.0.0.1";
    auto made = TcpTransport::make(options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return nullptr;
    (*made)->set_job(job());
    return std::move(*made);
  }
  bool soon(const std::function<bool()>& done) {
    return until([&] {
      if (c) c->poll(clock_now(), *sink_c);
      return done();
    });
  }
  LinkRequest to(TcpTransport& there, PeerId id, PeerIndex index, bool dial) {
    auto link = request(id, there.endpoints(), dial);
    link.peer = index;
    return link;
  }
  void link_both() {
    ASSERT_TRUE(a->add_peer(to(*b, id_b, 0, true)).ok());
    ASSERT_TRUE(a->add_peer(to(*c, id_c, 1, true)).ok());
    ASSERT_TRUE(b->add_peer(to(*a, id_a, 0, false)).ok());
    ASSERT_TRUE(c->add_peer(to(*a, id_a, 0, false)).ok());
    ASSERT_TRUE(soon([&] { return both_up() && a->state(1) == LinkState::up && c->state(0) == LinkState::up; }));
  }
  void expect_frame(PeerIndex index, Recorder& sink) {
    const auto payload = pattern(10'000, test_seed() + index);
    const auto before = sink.frames.size();
    a->send(index, data_header(1, payload.size()), payload, 1);
    ASSERT_TRUE(soon([&] { return sink.frames.size() == before + 1; }));
    EXPECT_EQ(sink.frames.back().payload, payload);
  }
  // Runs `what` in a child made by fork(). Returns true if it has returned true there.
  static bool in_child(const std::function<bool()>& what) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(what() && !testing::Test::HasFailure() ? 0 : 1);
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  std::unique_ptr<TcpTransport> c;
  std::unique_ptr<Recorder> sink_c;
};

TEST_F(TcpSharedPort, connections_reach_the_transport_that_they_call) {
  EXPECT_EQ(b->port(), c->port());
  EXPECT_NE(b->port(), a->port());
  ASSERT_NO_FATAL_FAILURE(link_both());
  expect_frame(0, *sink_b);
  expect_frame(1, *sink_c);
  EXPECT_EQ(sink_b->frames.size(), 1u);
  EXPECT_EQ(sink_c->frames.size(), 1u);
}

TEST_F(TcpSharedPort, the_port_stays_open_until_the_last_one_leaves) {
  const auto there = b->endpoints();
  b.reset();
  ASSERT_TRUE(a->add_peer(to(*c, id_c, 1, true)).ok());
  ASSERT_TRUE(c->add_peer(to(*a, id_a, 0, false)).ok());
  ASSERT_TRUE(soon([&] { return a->state(1) == LinkState::up && c->state(0) == LinkState::up; }));
  expect_frame(1, *sink_c);
  EXPECT_TRUE(Unauthenticated(there[0]).connected());
  c.reset();
  EXPECT_FALSE(Unauthenticated(there[0]).connected());
}

TEST_F(TcpSharedPort, a_call_for_a_transport_that_is_not_there_is_refused_by_name) {
  Unauthenticated lost(*b), second(*b);
  lost.send_bytes(hello_from(id_a, PeerId{9, 9}));
  ASSERT_TRUE(soon([&] { return lost.closed(); }));
  EXPECT_EQ(lost.refusal(), TcpRefusal::other_process);
  EXPECT_EQ(lost.reply()->self, PeerId{});
  EXPECT_EQ(b->counters().refused_connections, 1u);
  // Nobody of the port answers a call for anyone, because it could be for any of them.
  second.send_bytes(hello_from(id_a, PeerId{}));
  ASSERT_TRUE(soon([&] { return second.closed(); }));
  EXPECT_EQ(second.refusal(), TcpRefusal::other_process);
}

TEST_F(TcpSharedPort, a_peer_that_has_left_the_port_is_dead_at_once) {
  ASSERT_NO_FATAL_FAILURE(link_both());
  b.reset();
  ASSERT_TRUE(soon([&] { return !sink_a->losses.empty(); }));
  EXPECT_NE(loss_of_a().message().find("its process is gone: " + c->endpoints()[0].substr(6) + ": refused: another process"),
            std::string::npos)
      << loss_of_a().message();
  expect_frame(1, *sink_c);
}

TEST_F(TcpSharedPort, another_interface_or_a_fixed_port_is_another_port) {
  const auto v6 = TcpTransport::make({.self = {5, 5}, .interface = "::1"});
  ASSERT_TRUE(v6.ok()) << v6.status().to_string();
  EXPECT_NE((*v6)->port(), b->port());
  const auto own = transport(PeerId{6, 6});
  EXPECT_NE(own->port(), b->port());
  EXPECT_EQ(TcpTransport::make({.self = {7, 7}, .interface = "127.0.0.1", .port = b->port()}).status().code(),
            Code::unavailable);
}

TEST_F(TcpSharedPort, a_sleeping_transport_is_woken_by_a_call_that_another_one_has_accepted) {
  // Only four transports watch the port, so the last one here does not.
  const auto third = share(PeerId{11, 1}), fourth = share(PeerId{12, 1}), fifth = share(PeerId{13, 1});
  Recorder sink(fifth.get());
  ASSERT_TRUE(fifth->add_peer(to(*a, id_a, 0, false)).ok());
  fifth->poll(clock_now(), sink);
  pollfd handle{fifth->wait_handle(), POLLIN, 0};
  EXPECT_EQ(::poll(&handle, 1, 0), 0);
  ASSERT_TRUE(a->add_peer(to(*fifth, PeerId{13, 1}, 0, true)).ok());
  ASSERT_TRUE(until([&] { return ::poll(&handle, 1, 0) == 1; })) << "`a` and `b` are polled, and `b` has accepted";
  ASSERT_TRUE(until([&] {
    fifth->poll(clock_now(), sink);
    return a->state(0) == LinkState::up && fifth->state(0) == LinkState::up;
  }));
}

TEST_F(TcpSharedPort, a_child_neither_closes_nor_joins_the_port_of_its_parent) {
  ASSERT_NO_FATAL_FAILURE(link_both());
  const auto there = b->port();
  EXPECT_TRUE(in_child([&] {
    const auto own = share(PeerId{8, 8});
    const bool another = own && own->port() != there && Unauthenticated(*own).connected();
    a.reset();
    b.reset();
    c.reset();
    return another;
  }));
  expect_frame(0, *sink_b);
  expect_frame(1, *sink_c);
  const auto later = share(PeerId{8, 8});
  EXPECT_EQ(later->port(), there);
  EXPECT_TRUE(Unauthenticated(*later).connected());
}

}  // namespace
}  // namespace unisono::conformance
