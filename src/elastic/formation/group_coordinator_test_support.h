// Test support: one coordinator, peers that register with it, and the coordinator's answers sorted by kind.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/group_seeker.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono::test {

constexpr Nanos fixture_start = 1000 * second;

// A coordinator with four peers of the layout (one line, or a 2×2 grid) and four peers outside the layout.
struct CoordinatorFixture {
  explicit CoordinatorFixture(std::vector<uint32_t> dims = {4}, uint32_t max_group = 4)
      : ids(peer_ids(8)),
        layout(layout_of({ids.begin(), ids.begin() + 4}, 1, std::move(dims))),
        coordinator(
            {.self = ids[7], .run = "run", .times = times, .max_group = max_group, .chunk_count = 60, .schema = 5, .seed = 3},
            view) {
    view.hold(layout);
    view.reachable = ids;
  }

  formation::Register request(uint32_t i, uint64_t step = 0, uint32_t round = 0) const {
    const auto seek = seek_request(layout, ids[i], step, round);
    return {.slot = seek.slot,
            .cell = seek.cell,
            .position = seek.position,
            .weighted = true,
            .pre = false,
            .in_layout = seek.in_layout,
            .role = ElasticRole::peer,
            .bandwidth = 100,
            .schema = 5,
            .attempt = 1,
            .missing = {}};
  }
  void deliver(uint32_t i, const FormationMessage& message) { coordinator.message(ids[i], message, now); }
  void register_peer(uint32_t i, uint64_t step = 0, std::vector<PeerId> missing = {}) {
    auto one = request(i, step);
    one.missing = std::move(missing);
    deliver(i, one);
  }
  void pre_register(uint32_t i, uint64_t step = 0) {
    auto one = request(i, step);
    one.pre = true;
    one.attempt = 0;
    deliver(i, one);
  }
  // Advances the time by `time`, and calls woke() at each deadline of the coordinator.
  void advance(Nanos time) {
    const auto until = now + time;
    while (coordinator.next_deadline() <= until) {
      now = std::max(now, coordinator.next_deadline());
      coordinator.woke(now);
    }
    now = until;
  }
  // Returns the answers of type Body since the last call, each with its receiver. Drops the answers of other types.
  template <typename Body>
  std::vector<std::pair<PeerId, Body>> take_answers() {
    std::vector<std::pair<PeerId, Body>> answers;
    for (auto& send : coordinator.take_sends()) {
      if (auto* body = std::get_if<Body>(&send.message)) answers.emplace_back(send.to, std::move(*body));
    }
    return answers;
  }
  // Returns the group formed since the last call. Checks that exactly the group's members got its descriptor.
  GroupDescriptor formed() {
    const auto answers = take_answers<formation::Descriptor>();
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
  FakeFormationView view;
  GroupCoordinator coordinator;
  Nanos now = fixture_start;
};

}  // namespace unisono::test
