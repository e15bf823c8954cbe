// Finds out whether another rank runs on the core of this one. A thread that polls then has to call sched_yield(), or what it
// waits for cannot come.
//
// Ranks may share a core although there are enough cores: the kernel puts a process where it sees fit, and leaves it there
// while both ranks run for short times only. Each rank then polls in vain until it sleeps, in every call anew. Therefore a
// thread that has polled in vain for some time yields. If what it waits for comes then, later calls yield much sooner.
// A thread does not yield at once in all calls, because another program on the core may take it for milliseconds.
#pragma once

namespace unisono {

class CoreSharing {
 public:
  // This many calls in a row must end without a yield before the core is believed to be this rank's own. While two ranks take
  // turns on a core, every other call ends without one, because the peer has sent its frames for two calls.
  static constexpr int calls_alone = 8;

  bool is_likely() const { return likely_; }
  // Call it when a call ends while its thread polls. after_yield: the thread yielded just before.
  void call_ended(bool after_yield) {
    alone_ = after_yield ? 0 : alone_ + 1;
    if (after_yield) likely_ = true;
    else if (alone_ >= calls_alone) likely_ = false;
  }

 private:
  bool likely_ = false;
  int alone_ = 0;
};

}  // namespace unisono
