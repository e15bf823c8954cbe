// A virtual network for tests of group formation. Each process has a coordinator and a seeker. The test sets delays and losses.
// All messages are encoded and decoded on the way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/group_seeker.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono::test {

struct NetOptions {
  uint32_t peers = 8;
  std::vector<PeerId> clients = {};  // these peers are never holders of a slot
  std::string run = "run";
  ElasticTimes times;
  uint64_t seed = 1;
  double loss = 0;
  // True: the members of a formed group send round messages. Peers that lack the descriptor learn of the group from them.
  bool members_send_keep_alives = false;
  std::function<Nanos(Random&)> delay = [](Random&) { return 40 * millisecond; };
};

class FormationNet {
 public:
  struct Node {
    PeerId id;
    FakeFormationView view;
    std::unique_ptr<GroupCoordinator> coordinator;
    std::unique_ptr<GroupSeeker> seeker;
    bool alive = true;
    std::optional<SeekOutcome> outcome;
    Nanos ended = never;
    std::vector<DeclineEvent> declines;
    std::map<GroupId, GroupDescriptor> groups;  // groups that this process has accepted
  };

  FormationNet(NetOptions options, const Layout& layout) : options_(std::move(options)), random_(options_.seed) {
    const auto ids = peer_ids(options_.peers);
    for (uint32_t i = 0; i < options_.peers; ++i) {
      auto node = std::make_unique<Node>();
      node->id = ids[i];
      node->view.hold(layout);
      for (const auto& id : ids) {
        const auto& clients = options_.clients;
        if (std::find(clients.begin(), clients.end(), id) == clients.end()) node->view.reachable.push_back(id);
      }
      node->coordinator = std::make_unique<GroupCoordinator>(CoordinatorOptions{.self = ids[i],
                                                                                .run = options_.run,
                                                                                .times = options_.times,
                                                                                .chunk_count = 64,
                                                                                .seed = mix64(options_.seed + i)},
                                                             node->view);
      node->seeker = std::make_unique<GroupSeeker>(SeekerOptions{.self = ids[i], .run = options_.run, .times = options_.times},
                                                   node->view);
      index_[ids[i]] = i;
      nodes_.push_back(std::move(node));
    }
  }

  Node& node(uint32_t i) { return *nodes_[i]; }
  Node& node(const PeerId& id) { return *nodes_[index_.at(id)]; }
  uint32_t index(const PeerId& id) const { return index_.at(id); }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  Nanos now() const { return now_; }
  uint64_t messages() const { return messages_; }

  void at(Nanos when, std::function<void()> act) { events_.push({when, number_++, std::move(act)}); }
  // Runs `act` on the process at time `when`, then sends the messages that its state machines have queued.
  void on(uint32_t i, Nanos when, std::function<void(Node&)> act) {
    at(when, [this, i, act = std::move(act)] {
      if (!node(i).alive) return;
      act(node(i));
      send_queued(i);
    });
  }
  void seek(uint32_t i, Nanos when, uint64_t step, uint32_t round, std::vector<PeerId> missing = {}) {
    on(i, when, [this, step, round, missing = std::move(missing)](Node& node) {
      node.outcome.reset();
      node.ended = never;
      auto request = seek_request(*node.view.layout_for(step), node.id, step, round);
      request.weighted = true;
      request.missing = missing;
      node.seeker->seek(request, now_);
    });
  }
  void kill(uint32_t i) { node(i).alive = false; }
  // Tells all processes at time `when` that the process `dead` has died.
  void announce_death(uint32_t dead, Nanos when) {
    for (uint32_t i = 0; i < size(); ++i) {
      on(i, when, [this, gone = node(dead).id](Node& node) {
        node.view.dead.insert(gone);
        node.coordinator->peer_gone(gone, now_);
        node.seeker->peer_gone(gone, now_);
      });
    }
  }
  // Called before each message is sent, with the number of the message.
  std::function<void(uint64_t)> before_send = [](uint64_t) {};
  std::function<void(uint32_t)> on_outcome = [](uint32_t) {};

  void run(Nanos until) {
    while (!events_.empty() && events_.top().at <= until) {
      const auto event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.at);
      event.act();
    }
    now_ = until;
  }

 private:
  struct Event {
    Nanos at;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(at, number) > std::pair(other.at, other.number); }
  };

  void send_queued(uint32_t i) {
    auto& node = *nodes_[i];
    for (auto& layout : node.coordinator->take_layouts()) node.view.hold(layout);
    for (const auto& step : {node.coordinator->take_opened(), node.seeker->take_opened()}) {
      if (step) node.view.opened = std::max(node.view.opened, *step + 1);
    }
    auto sends = node.coordinator->take_sends();
    for (auto& send : node.seeker->take_sends()) sends.push_back(std::move(send));
    for (const auto& send : sends) {
      deliver_later(i, send);
      if (!node.alive) return;
    }
    for (const auto& event : node.seeker->take_declines()) node.declines.push_back(event);
    if (auto outcome = node.seeker->take_outcome()) {
      node.outcome = std::move(outcome);
      node.ended = now_;
      if (const auto* group = std::get_if<GroupDescriptor>(&*node.outcome)) {
        node.groups[group->id] = *group;
        if (options_.members_send_keep_alives) send_keep_alives(i, *group, 8);
      }
      on_outcome(i);
    }
    wake_later(i);
  }

  void wake_later(uint32_t i) {
    const auto& node = *nodes_[i];
    const auto deadline = std::min(node.coordinator->next_deadline(), node.seeker->next_deadline());
    if (deadline == never || deadline >= next_wake(i)) return;
    wakes_[i] = std::max(deadline, now_);
    on(i, wakes_[i], [this, i](Node& woken) {
      wakes_.erase(i);
      woken.coordinator->woke(now_);
      woken.seeker->woke(now_);
    });
  }
  Nanos next_wake(uint32_t i) const {
    const auto found = wakes_.find(i);
    return found == wakes_.end() ? never : found->second;
  }

  bool lost(uint32_t from, uint32_t to) { return from != to && random_.chance(options_.loss); }
  Nanos arrival(uint32_t from, uint32_t to) { return now_ + (from == to ? 0 : options_.delay(random_)); }

  void deliver_later(uint32_t from, const FormationSend& send) {
    before_send(messages_++);
    const auto found = index_.find(send.to);
    ASSERT_TRUE(found != index_.end()) << "sent to an unknown peer";
    if (!nodes_[from]->alive || lost(from, found->second)) return;
    on(found->second, arrival(from, found->second),
       [this, sender = nodes_[from]->id, bytes = encode(send.message)](Node& node) {
         const auto message = decode_formation(bytes);
         ASSERT_TRUE(message.ok()) << message.status().to_string();
         if (for_coordinator(*message)) {
           node.coordinator->message(sender, *message, now_);
         } else {
           node.seeker->message(sender, *message, now_);
         }
       });
  }

  // Sends `times` signs of life to each other member of the group, one every quarter of a stall_timeout.
  void send_keep_alives(uint32_t i, const GroupDescriptor& group, int times) {
    for (const auto& member : group.members) {
      const auto to = index_.at(member.id);
      if (to == i || lost(i, to)) continue;
      on(to, arrival(i, to), [this, id = group.id, from = nodes_[i]->id](Node& node) {
        if (!node.groups.contains(id)) node.seeker->unknown_group(id, from, now_);
      });
    }
    if (times > 1)
      on(i, now_ + options_.times.stall_timeout / 4, [this, i, group, times](Node&) { send_keep_alives(i, group, times - 1); });
  }

  NetOptions options_;
  Random random_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<PeerId, uint32_t> index_;
  std::map<uint32_t, Nanos> wakes_;
  std::priority_queue<Event> events_;
  uint64_t number_ = 0;
  uint64_t messages_ = 0;
  Nanos now_ = 0;
};

}  // namespace unisono::test
