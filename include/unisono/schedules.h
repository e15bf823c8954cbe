// The collectives, and the table of schedules with their numbers, names and properties. Row k describes the schedule with
// number k.
//
// All other lists of schedules are derived from this table. tools/check_source refuses a second list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unisono {

enum class Collective : uint8_t {
  all_reduce = 0,
  reduce_scatter = 1,
  all_gather = 2,
  broadcast = 3,
  reduce = 4,
  gather = 5,
  scatter = 6,
  all_to_all = 7,
  barrier = 8,
  send = 9,
  recv = 10
};
inline constexpr size_t collective_count = 11;

// The numbers are part of messages and records, so a number is never used again for another schedule.
enum class ScheduleKind : uint8_t {
  automatic = 0,
  ring = 1,
  two_step = 2,
  halving_doubling = 3,
  hierarchical = 4,
  one_shot = 5,
  direct = 6,
  tree = 7,
  double_tree = 8,
};

struct ScheduleFacts {
  ScheduleKind kind = ScheduleKind::automatic;
  const char* name = "";
  uint16_t collectives = 0;  // if bit c is set, the schedule supports the collective with number c
  uint8_t preference = 0;    // if schedules are equally fast, the one with the smallest value is chosen
  // With at most this many ranks, each message of the schedule holds the values of one rank only. The schedule can then add
  // values in rank order.
  uint32_t direct_world_max = 0;
  bool inside = false;   // true: a hierarchical schedule can use it inside host groups
  bool between = false;  // true: a hierarchical schedule can use it between host groups
  // true: it is useful only if there are several host groups, and one of them has several ranks
  bool needs_host_groups = false;
  bool is_pipelined = false;  // true: every round forwards the same chunks, so smaller slices fill the pipeline sooner

  constexpr bool serves(Collective collective) const { return (collectives >> static_cast<unsigned>(collective) & 1) != 0; }
  constexpr bool is_direct(uint32_t world) const { return world <= direct_world_max; }
};

namespace schedule_bits {

template <typename... Collectives>
constexpr uint16_t of(Collectives... collectives) {
  return static_cast<uint16_t>(((1u << static_cast<unsigned>(collectives)) | ...));
}
inline constexpr auto all_reduce = of(Collective::all_reduce), barrier = of(Collective::barrier),
                      halves = of(Collective::reduce_scatter, Collective::all_gather),
                      rooted = of(Collective::broadcast, Collective::reduce),
                      blocks = of(Collective::gather, Collective::scatter), all_to_all = of(Collective::all_to_all);

}  // namespace schedule_bits

inline constexpr auto schedule_table = [] {
  using namespace schedule_bits;
  using enum ScheduleKind;
  constexpr uint32_t always = UINT32_MAX;
  return std::to_array<ScheduleFacts>({
      {.kind = automatic, .name = "automatic"},
      {.kind = ring,
       .name = "ring",
       .collectives = all_reduce | halves | rooted,
       .preference = 6,
       .direct_world_max = 2,
       .inside = true,
       .between = true},
      {.kind = two_step,
       .name = "two_step",
       .collectives = all_reduce | rooted,
       .preference = 3,
       .direct_world_max = always,
       .inside = true,
       .between = true},
      {.kind = halving_doubling,
       .name = "halving_doubling",
       .collectives = all_reduce | halves | rooted | barrier,
       .preference = 5,
       .direct_world_max = 2,
       .inside = true,
       .between = true},
      {.kind = hierarchical, .name = "hierarchical", .collectives = all_reduce, .preference = 7, .needs_host_groups = true},
      {.kind = one_shot,
       .name = "one_shot",
       .collectives = all_reduce | barrier,
       .preference = 1,
       .direct_world_max = always,
       .between = true},
      {.kind = direct,
       .name = "direct",
       .collectives = halves | rooted | blocks | all_to_all,
       .preference = 2,
       .direct_world_max = always,
       .inside = true},
      {.kind = tree, .name = "tree", .collectives = rooted | blocks, .preference = 4, .direct_world_max = 2, .inside = true},
      {.kind = double_tree,
       .name = "double_tree",
       .collectives = all_reduce,
       .preference = 8,
       .direct_world_max = 3,
       .is_pipelined = true},
  });
}();
inline constexpr size_t schedule_count = schedule_table.size();

static_assert(
    [] {
      for (size_t i = 0; i < schedule_count; ++i) {
        if (static_cast<size_t>(schedule_table[i].kind) != i) return false;
      }
      return true;
    }(),
    "rows must be ordered by number");

constexpr bool is_schedule(size_t number) { return number < schedule_count; }
// kind must be a valid schedule number.
constexpr const ScheduleFacts& facts_of(ScheduleKind kind) { return schedule_table[static_cast<size_t>(kind)]; }

// The names, indexed by schedule number. schedule_names are for C++ and Python ("automatic"), schedule_words for the command
// line ("auto").
inline constexpr auto schedule_names = [] {
  std::array<const char*, schedule_count> names{};
  for (size_t i = 0; i < schedule_count; ++i) names[i] = schedule_table[i].name;
  return names;
}();
inline constexpr auto schedule_words = [] {
  auto words = schedule_names;
  words[0] = "auto";
  return words;
}();

// Finds a schedule by its name or its word. Returns null if no schedule is called that.
constexpr const ScheduleFacts* find_schedule(std::string_view name) {
  for (size_t i = 0; i < schedule_count; ++i) {
    if (name == schedule_names[i] || name == schedule_words[i]) return &schedule_table[i];
  }
  return nullptr;
}

}  // namespace unisono
