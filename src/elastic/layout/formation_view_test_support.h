// Support for tests of group formation: peers, layouts, and a FormationView that the test fills in.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "elastic/layout/formation_view.h"
#include "elastic/layout/record_holders.h"
#include "testing/peer_ids.h"

namespace unisono::test {

inline std::vector<PeerId> peer_ids(uint32_t count) {
  std::vector<PeerId> ids;
  for (uint32_t i = 0; i < count; ++i) ids.push_back(peer_id(i + 1));
  return ids;
}

inline Layout layout_of(const std::vector<PeerId>& peers, uint64_t version = 1, std::vector<uint32_t> dims = {},
                        uint64_t first_step = 0) {
  auto layout = make_layout({.run = "run", .version = version, .first_step = first_step, .dims = std::move(dims)}, peers);
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return *layout;
}

class FakeFormationView final : public FormationView {
 public:
  const Layout* find_layout(uint64_t version, uint64_t digest) const override {
    for (const auto& layout : layouts) {
      if (layout->version == version && layout->digest == digest) return layout.get();
    }
    return nullptr;
  }
  const Layout* layout_for(uint64_t step) const override {
    const Layout* best = nullptr;
    for (const auto& layout : layouts) {
      if (layout->first_step <= step && (best == nullptr || replaces(*layout, *best))) best = layout.get();
    }
    return best;
  }
  bool gone(const PeerId& peer) const override { return dead.contains(peer); }
  std::vector<PeerId> coordinators(std::string_view key, const SlotName&) const override {
    std::vector<PeerId> living;
    for (const auto& peer : reachable) {
      if (!dead.contains(peer)) living.push_back(peer);
    }
    return record_holders(key, living);
  }
  uint64_t steps_opened() const override { return opened; }

  void hold(const Layout& layout) {
    if (find_layout(layout.version, layout.digest) == nullptr) layouts.push_back(std::make_unique<Layout>(layout));
  }

  std::vector<std::unique_ptr<Layout>> layouts;
  std::vector<PeerId> reachable;
  std::set<PeerId> dead;
  uint64_t opened = 0;
};

}  // namespace unisono::test
