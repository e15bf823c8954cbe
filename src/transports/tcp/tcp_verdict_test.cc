#include "transports/tcp/tcp_verdict.h"

#include <gtest/gtest.h>

#include "transports/tcp/tcp_confirm_clock.h"

namespace unisono {
namespace {

TcpEvidence after(TcpEnd end, Nanos down_for = 0) { return {.end = end, .down_for = down_for}; }

TEST(TcpVerdict, a_process_that_left_is_gone_after_a_clean_end) {
  auto seen = after(TcpEnd::clean);
  seen.leaving = true;
  EXPECT_EQ(judge(seen), TcpVerdict::left);
  seen.end = TcpEnd::none;
  seen.process_there = false;
  EXPECT_EQ(judge(seen), TcpVerdict::outage) << "its connection still stands, and may hold its last frames";
}

TEST(TcpVerdict, a_reset_after_leaving_is_dialled_until_it_is_answered_refused_or_late) {
  auto seen = after(TcpEnd::reset, 9 * second);
  seen.leaving = true;
  EXPECT_EQ(judge(seen), TcpVerdict::outage);
  for (const auto member : {&TcpEvidence::confirmed, &TcpEvidence::refused, &TcpEvidence::no_session, &TcpEvidence::gone}) {
    auto more = seen;
    more.*member = true;
    EXPECT_EQ(judge(more), TcpVerdict::left);
  }
  seen.down_for = 10 * second;
  EXPECT_EQ(judge(seen), TcpVerdict::left);
}

TEST(TcpVerdict, a_local_process_is_dead_when_it_is_gone_and_not_before) {
  auto seen = after(TcpEnd::reset);
  seen.process_there = false;
  EXPECT_EQ(judge(seen), TcpVerdict::dead);
  seen = after(TcpEnd::clean, 9 * second);
  seen.process_there = true;
  seen.refused = seen.answered_before = seen.gone = true;
  EXPECT_EQ(judge(seen), TcpVerdict::outage) << "whatever refuses";
  seen.down_for = 10 * second;
  EXPECT_EQ(judge(seen), TcpVerdict::lost);
}

TEST(TcpVerdict, a_kill_is_told_in_200_ms_and_an_outage_is_not) {
  auto killed = after(TcpEnd::reset);
  killed.refused = true;
  EXPECT_EQ(judge(killed), TcpVerdict::outage) << "the peer's own dial is awaited";
  killed.refused_for = 150 * millisecond;
  EXPECT_EQ(judge(killed), TcpVerdict::dead);
  killed.refused_for = 0;
  killed.answered_before = true;
  EXPECT_EQ(judge(killed), TcpVerdict::dead) << "one round trip";
  EXPECT_EQ(judge(after(TcpEnd::reset, 200 * millisecond)), TcpVerdict::outage);
}

TEST(TcpVerdict, another_process_at_its_address_proves_the_death) {
  auto seen = after(TcpEnd::reset);
  seen.gone = true;
  EXPECT_EQ(judge(seen), TcpVerdict::dead);
}

TEST(TcpVerdict, a_clean_end_is_told_in_a_second) {
  EXPECT_EQ(judge(after(TcpEnd::clean, 999 * millisecond)), TcpVerdict::outage);
  EXPECT_EQ(judge(after(TcpEnd::clean, 1 * second)), TcpVerdict::dead);
}

TEST(TcpVerdict, silence_after_a_reset_is_an_outage_until_the_link_timeout) {
  EXPECT_EQ(judge(after(TcpEnd::reset, 10 * second - 1)), TcpVerdict::outage);
  EXPECT_EQ(judge(after(TcpEnd::reset, 10 * second)), TcpVerdict::lost);
  EXPECT_EQ(judge(after(TcpEnd::reset, 10 * second), {.link_timeout = 20 * second}), TcpVerdict::outage);
}

TEST(TcpVerdict, a_peer_that_gave_the_link_up_is_lost) {
  auto seen = after(TcpEnd::none);
  seen.no_session = true;
  EXPECT_EQ(judge(seen), TcpVerdict::lost);
}

TEST(TcpVerdict, a_successor_proves_the_death) {
  auto seen = after(TcpEnd::none);
  seen.successor = true;
  EXPECT_EQ(judge(seen), TcpVerdict::dead);
}

TEST(TcpVerdict, suspicion_needs_bytes_repeats_and_silence) {
  EXPECT_TRUE(is_suspicious(1, 2, 1 * second));
  EXPECT_FALSE(is_suspicious(0, 2, 1 * second));
  EXPECT_FALSE(is_suspicious(1, 1, 1 * second));
  EXPECT_FALSE(is_suspicious(1, 2, 1 * second - 1));
}

TEST(TcpConfirmClock, confirms_after_bytes_frames_or_quiet) {
  TcpConfirmClock clock;
  EXPECT_FALSE(clock.due(TcpConfirmClock::bytes_max - 1, 0));
  EXPECT_TRUE(clock.due(TcpConfirmClock::bytes_max, 0));
  EXPECT_TRUE(TcpConfirmClock(true).due(TcpConfirmClock::relayed_bytes_max, 0));
  clock.said(TcpConfirmClock::bytes_max);
  EXPECT_FALSE(clock.due(TcpConfirmClock::bytes_max, 0));
  EXPECT_EQ(clock.deadline(), never);
  clock.read({.frames = 255}, 7 * millisecond);
  EXPECT_EQ(clock.deadline(), 12 * millisecond);
  EXPECT_FALSE(clock.due(TcpConfirmClock::bytes_max, 12 * millisecond - 1));
  EXPECT_TRUE(clock.due(TcpConfirmClock::bytes_max, 12 * millisecond));
  clock.read({.frames = 1}, 8 * millisecond);
  EXPECT_TRUE(clock.due(TcpConfirmClock::bytes_max, 8 * millisecond));
}

TEST(TcpConfirmClock, confirms_at_once_if_asked_and_never_what_only_confirms) {
  TcpConfirmClock clock;
  clock.read({}, 1);
  EXPECT_FALSE(clock.due(64, second));
  clock.read({.now = true}, 1);
  EXPECT_TRUE(clock.due(64, 1));
  clock.said(64);
  EXPECT_FALSE(clock.due(64, second));
}

}  // namespace
}  // namespace unisono
