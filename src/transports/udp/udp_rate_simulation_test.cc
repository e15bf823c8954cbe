// Simulations of the rate control: one or several senders share a virtual link with a short queue and random loss behind the
// queue.
#include <gtest/gtest.h>

#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "base/random.h"
#include "transports/udp/path/udp_pacer.h"
#include "transports/udp/path/udp_rate_control.h"

namespace unisono {
namespace {

constexpr uint32_t datagram_bytes = 1472, wire_bytes = datagram_bytes + 28;

struct LinkSettings {
  double rate = 25e6;  // bytes/s: 200 Mbit/s
  size_t queue_bytes = 256'000;
  Nanos delay = 100 * microsecond;  // one way
  double loss = 0;                  // probability that a datagram or a report is lost
  uint64_t start = 1'250'000;       // starting rate of each sender, bytes/s
  Nanos on = never, off = 0;        // senders send for `on`, then pause for `off`
};

class Bottleneck {
 public:
  Bottleneck(const LinkSettings& settings, size_t senders, uint64_t seed) : settings_(settings), random_(seed) {
    for (size_t i = 0; i < senders; ++i) {
      senders_.push_back(std::make_unique<Sender>(settings, static_cast<uint32_t>(random_.next())));
      push({.at = static_cast<Nanos>(random_.below(millisecond)), .kind = Kind::send, .sender = i});
    }
  }

  void run(Nanos until) {
    while (!events_.empty() && events_.top().at <= until) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Kind::send: send(event); break;
        case Kind::arrive: arrive(event); break;
        case Kind::report: report(event); break;
        case Kind::feedback: feedback(event); break;
      }
    }
    now_ = until;
  }

  struct Counts {
    uint64_t sent = 0, queue_drops = 0, arrived = 0;
  };
  Counts take_counts(size_t sender) { return std::exchange(senders_[sender]->counts, {}); }
  RateControl& control(size_t sender) { return senders_[sender]->control; }
  size_t queued_bytes(Nanos now) const {
    return free_at_ <= now ? 0 : static_cast<size_t>(static_cast<double>(free_at_ - now) * 1e-9 * settings_.rate);
  }

 private:
  struct Sender {
    Sender(const LinkSettings& settings, uint32_t offset)
        : control({.start = settings.start}), bucket(settings.start, datagram_bytes), clock_offset(offset) {}
    RateControl control;
    RttEstimator rtt;
    TokenBucket bucket;
    ArrivalMeter meter;
    uint32_t next_seq = UINT32_MAX - 1000, clock_offset;
    bool report_planned = false;
    Counts counts;
  };
  enum class Kind : uint8_t { send, arrive, report, feedback };
  struct Event {
    Nanos at = 0;
    Kind kind = Kind::send;
    size_t sender = 0;
    uint32_t flow_seq = 0, sent_at_us = 0;
    FlowFeedback report{};
    bool operator>(const Event& other) const { return at > other.at; }
  };
  static uint32_t us(Nanos now) { return static_cast<uint32_t>(now / microsecond); }
  void push(const Event& event) { events_.push(event); }

  void send(const Event& event) {
    auto& sender = *senders_[event.sender];
    const Nanos now = event.at;
    if (settings_.on != never && now % (settings_.on + settings_.off) > settings_.on) {
      return push({.at = (now / (settings_.on + settings_.off) + 1) * (settings_.on + settings_.off),
                   .kind = Kind::send,
                   .sender = event.sender});
    }
    while (sender.bucket.take(datagram_bytes, now)) {
      sender.control.sent(datagram_bytes);
      ++sender.counts.sent;
      const uint32_t flow_seq = sender.next_seq++;
      if (queued_bytes(now) + wire_bytes > settings_.queue_bytes) {
        ++sender.counts.queue_drops;
        continue;
      }
      free_at_ = std::max(free_at_, now) + static_cast<Nanos>(wire_bytes / settings_.rate * 1e9);
      if (random_.chance(settings_.loss)) continue;
      push({.at = free_at_ + settings_.delay,
            .kind = Kind::arrive,
            .sender = event.sender,
            .flow_seq = flow_seq,
            .sent_at_us = us(now)});
    }
    push({.at = sender.bucket.ready_at(datagram_bytes, now), .kind = Kind::send, .sender = event.sender});
  }

  void arrive(const Event& event) {
    auto& sender = *senders_[event.sender];
    ++sender.counts.arrived;
    sender.meter.arrived(event.flow_seq, event.sent_at_us, us(event.at) + sender.clock_offset, event.at);
    if (sender.meter.due() <= event.at) return answer(event.sender, event.at);
    if (!std::exchange(sender.report_planned, true))
      push({.at = sender.meter.due(), .kind = Kind::report, .sender = event.sender});
  }
  void report(const Event& event) {
    auto& sender = *senders_[event.sender];
    sender.report_planned = false;
    if (sender.meter.due() <= event.at) return answer(event.sender, event.at);
    if (sender.meter.due() == never) return;
    sender.report_planned = true;
    push({.at = sender.meter.due(), .kind = Kind::report, .sender = event.sender});
  }
  void answer(size_t index, Nanos now) {
    auto& sender = *senders_[index];
    const auto report = sender.meter.report(0, us(now) + sender.clock_offset);
    if (!random_.chance(settings_.loss))
      push({.at = now + settings_.delay, .kind = Kind::feedback, .sender = index, .report = report});
  }
  void feedback(const Event& event) {
    auto& sender = *senders_[event.sender];
    sender.rtt.echoed(us(event.at), event.report.echo_sent_at_us, event.report.echo_held_us);
    if (sender.control.feedback(event.report, sender.rtt, event.at))
      sender.bucket.set(sender.control.rate(), datagram_bytes, event.at);
  }

  LinkSettings settings_;
  Random random_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Nanos free_at_ = 0, now_ = 0;
};

// shares: the fraction of the link's rate that each sender got
// together: the sum of `shares`
// queue_loss: the fraction of datagrams that the queue dropped
struct Outcome {
  std::vector<double> shares;
  double together = 0, queue_loss = 0;
};
Outcome measure(Bottleneck& link, const LinkSettings& settings, size_t senders, Nanos from, Nanos to) {
  link.run(from);
  for (size_t i = 0; i < senders; ++i) link.take_counts(i);
  link.run(to);
  Outcome outcome;
  uint64_t sent = 0, dropped = 0;
  for (size_t i = 0; i < senders; ++i) {
    const auto counts = link.take_counts(i);
    sent += counts.sent;
    dropped += counts.queue_drops;
    outcome.shares.push_back(static_cast<double>((counts.sent - counts.queue_drops) * wire_bytes) /
                             (settings.rate * static_cast<double>(to - from) * 1e-9));
    outcome.together += outcome.shares.back();
  }
  outcome.queue_loss = static_cast<double>(dropped) / static_cast<double>(sent);
  return outcome;
}

TEST(RateSimulation, a_sender_fills_the_link_and_not_its_queue_at_any_loss) {
  for (const double loss : {0.0, 0.1, 0.2}) {
    for (const uint64_t start : {125'000ull, 1'250'000ull, 12'500'000ull, 100'000'000ull}) {
      const LinkSettings settings{.loss = loss, .start = start};
      Bottleneck link(settings, 1, 7);
      const auto outcome = measure(link, settings, 1, second, 8 * second);
      SCOPED_TRACE(testing::Message() << "loss " << loss << " start " << start);
      EXPECT_GE(outcome.together, 0.85);
      EXPECT_LE(outcome.together, 1.05);
      EXPECT_LE(outcome.queue_loss, 0.002);
    }
  }
}

TEST(RateSimulation, four_senders_into_one_link_share_it) {
  for (const double loss : {0.0, 0.1, 0.2}) {
    const LinkSettings settings{.loss = loss};
    Bottleneck link(settings, 4, 11);
    const auto outcome = measure(link, settings, 4, 2 * second, 12 * second);
    SCOPED_TRACE(loss);
    EXPECT_GE(outcome.together, 0.85);
    EXPECT_LE(outcome.queue_loss, 0.002);
    for (const double share : outcome.shares) EXPECT_GE(share, 0.25 / 4);
  }
}

TEST(RateSimulation, a_queue_of_64_kilobytes_costs_datagrams_but_no_throughput) {
  for (const size_t senders : {1u, 4u}) {
    const LinkSettings settings{.queue_bytes = 64'000};
    Bottleneck link(settings, senders, 19);
    const auto outcome = measure(link, settings, senders, 2 * second, 12 * second);
    SCOPED_TRACE(senders);
    EXPECT_GE(outcome.together, 0.85);
    EXPECT_LE(outcome.queue_loss, senders == 1 ? 0.05 : 0.2) << "2.6 ms of queue are full before four reports have told of it";
  }
}

TEST(RateSimulation, a_minute_long_stream_builds_no_standing_queue) {
  const LinkSettings settings;
  Bottleneck link(settings, 1, 13);
  const auto outcome = measure(link, settings, 1, 50 * second, 60 * second);
  EXPECT_GE(outcome.together, 0.85);
  EXPECT_LE(link.queued_bytes(60 * second), 100'000u) << "4 ms";
}

TEST(RateSimulation, bursts_of_five_milliseconds_are_not_faster_than_the_link_either) {
  for (const double loss : {0.0, 0.1}) {
    const LinkSettings settings{.loss = loss, .on = 5 * millisecond, .off = 15 * millisecond};
    Bottleneck link(settings, 1, 17);
    const auto outcome = measure(link, settings, 1, second, 8 * second);
    SCOPED_TRACE(loss);
    EXPECT_GE(outcome.together, 0.25 * 0.8);
    EXPECT_LE(outcome.queue_loss, 0.002);
  }
}

}  // namespace
}  // namespace unisono
