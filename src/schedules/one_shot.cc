#include "schedules/one_shot.h"

namespace unisono {

void append_one_shot(const Team& team, std::vector<Step>& steps) {
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::send, .peer = team.after(distance)});
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::recv_reduce, .peer = team.before(distance)});
}

}  // namespace unisono
