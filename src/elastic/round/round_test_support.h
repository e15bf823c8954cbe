// A group of rounds in a virtual network. Messages have delays, but messages from one member to another keep their order.
// Members die at chosen messages, and the others may notice the death or not. A filter decides the fate of each message. So a
// test can kill a member between any two of its sends.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "base/random.h"
#include "elastic/round/moshpit_round.h"

namespace unisono::test {

enum class Fate { arrives, lost, sender_dies };  // sender_dies: this and all later messages of the sender are never sent

struct RoundGroupOptions {
  std::vector<RoundMember> members;
  std::vector<uint32_t> chunk_counts;
  ChunkTable table;
  std::vector<std::vector<float>> x;              // values by rank; empty for reducers
  std::vector<std::vector<ChunkState>> states{};  // states of the chunks by rank; empty: weight 1
  ElasticTimes times{};
  Nanos contribute_timeout = 5 * second, round_timeout = 30 * second;
  CommitRule commit = CommitRule::agreed;
  WireCodec contribute{}, result{};
  bool line_complete = true;
  Nanos delay_min = millisecond, delay_max = millisecond;
  uint64_t seed = 1;
  Nanos noticed_after = 50 * millisecond;  // time until the other members notice a death; `never`: they do not
  MemberLoss noticed_as = MemberLoss::dead;
  size_t credit_bytes = SIZE_MAX;  // limit of bytes of bulk messages in flight to one member
  std::vector<bool> absent{};      // by rank; true: the member never starts
};

class RoundGroup {
 public:
  using Filter = std::function<Fate(uint32_t from, uint32_t to, const RoundMessage& message)>;

  explicit RoundGroup(RoundGroupOptions options) : options_(std::move(options)), random_(options_.seed) {
    const size_t count = options_.members.size();
    if (options_.states.empty()) options_.states.resize(count);
    for (size_t rank = 0; rank < count; ++rank) {
      const bool reducer = options_.members[rank].role == ElasticRole::reducer;
      if (!reducer && options_.states[rank].empty()) options_.states[rank].resize(options_.table.chunks());
    }
    options_.absent.resize(count);
    nodes_.resize(count);
    last_arrival_.assign(count, std::vector<Nanos>(count));
    on_the_way_.assign(count, std::vector<size_t>(count));
    refused_.assign(count, std::vector<bool>(count));
    for (uint32_t rank = 0; rank < count; ++rank) {
      nodes_[rank].port = std::make_unique<Port>(*this, rank);
      if (!options_.x[rank].empty())
        nodes_[rank].values = ChunkValues(options_.table, SharedBuffer::copy(std::as_bytes(std::span(options_.x[rank]))));
      auto made = MoshpitRound::make(request(rank), *nodes_[rank].port);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      nodes_[rank].round = std::move(*made);
    }
  }

  void filter(Filter filter) { filter_ = std::move(filter); }
  void at(Nanos time, std::function<void()> act) { events_.push({time, event_number_++, std::move(act)}); }

  void start() {
    for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
      if (options_.absent[rank]) nodes_[rank].alive = false;
      else start(rank);
    }
  }
  // Runs until every living member has ended. The test fails if that takes more than two round_timeouts.
  void run() {
    start();
    while (!all_ended() && !events_.empty() && now_ <= 2 * options_.round_timeout) next();
    EXPECT_TRUE(all_ended()) << "after " << now_ / millisecond << " ms";
  }
  void run_until(Nanos time) {
    while (!events_.empty() && events_.top().time <= time) next();
    now_ = std::max(now_, time);
  }
  void kill(uint32_t rank) {
    if (!nodes_[rank].alive) return;
    nodes_[rank].alive = false;
    if (options_.noticed_after == never) return;
    for (uint32_t other = 0; other < nodes_.size(); ++other) {
      at(now_ + options_.noticed_after, [this, other, rank] { gone(other, rank, options_.noticed_as); });
    }
  }
  void gone(uint32_t at, uint32_t rank, MemberLoss why) {
    if (nodes_[at].alive && nodes_[at].started) nodes_[at].round->member_gone(rank, why, now_);
    after_event(at);
  }
  void inject(uint32_t from, uint32_t to, const SharedBuffer& message) {
    nodes_[to].round->message(from, message, now_);
    after_event(to);
  }

  MoshpitRound& round(uint32_t rank) { return *nodes_[rank].round; }
  const RoundReport& report(uint32_t rank) { return nodes_[rank].round->report(); }
  bool alive(uint32_t rank) const { return nodes_[rank].alive; }
  const std::vector<float>& x(uint32_t rank) const { return options_.x[rank]; }
  const std::vector<ChunkState>& states(uint32_t rank) const { return options_.states[rank]; }
  Nanos ended_at(uint32_t rank) const { return nodes_[rank].ended_at; }
  Nanos now() const { return now_; }
  size_t held_bytes_max() const { return held_bytes_max_; }
  uint64_t messages() const { return message_number_; }
  RoundFormat format() const {
    return {.group = {7, 9},
            .members = static_cast<uint32_t>(nodes_.size()),
            .table = options_.table,
            .contribute = options_.contribute,
            .result = options_.result};
  }

 private:
  struct Port final : RoundPort {
    Port(RoundGroup& group, uint32_t self) : group_(group), self_(self) {}
    void send(uint32_t rank, SharedMessage message, bool bulk) override { group_.send(self_, rank, message.whole(), bulk); }
    bool credit(uint32_t rank) const override {
      const bool free = group_.on_the_way_[self_][rank] < group_.options_.credit_bytes;
      if (!free) group_.refused_[self_][rank] = true;
      return free;
    }
    RoundGroup& group_;
    uint32_t self_;
  };
  struct Node {
    std::unique_ptr<Port> port;
    ChunkValues values;
    std::unique_ptr<MoshpitRound> round;
    bool alive = true, started = false;
    Nanos wake_at = never, ended_at = never;
  };
  struct Event {
    Nanos time;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(time, number) > std::pair(other.time, other.number); }
  };

  RoundRequest request(uint32_t rank) {
    return {.id = {7, 9},
            .self = rank,
            .members = options_.members,
            .chunk_counts = options_.chunk_counts,
            .table = options_.table,
            .times = options_.times,
            .contribute_timeout = options_.contribute_timeout,
            .round_timeout = options_.round_timeout,
            .commit = options_.commit,
            .contribute_codec = options_.contribute,
            .result_codec = options_.result,
            .line_complete = options_.line_complete,
            .values = options_.x[rank].empty() ? nullptr : &nodes_[rank].values,
            .states = options_.states[rank]};
  }
  void start(uint32_t rank) {
    nodes_[rank].started = true;
    nodes_[rank].round->start(now_);
    after_event(rank);
  }
  bool all_ended() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return !node.alive || node.ended_at != never; });
  }
  void next() {
    const auto event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.time);
    event.act();
  }
  void after_event(uint32_t rank) {
    auto& node = nodes_[rank];
    if (!node.alive || !node.started) return;
    held_bytes_max_ = std::max(held_bytes_max_, node.round->held_bytes());
    if (node.round->ended() && node.ended_at == never) {
      node.ended_at = now_;
      options_.x[rank] = node.values.all();
    }
    const Nanos deadline = node.round->next_deadline();
    if (deadline == never || deadline >= node.wake_at) return;
    node.wake_at = deadline;
    at(std::max(deadline, now_), [this, rank, deadline] {
      auto& woken = nodes_[rank];
      if (woken.wake_at != deadline) return;
      woken.wake_at = never;
      if (!woken.alive) return;
      if (now_ >= woken.round->next_deadline()) woken.round->woke(now_);
      if (!woken.round->over(now_)) after_event(rank);
    });
  }
  void send(uint32_t from, uint32_t to, SharedBuffer message, bool bulk) {
    if (!nodes_[from].alive) return;  // the member died earlier while this event was handled
    Fate fate = Fate::arrives;
    ++message_number_;
    if (filter_) {
      RoundMessage read;
      EXPECT_TRUE(read_round_message(format(), message.view(), read).ok());
      fate = filter_(from, to, read);
    }
    if (fate == Fate::sender_dies) return kill(from);
    if (fate == Fate::lost) return;
    if (bulk) on_the_way_[from][to] += message.size();
    auto& last = last_arrival_[from][to];
    last = std::max(last,
                    now_ + options_.delay_min +
                        static_cast<Nanos>(random_.below(static_cast<uint64_t>(options_.delay_max - options_.delay_min + 1))));
    at(last, [this, from, to, message = std::move(message), bulk] { arrive(from, to, message, bulk); });
  }
  void arrive(uint32_t from, uint32_t to, const SharedBuffer& message, bool bulk) {
    if (bulk) on_the_way_[from][to] -= message.size();
    if (nodes_[to].alive && nodes_[to].started) nodes_[to].round->message(from, message, now_);
    after_event(to);
    if (!bulk || !refused_[from][to] || !nodes_[from].alive || on_the_way_[from][to] >= options_.credit_bytes) return;
    refused_[from][to] = false;
    nodes_[from].round->credit(to, now_);
    after_event(from);
  }

  RoundGroupOptions options_;
  Random random_;
  std::vector<Node> nodes_;
  Filter filter_;
  std::priority_queue<Event> events_;
  uint64_t event_number_ = 0, message_number_ = 0;
  std::vector<std::vector<Nanos>> last_arrival_;
  std::vector<std::vector<size_t>> on_the_way_;
  std::vector<std::vector<bool>> refused_;
  Nanos now_ = 0;
  size_t held_bytes_max_ = 0;
};

// Returns layout members, each at a position of its own.
inline std::vector<RoundMember> line_of(uint32_t members) {
  std::vector<RoundMember> line(members);
  for (uint32_t rank = 0; rank < members; ++rank) line[rank] = {.position = rank, .role = ElasticRole::peer, .in_layout = true};
  return line;
}

}  // namespace unisono::test
