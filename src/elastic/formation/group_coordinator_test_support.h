// Support for tests of the coordinator: one coordinator, peers that register with it, and its answers by kind.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/group_seeker.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono::test {

constexpr Nanos desk_start = 1000 * second;

// Four peers in one line (or a grid of 2x2), and four that are not in the layout.
struct Desk {
  explicit Desk(std::vector<uint32_t> dims = {4}, uint32_t max_group = 4)
      : ids(peer_ids(8)),
        layout(layout_of({ids.begin(), ids.begin() + 4}, 1, std::move(dims))),
        coordinator(
            {.self = ids[7], .run = "run", .times = times, .max_group = max_group, .chunk_count = 60, .schema = 5, .seed = 3},
            view) {
    view.hold(layout);
    view.reachable = ids;
  }

  formation::Register request(uint32_t i, uint64_t step = 0, uint32_t round = 0) const {
    const auto place = seek_request(layout, ids[i], step, round);
    return {.slot = place.slot,
            .cell = place.cell,
            .position = place.position,
            .weighted = true,
            .pre = false,
            .in_layout = place.in_layout,
            .role = ElasticRole::peer,
            .bandwidth = 100,
            .schema = 5,
            .attempt = 1,
            .missing = {}};
  }
  void say(uint32_t i, const FormationMessage& message) { coordinator.message(ids[i], message, now); }
  void enter(uint32_t i, uint64_t step = 0, std::vector<PeerId> missing = {}) {
    auto one = request(i, step);
    one.missing = std::move(missing);
    say(i, one);
  }
  void announce(uint32_t i, uint64_t step = 0) {
    auto one = request(i, step);
    one.pre = true;
    one.attempt = 0;
    say(i, one);
  }
  // Lets time pass, and wakes the coordinator at each of its deadlines.
  void pass(Nanos time) {
    const auto until = now + time;
    while (coordinator.next_deadline() <= until) {
      now = std::max(now, coordinator.next_deadline());
      coordinator.woke(now);
    }
    now = until;
  }
  // Answers of that kind since the last call, with their receivers; all other answers are dropped.
  template <typename Body>
  std::vector<std::pair<PeerId, Body>> got() {
    std::vector<std::pair<PeerId, Body>> answers;
    for (auto& send : coordinator.take_sends()) {
      if (auto* body = std::get_if<Body>(&send.message)) answers.emplace_back(send.to, std::move(*body));
    }
    return answers;
  }
  // The group formed since the last call. Checks that exactly its members got the descriptor.
  GroupDescriptor formed() {
    const auto answers = got<formation::Descriptor>();
    EXPECT_FALSE(answers.empty()) << "no group was formed";
    if (answers.empty()) return {};
    const auto& group = answers[0].second.group;
    EXPECT_EQ(answers.size(), group.members.size());
    for (const auto& [to, answer] : answers) {
      EXPECT_EQ(answer.group, group);
      EXPECT_LT(group.rank_of(to), group.members.size());
    }
    return group;
  }

  ElasticTimes times;
  std::vector<PeerId> ids;
  Layout layout;
  ViewOfTest view;
  GroupCoordinator coordinator;
  Nanos now = desk_start;
};

}  // namespace unisono::test
