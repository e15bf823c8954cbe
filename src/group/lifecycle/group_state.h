// The objects that the public handles point at.
#pragma once

#include <map>
#include <memory>

#include "group/lifecycle/runtime.h"
#include "unisono/group.h"

namespace unisono {

namespace internal {

struct WorkState {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Completion> completion;
  Nanos overdue = never;  // a little after the operation's own deadline
};

struct GroupState {
  std::shared_ptr<Runtime> runtime;
  GroupCore* core = nullptr;  // owned by the engine, which forgets it when re-forming begins
  uint32_t number = 0;
  uint32_t epoch = 0;                      // of the roster it was made under
  uint32_t formation = 0;                  // of the membership; when that has gone on, core is gone
  std::map<uint64_t, uint32_t> subgroups;  // by hash of their ranks: how many were made, part of their numbers
  Rank self = 0;
  uint32_t world = 1;
  Nanos timeout = 0;
  Codec codec{};
};

}  // namespace internal

}  // namespace unisono
