#include "events/event_queue.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/concat.h"
#include "events/event_log.h"

namespace unisono {
namespace {

TEST(EventQueue, an_event_is_delivered_once_with_its_source) {
  std::vector<Event> got;
  EventQueue queue([&](const Event& event) { got.push_back(event); }, nullptr);
  queue.set_source("rank 1 (host a, pid 42)");
  queue.add(EventKind::link_lost, 3, "rank 3 is gone");
  EXPECT_TRUE(queue.is_waiting());
  EXPECT_TRUE(got.empty());
  queue.deliver();
  queue.deliver();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].kind, EventKind::link_lost);
  EXPECT_EQ(got[0].rank, 3);
  EXPECT_EQ(got[0].text, "rank 3 is gone");
  EXPECT_EQ(got[0].source, "rank 1 (host a, pid 42)");
  EXPECT_FALSE(queue.is_waiting());
}

TEST(EventQueue, a_handler_that_adds_and_delivers_events_is_not_entered_twice) {
  std::string order;
  EventQueue* queue = nullptr;
  EventQueue own(
      [&](const Event& event) {
        order += "(" + event.text;
        if (event.text == "first") queue->add(EventKind::joined, -1, "second");
        queue->deliver();
        order += ")";
      },
      nullptr);
  queue = &own;
  own.add(EventKind::joined, -1, "first");
  own.deliver();
  EXPECT_EQ(order, "(first)(second)");
}

TEST(EventQueue, an_exception_of_the_handler_does_not_stop_later_events) {
  int calls = 0;
  EventQueue queue([&](const Event&) { ++calls, throw std::runtime_error("handler"); }, nullptr);
  queue.add(EventKind::joined, -1, "first");
  queue.add(EventKind::joined, -1, "second");
  queue.deliver();
  EXPECT_EQ(calls, 2);
}

TEST(EventQueue, events_beyond_the_limit_are_counted_and_the_count_is_reported) {
  std::vector<std::string> texts;
  EventQueue queue([&](const Event& event) { texts.push_back(event.text); }, nullptr);
  for (size_t i = 0; i < EventQueue::waiting_max + 3; ++i) queue.add(EventKind::joined, -1, concat("event ", i));
  queue.deliver();
  EXPECT_EQ(texts.size(), EventQueue::waiting_max);
  queue.add(EventKind::joined, -1, "later");
  queue.deliver();
  EXPECT_EQ(texts.back(), "later (3 events before this one were dropped)");
}

TEST(EventQueue, the_log_gets_the_events_without_a_handler) {
  std::string lines;
  EventLog log(
      LogTarget{}, [] { return Nanos{0}; }, [&](std::string_view line) { lines += line; });
  EventQueue queue({}, &log);
  queue.add(EventKind::record_unavailable, -1, "no space");
  queue.deliver();
  EXPECT_EQ(lines, "unisono: warning: no space (record_unavailable)\n");
}

}  // namespace
}  // namespace unisono
