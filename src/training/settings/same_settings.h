// Checks that all ranks have the same settings: options, parameters, or the step of a checkpoint. If they differ, every rank
// gets an error that names another rank and both values.
//
// Ranks first exchange hashes, and the values only if a hash differs. CallOptions::agreement compares hashes, too, but cannot
// show the values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "unisono/group.h"

namespace unisono::internal {

struct Setting {
  std::string name;                 // for example "options of compression"
  std::vector<std::string> values;  // for example {"arc_top_k:seed=5"}, or a value for each parameter; without zero bytes
};

// Call it on all ranks, with settings of the same number and order. Returns invalid if a setting differs, for example
// "config_mismatch: options of compression differ: rank 1 (host b, pid 42) has arc_top_k:seed=6, rank 0 has arc_top_k:seed=5;
// give all ranks the same". Of several values, it names the first that differs. Other errors are those of Group::all_gather().
Status check_same_settings(Group& group, std::span<const Setting> settings, Milliseconds timeout = Milliseconds(0));

}  // namespace unisono::internal
