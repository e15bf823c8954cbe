// The thread that compresses a step's buckets and runs their all-reduces: sketches of later buckets are on their way while the
// rows of earlier ones are. Rows go out in the order of the buckets, few buckets at a time, so that the first ones are done
// while the last ones travel.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "training/reducer/error_feedback.h"
#include "unisono/group.h"
#include "unisono/training.h"

namespace unisono {

// Two numbers per rank travel beside the sketches: the sums of squares of what it had kept, and now and then of its gradients.
constexpr uint32_t notes_per_rank = 2;
// Buckets that have a sketch, and no average yet, at most. Each needs memory of its own.
constexpr uint64_t open_buckets = 4;

struct Bucket {
  uint32_t number = 0;            // in its step, from 0
  std::vector<uint32_t> tensors;  // their numbers
  uint64_t digest = 0;            // of all that ranks must have in common about it
  std::unique_ptr<ErrorFeedback> feedback;
  bool off = false;  // never compressed, because it would not pay
  // State of the present step. It belongs to the pipeline from submit() until finish() returns.
  Sending sending = Sending::compressed;
  std::vector<float*> gradients;
  std::vector<float> notes;  // this rank's notes, then their averages; empty if no call carried them
  Status status;             // of its all-reduces
  bool finite = true;        // on all ranks
  CompressionCosts costs;
};

class ReductionPipeline {
 public:
  struct Calls {
    CallOptions sketch, values;  // how the two all-reduces are made
  };
  // Works in a group that nobody else uses.
  ReductionPipeline(Group group, const Calls& calls);
  // Waits for what is in flight.
  ~ReductionPipeline();
  ReductionPipeline(const ReductionPipeline&) = delete;
  ReductionPipeline& operator=(const ReductionPipeline&) = delete;

  // round: a new number for each attempt of a step.
  void begin_step(uint64_t step, uint64_t round);
  // The caller's thread sends an uncompressed bucket at once, so a reducer that does not compress costs as much as an
  // all-reduce. std::bad_alloc: the bucket has not been submitted. A bucket that runs out of memory later fails with
  // unavailable.
  void submit(Bucket& bucket);
  // Waits until all buckets are through, or have failed.
  void finish();

  Group& group() { return group_; }

 private:
  enum class Phase : uint8_t { queued, sketched, sent, over };
  struct Flight {
    Bucket* bucket = nullptr;
    Phase phase = Phase::queued;
    Work work{};
    const char* if_different = "config_mismatch: ";  // what it means if the ranks' calls differ
  };
  void work();
  bool take_new();
  bool send_next();
  bool sketch_next();
  bool unpack_one();
  void wait_a_little();
  void sketch(Flight& flight);
  void send(Flight& flight);
  void unpack(Flight& flight);
  void account(Flight& flight, int64_t& us);
  CallOptions call(const CallOptions& base, const Bucket& bucket, uint64_t which, uint64_t agreement) const;

  Group group_;
  const Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Flight> queue_;  // submitted, not yet taken
  size_t unfinished_ = 0;
  bool stop_ = false;
  bool complete_ = true;     // no bucket will follow before finish() has returned
  std::list<Flight> plain_;  // of the present step, sent as they are; the caller's
  uint64_t step_ = 0, round_ = 0;
  std::list<Flight>
      flights_;  // of the present step, in order; the thread's own. Taken over from the queue as they are: that needs no memory
  std::thread thread_;
};

}  // namespace unisono
