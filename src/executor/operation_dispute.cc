// How an operation ends when ranks make different calls, but their frames show only hashes of the arguments that differ. The
// ranks then tell each other the texts of their calls, so that each rank's error shows both values.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "executor/block_balance.h"
#include "executor/operation.h"

namespace unisono {

// A message between two ranks is not disputed: its sender may have ended, and would not answer.
bool Operation::differs_in_hash(const FrameHeader& header) const {
  const bool message = setup_.request.collective == Collective::send || setup_.request.collective == Collective::recv;
  return !message && !has_our_descriptor(header) && !differ_visibly({header.descriptor, header.amount}, descriptor_);
}

// If each pair of ranks has its own size, check_elements() compares the amounts.
bool Operation::has_our_descriptor(const FrameHeader& header) const {
  return header.descriptor == descriptor_.bits &&
         (sizes_per_pair(setup_.request.collective) || header.amount == descriptor_.amount);
}

void Operation::dispute(Status why) {
  if (done_ || disputed_) return;
  description_due_ = true;
  await_difference(std::move(why));
}

// Waits for another rank to say what differs. If none does, the operation ends with `why`.
void Operation::await_difference(Status why) {
  disputed_ = true;
  dispute_why_ = std::move(why);
  dispute_ends_ = std::min(now_ + dispute_time, std::max(started_ + setup_.request.timeout, now_ + inquiry_time));
}

// Called when this rank has all its data. Every rank has been heard then. If the shares of an all-to-all show that two ranks
// disagree on a block, waits for the receiver of the block, which tells all ranks both sizes.
void Operation::all_lanes_finished() {
  if (setup_.request.collective != Collective::all_to_all || share_of_sum(balance_) == 0) return finish({});
  await_difference({Code::invalid, concat(label(),
                                          ": calls differ: two ranks disagree on the size of a block that one sends to "
                                          "the other, and have not said on which")});
}

void Operation::on_call_text(Rank from, const std::string& text, Nanos now) {
  if (done_ || from >= setup_.world) return;
  now_ = now;
  const auto ours = call_text();
  dispute({Code::invalid, concat(label(), ": calls differ: rank ", from, " makes the same call as rank ", setup_.self,
                                 ", but another rank does not, and has not said what it calls")});
  if (text == ours) return;
  fail_here({Code::invalid, concat(label(), ": ",
                                   call_difference({.rank = from, .location = port_->location(from), .text = text},
                                                   {.rank = setup_.self, .text = ours}))});
}

}  // namespace unisono
