// Holds the newest layouts, at most layouts_held_max of them. If several layouts have the same version, it holds the one with
// the smallest digest. A value.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "elastic/layout/layout.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr size_t layouts_held_max = 4;

class LayoutBook {
 public:
  // Adds the layout. Returns false and adds nothing in three cases:
  // - this layout is held already
  // - a layout with the same version and a smaller digest is held
  // - layouts_held_max newer layouts are held
  bool add(std::shared_ptr<const Layout> layout);
  const Layout* find(uint64_t version, uint64_t digest) const;
  // Returns the newest layout with first_step <= step, or null if there is none.
  const Layout* in_effect(uint64_t step) const;
  // Returns the newest layout, or null if no layout is held.
  const std::shared_ptr<const Layout>& newest() const { return newest_; }
  // Returns the peers of the newest layout, ordered by id.
  const std::vector<PeerId>& members() const { return members_; }
  bool has_member(const PeerId& id) const;

 private:
  std::vector<std::shared_ptr<const Layout>> layouts_;  // ordered by ascending version
  std::shared_ptr<const Layout> newest_;
  std::vector<PeerId> members_;
};

}  // namespace unisono
