// How an operation ends when ranks make different calls, but their frames show only hashes of the arguments that differ. The
// ranks then tell each other the texts of their calls, so that each rank's error shows both values.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "executor/operation.h"

namespace unisono {

// A message between two ranks is not disputed: its sender may have ended, and would not answer.
bool Operation::differs_in_hash(const FrameHeader& header) const {
  const CallDescriptor theirs{header.descriptor, header.amount};
  const bool message = setup_.request.collective == Collective::send || setup_.request.collective == Collective::recv;
  const bool equal = theirs.bits == descriptor_.bits && (descriptor_.amount == 0 || theirs.amount == descriptor_.amount);
  return !message && !equal &&
         !differ_visibly(theirs, {descriptor_.bits, descriptor_.amount == 0 ? theirs.amount : descriptor_.amount});
}

void Operation::dispute(Status why) {
  if (done_ || disputed_) return;
  disputed_ = description_due_ = true;
  dispute_why_ = std::move(why);
  dispute_ends_ = std::min(now_ + dispute_time, std::max(started_ + setup_.request.timeout, now_ + inquiry_time));
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
