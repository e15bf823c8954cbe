// The last few layouts that this process holds, at most one per version. Among layouts of the same version it keeps the one
// with the smaller digest. A pure value.
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
  // Returns false if the layout is not taken: it is held already, is older than all held ones, or loses to one of the same
  // version.
  bool add(std::shared_ptr<const Layout> layout);
  const Layout* find(uint64_t version, uint64_t digest) const;
  // The newest layout in effect for the averaging step, or null.
  const Layout* in_effect(uint64_t step) const;
  // Null if there is none.
  const std::shared_ptr<const Layout>& newest() const { return newest_; }
  // The peers of the newest layout, ordered by id.
  const std::vector<PeerId>& members() const { return members_; }
  bool has_member(const PeerId& id) const;

 private:
  std::vector<std::shared_ptr<const Layout>> layouts_;  // by version, ascending
  std::shared_ptr<const Layout> newest_;
  std::vector<PeerId> members_;
};

}  // namespace unisono
