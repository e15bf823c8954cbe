// A group of Verdict machines in virtual time. Messages are delayed, lost or doubled. Members crash between any two of their
// sends. One seed determines all random choices.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "elastic/round/verdict.h"

namespace unisono::test {

// Returns one bit per character; the first character is chunk 0.
inline ChunkBits bits(std::string_view text) {
  ChunkBits bits(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '1') bits.set(i);
  }
  return bits;
}
inline std::string to_string(const ChunkBits& bits) {
  std::string text;
  for (size_t i = 0; i < bits.size(); ++i) text += bits.test(i) ? '1' : '0';
  return text;
}

struct VirtualGroupOptions {
  uint32_t members = 0;
  std::vector<bool> proposer;
  size_t chunks = 4;
  Nanos ballot_timeout = 1 * second;
  Nanos delay_min = 0, delay_max = 0;
  Nanos wake_late_max = 0;  // largest delay of a member's wake-up after its deadline
  double loss = 0, duplicates = 0;
  uint64_t seed = 1;
};

class VirtualGroup {
 public:
  explicit VirtualGroup(const VirtualGroupOptions& options)
      : options_(options), random_(options.seed), nodes_(options.members) {
    for (uint32_t rank = 0; rank < options.members; ++rank) {
      nodes_[rank].machine = std::make_unique<Verdict>(
          VerdictOptions{options.members, rank, options.proposer, options.chunks, options.ballot_timeout});
    }
  }

  void have_at(uint32_t rank, const ChunkBits& mine, Nanos when) {
    at(when, [this, rank, mine] {
      if (!nodes_[rank].alive) return;
      nodes_[rank].had = mine;
      nodes_[rank].machine->have(mine, now_);
      settle(rank);
    });
  }
  void crash_at(uint32_t rank, Nanos when) {
    at(when, [this, rank] { crash(rank); });
  }
  // Crashes the member just before it sends its message number `send`.
  void crash_before_send(uint32_t rank, uint32_t send) { nodes_[rank].dies_at_send = send; }
  void gone_at(uint32_t rank, uint32_t observer, Nanos when) {
    at(when, [this, rank, observer] {
      if (!nodes_[observer].alive) return;
      nodes_[observer].machine->member_gone(rank, now_);
      settle(observer);
    });
  }

  // Runs until no event is left, or until time `until`.
  void run(Nanos until) {
    while (!events_.empty() && events_.top().when <= until) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.when;
      event.act();
    }
  }

  const Verdict& machine(uint32_t rank) const { return *nodes_[rank].machine; }
  bool alive(uint32_t rank) const { return nodes_[rank].alive; }
  const std::optional<ChunkBits>& had(uint32_t rank) const { return nodes_[rank].had; }
  Nanos decided_at(uint32_t rank) const { return nodes_[rank].decided_at; }
  Nanos last_crash() const { return last_crash_; }
  uint64_t messages() const { return messages_; }

 private:
  struct Node {
    std::unique_ptr<Verdict> machine;
    bool alive = true;
    std::optional<ChunkBits> had;
    Nanos decided_at = never;
    Nanos woken_for = never;
    uint32_t sends = 0;
    std::optional<uint32_t> dies_at_send;
  };
  struct Event {
    Nanos when;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(when, number) > std::pair(other.when, other.number); }
  };

  void at(Nanos when, std::function<void()> act) { events_.push({when, event_number_++, std::move(act)}); }
  Nanos up_to(Nanos bound) { return static_cast<Nanos>(random_.below(static_cast<uint64_t>(bound) + 1)); }
  void crash(uint32_t rank) {
    nodes_[rank].alive = false;
    last_crash_ = now_;
  }

  void settle(uint32_t rank) {
    auto& node = nodes_[rank];
    if (node.machine->decided() != nullptr && node.decided_at == never) node.decided_at = now_;
    for (auto& send : node.machine->take_sends()) {
      if (node.dies_at_send == node.sends) return crash(rank);
      ++node.sends;
      transmit(rank, send.to, send.message);
    }
    const Nanos deadline = node.machine->next_deadline();
    if (deadline == never || deadline == node.woken_for) return;
    node.woken_for = deadline;
    at(std::max(deadline, now_) + up_to(options_.wake_late_max), [this, rank] {
      if (!nodes_[rank].alive) return;
      nodes_[rank].machine->woke(now_);
      settle(rank);
    });
  }

  void transmit(uint32_t from, uint32_t to, const VerdictMessage& message) {
    ++messages_;
    if (random_.chance(options_.loss)) return;
    for (int copies = random_.chance(options_.duplicates) ? 2 : 1; copies > 0; --copies) {
      at(now_ + options_.delay_min + up_to(options_.delay_max - options_.delay_min), [this, from, to, message] {
        if (!nodes_[to].alive) return;
        nodes_[to].machine->message(from, message, now_);
        settle(to);
      });
    }
  }

  VirtualGroupOptions options_;
  Random random_;
  std::vector<Node> nodes_;
  std::priority_queue<Event> events_;
  uint64_t event_number_ = 0;
  uint64_t messages_ = 0;
  Nanos now_ = 0;
  Nanos last_crash_ = 0;
};

}  // namespace unisono::test
