// The objects behind the public handles Group and Work.
#pragma once

#include <map>
#include <memory>

#include "group/lifecycle/runtime.h"
#include "unisono/group.h"

namespace unisono {

namespace internal {

struct WorkState {
  std::shared_ptr<Runtime> runtime;  // null if the operation had ended when this object was made; `begun.ended` is set then
  Runtime::Begun begun;
  Nanos overdue = never;  // the operation's deadline plus Runtime::overdue_by
};

struct GroupState {
  std::shared_ptr<Runtime> runtime;
  GroupCore* core = nullptr;  // The engine owns it, and destroys it when the group begins to re-form.
  uint32_t number = 0;
  uint32_t epoch = 0;  // epoch of the roster from which this group was made
  // The value of Membership::formation() when this group was made. If that value is different now, `core` is dangling.
  uint32_t formation = 0;
  // The key is a hash of the ranks of a subgroup. The value is how many subgroups with these ranks were made.
  std::map<uint64_t, uint32_t> subgroups;
  Rank self = 0;
  uint32_t world = 1;
  Nanos timeout = 0;
  Codec codec{};
};

}  // namespace internal

}  // namespace unisono
