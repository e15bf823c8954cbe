// A thread that compresses the buckets of a step and runs their all-reduces. While the rows of earlier buckets are in flight,
// the sketches of later ones can be in flight, too. Rows are sent in the order of the buckets, a few buckets at a time, so that
// the first buckets finish early.
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

// Each rank sends this many numbers along with the sketches: the sum of squares of its residuals and, in some steps, the sum of
// squares of its gradients.
constexpr uint32_t side_values_per_rank = 2;
// At most this many buckets have a sketch but no average yet. Each of them needs working memory.
constexpr uint64_t open_buckets_max = 4;

struct Bucket {
  uint32_t number = 0;            // index of this bucket in its step
  std::vector<uint32_t> tensors;  // numbers of the bucket's tensors
  uint64_t digest = 0;            // a hash of all properties that must be equal on all ranks
  std::unique_ptr<ErrorFeedback> feedback;
  bool off = false;  // True if this bucket is never compressed, because a prediction says that compression does not pay.
  // The state in the current step. It belongs to the pipeline from submit() on, until finish() returns.
  Sending sending = Sending::compressed;
  std::vector<float*> gradients;
  // This rank's numbers that are sent along with the sketch. Their averages replace them later. The vector is empty if no
  // all-reduce carried them.
  std::vector<float> side_values;
  Status status;       // the error of the bucket's all-reduces, or ok
  bool finite = true;  // True if all values of all ranks are finite.
  CompressionCosts costs;
};

class ReductionPipeline {
 public:
  struct Calls {
    CallOptions sketch, values;  // options of the two all-reduces
  };
  // The group must have no other user.
  ReductionPipeline(Group group, const Calls& calls);
  // Waits until all all-reduces have ended.
  ~ReductionPipeline();
  ReductionPipeline(const ReductionPipeline&) = delete;
  ReductionPipeline& operator=(const ReductionPipeline&) = delete;

  // `round` must be different for each attempt to make a step.
  void begin_step(uint64_t step, uint64_t round);
  // If a bucket has Sending::plain, the thread of the caller sends it at once. Therefore a step without compression costs no
  // more than its all-reduces. Throws std::bad_alloc if the bucket cannot be submitted. If memory runs out later, the bucket
  // fails with Code::unavailable.
  void submit(Bucket& bucket);
  // Waits until each bucket is finished or has failed.
  void finish();

  Group& group() { return group_; }

 private:
  enum class Phase : uint8_t { queued, sketched, sent, done };
  struct Flight {
    Bucket* bucket = nullptr;
    Phase phase = Phase::queued;
    Work work{};
    // If the ranks made different calls, the text of the error begins with this.
    const char* mismatch_prefix = "config_mismatch: ";
  };
  void run();
  bool take_submitted();
  bool send_next();
  bool sketch_next();
  bool unpack_one();
  void wait_for_progress();
  void sketch(Flight& flight);
  void send(Flight& flight);
  void unpack(Flight& flight);
  void account(Flight& flight, int64_t& us);
  CallOptions call(const CallOptions& base, const Bucket& bucket, uint64_t which, uint64_t agreement) const;

  Group group_;
  const Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Flight> queue_;  // submitted buckets that the thread has not taken yet
  size_t unfinished_ = 0;
  bool stop_ = false;
  bool complete_ = true;  // True if no bucket will be submitted before finish() returns.
  // The buckets of the current step that have Sending::plain. Only the thread of the caller uses this list.
  std::list<Flight> plain_;
  uint64_t step_ = 0, round_ = 0;
  // All other buckets of the current step, in order. Only the pipeline's thread uses this list. It moves list nodes from
  // queue_ to this list, which needs no memory.
  std::list<Flight> flights_;
  std::thread thread_;
};

}  // namespace unisono
