#include "elastic/layout/layout_book.h"

#include <algorithm>

namespace unisono {

bool LayoutBook::add(std::shared_ptr<const Layout> layout) {
  const auto at =
      std::find_if(layouts_.begin(), layouts_.end(), [&](const auto& held) { return held->version >= layout->version; });
  if (at != layouts_.end() && (*at)->version == layout->version) {
    if (!replaces(*layout, **at)) return false;
    *at = layout;
  } else {
    if (at == layouts_.begin() && layouts_.size() >= layouts_held_max) return false;
    layouts_.insert(at, layout);
    if (layouts_.size() > layouts_held_max) layouts_.erase(layouts_.begin());
  }
  if (newest_ != layouts_.back()) {
    newest_ = layouts_.back();
    members_ = newest_->peers;
    std::sort(members_.begin(), members_.end());
  }
  return true;
}

const Layout* LayoutBook::find(uint64_t version, uint64_t digest) const {
  for (const auto& layout : layouts_) {
    if (layout->version == version && layout->digest == digest) return layout.get();
  }
  return nullptr;
}

const Layout* LayoutBook::in_effect(uint64_t step) const {
  const auto found =
      std::find_if(layouts_.rbegin(), layouts_.rend(), [&](const auto& layout) { return layout->first_step <= step; });
  return found == layouts_.rend() ? nullptr : found->get();
}

bool LayoutBook::has_member(const PeerId& id) const { return std::binary_search(members_.begin(), members_.end(), id); }

}  // namespace unisono
