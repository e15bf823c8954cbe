// The buffers of one rank, and the call that `unisono bench` measures on them. Only the public API is used.
//
// The group must outlive the Subject, and its ranks must stay the same. After the group has been re-formed, a new Subject is
// needed.
#pragma once

#include <cstddef>
#include <memory>

#include "cli/bench/bench_accuracy.h"
#include "cli/bench/bench_data.h"
#include "unisono/group.h"

namespace unisono::cli {

struct SubjectOptions {
  DataPlan data;  // data.world_size must be the number of ranks in the group
  CallOptions call;
  Extent extent;
  bool in_place = false;
};

class Subject {
 public:
  Subject(Group& group, const SubjectOptions& options)
      : group_(group), data_(options.data), call_(options.call), extent_(options.extent), in_place_(options.in_place) {}

  // Returns Code::unavailable if there is not enough memory.
  Status allocate();
  // Writes the inputs. Call this again before each checked call, because a call in place overwrites its input.
  void fill();
  Result<Report> call() { return call(call_); }
  // Makes the call in such a way that nothing is lost. A lossy call then has no deadline, and repairs every lost packet,
  // however long this takes.
  Result<Report> call_complete();
  // Returns how many elements of this rank's result are wrong. Call it after fill() and one call.
  uint64_t wrong() const;
  // Returns how accurate this rank's result is if the elements are encoded. Call it after fill() and one call.
  Accuracy accuracy() const;

 private:
  struct Shape {
    size_t input = 0;  // number of elements
    size_t output = 0;
  };
  Shape shape() const;
  size_t block_bytes() const { return extent_.block_count * element_bytes(data_.dtype); }
  bool is_root() const { return group_.rank() == data_.root; }
  Tensor tensor(std::byte* bytes, size_t count) const { return {bytes, count, data_.dtype}; }
  Result<Report> call(const CallOptions& options);
  Result<Report> exchange();
  const std::byte* result() const;

  Group& group_;
  const DataPlan data_;
  const CallOptions call_;
  Extent extent_;
  bool in_place_;
  std::unique_ptr<std::byte[]> input_;
  std::unique_ptr<std::byte[]> output_;  // null for calls in place
};

}  // namespace unisono::cli
