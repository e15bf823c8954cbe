#include "transports/tcp/tcp_session.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

using Stage = TcpSession::Stage;

// One end. The other end is what the tests say.
class TcpSessionTest : public testing::Test {
 protected:
  static TcpSession end(bool smaller_id = false, uint64_t number = 77) {
    return TcpSession({.number = number, .smaller_id = smaller_id});
  }
  static TcpSessionHello hello(uint32_t attempt, uint64_t session = 77, bool resumes = true) {
    TcpSessionHello hello;
    hello.session = session;
    hello.attempt = attempt;
    hello.resumes = resumes ? 1 : 0;
    return hello;
  }
  static TcpSessionReply reply(TcpRefusal reason = TcpRefusal::none, uint32_t attempt = 0) {
    TcpSessionReply reply;
    reply.accepted = reason == TcpRefusal::none ? 1 : 0;
    reply.reason = reason;
    reply.attempt = attempt;
    return reply;
  }
  void dial(TcpSession& session) {
    ASSERT_TRUE(session.dial_due(now));
    session.begin_dial(now);
    session.send_hello(now);
  }
  // Makes the first connection by this side's dial.
  void connect(TcpSession& session, bool direct = true) {
    dial(session);
    ASSERT_EQ(session.judge(reply(), now), TcpReplyVerdict::adopt);
    session.adopted(direct, now);
    session.heard();
  }
  void accept(TcpSession& session, uint32_t attempt, bool direct = true) {
    ASSERT_EQ(session.judge(hello(attempt), true, now), TcpHelloVerdict::accept);
    session.accepted(now);
    session.begun(direct, now);
  }
  void expect_refusal(TcpSession& session, const TcpSessionHello& hello, TcpRefusal why) {
    EXPECT_EQ(session.judge(hello, true, now), TcpHelloVerdict::refuse);
    EXPECT_EQ(session.refusal(), why) << name(session.refusal());
  }
  Nanos now = 5 * second;
};

TEST_F(TcpSessionTest, the_dialler_goes_on_after_the_reply) {
  auto session = end();
  dial(session);
  EXPECT_FALSE(session.resumes());
  EXPECT_EQ(session.judge(reply(), now), TcpReplyVerdict::adopt);
  EXPECT_EQ(session.stage(), Stage::retiring);
  EXPECT_FALSE(session.may_write());
  session.adopted(true, now);
  EXPECT_TRUE(session.may_write());
  EXPECT_TRUE(session.resumes());
  EXPECT_FALSE(session.dialling());
}

TEST_F(TcpSessionTest, the_acceptor_writes_nothing_before_begin) {
  auto session = end();
  ASSERT_EQ(session.judge(hello(1, 99, false), true, now), TcpHelloVerdict::accept);
  EXPECT_EQ(session.number(), 99u);
  EXPECT_FALSE(session.may_write());
  session.accepted(now);
  EXPECT_FALSE(session.may_write());
  session.begun(true, now);
  EXPECT_TRUE(session.may_write());
}

TEST_F(TcpSessionTest, the_word_is_believed_from_the_first_frame_to_the_next_hello) {
  auto session = end();
  dial(session);
  session.judge(reply(), now);
  session.adopted(true, now);
  EXPECT_FALSE(session.believes()) << "the peer may never have heard begin";
  session.heard();
  EXPECT_TRUE(session.believes());
  session.suspect();
  dial(session);
  EXPECT_FALSE(session.believes()) << "a hello is sent";
  EXPECT_TRUE(session.may_write()) << "but the old connection is in use";
  session.end_dial();
  session.heard();
  EXPECT_FALSE(session.believes()) << "never again for that connection";
  accept(session, 1);
  EXPECT_TRUE(session.believes()) << "begin is a word from the peer";
  ASSERT_EQ(session.judge(hello(2), true, now), TcpHelloVerdict::accept);
  EXPECT_FALSE(session.believes()) << "a hello is seen";
}

TEST_F(TcpSessionTest, a_relayed_path_is_never_believed) {
  auto session = end();
  connect(session, false);
  EXPECT_FALSE(session.believes());
  session.ended(now);
  accept(session, 1, true);
  EXPECT_TRUE(session.believes());
}

TEST_F(TcpSessionTest, a_stale_hello_changes_nothing) {
  auto session = end();
  connect(session);
  accept(session, 3);
  expect_refusal(session, hello(3), TcpRefusal::stale);
  expect_refusal(session, hello(2), TcpRefusal::stale);
  EXPECT_TRUE(session.believes());
  EXPECT_TRUE(session.may_write());
  EXPECT_EQ(session.judge(hello(4), true, now), TcpHelloVerdict::accept);
}

TEST_F(TcpSessionTest, a_reply_makes_the_hellos_stale_that_its_sender_sent_before) {
  auto session = end();
  dial(session);
  ASSERT_EQ(session.judge(reply(TcpRefusal::none, 6), now), TcpReplyVerdict::adopt);
  session.adopted(true, now);
  expect_refusal(session, hello(6), TcpRefusal::stale);
  EXPECT_EQ(session.judge(hello(7), true, now), TcpHelloVerdict::accept);
}

TEST_F(TcpSessionTest, both_dial_and_one_wins) {
  auto small = end(true), large = end(false);
  for (auto* session : {&small, &large}) {
    connect(*session);
    session->ended(now);
    dial(*session);
  }
  EXPECT_EQ(small.judge(hello(2), true, now), TcpHelloVerdict::hold);
  EXPECT_EQ(large.judge(hello(2), true, now), TcpHelloVerdict::accept);
  EXPECT_FALSE(large.dialling()) << "its own dial is withdrawn";
  large.accepted(now);
  ASSERT_EQ(small.judge(reply(), now), TcpReplyVerdict::adopt);
  EXPECT_EQ(small.judge(hello(2), true, now), TcpHelloVerdict::hold) << "until the stream goes on";
  small.adopted(true, now);
  expect_refusal(small, hello(2), TcpRefusal::stale);
}

TEST_F(TcpSessionTest, a_hello_waits_while_the_own_dial_is_adopted) {
  auto session = end(false);
  dial(session);
  ASSERT_EQ(session.judge(reply(), now), TcpReplyVerdict::adopt);
  EXPECT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::hold);
}

TEST_F(TcpSessionTest, an_unanswered_connection_holds_nobody_up) {
  auto session = end(true);
  connect(session);
  session.ended(now);
  session.begin_dial(now);
  EXPECT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::accept) << "no hello is out";
}

TEST_F(TcpSessionTest, a_blocked_direction_heals_from_the_other_side) {
  auto session = end(true);
  connect(session);
  session.ended(now);
  dial(session);
  EXPECT_EQ(session.judge(hello(1), true, now + second - 1), TcpHelloVerdict::hold);
  EXPECT_EQ(session.judge(hello(1), true, now + second), TcpHelloVerdict::accept) << "the reply does not come";
}

TEST_F(TcpSessionTest, a_paused_decoder_holds_the_hello) {
  auto session = end();
  connect(session);
  EXPECT_EQ(session.judge(hello(1), false, now), TcpHelloVerdict::hold);
  EXPECT_TRUE(session.believes()) << "the hello is not seen before it is accepted";
  EXPECT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::accept);
}

TEST_F(TcpSessionTest, a_reply_that_says_draining_stops_the_clock) {
  auto session = end();
  dial(session);
  EXPECT_TRUE(session.dial_expired(now + second));
  now += 900 * millisecond;
  EXPECT_EQ(session.judge(reply(TcpRefusal::draining), now), TcpReplyVerdict::wait);
  EXPECT_FALSE(session.dial_expired(now + second - 1));
  EXPECT_EQ(session.judge(reply(), now), TcpReplyVerdict::adopt);
}

TEST_F(TcpSessionTest, begin_in_a_replaced_socket_is_taken) {
  auto session = end();
  connect(session);
  ASSERT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::accept);
  session.accepted(now);
  ASSERT_EQ(session.judge(hello(2), true, now), TcpHelloVerdict::accept);
  session.begun(true, now);  // read from the connection that is being replaced
  EXPECT_EQ(session.stage(), Stage::retiring);
  EXPECT_FALSE(session.believes());
  session.accepted(now);
  session.begun(true, now);
  EXPECT_EQ(session.stage(), Stage::up);
}

TEST_F(TcpSessionTest, an_accepted_connection_without_begin_ends_after_a_second) {
  auto session = end();
  connect(session);
  ASSERT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::accept);
  session.accepted(now);
  EXPECT_FALSE(session.begin_expired(now + second - 1));
  EXPECT_TRUE(session.begin_expired(now + second));
  session.ended(now + second);
  EXPECT_TRUE(session.dial_due(now + second));
}

TEST_F(TcpSessionTest, dials_at_once_then_soon_then_later) {
  auto session = end();
  connect(session);
  EXPECT_FALSE(session.dial_due(now));
  session.ended(now);
  std::vector<Nanos> dials;
  for (Nanos at = now; at < now + 1 * second; at += 1 * millisecond) {
    session.step(at);
    if (!session.dial_due(at)) continue;
    dials.push_back(at - now);
    session.begin_dial(at);
    session.end_dial();
  }
  ASSERT_GT(dials.size(), 51u);
  EXPECT_EQ(dials[0], 0);
  EXPECT_EQ(dials[1], 2 * millisecond);
  EXPECT_EQ(dials[50], 100 * millisecond);
  EXPECT_EQ(dials[51], 300 * millisecond);
}

TEST_F(TcpSessionTest, each_dial_has_a_higher_number) {
  auto session = end();
  EXPECT_EQ(session.begin_dial(now), 1u);
  session.end_dial();
  EXPECT_EQ(session.begin_dial(now), 2u);
}

TEST_F(TcpSessionTest, a_suspicion_dials_beside_and_ends_when_bytes_move) {
  auto session = end();
  connect(session);
  session.suspect();
  EXPECT_TRUE(session.dial_due(now));
  EXPECT_FALSE(session.progressed()) << "there is no dial to drop yet";
  EXPECT_FALSE(session.dial_due(now));
  session.suspect();
  dial(session);
  EXPECT_TRUE(session.progressed());
  session.end_dial();
  EXPECT_TRUE(session.may_write());
}

TEST_F(TcpSessionTest, a_peer_that_gave_up_is_lost_unless_it_left) {
  auto session = end();
  connect(session);
  session.ended(now);
  dial(session);
  EXPECT_EQ(session.judge(reply(TcpRefusal::no_session), now), TcpReplyVerdict::lost);
  session.peer_left();
  now += second;
  dial(session);
  EXPECT_EQ(session.judge(reply(TcpRefusal::no_session), now), TcpReplyVerdict::left);
}

TEST_F(TcpSessionTest, who_has_read_the_last_frame_answers_left) {
  auto session = end();
  connect(session);
  session.peer_left();
  EXPECT_EQ(session.judge(hello(1), true, now), TcpHelloVerdict::accept) << "the old connection may hold more";
  session.ended(now);
  expect_refusal(session, hello(2), TcpRefusal::left);
  EXPECT_TRUE(session.dial_due(now)) << "the peer may be unable to dial";
  dial(session);
  EXPECT_EQ(session.judge(reply(TcpRefusal::left), now), TcpReplyVerdict::left);
}

TEST_F(TcpSessionTest, another_session_is_a_new_link_or_unknown) {
  auto session = end();
  connect(session);
  expect_refusal(session, hello(1, 5, true), TcpRefusal::no_session);
  EXPECT_EQ(session.judge(hello(1, 5, false), true, now), TcpHelloVerdict::new_link);
  EXPECT_TRUE(session.believes());
}

TEST_F(TcpSessionTest, first_hellos_that_cross_agree_on_one_number) {
  auto small = end(true, 1), large = end(false, 2);
  dial(small);
  dial(large);
  EXPECT_EQ(small.judge(hello(1, 2, false), true, now), TcpHelloVerdict::hold);
  ASSERT_EQ(large.judge(hello(1, 1, false), true, now), TcpHelloVerdict::accept);
  large.accepted(now);
  ASSERT_EQ(small.judge(reply(TcpRefusal::none, 1), now), TcpReplyVerdict::adopt);
  small.adopted(true, now);
  small.heard();
  expect_refusal(small, hello(1, 2, false), TcpRefusal::stale);
  EXPECT_EQ(small.number(), large.number());
}

TEST_F(TcpSessionTest, a_first_connection_whose_reply_was_lost_is_made_again) {
  auto acceptor = end(false, 2);
  ASSERT_EQ(acceptor.judge(hello(1, 1, false), true, now), TcpHelloVerdict::accept);
  acceptor.accepted(now);
  acceptor.ended(now);
  EXPECT_FALSE(acceptor.down_for(now)) << "the stream was never up";
  EXPECT_EQ(acceptor.judge(hello(2, 1, false), true, now), TcpHelloVerdict::accept);
}

TEST_F(TcpSessionTest, time_in_which_the_process_was_stopped_does_not_count) {
  auto session = end();
  connect(session);
  session.step(now);
  session.ended(now);
  dial(session);
  const Nanos awake = now + 60 * second;
  session.step(awake);
  EXPECT_EQ(session.down_for(awake), 0);
  EXPECT_FALSE(session.dial_expired(awake));
  EXPECT_TRUE(session.dial_expired(awake + second));
}

TEST_F(TcpSessionTest, waiting_for_a_time_limit_does_not_look_like_being_stopped) {
  auto session = end();
  connect(session);
  session.ended(now);
  dial(session);
  Nanos at = now;
  session.step(at);
  for (int i = 0; i < 10 && !session.dial_expired(at); ++i) {
    at = session.next_deadline() + millisecond;
    session.step(at);
  }
  EXPECT_TRUE(session.dial_expired(at));
  EXPECT_LT(at, now + 1100 * millisecond);
}

TEST_F(TcpSessionTest, the_side_that_waits_dials_later) {
  TcpSession session({.first_dial = now + second});
  session.step(now);
  EXPECT_FALSE(session.dial_due(now));
  EXPECT_TRUE(session.dial_due(now + second));
}

}  // namespace
}  // namespace unisono
